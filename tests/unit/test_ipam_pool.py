"""Subnets of pools and their usable addresses, with netaddr as the second opinion."""

from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netaddr import IPAddress, IPNetwork, IPSet  # type: ignore[import-untyped]

from ipam.node import Share
from ipam.pool import Pool, Range, listed, parse, parts, pools, subnet, unparse
from rdma_cni.cni import validate
from rdma_cni.cni.errors import CniError

# How long an example takes says nothing on a machine that others share.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

if TYPE_CHECKING:
    from ipam import models


def configuration(*all_pools: dict[str, Any], **more: object) -> "models.NodeSubnet":
    section = {"type": "node-subnet", "pools": list(all_pools), **more}
    return cast("models.NodeSubnet", validate.check("NODE_SUBNET", section, prefix="ipam."))


def only_pool(cidr: str, **more: object) -> Pool:
    (pool,) = pools(configuration({"subnet": cidr, **more}))
    return pool


def one_range(cidr: str, own: str, **more: object) -> Range:
    return Range(only_pool(cidr, **more), subnet(own, "own"))


def usable(own: Range) -> list[str]:
    """Every address of a range that may be given, by walking it as the allocator does."""
    found = []
    address = own.next(own.subnet.first)
    while address is not None:
        found.append(unparse(address, own.subnet.bits))
        address = own.next(address + 1)
    return found


def gateway(own: Range) -> str | None:
    return None if own.gateway is None else unparse(own.gateway, own.subnet.bits)


@st.composite
def networks(draw: st.DrawFn, shortest: int = 0, below: int | None = None) -> IPNetwork:
    """A network of either family, without host bits; `below` makes it a small one."""
    version = draw(st.sampled_from([4, 6]))
    bits = 32 if version == 4 else 128
    length = draw(st.integers(bits - below if below is not None else shortest, bits))
    address = draw(st.integers(0, 2**bits - 1))
    return IPNetwork((address, length), version=version).cidr


# Addresses and subnets


@given(networks())
def test_a_subnets_bounds_are_netaddrs(network: IPNetwork) -> None:
    found = subnet(str(network), "subnet")
    assert (found.first, found.last, found.length) == (network.first, network.last, network.prefixlen)
    assert IPNetwork(str(found)) == network
    assert parse(str(network.ip)) == (int(network.ip), found.bits)


@given(networks(), networks())
def test_containment_and_overlap_are_netaddrs(one: IPNetwork, other: IPNetwork) -> None:
    ours, theirs = subnet(str(one), "one"), subnet(str(other), "other")
    assert (theirs in ours) == (other in one)
    assert ours.overlaps(theirs) == (one in other or other in one)
    assert ours.has(theirs.first, theirs.bits) == (IPAddress(other.first, other.version) in one)


@given(st.data(), networks(shortest=1))
def test_host_bits_are_refused_and_the_subnet_meant_is_named(data: st.DataObject, network: IPNetwork) -> None:
    if network.size == 1:
        return
    address = IPAddress(data.draw(st.integers(network.first + 1, network.last)), network.version)
    with pytest.raises(CniError) as caught:
        subnet(f"{address}/{network.prefixlen}", "where")
    assert caught.value.code == 7
    assert caught.value.message.startswith(f"where: found {address}/{network.prefixlen}, expected")
    assert caught.value.message.endswith(str(network))


# A pool cut into node subnets


