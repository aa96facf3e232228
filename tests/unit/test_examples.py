"""Every configuration under examples/ passes the plugins' own checks."""

import json
from pathlib import Path

import pytest

from ipam import node
from rdma_cni.cni import validate

CONFLISTS = sorted((Path(__file__).parents[2] / "examples").glob("*.conflist"))


@pytest.mark.parametrize("path", CONFLISTS, ids=lambda path: path.name)
def test_an_example_is_valid(path: Path) -> None:
    conflist = json.loads(path.read_text())
    for plugin in conflist["plugins"]:
        conf = plugin | {"cniVersion": conflist["cniVersion"], "name": conflist["name"]}
        if plugin["type"] == "rdma":
            validate.check("NETCONF", conf)
        if plugin.get("ipam", {}).get("type") == "node-subnet":
            ipam = validate.check("NODE_SUBNET", plugin["ipam"] | {"nodeName": "gpu-07"})
            shares = node.shares(ipam)  # type: ignore[arg-type]
            assert [str(share) for share in shares] == ["10.56.7.0/24"]


def test_there_are_examples() -> None:
    assert len(CONFLISTS) >= 2
