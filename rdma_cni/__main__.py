"""Runs from the tree what the bundle has in frozen/start.py: `python -m rdma_cni`."""

import sys

from rdma_cni.main import program

if __name__ == "__main__":
    program(sys.argv)