@pytest.mark.parametrize(
    ("cidr", "node_prefix", "index", "expected"),
    [
        ("10.56.0.0/16", 24, 0, "10.56.0.0/24"),
        ("10.56.0.0/16", 24, 3, "10.56.3.0/24"),
        ("10.56.0.0/16", 24, 255, "10.56.255.0/24"),
        ("10.56.0.0/16", 16, 0, "10.56.0.0/16"),
        ("10.56.4.0/22", 26, 5, "10.56.5.64/26"),
        ("10.56.0.0/30", 31, 1, "10.56.0.2/31"),
        ("10.56.0.0/24", 32, 9, "10.56.0.9/32"),
        ("0.0.0.0/0", 32, 2**32 - 1, "255.255.255.255/32"),
        ("fd00:56::/48", 64, 3, "fd00:56:0:3::/64"),
        ("fd00:56::/48", 64, 65535, "fd00:56:0:ffff::/64"),
        ("fd00:56::/120", 127, 2, "fd00:56::4/127"),
        ("fd00:56::/120", 128, 255, "fd00:56::ff/128"),
        ("::/0", 128, 2**128 - 1, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"),
    ],
)
def test_an_index_counts_subnets_from_the_start_of_the_pool(
    cidr: str, node_prefix: int, index: int, expected: str
) -> None:
    assert str(only_pool(cidr, nodePrefix=node_prefix).at(index, "index")) == expected


@given(st.data(), networks())
def test_every_index_up_to_the_last_is_netaddrs_subnet_and_none_beyond(data: st.DataObject, network: IPNetwork) -> None:
    bits = 32 if network.version == 4 else 128
    node_prefix = data.draw(st.integers(network.prefixlen, min(bits, network.prefixlen + 10)))
    pool = only_pool(str(network), nodePrefix=node_prefix)
    expected = list(network.subnet(node_prefix))
    index = data.draw(st.integers(0, len(expected) - 1))
    assert str(pool.at(index, "index")) == str(expected[index])
    with pytest.raises(CniError) as caught:
        pool.at(len(expected), "index")
    assert f"an index below {len(expected)}" in caught.value.message


# Which of a subnet's addresses may be given


@pytest.mark.parametrize(
    ("pool", "own", "more", "expected_gateway", "expected"),
    [
        # Routed: the network and broadcast address of pool and subnet, and the gateway, are never given.
        ("10.0.0.0/16", "10.0.3.0/29", {}, "10.0.3.1", [f"10.0.3.{n}" for n in range(2, 7)]),
        ("10.0.0.0/16", "10.0.3.0/29", {"gateway": "first"}, "10.0.3.1", [f"10.0.3.{n}" for n in range(2, 7)]),
        ("10.0.0.0/16", "10.0.3.0/29", {"gateway": "last"}, "10.0.3.6", [f"10.0.3.{n}" for n in range(1, 6)]),
        ("10.0.0.0/16", "10.0.3.0/29", {"gateway": "none"}, None, [f"10.0.3.{n}" for n in range(1, 7)]),
        ("10.0.3.0/29", "10.0.3.0/29", {}, "10.0.3.1", [f"10.0.3.{n}" for n in range(2, 7)]),
        ("10.0.0.0/16", "10.0.3.0/30", {}, "10.0.3.1", ["10.0.3.2"]),
        ("10.0.0.0/16", "10.0.3.4/31", {}, "10.0.3.4", ["10.0.3.5"]),
        ("10.0.0.0/16", "10.0.3.4/31", {"gateway": "last"}, "10.0.3.5", ["10.0.3.4"]),
        ("10.0.0.0/16", "10.0.3.4/31", {"gateway": "none"}, None, ["10.0.3.4", "10.0.3.5"]),
        ("10.0.0.4/31", "10.0.0.4/31", {}, "10.0.0.4", ["10.0.0.5"]),
        ("10.0.0.0/16", "10.0.3.4/32", {}, None, ["10.0.3.4"]),
        ("10.0.0.4/32", "10.0.0.4/32", {}, None, ["10.0.0.4"]),
        # The pool's own ends count in a subnet that has no ends of its own, too.
        ("10.0.0.0/16", "10.0.0.0/31", {"gateway": "none"}, None, ["10.0.0.1"]),
        ("10.0.0.0/16", "10.0.255.254/31", {}, "10.0.255.254", []),
        ("10.0.0.0/16", "10.0.0.0/32", {}, None, []),
        ("10.0.0.0/16", "10.0.255.255/32", {}, None, []),
        # IPv6 has no broadcast address; the first one of a subnet is that of its routers.
        ("fd00::/48", "fd00:0:0:3::/125", {}, "fd00:0:0:3::1", [f"fd00:0:0:3::{n}" for n in range(2, 8)]),
        (
            "fd00::/48",
            "fd00:0:0:3::/125",
            {"gateway": "last"},
            "fd00:0:0:3::7",
            [f"fd00:0:0:3::{n}" for n in range(1, 7)],
        ),
        ("fd00::/48", "fd00:0:0:3::/126", {"gateway": "none"}, None, [f"fd00:0:0:3::{n}" for n in range(1, 4)]),
        ("fd00::/48", "fd00:0:0:3::4/127", {}, "fd00:0:0:3::4", ["fd00:0:0:3::5"]),
        ("fd00::/48", "fd00:0:0:3::4/128", {}, None, ["fd00:0:0:3::4"]),
        ("fd00::/48", "fd00::/128", {}, None, []),
        # Flat: the pool's ends alone, and its gateway, wherever that is.
        ("10.0.0.0/16", "10.0.3.0/30", {"mode": "flat"}, None, [f"10.0.3.{n}" for n in range(4)]),
        ("10.0.0.0/16", "10.0.0.0/30", {"mode": "flat"}, None, [f"10.0.0.{n}" for n in range(1, 4)]),
        ("10.0.0.0/16", "10.0.255.252/30", {"mode": "flat"}, None, [f"10.0.255.{n}" for n in range(252, 255)]),
        (
            "10.0.0.0/16",
            "10.0.3.0/30",
            {"mode": "flat", "gateway": "10.0.3.2"},
            "10.0.3.2",
            ["10.0.3.0", "10.0.3.1", "10.0.3.3"],
        ),
        ("10.0.0.0/16", "10.0.3.0/31", {"mode": "flat", "gateway": "10.0.0.1"}, "10.0.0.1", ["10.0.3.0", "10.0.3.1"]),
        ("10.0.0.0/16", "10.0.3.4/32", {"mode": "flat", "gateway": "none"}, None, ["10.0.3.4"]),
        (
            "fd00::/48",
            "fd00:0:0:3::/126",
            {"mode": "flat"},
            None,
            ["fd00:0:0:3::", *(f"fd00:0:0:3::{n}" for n in (1, 2, 3))],
        ),
        # Excluded: single addresses, subnets, overlapping ones, at the ends, all of it.
        (
            "10.0.0.0/16",
            "10.0.3.0/29",
            {"exclude": ["10.0.3.2", "10.0.3.4"]},
            "10.0.3.1",
            ["10.0.3.3", "10.0.3.5", "10.0.3.6"],
        ),
        ("10.0.0.0/16", "10.0.3.0/29", {"exclude": ["10.0.3.4/30", "10.0.3.5"]}, "10.0.3.1", ["10.0.3.2", "10.0.3.3"]),
        ("10.0.0.0/16", "10.0.3.0/29", {"exclude": ["10.0.3.0/30"]}, "10.0.3.1", ["10.0.3.4", "10.0.3.5", "10.0.3.6"]),
        ("10.0.0.0/16", "10.0.3.0/29", {"exclude": ["10.0.0.0/20"]}, "10.0.3.1", []),
        (
            "10.0.0.0/16",
            "10.0.3.0/29",
            {"exclude": ["10.0.200.0/24", "10.0.3.1"]},
            "10.0.3.1",
            [f"10.0.3.{n}" for n in range(2, 7)],
        ),
    ],
)
def test_usable_addresses(
    pool: str, own: str, more: dict[str, Any], expected_gateway: str | None, expected: list[str]
) -> None:
    found = one_range(pool, own, **more)
    assert gateway(found) == expected_gateway
    assert usable(found) == expected
    assert found.length == int((pool if more.get("mode") == "flat" else own).partition("/")[2])


@given(st.data(), networks(below=8), st.sampled_from(["first", "last", "none"]))
def test_a_routed_subnet_gives_netaddrs_hosts_but_the_gateway_and_what_is_excluded(
    data: st.DataObject, network: IPNetwork, kind: str
) -> None:
    bits = 32 if network.version == 4 else 128
    # The pool is larger by far, so that its ends are elsewhere.
    pool = network.supernet(max(0, network.prefixlen - 8))[0] if network.prefixlen else network
    exclude = data.draw(
        st.lists(
            st.builds(
                lambda number, length: IPNetwork((network.first + number, length), version=network.version).cidr,
                st.integers(0, network.size - 1),
                st.integers(max(network.prefixlen, bits - 4), bits),
            ),
            max_size=4,
        )
    )
    found = one_range(str(pool), str(network), gateway=kind, exclude=[str(one) for one in exclude])
    hosts = list(network.iter_hosts())
    chosen = {"first": hosts[0], "last": hosts[-1], "none": None}[kind] if network.size > 1 else None
    assert gateway(found) == (None if chosen is None else str(chosen))
    if pool.size <= 2:
        never = IPSet(exclude)
    elif network.version == 4:
        never = IPSet([*exclude, IPAddress(pool.first), IPAddress(pool.last)])
    else:
        never = IPSet([*exclude, IPAddress(pool.first, 6)])
    assert usable(found) == [str(host) for host in hosts if host not in never and host != chosen]


@given(st.data(), networks(below=8))
def test_every_address_that_is_not_given_has_a_reason(data: st.DataObject, network: IPNetwork) -> None:
    found = one_range(str(network), str(network), exclude=[str(IPAddress(network.last, network.version))])
    free = set(usable(found))
    for address in network:
        assert bool(found.why_not(int(address))) == (str(address) not in free)


# Pools of one configuration


@pytest.mark.parametrize(
    ("first", "second", "fine"),
    [
        ("10.56.0.0/16", "10.57.0.0/16", True),
        ("10.56.0.0/16", "fd00::/48", True),
        ("0.0.0.0/0", "::/0", True),
        ("10.56.0.0/16", "10.56.0.0/16", False),
        ("10.56.0.0/16", "10.56.200.0/24", False),
        ("10.56.200.0/24", "10.56.0.0/16", False),
        ("fd00::/48", "fd00:0:0:7::/64", False),
    ],
)
def test_pools_that_overlap_are_refused(first: str, second: str, *, fine: bool) -> None:
    conf = configuration({"subnet": first}, {"subnet": second})
    if fine:
        assert [str(pool.subnet) for pool in pools(conf)] == [first, second]
        return
    with pytest.raises(CniError) as caught:
        pools(conf)
    assert caught.value.message == (
        f"ipam.pools[1].subnet: found {second}, expected a pool that does not overlap ipam.pools[0], {first}"
    )


# `nodes`

RAIL = {"subnet": "10.56.0.0/16", "nodePrefix": 24}
RAIL6 = {"subnet": "fd00:56::/48", "nodePrefix": 64}


def own_parts(nodes: dict[str, Any], name: str, *all_pools: dict[str, Any]) -> list[str] | None:
    conf = configuration(*(all_pools or (RAIL, RAIL6)), nodes=nodes)
    found = parts(conf, pools(conf), name)
    return None if found is None else [str(one) for _, one in found]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({"a": 3}, ["10.56.3.0/24", "fd00:56:0:3::/64"]),
        ({"a": 0, "b": 1}, ["10.56.0.0/24", "fd00:56::/64"]),
        ({"a": ["10.56.200.0/22"]}, ["10.56.200.0/22"]),
        (
            {"a": ["fd00:56:0:9::/64", "10.56.9.0/25", "10.56.8.0/24"]},
            ["fd00:56:0:9::/64", "10.56.9.0/25", "10.56.8.0/24"],
        ),
        ({"b": 3}, None),
        ({}, None),
    ],
)
def test_a_nodes_subnets_are_counted_or_named(nodes: dict[str, Any], expected: list[str] | None) -> None:
    assert own_parts(nodes, "a") == expected


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"a": 256}, "ipam.nodes.a: found 256, expected an index below 256: 10.56.0.0/16 has that many subnets"),
        ({"a": 1, "b": 1}, "ipam.nodes.b: found 1, expected an index of its own: node a has it"),
        (
            {"a": 3, "b": ["10.56.3.128/25"]},
            "ipam.nodes.b: found 10.56.3.128/25, expected a subnet that does not overlap 10.56.3.0/24 of node a",
        ),
        (
            {"b": ["fd00:56::/60"], "a": 3},
            "ipam.nodes.b: found fd00:56::/60, expected a subnet that does not overlap fd00:56:0:3::/64 of node a",
        ),
        (
            {"a": ["10.56.0.0/20"], "b": ["10.56.20.0/24", "10.56.9.0/24"]},
            "ipam.nodes.b: found 10.56.9.0/24, expected a subnet that does not overlap 10.56.0.0/20 of node a",
        ),
        (
            {"a": ["10.56.0.0/20", "10.56.4.0/24"]},
            "ipam.nodes.a[1]: found 10.56.4.0/24, expected a subnet that does not overlap 10.56.0.0/20 in the",
        ),
        (
            {"a": ["10.57.0.0/24"]},
            "ipam.nodes.a[0]: found 10.57.0.0/24, expected a subnet in one of the pools: 10.56.0.0/16, fd00:56::/48",
        ),
        ({"a": ["10.0.0.0/8"]}, "ipam.nodes.a[0]: found 10.0.0.0/8, expected a subnet in one of the pools"),
        ({"a": ["10.56.3.1/24"]}, "ipam.nodes.a[0]: found 10.56.3.1/24, expected a subnet without host bits"),
    ],
)
def test_a_mistake_in_nodes_is_found_whichever_node_asks(nodes: dict[str, Any], message: str) -> None:
    for name in ("a", "b", "c"):
        with pytest.raises(CniError) as caught:
            own_parts(nodes, name)
        assert caught.value.code == 7
        assert caught.value.message.startswith(message)


