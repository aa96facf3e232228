"""Netlink: messages, attributes, and a socket that asks and reads the answers.

Families are declared elsewhere as data (`rdma.py`, `link.py`). Constants are linux/netlink.h's.
"""

import posix
import sys
from _socket import AF_NETLINK, MSG_DONTWAIT, SOCK_CLOEXEC, SOCK_RAW, socket
from _struct import Struct
from errno import EACCES, EAGAIN, EBUSY, EINTR, EIO, ENOBUFS, ENOMEM, EPERM, errorcode

from rdma_cni.cni import system
from rdma_cni.cni.errors import KERNEL_REFUSED, NO_PRIVILEGE, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NETLINK_ROUTE = 0
NETLINK_RDMA = 20

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_EXCL = 0x200
NLM_F_DUMP = 0x300
NLM_F_CREATE = 0x400

_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLM_F_ACK_TLVS = 0x200
_NLM_F_CAPPED = 0x100
_NLMSGERR_ATTR_MSG = 1
_SOL_NETLINK = 270
_NETLINK_EXT_ACK = 11
_NLA_TYPE_MASK = 0x3FFF
_NLA_F_NESTED = 0x8000
_RECEIVE = 1 << 18
# Bytes of one answer: a namespace with 100,000 netdevs has half of it.
_MAX_ANSWER = 1 << 28
_MAX_ERRNO = 4095
# The kernel answers at once, or after a driver has reset its device. RDMA devices of real
# hardware take seconds to change their namespace, never minutes.
_TIMEOUT = Struct("qq").pack(120, 0)
_SO_RCVTIMEO = 20
_SOL_SOCKET = 1

_header = Struct("=IHHII")
_attribute = Struct("=HH")
_i32 = Struct("=i")
u32 = Struct("=I")


class NetlinkError(CniError):
    """The kernel refused a request: `errno`, and its own words where it had any."""

    def __init__(self, errno: int, words: str = "") -> None:
        self.errno = errno
        reason = f"{errorcode.get(errno, errno)}: {posix.strerror(errno)}"
        self._reason = f"{reason} ({words})" if words else reason
        super().__init__(KERNEL_REFUSED, f"the kernel refused a request: {self._reason}")

    def __str__(self) -> str:
        return self._reason

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed when it is made again."""
        return self.errno in (EAGAIN, EBUSY, EINTR, ENOBUFS, ENOMEM, EPERM, EACCES)

    def report(self, asked: str) -> CniError:
        """The error for the caller, who is told what was `asked` of the kernel."""
        if self.errno in (EPERM, EACCES):
            return CniError(
                NO_PRIVILEGE, f"the kernel refused to {asked}: {self}; run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN"
            )
        return CniError(KERNEL_REFUSED, f"the kernel refused to {asked}: {self}")


class MalformedError(CniError):
    """What came is no netlink message."""

    def __init__(self, found: str) -> None:
        super().__init__(KERNEL_REFUSED, f"netlink: found {found}, expected a message of the kernel's")


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded as the next one needs it."""
    return _attribute.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def text(kind: int, value: str) -> bytes:
    """A string attribute, with its zero byte."""
    return attribute(kind, system.fsencode(value) + b"\0")


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NLA_F_NESTED, b"".join(attributes))


def attributes(data: bytes) -> "Iterator[tuple[int, bytes]]":
    """The (type, value) pairs in `data`. Raises MalformedError for lengths that cannot be."""
    offset, end = 0, len(data)
    while end - offset >= 4:
        size, kind = _attribute.unpack_from(data, offset)
        if size < 4 or offset + size > end:
            raise MalformedError(f"an attribute of {size} bytes where {end - offset} are left")
        yield kind & _NLA_TYPE_MASK, data[offset + 4 : offset + size]
        offset += (size + 3) & ~3


def string(value: bytes) -> str:
    """A string attribute's text; what is no UTF-8 stays what it is when encoded again."""
    return system.fsdecode(value.split(b"\0", 1)[0])


def number(value: bytes) -> int:
    """An unsigned integer attribute of whatever size."""
    return int.from_bytes(value, sys.byteorder)


