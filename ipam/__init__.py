"""node-subnet: a CNI IPAM plugin that gives each node its own part of a pool."""
