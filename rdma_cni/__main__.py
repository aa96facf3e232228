"""The one program behind the bundle's names: `rdma`, `node-subnet` and `rdma-cni`."""

import sys

from rdma_cni.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
