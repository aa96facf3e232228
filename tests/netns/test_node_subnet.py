"""The frozen `node-subnet`: commands, results, this node's subnet, requested addresses."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guest
import pytest
from conftest import BUNDLE, ROOT
from node_subnet import KEY, NODE_SUBNET, POOL, POOL6, VERSIONS, Node, a_node, addresses, conf, one_pool


@pytest.fixture
def node() -> Iterator[Node]:
    with a_node() as found:
        yield found


# What it starts with

# Not functools, collections and datetime: the C halves of sqlite3 and pydantic import these.
SLOW = {"json", "re", "typing", "dataclasses", "contextlib", "enum", "socket", "logging", "pathlib", "sqlite3"}
SLOW |= {"ipaddress", "netaddr", "pydantic", "pydantic_core", "subprocess", "argparse", "inspect", "pyroute2"}
# The bundle's modules in the interpreter that they were frozen from, which can be asked what it has loaded.
MODULES = """
import sys
sys.prefix = sys.argv[1]
exec(compile(open(sys.argv[2]).read(), "start.py", "exec"), {"__name__": "start"})
from rdma_cni.main import main
status = main(["node-subnet"])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""


def test_no_command_imports_what_takes_long_to_import(node: Node) -> None:
    start = ROOT / "frozen" / "start.py"
    command = ["/usr/bin/python3", "-I", "-S", "-c", MODULES, str(BUNDLE / "_internal"), str(start)]
    result = node.cni("ADD", conf()).json
    for name in ("ADD", "CHECK", "STATUS", "GC", "DEL"):
        config = conf(routes=[{"dst": "10.0.0.0/8"}], top={"prevResult": result})
        done = subprocess.run(
            [*node.inside, *command],
            input=json.dumps(config).encode(),
            env=guest.cni_environment(name, "c1", "/run/netns/none", "net1"),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done
        loaded = set(done.stderr.decode().split())
        assert "ipam.store" in loaded
        assert loaded & SLOW == set(), name


# Results


@pytest.mark.parametrize("version", VERSIONS)
def test_add_answers_in_the_version_that_was_asked_for(node: Node, version: str) -> None:
    dns = {"nameservers": ["10.0.0.53"], "search": ["example"]}
    answer = node.cni("ADD", conf(version, routes=[{"dst": "10.0.0.0/8"}], dns=dns))
    assert answer.ok, answer
    old = version < "1.0.0"
    assert answer.json == {
        "cniVersion": version,
        "ips": [
            {"address": "10.56.3.2/24", "gateway": "10.56.3.1", **({"version": "4"} if old else {})},
            {"address": "fd00:56:0:3::2/64", "gateway": "fd00:56:0:3::1", **({"version": "6"} if old else {})},
        ],
        "routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00:56::/48", "gw": "fd00:56:0:3::1"}],
        "dns": dns,
    }
    assert answer.stderr == ""


