"""Network namespaces: open one by its path, act inside it, find one again."""

import _stat
import fcntl
import posix
import sys
from _socket import AF_INET, SOCK_CLOEXEC, SOCK_DGRAM, socket

from rdma_cni.cni import system
from rdma_cni.cni.errors import NO_PRIVILEGE, OWN_NAMESPACE, UNKNOWN_CONTAINER, CniError

try:
    from _syscalls import setns, sysfs  # type: ignore[import-not-found]
except ImportError:
    from rdma_cni.syscalls import setns, sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703  # linux/nsfs.h
_SOL_SOCKET = 1
_SO_NETNS_COOKIE = 71
_SELF = "/proc/self/ns/net"

_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}  # linux/capability.h


def require_privilege() -> None:
    """Raises CniError 112, naming the capabilities that this process lacks, before anything is touched."""
    fd = posix.open("/proc/self/status", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        status = posix.read(fd, 8192)
    finally:
        posix.close(fd)
    has = int(status.partition(b"\nCapEff:\t")[2][:16] or b"0", 16)
    missing = [name for number, name in _CAPABILITIES.items() if not has >> number & 1]
    if missing:
        raise CniError(
            NO_PRIVILEGE,
            f"privilege: found user {posix.geteuid()} without {' and '.join(missing)}, expected "
            f"{' and '.join(_CAPABILITIES.values())} in the host's user namespace: run as root",
        )


class Namespace:
    """An open network namespace; `with` it, the process is inside.

    `cookie` is the kernel's own number for it, never used again while the kernel runs, which an
    inode number is (SO_NETNS_COOKIE, Linux 5.14; 0 where the kernel is older).
    """

    __slots__ = ("cookie", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        with self:
            probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC)
        try:
            self.cookie = int.from_bytes(probe.getsockopt(_SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError:
            self.cookie = 0
        finally:
            probe.close()

    def close(self) -> None:
        posix.close(self.fd)

    def __enter__(self) -> "Namespace":
        _enter(self.fd)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        _enter(_own())

    def sysfs(self) -> int:
        """A descriptor of the root of a sysfs that shows this namespace's devices.

        It is mounted nowhere, and gone when the descriptor is closed. Raises OSError.
        """
        with self:
            fd: int = sysfs()
            return fd


_host_fd = -1


def _own() -> int:
    """A descriptor of the namespace that the plugin was started in: the host's."""
    global _host_fd
    if _host_fd < 0:
        _host_fd = posix.open(_SELF, posix.O_RDONLY | posix.O_CLOEXEC)
    return _host_fd


def host_fd() -> int:
    """The host's namespace, as a descriptor that stays open."""
    return _own()


def _enter(fd: int) -> None:
    _own()
    try:
        setns(fd)
    except PermissionError:
        raise CniError(
            NO_PRIVILEGE,
            "privilege: found that this process may not enter a network namespace, expected CAP_SYS_ADMIN in the user "
            "namespace that it belongs to: run as root of the host",
        ) from None


def open_pod(path: str, *, own_allowed: bool) -> Namespace:
    """The namespace at `path` (CNI_NETNS). Raises CniError 3 or 8."""
    fd, problem = _open(path)
    if fd < 0:
        raise CniError(
            UNKNOWN_CONTAINER,
            f"CNI_NETNS: found {path[:200]!r} ({problem}), expected a network namespace: "
            "the container is gone, or the runtime named the wrong path",
        )
    if not own_allowed and system.same_file(fd, _own()):
        posix.close(fd)
        raise CniError(
            OWN_NAMESPACE,
            f"CNI_NETNS: found {path[:200]!r}, which is the plugin's own namespace, expected a pod's; "
            "pods on the host's network need no plugin (CNI_NETNS_OVERRIDE=1 allows it)",
        )
    return Namespace(path, fd)


def open_if_there(path: str) -> Namespace | None:
    """The namespace at `path`, or None when there is none any more."""
    fd, _ = _open(path)
    return Namespace(path, fd) if fd >= 0 else None


def is_own(namespace: Namespace) -> bool:
    """Whether it is the namespace that the plugin was started in."""
    return system.same_file(namespace.fd, _own())


def _open(path: str) -> tuple[int, str]:
    """(descriptor, "") of a network namespace, or (-1, what was found instead)."""
    if "\0" in path:
        return -1, "no path"
    try:
        # Without waiting for the other end, should the path be a FIFO.
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY)
    except OSError as error:
        return -1, (error.strerror or "not to be opened").lower()
    try:
        if _stat.S_ISREG(posix.fstat(fd).st_mode) and fcntl.ioctl(fd, _NS_GET_NSTYPE) == _CLONE_NEWNET:
            return fd, ""
        problem = "no network namespace"
    except OSError:
        problem = "no namespace"
    posix.close(fd)
    return -1, problem


def live() -> "Iterator[Namespace]":
    """Each network namespace that a process or a thread is in or a mount point names, the host's left out."""
    seen = {posix.fstat(_own()).st_ino}
    for path in _paths():
        fd, _ = _open(path)
        if fd < 0:
            continue
        inode = posix.fstat(fd).st_ino
        if inode in seen:
            posix.close(fd)
            continue
        seen.add(inode)
        yield Namespace(path, fd)


def _paths() -> "Iterator[str]":
    with open("/proc/self/mounts", "rb") as mounts:
        for line in mounts:
            fields = line.split(b" ")
            if len(fields) > 2 and fields[2] == b"nsfs":
                yield system.fsdecode(fields[1].replace(b"\\040", b" "))
    processes = [entry for entry in posix.listdir("/proc") if entry.isdecimal()]
    for process in processes:
        yield f"/proc/{process}/ns/net"
    for process in processes:
        try:
            threads = posix.listdir(f"/proc/{process}/task")
        except OSError:
            continue
        for thread in threads:
            if thread != process:
                yield f"/proc/{process}/task/{thread}/ns/net"


def find(cookie: int) -> Namespace | None:
    """The live namespace with this cookie, wherever it is still to be reached."""
    for namespace in live():
        if namespace.cookie == cookie:
            return namespace
        namespace.close()
    return None
