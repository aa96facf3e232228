"""The CNI protocol, and nothing about RDMA: https://www.cni.dev/docs/spec/."""
