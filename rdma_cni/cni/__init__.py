"""The CNI protocol, and nothing about RDMA: https://www.cni.dev/docs/spec/."""

__version__ = "0.1.0"
"""Of the bundle: the protocol is what all of its programs share."""

DIRECTORY = "/run/rdma-cni"
"""Where the state lies, private to root."""
