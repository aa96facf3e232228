"""The entry of `rdma-cni`."""

import sys

from rdma_cni.cni import __version__
from rdma_cni.cni.request import VERSIONS

_USAGE = f"""\
usage: rdma-cni [--help | --version]

The bundle of the CNI plugin `rdma`, {__version__}.

  --help      print this text
  --version   print the version, and the CNI versions that `rdma` speaks
"""


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0, or 2 for arguments that it does not know."""
    match arguments:
        case ["--help" | "-h"]:
            sys.stdout.write(_USAGE)
            return 0
        case ["--version"]:
            sys.stdout.write(f"rdma-cni {__version__}, CNI {', '.join(VERSIONS)}\n")
            return 0
    found = f"found {arguments[0]!r}" if arguments else "found no argument"
    sys.stderr.write(f"rdma-cni: {found}, expected --help or --version\n{_USAGE}")
    return 2
