"""The node's side of an attachment: the host's sockets and what is attached."""

from rdma_cni.cni.errors import CniError
from rdma_cni.link import Links
from rdma_cni.rdma import Rdma
from rdma_cni.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdma_cni.netns import Namespace


class Host:
    """Sockets in the namespace that the plugin was started in, and the state; opened when asked for."""

    def __init__(self) -> None:
        self._rdma: Rdma | None = None
        self._links: Links | None = None
        self._state: State | None = None

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
        except CniError:
            return False

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

    def close(self) -> None:
        for resource in (self._rdma, self._links, self._state):
            if resource is not None:
                resource.close()


def links_in(pod: "Namespace") -> Links:
    """A socket of rtnetlink in the pod; it keeps the namespace alive until it is closed."""
    with pod:
        return Links()