ROUTE: dict[str, Any] = {
    "dst": "10.0.0.0/8", "gw": "10.56.3.9", "mtu": 9000, "advmss": 8960, "priority": 50, "table": 100, "scope": 0
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_a_routes_further_keys_are_of_spec_1_1(node: Node, version: str) -> None:
    (route, *_) = node.cni("ADD", conf(version, routes=[ROUTE])).json["routes"]
    assert route == (ROUTE if version == "1.1.0" else {"dst": "10.0.0.0/8", "gw": "10.56.3.9"})


V4, V6 = {"dst": "10.56.0.0/16", "gw": "10.56.3.1"}, {"dst": "fd00:56::/48", "gw": "fd00:56:0:3::1"}


@pytest.mark.parametrize(
    ("ipam", "pool_routes"),
    [
        ({}, [V4, V6]),
        ({"poolRoute": True}, [V4, V6]),
        ({"poolRoute": False}, []),
        ({"pools": [{**POOL, "poolRoute": False}, POOL6]}, [V6]),
        ({"pools": [{**POOL, "poolRoute": True}, POOL6], "poolRoute": False}, [V4]),
        ({"pools": [{**POOL, "gateway": "none"}, POOL6]}, [V6]),
        ({"pools": [{**POOL, "mode": "flat", "gateway": "10.56.0.1"}, POOL6]}, [V6]),
        ({"routes": [{"dst": "0.0.0.0/0"}]}, [V6]),
        ({"routes": [{"dst": "10.56.0.0/16"}]}, [V6]),
        ({"routes": [{"dst": "10.56.77.1/15"}]}, [V6]),
        ({"routes": [{"dst": "10.56.0.0/17"}]}, [V4, V6]),
        ({"routes": [{"dst": "10.0.0.0/8", "gw": "10.56.3.200"}]}, [V6]),
        ({"routes": [{"dst": "::/0"}, {"dst": "0.0.0.0/0"}]}, []),
        ({"routes": [{"dst": "0.0.0.0/0", "table": 100}]}, [V4, V6]),
        ({"routes": [{"dst": "0.0.0.0/0", "table": 254}]}, [V6]),
    ],
    ids=str,
)
def test_a_route_to_the_whole_pool_is_added_unless_one_covers_it(
    node: Node, ipam: dict[str, Any], pool_routes: list[dict[str, str]]
) -> None:
    result = node.cni("ADD", conf(**ipam)).json
    configured = ipam.get("routes", [])
    assert result.get("routes", []) == [*configured, *pool_routes]
    assert ("routes" in result) == bool(configured or pool_routes)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (one_pool(), [{"address": "10.56.3.2/24", "gateway": "10.56.3.1"}]),
        (one_pool(gateway="last"), [{"address": "10.56.3.1/24", "gateway": "10.56.3.254"}]),
        (one_pool(gateway="none"), [{"address": "10.56.3.1/24"}]),
        (one_pool(exclude=["10.56.3.2", "10.56.3.4/30"]), [{"address": "10.56.3.3/24", "gateway": "10.56.3.1"}]),
        (one_pool(mode="flat"), [{"address": "10.56.3.0/16"}]),
        (one_pool(mode="flat", index=0), [{"address": "10.56.0.1/16"}]),
        (one_pool(mode="flat", gateway="10.56.3.0"), [{"address": "10.56.3.1/16", "gateway": "10.56.3.0"}]),
        (one_pool(prefix=31), [{"address": "10.56.0.7/31", "gateway": "10.56.0.6"}]),
        (one_pool(prefix=31, gateway="last"), [{"address": "10.56.0.6/31", "gateway": "10.56.0.7"}]),
        (one_pool(prefix=32), [{"address": "10.56.0.3/32"}]),
        (one_pool("fd00:56::/48", 127), [{"address": "fd00:56::7/127", "gateway": "fd00:56::6"}]),
        (one_pool("fd00:56::/48", 128), [{"address": "fd00:56::3/128"}]),
        (
            one_pool("fd00:56::/48", 64, mode="flat", gateway="fd00:56::1"),
            [{"address": "fd00:56:0:3::/48", "gateway": "fd00:56::1"}],
        ),
        (one_pool("10.56.3.0/24", 24, 0), [{"address": "10.56.3.2/24", "gateway": "10.56.3.1"}]),
    ],
    ids=lambda value: str(value["ipam"]["pools"][0]) if isinstance(value, dict) else "",
)
def test_modes_gateways_and_small_subnets(node: Node, config: dict[str, Any], expected: list[dict[str, str]]) -> None:
    assert node.cni("ADD", config).json["ips"] == expected


# Commands


def test_with_no_command_it_says_what_it_is(node: Node) -> None:
    answer = node.cni(None)
    assert (answer.code, answer.stdout) == (0, "")
    assert "node-subnet" in answer.stderr


def test_version_tells_the_versions(node: Node) -> None:
    assert node.cni("VERSION", {"cniVersion": "1.0.0"}).json == {"cniVersion": "1.0.0", "supportedVersions": VERSIONS}
    assert not node.state.exists()


def test_the_same_attachment_asking_again_gets_the_same(node: Node) -> None:
    first = node.cni("ADD", conf())
    node.add(conf(), "c2")
    assert node.cni("ADD", conf()).json == first.json
    assert node.add(conf(), ifname="net2") != addresses(first.json)


def test_del_frees_and_may_come_again_and_again(node: Node) -> None:
    node.add(conf())
    for _ in range(3):
        node.delete(conf())
    assert node.reserved() == {}
    assert node.add(conf(), "c2") == ["10.56.3.3/24", "fd00:56:0:3::3/64"]


def test_a_freed_address_is_the_last_to_come_again(node: Node) -> None:
    config = one_pool(prefix=29)
    for n in range(3):
        node.add(config, f"c{n}")
    node.delete(config, "c1")
    node.delete(config, "c0")
    assert [node.add(config, f"d{n}") for n in range(4)] == [[f"10.56.0.{n}/29"] for n in (29, 30, 27, 26)]


