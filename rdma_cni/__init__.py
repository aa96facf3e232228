"""The CNI plugin that gives a pod the RDMA device of its VF."""
