"""Puts an IPAM plugin's answer onto an interface in a pod, and tells the neighbours of it."""

import posix
import select
import time
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_ICMPV6,
    IPPROTO_IPV6,
    IPV6_MULTICAST_HOPS,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOCK_RAW,
    inet_ntop,
    inet_pton,
    socket,
)
from _struct import pack

from rdma_cni.cni import log
from rdma_cni.cni.errors import ADDRESS_IN_USE, INVALID_CONFIG, IO_FAILURE, CniError
from rdma_cni.link import (
    ARPHRD_ETHER,
    IFA_F_DADFAILED,
    IFA_F_NODAD,
    IFA_F_TENTATIVE,
    IFF_RUNNING,
    Link,
    Links,
    network_of,
    packed,
)
from rdma_cni.netlink import NetlinkError
from rdma_cni.netns import Namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from rdma_cni.cni.models import IP, Route

_DAD_PATIENCE = 10.0
_CARRIER_PATIENCE = 0.5
_IPV6_MIN_MTU = 1280


def enable_ipv6(pod: Namespace, ifname: str) -> None:
    """Let an interface have IPv6 addresses in a pod whose sysctls forbid them. Raises CniError 5."""
    path = f"/proc/sys/net/ipv6/conf/{ifname}/disable_ipv6"
    try:
        # What lies below /proc/sys/net is the calling thread's namespace's.
        with pod:
            fd = posix.open(path, posix.O_RDWR | posix.O_CLOEXEC)
            try:
                if posix.read(fd, 1) != b"0":
                    posix.pwrite(fd, b"0", 0)
            finally:
                posix.close(fd)
    except OSError as error:
        raise CniError(
            IO_FAILURE,
            f"{path} in the pod: found {(error.strerror or '').lower()}, expected to set it to 0 for an IPv6 address: "
            "is the kernel's IPv6 disabled (ipv6.disable=1)?",
        ) from None


def configure(
    pod: Namespace, links: Links, link: Link, ips: "list[IP]", routes: "list[Route]", *, unique: bool
) -> list[tuple[str, str, int]]:
    """Give an interface in a pod its addresses and routes, and bring it up.

    Returns the routes (dst, gw, table) that are not its own, because one to the same destination
    was there. `unique`: the addresses are known to be nobody else's, so that IPv6 need not ask the link.
    Raises CniError 5, 108 or 110.
    """
    ipv6 = [ip.address for ip in ips if ":" in ip.address]
    if ipv6 and link.mtu < _IPV6_MIN_MTU:
        raise CniError(
            INVALID_CONFIG,
            f"mtu: {link.name!r} in the pod has {link.mtu}, expected at least {_IPV6_MIN_MTU} for the IPv6 address "
            f"{ipv6[0]}: raise `mtu`, or have the IPAM plugin give IPv4 addresses alone",
        )
    if ipv6:
        enable_ipv6(pod, link.name)
    step = ""
    not_ours = []
    try:
        for ip in ips:
            step = f"give {link.name!r} the address {ip.address}"
            links.add_address(link.ifindex, ip.address, IFA_F_NODAD if unique and ":" in ip.address else 0)
        step = f"bring {link.name!r} up"
        if not link.up:
            links.set(link.ifindex, up=True)
        if ipv6 and not unique:
            _await_unique(links, link, ipv6)
        for route in routes:
            gw = gateway(route, ips)
            step = f"add the route to {route.dst}{' via ' + gw if gw else ''} through {link.name!r}"
            added = links.add_route(
                link.ifindex,
                route.dst,
                gw,
                mtu=route.mtu,
                advmss=route.advmss,
                priority=route.priority,
                table=route.table,
                scope=route.scope,
            )
            if not added:
                log.info(f"the pod has a route to {route.dst} already, which stays")
                not_ours.append((route.dst, gw, route.table or 0))
    except NetlinkError as error:
        raise error.report(f"{step} in the pod") from None
    return not_ours