class Socket:
    """A netlink socket of the namespace that the calling thread is in when it is made."""

    def __init__(self, protocol: int, groups: int = 0) -> None:
        self._socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)
        try:
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
            self._socket.setsockopt(_SOL_SOCKET, _SO_RCVTIMEO, _TIMEOUT)
            self._socket.bind((0, groups))
        except BaseException:
            self._socket.close()
            raise
        self._sequence = 0

    def close(self) -> None:
        """An open socket keeps its namespace alive."""
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> None:
        """Throw away what is waiting to be read: that something came was all one wanted to know."""
        try:
            while True:
                self._socket.recv(_RECEIVE, MSG_DONTWAIT)
        except OSError:
            pass

    def request(self, kind: int, flags: int, payload: bytes) -> list[bytes]:
        """Send a request and return its answers' payloads. Raises NetlinkError or MalformedError."""
        for _ in range(10):
            answers = self._request(kind, flags, payload)
            if answers is not None:
                return answers
        # Not for ever: root in a pod may keep changing what its namespace has.
        raise NetlinkError(EAGAIN, "a dump was interrupted by changes ten times in a row")

    def _request(self, kind: int, flags: int, payload: bytes) -> list[bytes] | None:
        self._sequence += 1
        flags |= NLM_F_REQUEST
        if flags & NLM_F_DUMP != NLM_F_DUMP:
            flags |= NLM_F_ACK
        try:
            self._socket.send(_header.pack(16 + len(payload), kind, flags, self._sequence, 0) + payload)
        except OSError as error:
            raise NetlinkError(error.errno or EIO) from None
        answers: list[bytes] = []
        interrupted = False
        size = 0
        while size <= _MAX_ANSWER:
            datagram = self._receive()
            size += len(datagram)
            for got, got_flags, sequence, body in messages(datagram):
                if sequence != self._sequence:
                    continue
                interrupted = interrupted or bool(got_flags & NLM_F_DUMP_INTR)
                if got == _NLMSG_ERROR:
                    failure = _error(body, got_flags)
                    if failure:
                        raise failure
                    return answers
                if got == _NLMSG_DONE:
                    code = _errno(body) if len(body) >= 4 else 0
                    if code:
                        raise NetlinkError(code)
                    return None if interrupted else answers
                answers.append(body)
        raise MalformedError(f"an answer of more than {_MAX_ANSWER} bytes that has no end")

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_RECEIVE)
        except BlockingIOError:
            raise NetlinkError(110, "no answer for two minutes") from None
        except OSError as error:
            raise NetlinkError(error.errno or EIO) from None


def messages(data: bytes) -> "Iterator[tuple[int, int, int, bytes]]":
    """The (type, flags, sequence, payload) of each message in a datagram."""
    offset, end = 0, len(data)
    if end < 16:
        raise MalformedError(f"a datagram of {end} bytes")
    while end - offset >= 16:
        size, kind, flags, sequence, _ = _header.unpack_from(data, offset)
        if size < 16 or offset + size > end:
            raise MalformedError(f"a message of {size} bytes where {end - offset} are left")
        yield kind, flags, sequence, data[offset + 16 : offset + size]
        offset += (size + 3) & ~3
    if offset < end:
        raise MalformedError(f"{end - offset} bytes after the last message")


def _error(body: bytes, flags: int) -> NetlinkError | None:
    if len(body) < 20:
        raise MalformedError(f"an error message of {len(body)} bytes")
    code = _errno(body)
    if code == 0:
        return None
    words = ""
    if flags & _NLM_F_ACK_TLVS:
        # The request is given back whole, or only its header when the kernel caps it.
        skip = 4 + (16 if flags & _NLM_F_CAPPED else u32.unpack_from(body, 4)[0])
        for kind, value in attributes(body[(skip + 3) & ~3 :]):
            if kind == _NLMSGERR_ATTR_MSG:
                words = string(value)
    return NetlinkError(code, words)


def _errno(body: bytes) -> int:
    """The error number that a message begins with, which the kernel sends negative; 0 for none."""
    code: int = _i32.unpack_from(body)[0]
    if not -_MAX_ERRNO <= code <= 0:
        raise MalformedError(f"the error number {code}")
    return -code


def fixed(layout: Struct, payload: bytes) -> "tuple[int, ...]":
    """The fields that a payload begins with, before its attributes. Raises MalformedError."""
    if len(payload) < layout.size:
        raise MalformedError(f"a payload of {len(payload)} bytes where {layout.size} are fixed")
    return layout.unpack_from(payload)
