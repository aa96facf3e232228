"""rtnetlink: netdevs, their names, addresses and routes.

Names and numbers are those of the kernel's linux/if_link.h, if_addr.h and rtnetlink.h.
"""

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from _struct import Struct
from errno import EEXIST, ENODEV

from rdma_cni.netlink import (
    NETLINK_ROUTE,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    MalformedError,
    NetlinkError,
    Socket,
    attribute,
    attributes,
    fixed,
    nested,
    number,
    string,
    text,
    u32,
)

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_RTM_NEWADDR, _RTM_DELADDR, _RTM_GETADDR = 20, 21, 22
_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_GETROUTE = 24, 25, 26
_RTM_NEWNEIGH, _RTM_DELNEIGH = 28, 29
_RTM_NEWLINKPROP, _RTM_DELLINKPROP = 108, 109

_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MTU = 4
_IFLA_MASTER = 10
_IFLA_IFALIAS = 20
_IFLA_VFINFO_LIST = 22
_IFLA_NET_NS_FD = 28
_IFLA_EXT_MASK = 29
_IFLA_PROP_LIST = 52
_IFLA_ALT_IFNAME = 53
_IFLA_PERM_ADDRESS = 54
_IFLA_PARENT_DEV_NAME = 56
_IFLA_VF_INFO = 1
_IFLA_VF_MAC = 1
_RTEXT_FILTER_VF = 1
_RTEXT_FILTER_SKIP_STATS = 8
IFF_UP = 0x1
IFF_RUNNING = 0x40
IFF_PROMISC, IFF_ALLMULTI = 0x100, 0x200

_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST, _IFA_FLAGS = 1, 2, 4, 8
IFA_F_NODAD = 0x02
IFA_F_DADFAILED = 0x08
IFA_F_TENTATIVE = 0x40

_NDA_DST, _NTF_USE = 1, 1

_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_METRICS, _RTA_TABLE = 1, 4, 5, 6, 8, 15
_RTAX_MTU, _RTAX_ADVMSS = 2, 8
_RT_TABLE_UNSPEC, _RT_TABLE_MAIN = 0, 254
_RTPROT_BOOT, _RTN_UNICAST = 3, 1
_RT_SCOPE_UNIVERSE, _RT_SCOPE_LINK = 0, 253

ARPHRD_ETHER = 1
ARPHRD_INFINIBAND = 32

_ifinfomsg = Struct("=BxHiII")
_ifaddrmsg = Struct("=BBBBI")
_ndmsg = Struct("=BxxxiHBB")  # linux/neighbour.h
_rtmsg = Struct("=BBBBBBBBI")


class Link:
    """A netdev. `parent` is its device's name on its bus: a VF's PCI address; `kind` an ARPHRD_*."""

    __slots__ = (
        "alias",
        "altnames",
        "flags",
        "ifindex",
        "kind",
        "mac",
        "master",
        "mtu",
        "name",
        "parent",
        "permanent_mac",
    )

    def __init__(self, payload: bytes) -> None:
        _, self.kind, self.ifindex, self.flags, _ = fixed(_ifinfomsg, payload)
        self.name = self.mac = self.parent = self.alias = self.permanent_mac = ""
        self.mtu = self.master = 0
        self.altnames: list[str] = []
        for kind, value in attributes(payload[16:]):
            if kind == _IFLA_IFNAME:
                self.name = string(value)
            elif kind == _IFLA_ADDRESS:
                self.mac = value.hex(":")
            elif kind == _IFLA_PERM_ADDRESS:
                self.permanent_mac = value.hex(":")
            elif kind == _IFLA_MTU:
                self.mtu = number(value)
            elif kind == _IFLA_MASTER:
                self.master = number(value)
            elif kind == _IFLA_IFALIAS:
                self.alias = string(value)
            elif kind == _IFLA_PARENT_DEV_NAME:
                self.parent = string(value)
            elif kind == _IFLA_PROP_LIST:
                self.altnames = [string(name) for prop, name in attributes(value) if prop == _IFLA_ALT_IFNAME]

    @property
    def up(self) -> bool:
        return bool(self.flags & IFF_UP)