def gateway(route: "Route", ips: "Iterable[IP]") -> str:
    """A route's gateway: its own, else that of an address of its family, else none ("")."""
    if route.gw:
        return route.gw
    family = ":" in route.dst
    return next((ip.gateway for ip in ips if ip.gateway and (":" in ip.gateway) == family), "")


def network(dst: str) -> str:
    """A route's destination as the kernel tells it, without the host's bits."""
    family, raw, length = network_of(dst)
    return f"{inet_ntop(family, raw)}/{length}"


def is_hosts(cidr: str) -> bool:
    """Whether an interface can have the address: not the unspecified one, no multicast, no broadcast."""
    family, raw, _ = packed(cidr)
    if family == AF_INET:
        return raw[0] != 0 and not 224 <= raw[0] < 240 and raw != b"\xff\xff\xff\xff"
    return any(raw) and raw[0] != 0xFF


def _await_unique(links: Links, link: Link, addresses: list[str]) -> None:
    """Wait until duplicate address detection has made IPv6 addresses usable."""
    deadline = time.monotonic() + _DAD_PATIENCE
    while True:
        found = links.addresses(link.ifindex)
        for address in addresses:
            if found.get(address, 0) & IFA_F_DADFAILED:
                raise CniError(
                    ADDRESS_IN_USE,
                    f"{address}: found in use by another node on the link (duplicate address detection), expected it "
                    "to be free: look for a second pool with the same addresses, or a host that has it",
                )
        if not any(found.get(address, IFA_F_TENTATIVE) & IFA_F_TENTATIVE for address in addresses):
            return
        if time.monotonic() > deadline:
            log.warning(f"{link.name!r}: IPv6 addresses still tentative after {_DAD_PATIENCE:.0f} s; is its PF up?")
            return
        time.sleep(0.02)


def announce(pod: Namespace, links: Links, link: Link, addresses: list[str]) -> None:
    """Tell the link who has the addresses now, for neighbours that remember another.

    Gratuitous ARP (RFC 5227, section 3) and unsolicited neighbour advertisements (RFC 4861,
    section 7.2.6). Without a carrier, or on anything but Ethernet, nothing is sent: an address
    that could not be announced is usable all the same.
    """
    if link.kind != ARPHRD_ETHER or not addresses:
        return
    if not _has_carrier(pod, links, link):
        log.info(f"{link.name!r} has no carrier: its addresses are not announced")
        return
    mac = bytes.fromhex(link.mac.replace(":", ""))
    try:
        for cidr in addresses:
            address = cidr.partition("/")[0]
            if ":" in address:
                _advertise(pod, link, address, mac)
            else:
                links.ask_for(link.ifindex, address)
    except (OSError, NetlinkError) as error:
        log.info(f"{link.name!r}: its addresses could not be announced: {error}")


def _has_carrier(pod: Namespace, links: Links, link: Link) -> bool:
    """Whether the interface gets a carrier in time; a VF does 0.2 s after it was brought up."""
    now = links.get(link.ifindex)
    if now is None or now.flags & IFF_RUNNING:
        return now is not None
    with pod:
        # RTMGRP_LINK: a message for each change of a link.
        changes = Links(groups=1)
    try:
        deadline = time.monotonic() + _CARRIER_PATIENCE
        poll = select.poll()
        poll.register(changes.fileno(), select.POLLIN)
        while True:
            now = links.get(link.ifindex)
            if now is None or now.flags & IFF_RUNNING:
                return now is not None
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return False
            changes.drain()
    finally:
        changes.close()


def _advertise(pod: Namespace, link: Link, address: str, mac: bytes) -> None:
    """A neighbour advertisement to all nodes, with the override flag. Raises OSError."""
    with pod:
        sender = socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_ICMPV6)
    try:
        # A receiver takes none that came through a router, which 255 hops tell.
        sender.setsockopt(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 255)
        sender.bind((address, 0, 0, 0))
        body = pack("!BBHI16sBB6s", 136, 0, 0, 0x20000000, inet_pton(AF_INET6, address), 2, 1, mac)
        sender.sendto(body, ("ff02::1", 0, 0, link.ifindex))
    finally:
        sender.close()
