"""The frozen `node-subnet`: each mistake in its configuration is named by its field, with code 7."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT
from node_subnet import KEY, POOL, POOL6, Node, a_node, conf

FLAT = {**POOL, "mode": "flat"}


def pool(**more: object) -> dict[str, Any]:
    """The configuration with a first pool that has more, or other, keys."""
    return conf(pools=[{**POOL, **more}, POOL6])


def route(**keys: object) -> dict[str, Any]:
    return conf(routes=[{"dst": "10.0.0.0/8"}, {"dst": "10.1.0.0/16", **keys}])


# A configuration, and how the message begins.
BAD: list[tuple[dict[str, Any], str]] = [
    # No section, none of ours
    ({**conf(), "ipam": None}, "ipam: found nothing"),
    ({**conf(), "ipam": []}, "ipam: found list"),
    ({**conf(), "ipam": "node-subnet"}, "ipam: found str"),
    (conf(type=5), "ipam.type: found 5"),
    # Keys that are not known, with the nearest that is
    (conf(pool=[POOL], pools=None), "ipam.pool: found a key that is not known; did you mean 'pools'?"),
    (conf(nodename="x"), "ipam.nodename: found a key that is not known; did you mean 'nodeName'?"),
    (conf(ranges=[]), "ipam.ranges: found a key that is not known; expected one of dns, nodeName, "),
    (pool(nodeprefix=24), "ipam.pools[0].nodeprefix: found a key that is not known; did you mean 'nodePrefix'?"),
    (pool(excludes=[]), "ipam.pools[0].excludes: found a key that is not known; did you mean 'exclude'?"),
    (route(gateway="10.56.3.1"), "ipam.routes[1].gateway: found a key that is not known"),
    (route(metric=5), "ipam.routes[1].metric: found a key that is not known"),
    # Pools: none, overlapping, host bits
    (conf(pools=None), "ipam.pools: found nothing"),
    (conf(pools=[]), "ipam.pools: found an empty list"),
    (conf(pools={}), "ipam.pools: found {}, expected a list"),
    (conf(pools=["10.56.0.0/16"]), 'ipam.pools[0]: found "10.56.0.0/16", expected an object'),
    (conf(pools=[{}]), "ipam.pools[0].subnet: found nothing"),
    (conf(pools=[POOL, POOL]), "ipam.pools[1].subnet: found 10.56.0.0/16"),
    (conf(pools=[POOL, {"subnet": "10.56.128.0/17"}]), "ipam.pools[1].subnet: found 10.56.128.0/17"),
    (
        pool(subnet="10.56.0.1/16"),
        "ipam.pools[0].subnet: found 10.56.0.1/16, expected a subnet without host bits, which is 10.56.0.0",
    ),
    (pool(subnet="fd00:56::1/48"), "ipam.pools[0].subnet: found fd00:56::1/48"),
    *[
        (pool(subnet=subnet), f"ipam.pools[0].subnet: found {subnet!r}".replace("'", '"'))
        for subnet in (
            "10.56.0.0",
            "10.56/16",
            "10.56.0.0/33",
            "10.56.0.0/-1",
            "fd00::/129",
            "10.56.0.256/16",
            "x",
            "",
            "10.56.0.0/16 ",
        )
    ],
    (pool(subnet=5), "ipam.pools[0].subnet: found 5, expected a string"),
    (pool(subnet=None), "ipam.pools[0].subnet: found null"),
    # The size of a node's subnet
    (pool(nodePrefix=15), "ipam.pools[0].nodePrefix: found 15, expected a prefix length from the pool's 16"),
    (pool(nodePrefix=33), "ipam.pools[0].nodePrefix: found 33, expected a prefix length from the pool's 16 to"),
    (pool(nodePrefix=129), "ipam.pools[0].nodePrefix: found 129"),
    (pool(nodePrefix=-1), "ipam.pools[0].nodePrefix: found -1"),
    (pool(nodePrefix=10**30), f"ipam.pools[0].nodePrefix: found {10**30}"),
    (pool(nodePrefix="24"), 'ipam.pools[0].nodePrefix: found "24", expected an integer'),
    (pool(nodePrefix=24.5), "ipam.pools[0].nodePrefix: found 24.5"),
    (pool(nodePrefix=True), "ipam.pools[0].nodePrefix: found true"),
    (conf(pools=[{"subnet": "10.56.0.0/16"}]), "ipam.pools[0].nodePrefix: found nothing"),
    # Mode and gateway
    (pool(mode="bridged"), 'ipam.pools[0].mode: found "bridged"'),
    (pool(mode="Flat"), 'ipam.pools[0].mode: found "Flat"'),
    (pool(gateway="10.56.3.1"), "ipam.pools[0].gateway: found 10.56.3.1"),
    (pool(gateway="second"), "ipam.pools[0].gateway: found second"),
    (pool(gateway=1), "ipam.pools[0].gateway: found 1"),
    *[
        (pool(mode="flat", gateway=gateway), f"ipam.pools[0].gateway: found {gateway}")
        for gateway in ("first", "last", "10.57.0.1", "fd00:56::1", "10.56.0.1/16", "10.56.0", "")
    ],
    (pool(mode="flat", gateway="10.56\0"), "ipam.pools[0].gateway: found 10.56"),
    (pool(poolRoute="yes"), 'ipam.pools[0].poolRoute: found "yes", expected true or false'),
    (conf(poolRoute=1), "ipam.poolRoute: found 1, expected true or false"),
    # Exclude
    (pool(exclude="10.56.3.9"), 'ipam.pools[0].exclude: found "10.56.3.9", expected a list'),
    (pool(exclude=["10.56.3.9", "10.57.0.1"]), "ipam.pools[0].exclude[1]: found 10.57.0.1"),
    (pool(exclude=["10.0.0.0/8"]), "ipam.pools[0].exclude[0]: found 10.0.0.0/8"),
    (pool(exclude=["fd00:56::1"]), "ipam.pools[0].exclude[0]: found fd00:56::1"),
    (
        pool(exclude=["10.56.3.9/28"]),
        "ipam.pools[0].exclude[0]: found 10.56.3.9/28, expected a subnet without host bits",
    ),
    (pool(exclude=["10.56.3.9-10.56.3.12"]), 'ipam.pools[0].exclude[0]: found "10.56.3.9-10.56.3.12"'),
    (pool(exclude=[5]), "ipam.pools[0].exclude[0]: found 5"),
    # Nodes
    (conf(nodes=[]), "ipam.nodes: found [], expected an object"),
    (conf(nodes={"gpu-07": -1}), "ipam.nodes.gpu-07: found -1"),
    (conf(nodes={"gpu-07": 256}), "ipam.nodes.gpu-07: found 256, expected an index below 256: 10.56.0.0/16"),
    (
        conf(nodes={"gpu-07": 65536}, pools=[POOL6, POOL]),
        "ipam.nodes.gpu-07: found 65536, expected an index below 65536: fd00:56::/48",
    ),
    (conf(nodes={"gpu-07": 3, "gpu-08": 10**40}), f"ipam.nodes.gpu-08: found {10**40}"),
    (conf(nodes={"gpu-07": "3"}), 'ipam.nodes.gpu-07: found "3"'),
    (conf(nodes={"gpu-07": 3.0}), "ipam.nodes.gpu-07: found 3.0"),
    (conf(nodes={"gpu-07": True}), "ipam.nodes.gpu-07: found true"),
    (conf(nodes={"gpu-07": None}), "ipam.nodes.gpu-07: found null"),
    (conf(nodes={"gpu-07": {}}), "ipam.nodes.gpu-07: found {}"),
    (conf(nodes={"gpu-07": []}), "ipam.nodes.gpu-07: found []"),
    (conf(nodes={"gpu-07": [3]}), "ipam.nodes.gpu-07: found [3]"),
    (conf(nodes={"gpu-07": ["10.56.3.0"]}), 'ipam.nodes.gpu-07: found ["10.56.3.0"]'),
    (
        conf(nodes={"gpu-07": 3, "gpu-08": 3}),
        "ipam.nodes.gpu-08: found 3, expected an index of its own: node gpu-07 has it",
    ),
    (conf(nodes={"gpu-07": 3, "gpu-08": ["10.56.3.0/25"]}), "ipam.nodes.gpu-08: found 10.56.3.0/25"),
    (conf(nodes={"gpu-08": ["10.56.2.0/23"], "gpu-07": 3}), "ipam.nodes.gpu-08: found 10.56.2.0/23"),
    (conf(nodes={"a": ["10.56.2.0/23"], "b": ["10.56.3.0/24"]}), "ipam.nodes.b: found 10.56.3.0/24"),
    (conf(nodes={"gpu-07": ["10.56.3.0/24", "10.56.3.0/24"]}), "ipam.nodes.gpu-07[1]: found 10.56.3.0/24"),
    (conf(nodes={"gpu-07": ["10.56.3.0/24", "10.57.3.0/24"]}), "ipam.nodes.gpu-07[1]: found 10.57.3.0/24"),
    (conf(nodes={"gpu-07": ["10.0.0.0/8"]}), "ipam.nodes.gpu-07[0]: found 10.0.0.0/8"),
    (conf(nodes={"gpu-07": ["10.56.3.5/24"]}), "ipam.nodes.gpu-07[0]: found 10.56.3.5/24"),
    (conf(nodeName=5), "ipam.nodeName: found 5"),
    # Routes
    (conf(routes={}), "ipam.routes: found {}, expected a list"),
    (conf(routes=["10.0.0.0/8"]), "ipam.routes[0]: found"),
    (conf(routes=[{}]), "ipam.routes[0].dst: found nothing"),
    (conf(routes=[{"dst": "default"}]), 'ipam.routes[0].dst: found "default"'),
    (conf(routes=[{"dst": "10.0.0.0"}]), 'ipam.routes[0].dst: found "10.0.0.0"'),
    (conf(routes=[{"dst": "10.0.0.0/33"}]), 'ipam.routes[0].dst: found "10.0.0.0/33"'),
    (route(gw="10.56.3"), 'ipam.routes[1].gw: found "10.56.3"'),
    (route(gw="10.56.3.1/24"), 'ipam.routes[1].gw: found "10.56.3.1/24"'),
    (route(gw="fd00:56::1"), "ipam.routes[1].gw: found fd00:56::1, expected a gateway of the family of 10.1.0.0/16"),
    (conf(routes=[{"dst": "::/0", "gw": "10.56.3.1"}]), "ipam.routes[0].gw: found 10.56.3.1"),
    *[
        (route(**{key: value}), f"ipam.routes[1].{key}: found {found}")
        for key in ("mtu", "advmss", "priority", "table", "scope")
        for value, found in ((-1, "-1"), ("5", '"5"'), (2**32, str(2**32)))
    ],
    (route(scope=256), "ipam.routes[1].scope: found 256"),
    # DNS
    (conf(dns=[]), "ipam.dns: found [], expected an object"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with a_node() as found:
        yield found


@pytest.mark.parametrize(("config", "message"), BAD, ids=[f"{n}-{message[:50]}" for n, (_, message) in enumerate(BAD)])
def test_a_mistake_is_named(node: Node, config: dict[str, Any], message: str) -> None:
    for command in ("ADD", "STATUS"):
        answer = node.cni(command, config)
        assert answer.error == 7
        assert answer.json["msg"].startswith(message)
    for command in ("DEL", "GC"):
        answer = node.cni(command, {**config, KEY: None})
        assert (answer.code, answer.stdout) == (0, "")


def test_further_mistakes_are_in_the_details(node: Node) -> None:
    answer = node.cni("ADD", conf(nodeName=5, poolRoute="x"))
    assert answer.json["msg"].startswith("ipam.nodeName: ")
    assert answer.json["details"].startswith("ipam.poolRoute: ")


@pytest.mark.parametrize(
    "config",
    [
        conf(dns={"nameservers": ["10.0.0.53"], "options": []}, routes=[], poolRoute=None),
        conf(routes=None, dns=None),
        pool(mode=None, gateway=None, exclude=None, poolRoute=None),
        pool(exclude=["10.56.0.1/32", "10.56.3.64/28", "10.56.3.66"]),
        conf(pools=[FLAT, {"subnet": "fd00:56::/48"}], nodes={"gpu-07": ["10.56.3.0/24", "fd00:56:0:3::/64"]}),
        conf(pools=[{**FLAT, "gateway": "none"}, POOL6]),
        conf(nodes={f"gpu-{n:02}": n for n in range(256)}),
        conf(nodes={"gpu-07": 3, "gpu-08": ["10.56.4.0/22", "10.56.8.0/24"], "gpu-09": ["fd00:56:0:4::/62"]}),
        route(gw="10.56.3.9", mtu=0, advmss=2**32 - 1, priority=0, table=0, scope=255),
    ],
    ids=range(9),
)
def test_what_is_right_is_taken(node: Node, config: dict[str, Any]) -> None:
    answer = node.cni("STATUS", config)
    assert (answer.code, answer.stdout, answer.stderr) == (0, "", "")


def test_the_example_of_the_documentation_gives_what_it_says(node: Node) -> None:
    _, _, rest = (ROOT / "docs" / "ipam.md").read_text().partition("```json\n")
    result = node.cni("ADD", json.loads(rest.partition("```")[0])).json
    assert result["ips"] == [
        {"address": "10.56.3.2/24", "gateway": "10.56.3.1"},
        {"address": "fd00:56:0:3::2/64", "gateway": "fd00:56:0:3::1"},
    ]
    assert result["routes"] == [{"dst": "10.0.0.0/8"}, {"dst": "fd00:56::/48", "gw": "fd00:56:0:3::1"}]
