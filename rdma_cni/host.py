"""The node's side of an attachment: the host's sockets and what is attached."""

from rdma_cni.cni.errors import NO_RDMA_SUBSYSTEM, SHARED_MODE, CniError
from rdma_cni.link import Links
from rdma_cni.rdma import Rdma
from rdma_cni.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rdma_cni.netns import Namespace


class Host:
    """Sockets in the namespace that the plugin was started in, and the state; opened when asked for."""

    def __init__(self) -> None:
        self._rdma: Rdma | None = None
        self._links: Links | None = None
        self._state: State | None = None
        self._meanwhile: Callable[[], object] | None = None

    @property
    def rdma(self) -> Rdma:
        """Raises CniError 109."""
        if self._rdma is None:
            self._rdma = Rdma()
        return self._rdma

    def has_rdma(self) -> bool:
        """Whether the kernel has an RDMA subsystem: its modules may have gone with their devices."""
        try:
            return self.rdma is not None
        except CniError as error:
            if error.code != NO_RDMA_SUBSYSTEM:
                raise
            return False

    def require_exclusive(self) -> None:
        """Raises CniError 100 in shared mode, 109 without an RDMA subsystem."""
        if not self.rdma.exclusive():
            raise CniError(
                SHARED_MODE,
                "RDMA subsystem: found it in shared mode, in which every pod sees every device and none can be moved; "
                "expected exclusive mode: put the line 'options ib_core netns_mode=0' into "
                "/etc/modprobe.d/rdma-cni.conf (and into the initramfs, if that loads ib_core) and reboot: "
                "the mode cannot change while other network namespaces exist",
            )

    @property
    def links(self) -> Links:
        if self._links is None:
            self._links = Links()
        return self._links

    @property
    def state(self) -> State:
        """Raises CniError 5 or 11."""
        if self._state is None:
            self._state = State()
        return self._state

    def meanwhile(self, begin: "Callable[[], object]") -> None:
        """Call `begin` right before the kernel has most to do: no sooner, or the two would be in each other's way."""
        self._meanwhile = begin

    def moves(self) -> None:
        """The kernel is about to move a device from one namespace to another, and has most to do with that."""
        begin, self._meanwhile = self._meanwhile, None
        if begin:
            begin()

    def close(self) -> None:
        for resource in (self._rdma, self._links, self._state):
            if resource is not None:
                resource.close()


def links_in(pod: "Namespace") -> Links:
    """A socket of rtnetlink in the pod; it keeps the namespace alive until it is closed."""
    with pod:
        return Links()