class Route:
    """A route of an interface, as far as the CNI knows routes: dst is CIDR, gw "" for none."""

    __slots__ = ("dst", "gw", "table")

    def __init__(self, dst: str, gw: str, table: int) -> None:
        self.dst = dst
        self.gw = gw
        self.table = table


class Links(Socket):
    """A socket of rtnetlink, for the namespace it was made in, from whichever it is used."""

    def __init__(self, groups: int = 0) -> None:
        super().__init__(NETLINK_ROUTE, groups)

    def get(self, which: int | str) -> Link | None:
        """A netdev by index, name or alternative name; None when there is none."""
        named = b"" if isinstance(which, int) else text(_name_attribute(which), which)
        head = _ifinfomsg.pack(0, 0, which if isinstance(which, int) else 0, 0, 0)
        try:
            answers = self.request(_RTM_GETLINK, 0, head + named + _mask(_RTEXT_FILTER_SKIP_STATS))
        except NetlinkError as error:
            if error.errno == ENODEV:
                return None
            raise
        if not answers:
            raise MalformedError("no netdev in the answer to a question for one")
        return Link(answers[0])

    def all(self) -> list[Link]:
        """Every netdev of the namespace."""
        head = _ifinfomsg.pack(0, 0, 0, 0, 0)
        return [Link(a) for a in self.request(_RTM_GETLINK, NLM_F_DUMP, head + _mask(_RTEXT_FILTER_SKIP_STATS))]

    def virtual_function_macs(self) -> "list[tuple[str, int, str]]":
        """(PF's parent device, VF's index, MAC) of all VFs, as their PFs know them."""
        found = []
        head = _ifinfomsg.pack(0, 0, 0, 0, 0)
        for answer in self.request(_RTM_GETLINK, NLM_F_DUMP, head + _mask(_RTEXT_FILTER_SKIP_STATS | _RTEXT_FILTER_VF)):
            fields = dict(attributes(answer[16:]))
            parent = string(fields.get(_IFLA_PARENT_DEV_NAME, b""))
            for kind, info in attributes(fields.get(_IFLA_VFINFO_LIST, b"")):
                if kind != _IFLA_VF_INFO:
                    continue
                for detail, value in attributes(info):
                    if detail == _IFLA_VF_MAC and len(value) >= 10:
                        # struct ifla_vf_mac: u32 vf, u8 mac[32]
                        found.append((parent, u32.unpack_from(value)[0], value[4:10].hex(":")))
        return found

    def set(
        self,
        ifindex: int,
        *,
        name: str | None = None,
        namespace: int | None = None,
        mac: str | None = None,
        mtu: int | None = None,
        alias: str | None = None,
        up: bool | None = None,
        own_traffic: bool = False,
    ) -> None:
        """Change a netdev, all in one request. Raises NetlinkError.

        With `own_traffic` it asks no more for packets that are for others.

        With a name and a namespace the kernel moves first and renames then: see `attach.py`.
        """
        body = b""
        if namespace is not None:
            body += attribute(_IFLA_NET_NS_FD, u32.pack(namespace))
        if name is not None:
            body += text(_IFLA_IFNAME, name)
        if mac is not None:
            body += attribute(_IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))
        if mtu is not None:
            body += attribute(_IFLA_MTU, u32.pack(mtu))
        if alias is not None:
            # Without a zero byte: the kernel takes an empty one for "no alias".
            body += attribute(_IFLA_IFALIAS, alias.encode(errors="surrogateescape"))
        flags = IFF_UP if up else 0
        change = 0 if up is None else IFF_UP
        if own_traffic:
            change |= IFF_PROMISC | IFF_ALLMULTI
        self.request(_RTM_NEWLINK, 0, _ifinfomsg.pack(0, 0, ifindex, flags, change) + body)

    def add_altname(self, ifindex: int, name: str) -> None:
        """Raises NetlinkError, EEXIST when something in the namespace has that name."""
        self._altname(_RTM_NEWLINKPROP, NLM_F_CREATE | NLM_F_EXCL, ifindex, name)

    def delete_altname(self, ifindex: int, name: str) -> None:
        """Raises NetlinkError."""
        self._altname(_RTM_DELLINKPROP, 0, ifindex, name)

    def _altname(self, kind: int, flags: int, ifindex: int, name: str) -> None:
        head = _ifinfomsg.pack(0, 0, ifindex, 0, 0)
        self.request(kind, flags, head + nested(_IFLA_PROP_LIST, text(_IFLA_ALT_IFNAME, name)))

    def addresses(self, ifindex: int) -> dict[str, int]:
        """The addresses of an interface, as CIDR, and their flags (IFA_F_*)."""
        found = {}
        for answer in self.request(_RTM_GETADDR, NLM_F_DUMP, _ifaddrmsg.pack(0, 0, 0, 0, 0)):
            family, length, flags, _, index = fixed(_ifaddrmsg, answer)
            if index == ifindex and family in (AF_INET, AF_INET6):
                fields = dict(attributes(answer[8:]))
                raw = fields.get(_IFA_LOCAL) or fields.get(_IFA_ADDRESS, b"")
                found[f"{_address(family, raw)}/{length}"] = number(fields.get(_IFA_FLAGS, u32.pack(flags)))
        return found

    def add_address(self, ifindex: int, cidr: str, flags: int = 0) -> None:
        """Add an address; one that is there already is left as it is. Raises NetlinkError."""
        family, raw, length = packed(cidr)
        body = attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw)
        if family == AF_INET and length < 31:
            host = (1 << (32 - length)) - 1
            body += attribute(_IFA_BROADCAST, (int.from_bytes(raw, "big") | host).to_bytes(4, "big"))
        if flags:
            body += attribute(_IFA_FLAGS, u32.pack(flags))
        self._add(_RTM_NEWADDR, _ifaddrmsg.pack(family, length, flags & 0xFF, _RT_SCOPE_UNIVERSE, ifindex) + body)

    def delete_address(self, ifindex: int, cidr: str) -> None:
        """Raises NetlinkError."""
        family, raw, length = packed(cidr)
        body = attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw)
        self.request(_RTM_DELADDR, 0, _ifaddrmsg.pack(family, length, 0, 0, ifindex) + body)

    def ask_for(self, ifindex: int, address: str) -> None:
        """Have the kernel ask the link, by ARP, who has an IPv4 address. Raises NetlinkError.

        Asked for one of the interface's own, by that one, it is a gratuitous ARP, with which all
        neighbours correct what they remember. A socket of packets would say the same; to close one
        takes as long as all the rest of the work on an address.
        """
        body = attribute(_NDA_DST, inet_pton(AF_INET, address))
        use, forget = (_ndmsg.pack(AF_INET, ifindex, 0, flags, 0) for flags in (_NTF_USE, 0))
        self.request(_RTM_NEWNEIGH, NLM_F_CREATE, use + body)
        # Nobody answers, and the kernel would ask twice more.
        self.request(_RTM_DELNEIGH, 0, forget + body)

    def routes(self, ifindex: int) -> list[Route]:
        """The routes through an interface, of all tables."""
        found = []
        for answer in self.request(_RTM_GETROUTE, NLM_F_DUMP, _rtmsg.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)):
            family, length, _, _, table, _, _, kind, _ = fixed(_rtmsg, answer)
            fields = dict(attributes(answer[12:]))
            if family not in (AF_INET, AF_INET6) or kind != _RTN_UNICAST:
                continue
            if number(fields.get(_RTA_OIF, b"")) != ifindex:
                continue
            dst = _address(family, fields.get(_RTA_DST) or bytes(4 if family == AF_INET else 16))
            gw = fields.get(_RTA_GATEWAY)
            found.append(
                Route(
                    f"{dst}/{length}",
                    _address(family, gw) if gw else "",
                    number(fields[_RTA_TABLE]) if _RTA_TABLE in fields else table,
                )
            )
        return found

    def add_route(
        self,
        ifindex: int,
        dst: str,
        gw: str = "",
        *,
        mtu: int | None = None,
        advmss: int | None = None,
        priority: int | None = None,
        table: int | None = None,
        scope: int | None = None,
    ) -> bool:
        """Add a route; False: one to the same destination is there already, and wins. Raises NetlinkError."""
        family, raw, length = network_of(dst)
        body = attribute(_RTA_DST, raw) + attribute(_RTA_OIF, u32.pack(ifindex))
        if gw:
            body += attribute(_RTA_GATEWAY, inet_pton(AF_INET6 if ":" in gw else AF_INET, gw))
        if priority is not None:
            body += attribute(_RTA_PRIORITY, u32.pack(priority))
        metrics = [
            attribute(kind, u32.pack(value)) for kind, value in ((_RTAX_MTU, mtu), (_RTAX_ADVMSS, advmss)) if value
        ]
        if metrics:
            body += nested(_RTA_METRICS, *metrics)
        number_of_table = table or _RT_TABLE_MAIN
        body += attribute(_RTA_TABLE, u32.pack(number_of_table))
        if scope is None:
            scope = _RT_SCOPE_UNIVERSE if gw or family == AF_INET6 else _RT_SCOPE_LINK
        head = _rtmsg.pack(
            family,
            length,
            0,
            0,
            number_of_table if number_of_table < 256 else _RT_TABLE_UNSPEC,
            _RTPROT_BOOT,
            scope,
            _RTN_UNICAST,
            0,
        )
        return self._add(_RTM_NEWROUTE, head + body)

    def delete_route(self, ifindex: int, dst: str, gw: str = "", *, table: int | None = None) -> None:
        """Raises NetlinkError."""
        family, raw, length = network_of(dst)
        body = attribute(_RTA_DST, raw) + attribute(_RTA_OIF, u32.pack(ifindex))
        if gw:
            body += attribute(_RTA_GATEWAY, inet_pton(AF_INET6 if ":" in gw else AF_INET, gw))
        body += attribute(_RTA_TABLE, u32.pack(table or _RT_TABLE_MAIN))
        # RT_SCOPE_NOWHERE: of whatever scope.
        self.request(_RTM_DELROUTE, 0, _rtmsg.pack(family, length, 0, 0, 0, 0, 255, 0, 0) + body)

    def _add(self, kind: int, payload: bytes) -> bool:
        try:
            self.request(kind, NLM_F_CREATE | NLM_F_EXCL, payload)
        except NetlinkError as error:
            if error.errno != EEXIST:
                raise
            return False
        return True


def packed(cidr: str) -> tuple[int, bytes, int]:
    """(family, address, prefix length) of an address in CIDR form that was checked before."""
    address, _, length = cidr.partition("/")
    family = AF_INET6 if ":" in address else AF_INET
    return family, inet_pton(family, address), int(length)


def network_of(cidr: str) -> tuple[int, bytes, int]:
    """As `packed`, without the host's bits, which the kernel does not take in a route."""
    family, raw, length = packed(cidr)
    host_bits = len(raw) * 8 - length
    return family, (int.from_bytes(raw, "big") >> host_bits << host_bits).to_bytes(len(raw), "big"), length


def _address(family: int, raw: bytes) -> str:
    try:
        return inet_ntop(family, raw)
    except ValueError:
        raise MalformedError(f"an address of {len(raw)} bytes") from None


def _mask(bits: int) -> bytes:
    return attribute(_IFLA_EXT_MASK, u32.pack(bits))


def _name_attribute(name: str) -> int:
    # Either finds a netdev by a name of either kind; they differ in the length they allow.
    return _IFLA_IFNAME if len(name.encode(errors="surrogateescape")) < 16 else _IFLA_ALT_IFNAME
