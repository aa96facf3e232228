"""RDMA netlink: list devices, move and rename them, ask for the namespace mode.

Names, numbers and types of attributes are those of the kernel's include/uapi/rdma/rdma_netlink.h.
"""

from errno import EIO, EPROTONOSUPPORT

from rdma_cni.cni.errors import NO_RDMA_SUBSYSTEM, CniError
from rdma_cni.netlink import (
    NETLINK_RDMA,
    NLM_F_DUMP,
    NetlinkError,
    Socket,
    attribute,
    attributes,
    number,
    string,
    text,
    u32,
)

_NLDEV = 5 << 10  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 0)
_CMD_GET = _NLDEV + 1
_CMD_SET = _NLDEV + 2
_CMD_PORT_GET = _NLDEV + 5
_CMD_SYS_GET = _NLDEV + 6

_ATTR_DEV_INDEX = 1  # u32
_ATTR_DEV_NAME = 2  # string
_ATTR_PORT_INDEX = 3  # u32
_ATTR_NODE_GUID = 6  # u64
_ATTR_NDEV_INDEX = 50  # u32
_SYS_ATTR_NETNS_MODE = 66  # u8: 1 is shared, 0 is exclusive
_NET_NS_FD = 68  # u32


class Device:
    """An RDMA device as the kernel tells it.

    `index` is its own for as long as it exists, in every namespace; `name` changes when udev or
    a pod's root wants it; `guid` is its node GUID, a 64-bit number that outlives a rebound driver.
    """

    __slots__ = ("guid", "index", "name")

    def __init__(self, index: int, name: str, guid: int) -> None:
        self.index = index
        self.name = name
        self.guid = guid


class Rdma(Socket):
    """A socket of RDMA netlink. It sees the devices of the namespace it was made in.

    A move or a rename works only while the calling thread is in that namespace, too.
    """

    def __init__(self) -> None:
        try:
            super().__init__(NETLINK_RDMA)
        except OSError as error:
            if error.errno != EPROTONOSUPPORT:
                # No memory, no descriptor: that says nothing of what the kernel has.
                raise NetlinkError(error.errno or EIO) from None
            raise CniError(
                NO_RDMA_SUBSYSTEM,
                f"RDMA netlink: found none in this kernel ({error.strerror}); expected ib_core: "
                "run `modprobe ib_core`, and load the driver of the NIC",
            ) from None

    def exclusive(self) -> bool:
        """Whether each RDMA device is in one namespace only. Raises CniError 109."""
        try:
            answers = self.request(_CMD_SYS_GET, 0, b"")
        except NetlinkError as error:
            if error.may_pass:
                raise
            raise CniError(
                NO_RDMA_SUBSYSTEM,
                f"RDMA netlink: the kernel does not answer ({error}); expected ib_core: "
                "run `modprobe ib_core`, and load the driver of the NIC",
            ) from None
        for answer in answers:
            for kind, value in attributes(answer):
                if kind == _SYS_ATTR_NETNS_MODE:
                    return number(value) == 0
        return False

    def devices(self) -> list[Device]:
        """The devices of this namespace, in the order of their indices."""
        found = []
        for answer in self.request(_CMD_GET, NLM_F_DUMP, b""):
            fields = dict(attributes(answer))
            found.append(
                Device(
                    number(fields.get(_ATTR_DEV_INDEX, b"")),
                    string(fields.get(_ATTR_DEV_NAME, b"")),
                    number(fields.get(_ATTR_NODE_GUID, b"")),
                )
            )
        return sorted(found, key=lambda device: device.index)

    def netdevs(self, index: int) -> list[int]:
        """The interface index of each port's netdev, where it has one in this namespace."""
        wanted = attribute(_ATTR_DEV_INDEX, u32.pack(index))
        ports = sorted(
            (number(fields.get(_ATTR_PORT_INDEX, b"")), number(fields[_ATTR_NDEV_INDEX]))
            for fields in (dict(attributes(a)) for a in self.request(_CMD_PORT_GET, NLM_F_DUMP, wanted))
            if _ATTR_NDEV_INDEX in fields
        )
        return [ifindex for _, ifindex in ports]

    def rename(self, index: int, name: str) -> None:
        """Raises NetlinkError, EEXIST when any namespace has a device of that name."""
        self.request(_CMD_SET, 0, attribute(_ATTR_DEV_INDEX, u32.pack(index)) + text(_ATTR_DEV_NAME, name))

    def move(self, index: int, namespace: int) -> None:
        """Move a device to the namespace behind a descriptor. Raises NetlinkError.

        A name in the same message would be taken and the namespace ignored.
        """
        self.request(
            _CMD_SET, 0, attribute(_ATTR_DEV_INDEX, u32.pack(index)) + attribute(_NET_NS_FD, u32.pack(namespace))
        )
