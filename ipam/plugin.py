"""The executable `node-subnet`."""

from rdma_cni import __version__
from rdma_cni.cni.errors import NOT_AVAILABLE, CniError
from rdma_cni.cni.plugin import Plugin, run
from rdma_cni.cni.request import Request


class NodeSubnetPlugin(Plugin):
    """Speaks the protocol; allocation is not part of this version."""

    name = "node-subnet"
    about = f"node-subnet {__version__}: a CNI IPAM plugin (not yet able to allocate)"

    def status(self, request: Request) -> None:
        raise CniError(NOT_AVAILABLE, "node-subnet cannot allocate addresses in this version: use another IPAM plugin")


def main() -> int:
    return run(NodeSubnetPlugin())
