"""Chooses the program by the name it was called by, as a multi-call binary does.

Each program's modules are imported only when it is the one that was called: a CNI plugin is a
new process for each interface of each pod, and what it imports is most of what it costs.
"""

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def program(argv: list[str]) -> "NoReturn":
    """Run the program that `argv[0]` names, and end the process."""
    status = main(argv)
    for stream in (sys.stdout, sys.stderr):
        # None, when it was closed from the start.
        if stream:
            try:
                stream.flush()
            except OSError:
                status = status or 1
    # Taking the interpreter down in good order takes a sixth of its start, and nothing is left to do.
    posix._exit(status)  # noqa: SLF001


def main(argv: list[str]) -> int:
    """Run the program that `argv[0]` names; returns the exit status."""
    name = argv[0].rpartition("/")[2] if argv else "rdma"
    if name == "rdma-cni":
        from rdma_cni.cli.main import main as operator_main

        return operator_main(argv[1:])
    if name == "node-subnet":
        from ipam.plugin import main as node_subnet_main

        return node_subnet_main()
    from rdma_cni.plugin import main as rdma_main

    return rdma_main()
