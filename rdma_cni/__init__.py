"""The CNI plugin that gives a pod the RDMA device of its VF."""

__version__ = "0.1.0"
