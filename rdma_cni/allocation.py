"""Where addresses come from: the IPAM plugin that the configuration names.

`node-subnet` is of this bundle and called as a module, which saves a process; every other one is
run as the CNI spec says, by `delegate`, which is imported only then.
"""

import _thread

from rdma_cni.cni import log
from rdma_cni.cni.errors import INVALID_CONFIG, NOT_AVAILABLE, CniError
from rdma_cni.cni.request import Request
from rdma_cni.cni.undo import Undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from ipam.plugin import NodeSubnetPlugin
    from rdma_cni.models import NetConf

_OWN = "node-subnet"


class Ipam:
    """An IPAM plugin, for one request. Its errors come out as CniError.

    `unique`: its addresses are nobody else's by construction, and need not be asked for on the link.
    """

    def __init__(self, request: Request, name: str) -> None:
        self.name = name
        self.unique = name == _OWN
        self._request = request

    def require(self) -> None:
        """Raises CniError 104 when there is no such plugin."""
        if not self.unique:
            _delegate().find(self._request, self.name)

    def prepare(self) -> None:
        """Load what `add` or `delete` will need while the caller waits for the kernel."""
        if self.unique:
            # The process has another thread for as long as that takes; it enters no namespace.
            _thread.start_new_thread(_load, ())

    def add(self, undo: Undo) -> dict[str, object]:
        """Its answer, which is given back when a later step fails, or this one half-way."""
        if self.unique:
            return _own().add(self._request, undo)
        undo.push(f"give the address of {self.name} back", lambda: _delegate().run(self._request, self.name, "DEL"))
        answer: dict[str, object] = _delegate().run(self._request, self.name)
        return answer

    def delete(self, *, container: str = "", ifname: str = "") -> None:
        """Give the request's addresses back, or those of another attachment of its network."""
        if self.unique:
            request = self._request
            if container:
                request = Request("DEL")
                request.network, request.container, request.ifname = self._request.network, container, ifname
            _own().delete(request)
            return
        other = {"CNI_CONTAINERID": container, "CNI_IFNAME": ifname, "CNI_NETNS": ""} if container else {}
        _delegate().run(self._request, self.name, "DEL", environment=other)

    def check(self) -> None:
        if self.unique:
            _own().check(self._request)
        else:
            _delegate().run(self._request, self.name)

    def collects(self) -> bool:
        """Whether it knows GC; an older plugin is to be asked for a DEL of each attachment instead."""
        return self.unique or _delegate().supports(self._request, self.name, "1.1.0")

    def gc(self) -> None:
        if self.unique:
            _own().gc(self._request)
        else:
            _delegate().run(self._request, self.name)

    def status(self) -> None:
        """Raises CniError 50 when it is missing, its own error when it says one."""
        if self.unique:
            _own().status(self._request)
            return
        try:
            _delegate().find(self._request, self.name)
        except CniError as error:
            raise CniError(NOT_AVAILABLE, error.message) from None
        if _delegate().supports(self._request, self.name, "1.1.0"):
            _delegate().run(self._request, self.name)


def of(request: Request, conf: "NetConf") -> Ipam | None:
    """The IPAM plugin of a configuration; None when it has none."""
    name = conf.ipam.type if conf.ipam else None
    if name == "rdma":
        # It would ask itself for an address, without end.
        problem = "ipam.type: found 'rdma', which is this plugin itself, expected an IPAM plugin"
        if request.command not in ("DEL", "GC"):
            raise CniError(INVALID_CONFIG, problem)
        log.warning(f"releasing in spite of a bad configuration: {problem}")
        return None
    return Ipam(request, name) if name else None


def _load() -> None:
    try:
        from ipam import allocator, node, plugin, store  # noqa: F401
    except BaseException as error:
        # Whoever needs them will import them, and tell.
        log.debug(f"loading node-subnet: {error!r}")


def _delegate() -> "ModuleType":
    from rdma_cni.cni import delegate

    return delegate


def _own() -> "NodeSubnetPlugin":
    from ipam.plugin import NodeSubnetPlugin

    return NodeSubnetPlugin()
