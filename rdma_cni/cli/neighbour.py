"""rtnetlink: the route to an address, and whether the neighbour that it leads to answers.

Names and numbers are those of the kernel's linux/rtnetlink.h and neighbour.h.
"""

from dataclasses import dataclass
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from struct import Struct

from rdma_cni.netlink import NETLINK_ROUTE, NLM_F_DUMP, NetlinkError, Socket, attribute, attributes, number

_RTM_GETROUTE, _RTM_GETNEIGH = 26, 30
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_VIA = 1, 4, 5, 18
_NDA_DST = 1
_rtmsg = Struct("=BBBBBBBBI")
_ndmsg = Struct("=BxxxiHBB")
_STATES = {
    0x01: "incomplete",
    0x02: "reachable",
    0x04: "stale",
    0x08: "delayed",
    0x10: "probed",
    0x20: "failed",
    0x40: "without ARP",
    0x80: "permanent",
}
USABLE = frozenset({"reachable", "stale", "delayed", "probed", "without ARP", "permanent"})
"""The states in which the kernel has a hardware address to send to."""


@dataclass(frozen=True)
class Route:
    """Where a packet goes: by which interface, and through which gateway ("" for none)."""

    ifindex: int
    gateway: str


class Routes(Socket):
    """A socket of rtnetlink for routes and neighbours, of the namespace it was made in."""

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE)

    def to(self, address: str) -> Route | None:
        """The route that the kernel would take to an address; None when it has none."""
        family, raw = _packed(address)
        head = _rtmsg.pack(family, len(raw) * 8, 0, 0, 0, 0, 0, 0, 0)
        try:
            answers = self.request(_RTM_GETROUTE, 0, head + attribute(_RTA_DST, raw))
        except NetlinkError:
            return None
        for answer in answers:
            fields = dict(attributes(answer[12:]))
            if _RTA_OIF in fields:
                gateway = fields.get(_RTA_GATEWAY)
                if gateway is None and _RTA_VIA in fields:
                    # struct rtvia: u16 family, then the address: IPv4 through an IPv6 gateway.
                    gateway = fields[_RTA_VIA][2:]
                text = inet_ntop(AF_INET if len(gateway) == 4 else AF_INET6, gateway) if gateway else ""
                return Route(number(fields[_RTA_OIF]), text)
        return None

    def neighbour(self, ifindex: int, address: str) -> str:
        """The state of a neighbour; "" when the kernel has not heard of it."""
        family, raw = _packed(address)
        for answer in self.request(_RTM_GETNEIGH, NLM_F_DUMP, _ndmsg.pack(family, 0, 0, 0, 0)):
            _, index, state, _, _ = _ndmsg.unpack_from(answer)
            fields = dict(attributes(answer[12:]))
            if index == ifindex and fields.get(_NDA_DST) == raw:
                return _STATES.get(state, "")
        return ""


def _packed(address: str) -> tuple[int, bytes]:
    family = AF_INET6 if ":" in address else AF_INET
    return int(family), inet_pton(family, address)
