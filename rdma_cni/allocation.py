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
    from ipam.store import Store
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
        self._loading: _thread.LockType | None = None
        self._store: Store | None = None
        self._problem: CniError | None = None

    def require(self) -> None:
        """Raises CniError 104 when there is no such plugin."""
        if not self.unique:
            _delegate().find(self._request, self.name)

    def prepare(self) -> None:
        """Load and open what `add` or `delete` will need while the caller waits for the kernel; see `close`."""
        if not self.unique:
            return
        # The process has another thread for as long as that takes; it enters no namespace.
        self._loading = _thread.allocate_lock()
        self._loading.acquire()
        try:
            _thread.start_new_thread(self._load, ())
        except RuntimeError as error:
            log.debug(f"loading node-subnet: {error}")
            self._loading.release()

    def _load(self) -> None:
        try:
            from ipam import allocator, node, plugin  # noqa: F401
            from ipam.store import Store

            # Where there is none yet it is made when it is needed.
            if Store.exists():
                self._store = Store()
        except CniError as error:
            self._problem = error
        except BaseException as error:
            # Whoever needs them will import them, and tell.
            log.debug(f"loading node-subnet: {error!r}")
        finally:
            if self._loading:
                self._loading.release()

    def _loaded(self) -> "Store | None":
        """What `prepare` opened, from here on the caller's to close. Raises CniError when it could not."""
        if self._loading:
            with self._loading:
                store, self._store = self._store, None
                problem, self._problem = self._problem, None
            if problem:
                raise problem
            return store
        return None

    def close(self) -> None:
        """Close what `prepare` opened and nobody asked for."""
        try:
            store = self._loaded()
        except CniError as error:
            log.debug(str(error))
            return
        if store:
            store.close()

    def add(self, undo: Undo) -> dict[str, object]:
        """Its answer, which is given back when a later step fails, or this one half-way."""
        if self.unique:
            return _own(self._loaded()).add(self._request, undo)
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
            _own(self._loaded()).delete(request)
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


def _delegate() -> "ModuleType":
    from rdma_cni.cni import delegate

    return delegate


def _own(store: "Store | None" = None) -> "NodeSubnetPlugin":
    from ipam.plugin import NodeSubnetPlugin

    return NodeSubnetPlugin(store)
