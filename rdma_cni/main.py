"""Chooses the program by the name it was called by, as a multi-call binary does.

Each program's modules are imported only when it is the one that was called: a CNI plugin is a
new process for each interface of each pod, and what it imports is most of what it costs.
"""

import os


def main(argv: list[str]) -> int:
    """Run the program that `argv[0]` names; returns the exit status."""
    _occupy_standard_streams()
    name = argv[0].rpartition("/")[2] if argv else "rdma"
    if name == "rdma-cni":
        from rdma_cni.cli.main import main as operator_main

        return operator_main(argv[1:])
    if name == "node-subnet":
        from ipam.plugin import main as node_subnet_main

        return node_subnet_main()
    from rdma_cni.plugin import main as rdma_main

    return rdma_main()


def _occupy_standard_streams() -> None:
    """Make sure that no file this process opens becomes its stdin, stdout or stderr.

    Called with a closed stdout, the state database could otherwise get descriptor 1, and the
    result be written into it. Stdin and stdout are replaced by what fails when used.
    """
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", mode)
