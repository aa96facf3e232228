"""The executable `rdma`: CNI's commands."""

from rdma_cni.cni import __version__, system
from rdma_cni.cni.plugin import Plugin, run
from rdma_cni.cni.request import Request
from rdma_cni.cni.undo import Undo


class RdmaPlugin(Plugin):
    """A command imports what it needs: VERSION is asked often and needs nothing."""

    name = "rdma"
    about = f"rdma {__version__}: a CNI plugin that gives a pod the RDMA device of its VF"

    def add(self, request: Request, undo: Undo) -> dict[str, object]:
        from rdma_cni import attach

        return attach.add(request, undo, _own_allowed())

    def delete(self, request: Request) -> None:
        from rdma_cni import detach

        detach.delete(request, _own_allowed())

    def check(self, request: Request) -> None:
        from rdma_cni import check

        check.check(request, _own_allowed())

    def gc(self, request: Request) -> None:
        from rdma_cni import detach

        detach.gc(request)

    def status(self, request: Request) -> None:
        from rdma_cni import check

        check.status(request)


def _own_allowed() -> bool:
    """CNI_NETNS_OVERRIDE: the caller means it when it names the plugin's own namespace."""
    return system.environ.get("CNI_NETNS_OVERRIDE", "").lower() not in ("", "0", "false")


def main() -> int:
    return run(RdmaPlugin())