def test_an_index_needs_the_size_that_it_counts_in() -> None:
    with pytest.raises(CniError) as caught:
        own_parts({"a": 3}, "a", {"subnet": "10.56.0.0/16"})
    assert caught.value.message.startswith("ipam.pools[0].nodePrefix: found nothing, expected the size")
    assert own_parts({"a": ["10.56.3.0/24"]}, "a", {"subnet": "10.56.0.0/16"}) == ["10.56.3.0/24"]


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=2),
        st.integers(0, 15) | st.integers(0, 63).map(lambda n: [n]),
        max_size=6,
    )
)
def test_two_nodes_may_not_share_an_address_and_all_else_is_fine(nodes: dict[str, int | list[int]]) -> None:
    """An integer is an index of /28s, a list the number of a /30 in the same /24."""
    pool = IPNetwork("10.9.8.0/24")
    of_node = {
        name: list(pool.subnet(28))[part] if isinstance(part, int) else list(pool.subnet(30))[part[0]]
        for name, part in nodes.items()
    }
    clash = any(one in other or other in one for a, one in of_node.items() for b, other in of_node.items() if a < b)
    section: dict[str, Any] = {
        name: part if isinstance(part, int) else [str(of_node[name])] for name, part in nodes.items()
    }
    conf_pool = {"subnet": str(pool), "nodePrefix": 28}
    if clash:
        with pytest.raises(CniError):
            own_parts(section, "", conf_pool)
        return
    for name, one in of_node.items():
        assert own_parts(section, name, conf_pool) == [str(one)]


# Lists that serve several networks


def test_a_list_for_several_networks_may_have_other_networks_subnets() -> None:
    all_pools = pools(configuration(RAIL))
    entries = ["10.57.3.0/24", "10.56.3.0/24", "fd00::/64"]
    assert [str(one) for _, one in listed(entries, all_pools, "subnets", others=True)] == ["10.56.3.0/24"]
    with pytest.raises(CniError) as caught:
        listed(["10.0.0.0/8"], all_pools, "subnets", others=True)
    assert caught.value.message.startswith("subnets[0]: found 10.0.0.0/8, expected a subnet in one of the pools")


def test_a_share_reads_as_its_subnets() -> None:
    pool = only_pool("10.56.0.0/16")
    share = Share(pool, [Range(pool, subnet(text, "")) for text in ("10.56.3.0/24", "10.56.9.0/24")])
    assert str(share) == "10.56.3.0/24, 10.56.9.0/24"
