"""Netlink messages: ours against pyroute2's encoding of the same, and what is no message at all."""

import os
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from rdma_cni import link, netlink

# How long an example takes says nothing on a machine that others share.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


class Recorder:
    """Stands for the kernel's end of a socket: keeps what is asked, answers nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        monkeypatch.setattr(netlink.Socket, "request", self._request)

    def _request(self, kind: int, flags: int, payload: bytes) -> list[bytes]:
        self.sent.append((kind, flags, payload))
        return []


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def decoded(message: type[Any], payload: bytes) -> Any:
    """What pyroute2 reads in one of our payloads."""
    header = struct.pack("=IHHII", 16 + len(payload), 0, 0, 0, 0)
    found = message(header + payload)
    found.decode()
    return found


def test_a_link_is_set_as_pyroute2_understands_it(recorder: Recorder) -> None:
    links = link.Links()
    links.set(7, name="net1", namespace=5, mac="02:00:00:00:00:01", mtu=9000, alias="x", up=True)
    ((kind, _, payload),) = recorder.sent
    found = decoded(ifinfmsg, payload)
    assert kind == 16
    assert (found["index"], found["flags"], found["change"]) == (7, 1, 1)
    assert found.get_attr("IFLA_IFNAME") == "net1"
    assert found.get_attr("IFLA_NET_NS_FD") == 5
    assert found.get_attr("IFLA_ADDRESS") == "02:00:00:00:00:01"
    assert found.get_attr("IFLA_MTU") == 9000
    assert found.get_attr("IFLA_IFALIAS") == "x"
    links.close()


def test_alternative_names_are_as_pyroute2_understands_them(recorder: Recorder) -> None:
    links = link.Links()
    links.add_altname(7, "a-rather-long-alternative-name")
    links.delete_altname(7, "b")
    assert [kind for kind, _, _ in recorder.sent] == [108, 109]
    names = [decoded(ifinfmsg, payload).get_attr("IFLA_PROP_LIST") for _, _, payload in recorder.sent]
    assert [name.get_attr("IFLA_ALT_IFNAME") for name in names] == ["a-rather-long-alternative-name", "b"]
    links.close()


@pytest.mark.parametrize(
    ("cidr", "broadcast"),
    [("10.56.3.2/24", "10.56.3.255"), ("10.56.3.2/31", None), ("10.56.3.2/32", None), ("fd00::2/64", None)],
)
def test_an_address_is_added_as_pyroute2_understands_it(recorder: Recorder, cidr: str, broadcast: str | None) -> None:
    links = link.Links()
    links.add_address(7, cidr, link.IFA_F_NODAD if ":" in cidr else 0)
    ((kind, flags, payload),) = recorder.sent
    found = decoded(ifaddrmsg, payload)
    address, _, length = cidr.partition("/")
    assert (kind, flags) == (20, 0x600)
    assert (found["index"], found["prefixlen"], found["family"]) == (7, int(length), 10 if ":" in cidr else 2)
    assert found.get_attr("IFA_LOCAL") == address
    assert found.get_attr("IFA_ADDRESS") == address
    assert found.get_attr("IFA_BROADCAST") == broadcast
    assert (found.get_attr("IFA_FLAGS") or 0) == (2 if ":" in cidr else 0)
    links.close()


def test_a_route_is_added_as_pyroute2_understands_it(recorder: Recorder) -> None:
    links = link.Links()
    links.add_route(7, "10.0.0.5/8", "10.56.3.1", mtu=1400, advmss=1360, priority=5, table=1000, scope=0)
    links.add_route(7, "fd00::/48")
    links.add_route(7, "10.1.0.0/16")
    first, second, third = (decoded(rtmsg, payload) for _, _, payload in recorder.sent)
    assert (first["dst_len"], first["table"], first["scope"], first["type"]) == (8, 0, 0, 1)
    assert first.get_attr("RTA_DST") == "10.0.0.0", "the kernel takes no host bits"
    assert first.get_attr("RTA_GATEWAY") == "10.56.3.1"
    assert first.get_attr("RTA_OIF") == 7
    assert first.get_attr("RTA_PRIORITY") == 5
    assert first.get_attr("RTA_TABLE") == 1000
    metrics = first.get_attr("RTA_METRICS")
    assert (metrics.get_attr("RTAX_MTU"), metrics.get_attr("RTAX_ADVMSS")) == (1400, 1360)
    assert (second["dst_len"], second["family"], second["table"], second["scope"]) == (48, 10, 254, 0)
    assert third["scope"] == 253, "without a gateway an IPv4 route is to the link"
    links.close()


def test_the_kernels_own_links_are_read_as_pyroute2_reads_them() -> None:
    from pyroute2 import IPRoute

    links = link.Links()
    with IPRoute() as ip:
        theirs = {
            m["index"]: (m.get_attr("IFLA_IFNAME"), m.get_attr("IFLA_ADDRESS"), m.get_attr("IFLA_MTU"), m["flags"])
            for m in ip.get_links()
        }
    ours = {found.ifindex: (found.name, found.mac, found.mtu, found.flags) for found in links.all()}
    assert ours == theirs
    assert links.get("no-such-netdev") is None
    links.close()


@given(st.binary(max_size=300))
def test_any_datagram_is_messages_or_malformed(data: bytes) -> None:
    try:
        for _, flags, _, body in netlink.messages(data):
            netlink._error(body, flags)
            list(netlink.attributes(body))
    except netlink.MalformedError as error:
        assert str(error)  # noqa: PT017 - it may also succeed


@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)), max_size=8))
def test_attributes_come_out_as_they_went_in(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attribute(kind, value) for kind, value in pairs)
    assert list(netlink.attributes(data)) == pairs


@pytest.mark.parametrize("name", ["mlx5_0", "a b", "%s", "\udcff", "é"])
def test_names_that_are_no_utf8_survive(name: str) -> None:
    ((_, value),) = netlink.attributes(netlink.text(2, name))
    assert netlink.string(value) == name
    assert value.endswith(b"\0")
    assert value[:-1] == os.fsencode(name)