def test_two_networks_on_one_pool_never_share_an_address(node: Node) -> None:
    given = [node.add(conf(name=name), f"c{n}")[0] for n in range(2) for name in ("rail", "track")]
    assert given == [f"10.56.3.{n}/24" for n in (2, 3, 4, 5)]
    # The same container and interface, on another network.
    node.delete(conf(name="track"), "c0")
    assert sorted(node.reserved().values()) == ["c0", "c0", "c1", "c1", "c1", "c1"]


def test_a_changed_index_leaves_what_is_reserved_until_its_del(node: Node) -> None:
    moved = conf(nodes={"gpu-07": 9})
    before = node.add(conf())
    assert node.add(moved) == before
    assert node.cni("CHECK", moved).ok
    assert node.add(moved, "c2") == ["10.56.9.2/24", "fd00:56:0:9::2/64"]
    node.delete(moved)
    assert sorted(node.reserved().values()) == ["c2", "c2"]


def test_a_full_pool_is_told_with_the_nodes_subnet_and_the_others_addresses_are_given_back(node: Node) -> None:
    config = conf(pools=[POOL6, {**POOL, "nodePrefix": 30}])
    assert node.add(config) == ["fd00:56:0:3::2/64", "10.56.0.14/30"]
    assert node.cni("STATUS", config).error == 50
    answer = node.cni("ADD", config, "c2")
    assert answer.error == 11
    assert "10.56.0.12/30" in answer.json["msg"]
    assert sorted(node.reserved().values()) == ["c1", "c1"]
    node.delete(config)
    assert node.cni("STATUS", config).ok
    # The IPv6 address that was given back had not been given at all.
    assert node.add(config, "c2") == ["fd00:56:0:3::3/64", "10.56.0.14/30"]


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_check_is_content_with_what_add_made(node: Node, version: str) -> None:
    result = node.cni("ADD", conf(version)).json
    for previous in (result, {**result, "ips": [{"address": "192.0.2.1/24"}, *result["ips"]]}):
        answer = node.cni("CHECK", conf(version, top={"prevResult": previous}))
        assert (answer.code, answer.stdout) == (0, "")


def test_check_misses_a_reservation_that_is_gone(node: Node) -> None:
    result = node.cni("ADD", conf()).json
    node.delete(conf())
    answer = node.cni("CHECK", conf(top={"prevResult": result}))
    assert answer.error == 111
    assert "10.56.0.0/16" in answer.json["msg"]
    assert node.cni("CHECK", conf(top={"prevResult": result}), "c2").error == 111


def test_check_finds_an_address_that_is_not_the_reserved_one(node: Node) -> None:
    result = node.cni("ADD", conf()).json
    result["ips"][0]["address"] = "10.56.3.77/24"
    answer = node.cni("CHECK", conf(top={"prevResult": result}))
    assert answer.error == 111
    assert "10.56.3.2/24" in answer.json["msg"]


@pytest.mark.parametrize(
    ("top", "left"),
    [
        ({}, ["track"]),
        ({KEY: None}, ["track"]),
        ({KEY: []}, ["track"]),
        ({KEY: [{"containerID": "c1", "ifname": "net1"}]}, ["c1/net1", "track"]),
        (
            {KEY: [{"containerID": "c1", "ifname": "net2"}, {"containerID": "c9", "ifname": "net1"}]},
            ["c1/net2", "track"],
        ),
    ],
    ids=["absent", "null", "empty", "one", "another"],
)
def test_gc_frees_of_this_network_what_is_not_listed(node: Node, top: dict[str, Any], left: list[str]) -> None:
    config = one_pool()
    given = {"c1/net1": node.add(config), "c1/net2": node.add(config, ifname="net2"), "c2/net1": node.add(config, "c2")}
    given["track"] = node.add({**config, "name": "track"})
    answer = node.cni("GC", {**config, **top})
    assert (answer.code, answer.stdout) == (0, "")
    assert sorted(node.reserved()) == sorted(given[name][0].removesuffix("/24") for name in left)


