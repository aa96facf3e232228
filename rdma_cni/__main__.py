"""The one program behind the bundle's names: `rdma`, `node-subnet` and `rdma-cni`."""

import posix
import sys

from rdma_cni.main import main

if __name__ == "__main__":
    # Frozen, it is told the name that it was called by as its first argument (frozen/launcher.c).
    status = main(sys.argv[1:] if getattr(sys, "frozen", False) else sys.argv)
    for stream in (sys.stdout, sys.stderr):
        # None, when it was closed from the start.
        if stream:
            try:
                stream.flush()
            except OSError:
                status = status or 1
    # Taking the interpreter down in good order takes a sixth of its start, and nothing is left to do.
    posix._exit(status)  # noqa: SLF001
