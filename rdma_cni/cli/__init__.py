"""The operator's command, `rdma-cni`."""