@pytest.mark.parametrize("command", ["DEL", "GC"])
@pytest.mark.parametrize(
    "broken",
    [
        conf(nodes=None),
        conf(nodes={"other": 5}, nodeName="unknown"),
        conf(pools=None),
        conf(pools=[]),
        conf(pools="x", nodes=[], routes=5, unknown={}),
        {"cniVersion": "1.1.0", "name": "rail", "type": "macvlan"},
        {"cniVersion": "1.1.0", "name": "rail", "type": "macvlan", "ipam": 5},
        {**conf(), "runtimeConfig": {"ips": "x"}, "prevResult": [], "args": 5},
    ],
    ids=["no nodes", "unknown node", "no pools", "empty pools", "nonsense", "no ipam", "ipam a number", "bad request"],
)
def test_del_and_gc_need_nothing_but_the_network(node: Node, command: str, broken: dict[str, Any]) -> None:
    node.add(conf())
    node.write_node_file(b"{damaged")
    answer = node.cni(command, broken, env={"CNI_PATH": None, "CNI_NETNS": None})
    assert (answer.code, answer.stdout) == (0, "")
    assert node.reserved() == {}


def test_status_is_content_and_leaves_no_trace(node: Node) -> None:
    for _ in range(3):
        answer = node.cni("STATUS", conf())
        assert (answer.code, answer.stdout) == (0, "")
    assert node.reserved() == {}
    assert node.add(conf()) == ["10.56.3.2/24", "fd00:56:0:3::2/64"]


def test_a_result_that_cannot_be_written_is_no_reservation(node: Node) -> None:
    for redirection in (">/dev/full", ">&-"):
        assert node.cni("ADD", conf(), wrapper=("sh", "-c", f'exec "$0" {redirection}')).code == 1
        assert node.reserved() == {}
    node.add(conf())
    assert node.cni("ADD", conf(), wrapper=("sh", "-c", 'exec "$0" >/dev/full')).code == 1
    assert sorted(node.reserved().values()) == ["c1", "c1"]


# This node's subnet


def test_the_nodes_name_is_the_configurations_then_node_jsons_then_the_hosts(node: Node) -> None:
    nodes = {"configured": 1, "agent": 2, "host": 4}
    pools = [POOL]
    node.run("hostname", "host")
    assert node.add(conf(nodeName=None, nodes=nodes, pools=pools), "c1") == ["10.56.4.2/24"]
    node.write_node_file({"nodeName": "agent"})
    assert node.add(conf(nodeName=None, nodes=nodes, pools=pools), "c2") == ["10.56.2.2/24"]
    assert node.add(conf(nodeName="configured", nodes=nodes, pools=pools), "c3") == ["10.56.1.2/24"]


def test_a_list_in_nodes_names_the_subnets_and_they_are_used_in_order(node: Node) -> None:
    config = conf(nodes={"gpu-07": ["fd00:56:0:9::/64", "10.56.200.0/30", "10.56.7.0/31"]})
    assert [node.add(config, f"c{n}")[0] for n in range(2)] == ["10.56.200.2/30", "10.56.7.1/31"]
    assert node.cni("ADD", config, "c3").error == 11


def test_without_nodes_node_json_has_the_subnets(node: Node) -> None:
    config = conf(nodes=None, nodeName=None)
    node.write_node_file({"nodeName": "x", "subnets": ["10.56.7.0/24", "fd00:56:0:7::/64"], "more": 5})
    assert node.add(config) == ["10.56.7.2/24", "fd00:56:0:7::2/64"]
    # It serves a node that `nodes` does not have, and no other.
    assert node.add(conf(nodes={"other": 1}, nodeName="x"), "c2") == ["10.56.7.3/24", "fd00:56:0:7::3/64"]
    assert node.add(conf(), "c3") == ["10.56.3.2/24", "fd00:56:0:3::2/64"]


def test_node_json_may_have_the_subnets_of_other_networks_pools(node: Node) -> None:
    node.write_node_file({"subnets": ["10.57.7.0/24", "10.56.7.0/24", "fd00:57:0:7::/64"]})
    rails = [conf(name=f"rail-{n}", nodes=None, pools=[{"subnet": f"10.{n}.0.0/16"}]) for n in (56, 57)]
    assert [node.add(rail) for rail in rails] == [["10.56.7.2/24"], ["10.57.7.2/24"]]


@pytest.mark.parametrize(
    ("content", "config", "words"),
    [
        (None, conf(nodes=None), ["'gpu-07'", "10.56.0.0/16", "0 nodes of `ipam.nodes`", "node.json is not there"]),
        (None, conf(nodes={"a": 1, "b": 2}), ["'gpu-07'", "2 nodes of `ipam.nodes`", "node.json is not there"]),
        ({}, conf(nodes=None), ["node.json has no subnet in that pool"]),
        ({"subnets": ["10.56.7.0/24"]}, conf(nodes=None), ["fd00:56::/48", "node.json has no subnet in that pool"]),
        (None, conf(nodes={"gpu-07": ["10.56.7.0/24"]}), ["'gpu-07'", "fd00:56::/48", "its list in `ipam.nodes`"]),
        (None, conf(nodes=None, nodeName=None), ["'gpu-07'"]),
    ],
)
def test_a_node_without_a_subnet_is_named_with_the_places_searched(
    node: Node, content: object, config: dict[str, Any], words: list[str]
) -> None:
    if content is not None:
        node.write_node_file(content)
    for command, code in (("ADD", 11), ("STATUS", 50)):
        answer = node.cni(command, config)
        assert answer.error == code
        for word in words:
            assert word in answer.json["msg"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"subnets": "10.56.7.0/24"}',
        b'{"subnets": [5]}',
        b'{"subnets": ["10.56.7.0"]}',
        b'{"subnets": ["10.56.7.1/24"]}',
        b'{"subnets": ["10.0.0.0/8"]}',
        b'{"subnets": ["10.56.7.0/24", "10.56.7.128/25"]}',
        b'{"nodeName": 5}',
        b'{"nodeName": "\xff"}',
        b" " * (1 << 21),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_a_damaged_node_json_is_named(node: Node, content: bytes) -> None:
    node.write_node_file(content)
    for command in ("ADD", "STATUS"):
        answer = node.cni(command, conf(nodes=None))
        assert answer.error == 7
        assert answer.json["msg"].startswith("/run/rdma-cni/node.json: ")


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_a_node_json_that_is_no_file_is_named(node: Node, kind: str) -> None:
    node.state.mkdir(mode=0o700)
    at = str(Path("/run/rdma-cni/node.json"))
    node.run(*{"directory": ("mkdir", at), "pipe": ("mkfifo", at), "link": ("ln", "-s", "node.json", at)}[kind])
    answer = node.cni("ADD", conf(nodes=None))
    assert answer.error == 7
    assert answer.json["msg"].startswith("/run/rdma-cni/node.json: ")


def test_node_json_may_be_replaced_at_any_time(node: Node) -> None:
    config = conf(nodes=None, pools=[POOL])
    stop = threading.Event()
    written = threading.Event()

    def agent() -> None:
        while not stop.is_set():
            for third in (7, 8):
                node.write_node_file({"nodeName": "x", "subnets": [f"10.56.{third}.0/24", "10.57.0.0/24"]})
                written.set()

    writer = threading.Thread(target=agent)
    writer.start()
    try:
        written.wait(10)
        for n in range(30):
            assert node.add(config, f"c{n}")[0].startswith(("10.56.7.", "10.56.8."))
    finally:
        stop.set()
        writer.join()


# Requested addresses


def ways(address: str) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """The three ways to ask for an address: what is put into the configuration, and the environment."""
    return [
        ({"runtimeConfig": {"ips": [address]}}, {}),
        ({"args": {"cni": {"ips": [address]}}}, {}),
        ({}, {"CNI_ARGS": f"IgnoreUnknown=1;IP={address};K8S_POD_NAME=x"}),
    ]


@pytest.mark.parametrize("way", [0, 1, 2], ids=["runtimeConfig", "args", "CNI_ARGS"])
@pytest.mark.parametrize("address", ["10.56.3.77", "10.56.3.77/24", "10.56.3.77/32"])
def test_a_requested_address_is_given_however_it_is_asked_for(node: Node, way: int, address: str) -> None:
    top, env = ways(address)[way]
    assert node.add(conf(top=top), env=env) == ["10.56.3.77/24", "fd00:56:0:3::2/64"]
    assert node.add(conf(top=top), env=env) == ["10.56.3.77/24", "fd00:56:0:3::2/64"]


def test_the_first_way_that_says_something_counts(node: Node) -> None:
    top = {"runtimeConfig": {"ips": ["10.56.3.77"]}, "args": {"cni": {"ips": ["10.56.3.78"]}}}
    env = {"CNI_ARGS": "IP=10.56.3.79"}
    assert node.add(conf(top=top), "a", env=env)[0] == "10.56.3.77/24"
    assert node.add(conf(top={**top, "runtimeConfig": {"ips": []}}), "b", env=env)[0] == "10.56.3.78/24"
    assert node.add(conf(top={"runtimeConfig": {}, "args": {"cni": {}}}), "c", env=env)[0] == "10.56.3.79/24"


def test_one_address_of_each_pool_may_be_requested(node: Node) -> None:
    top = {"runtimeConfig": {"ips": ["FD00:56:0:3:0::4D/64", "10.56.3.77"]}}
    assert node.add(conf(top=top)) == ["10.56.3.77/24", "fd00:56:0:3::4d/64"]
    env = {"CNI_ARGS": "IP=10.56.3.78,fd00:56:0:3::4e"}
    assert node.add(conf(), "c2", env=env) == ["10.56.3.78/24", "fd00:56:0:3::4e/64"]


@pytest.mark.parametrize("way", [0, 1, 2], ids=["runtimeConfig", "args", "CNI_ARGS"])
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.56.9.5", "outside this node's subnet of the pool 10.56.0.0/16 (10.56.3.0/24)"),
        ("10.99.0.1", "in none of the pools (10.56.0.0/16, fd00:56::/48)"),
        ("10.56.3.0", "never given, it is the network address"),
        ("10.56.3.255", "never given, it is the broadcast address"),
        ("10.56.3.1", "never given, it is the gateway"),
        ("fd00:56:0:3::1", "never given, it is the gateway"),
        ("10.56.3.2", "reserved by container other, interface net1, network rail"),
    ],
)
def test_a_requested_address_is_refused_with_the_reason(node: Node, way: int, address: str, reason: str) -> None:
    node.add(conf(), "other")
    top, env = ways(address)[way]
    answer = node.cni("ADD", conf(top=top), env=env)
    assert answer.error == 120
    assert answer.json["msg"].startswith(f"requested address {address}: ")
    assert reason in answer.json["msg"]
    assert set(node.reserved().values()) == {"other"}


@pytest.mark.parametrize(
    ("top", "env", "code", "field"),
    [
        ({"runtimeConfig": {"ips": "10.56.3.77"}}, {}, 7, "runtimeConfig.ips"),
        ({"runtimeConfig": {"ips": ["10.56.3.77", 5]}}, {}, 7, "runtimeConfig.ips[1]"),
        ({"runtimeConfig": {"ips": ["10.56.3"]}}, {}, 7, "runtimeConfig.ips[0]"),
        ({"runtimeConfig": {"ips": ["10.56.3.77/33"]}}, {}, 7, "runtimeConfig.ips[0]"),
        ({"args": {"cni": {"ips": {}}}}, {}, 7, "args.cni.ips"),
        ({"args": {"cni": {"ips": ["x"]}}}, {}, 7, "args.cni.ips[0]"),
        ({}, {"CNI_ARGS": "IP=10.56.3"}, 4, "CNI_ARGS: IP"),
        ({}, {"CNI_ARGS": "IP=10.56.3.77,x"}, 4, "CNI_ARGS: IP"),
    ],
)
def test_a_request_that_is_no_address_is_named(
    node: Node, top: dict[str, Any], env: dict[str, str], code: int, field: str
) -> None:
    answer = node.cni("ADD", conf(top=top), env=env)
    assert answer.error == code
    assert answer.json["msg"].startswith(f"{field}: found")


# As the IPAM plugin of others

BRIDGE = Path("/usr/lib/cni/bridge")


@pytest.mark.skipif(not BRIDGE.exists(), reason="Debian's containernetworking-plugins is not installed")
def test_a_go_plugin_names_it_as_its_ipam_plugin(node: Node) -> None:
    config = {**conf("1.0.0", pools=[POOL]), "type": "bridge", "bridge": "br-test"}
    directories = f"{BRIDGE.parent}:{Path(NODE_SUBNET).parent}"
    # A second ADD in a namespace that is new: the attachment is the same.
    script = f"""
        mkdir -p /run/netns && touch /run/netns/pod && unshare --net=/run/netns/pod true
        export CNI_CONTAINERID=c1 CNI_IFNAME=net1 CNI_NETNS=/run/netns/pod CNI_PATH={directories}
        printf %s "$CONFIG" | CNI_COMMAND=ADD {BRIDGE}
        $DELETE || printf %s "$CONFIG" | CNI_COMMAND=DEL {BRIDGE}
        umount /run/netns/pod"""
    for delete, left in (("true", {"10.56.3.2": "c1"}), ("false", {})):
        done = subprocess.run(
            [*node.inside, "unshare", "--net", "sh", "-ec", script],
            capture_output=True,
            env={"CONFIG": json.dumps(config), "DELETE": delete, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            check=False,
        )
        assert done.returncode == 0, done
        assert addresses(json.loads(done.stdout)) == ["10.56.3.2/24"]
        assert node.reserved() == left
