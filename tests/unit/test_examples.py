"""Every file in examples/ is what its reader accepts, and what belongs together in them agrees."""

import json
import re
import tomllib
from collections.abc import Iterator
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import example_files
import pytest
import yaml

from frozen import image
from ipam import node
from rdma_cni.cli import install
from rdma_cni.cni import validate

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# What is Prometheus's and Grafana's, tests/unit/test_monitoring.py reads.
MONITORING = EXAMPLES / "monitoring"
FILES = sorted(path for path in EXAMPLES.rglob("*") if path.is_file() and path.parent != MONITORING)
RESOURCE_NAME = "k8s.v1.cni.cncf.io/resourceName"

# What others read: the keys that they know, by their types' JSON names. A key that is not among these would be refused
# or, worse, ignored.
_SRIOV_SELECTORS = {
    *("vendors", "devices", "drivers", "pciAddresses", "pfNames", "rootDevices", "linkTypes", "ddpProfiles", "pKeys"),
    *("acpiIndexes", "isRdma", "needVhostNet", "vdpaType"),
}
_SRIOV_RESOURCE = {
    *("resourcePrefix", "resourceName", "deviceType", "excludeTopology", "selectors", "additionalInfo"),
}
_SHARED_RESOURCE = {"resourcePrefix", "resourceName", "rdmaHcaMax", "devices", "selectors"}
_SHARED_SELECTORS = {"vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"}
_OPERATOR = {
    "SriovNetworkPoolConfig": {"ovsHardwareOffloadConfig", "nodeSelector", "maxUnavailable", "rdmaMode"},
    "SriovNetworkNodePolicy": {
        *("resourceName", "nodeSelector", "priority", "mtu", "numVfs", "nicSelector", "deviceType", "isRdma"),
        *("needVhostNet", "linkType", "eSwitchMode", "vdpaType", "excludeTopology", "externallyManaged", "bridge"),
    },
    "SriovNetwork": {
        *("networkNamespace", "resourceName", "capabilities", "ipam", "vlan", "vlanQoS", "vlanProto", "spoofChk"),
        *("trust", "linkState", "minTxRate", "maxTxRate", "metaPlugins", "logLevel", "logFile"),
    },
}
_API_VERSIONS = {
    "ConfigMap": "v1",
    "DaemonSet": "apps/v1",
    "NetworkAttachmentDefinition": "k8s.cni.cncf.io/v1",
    "Pod": "v1",
    **dict.fromkeys(_OPERATOR, "sriovnetwork.openshift.io/v1"),
}
# The operator's own, and the shared device plugin's.
_DEFAULT_PREFIX = {"SriovNetworkNodePolicy": "openshift.io", "configList": "rdma"}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind: str) -> list[tuple[Path, dict[str, Any]]]:
    found = [(path, d) for path in FILES if path.suffix == ".yaml" for d in documents(path) if d["kind"] == kind]
    assert found, f"no {kind} in {EXAMPLES}"
    return found


def conflists(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".conflist":
        yield json.loads(path.read_text())
    elif path.suffix == ".yaml":
        yield from example_files.networks(documents(path)).values()


CONFLISTS = [
    pytest.param(conflist, id=f"{path.relative_to(EXAMPLES)}:{conflist['name']}")
    for path in FILES
    for conflist in conflists(path)
]


def resources(directory: Path) -> dict[str, dict[str, Any]]:
    """What the device plugins of a directory of examples/ offer, by the resource's full name: their selectors."""
    found = {}
    for path, document in [*of_kind("ConfigMap"), *of_kind("SriovNetworkNodePolicy")]:
        if path.parent != directory:
            continue
        if document["kind"] == "SriovNetworkNodePolicy":
            prefix = _DEFAULT_PREFIX["SriovNetworkNodePolicy"]
            found[f"{prefix}/{document['spec']['resourceName']}"] = document["spec"]["nicSelector"]
            continue
        config = json.loads(document["data"]["config.json"])
        for resource in config.get("resourceList") or config["configList"]:
            prefix = resource["resourcePrefix"]
            name = f"{prefix}/{resource['resourceName']}"
            assert name not in found
            found[name] = resource["selectors"]
    return found


def definitions(directory: Path) -> dict[str, str]:
    """The networks that a directory's files define, and the resource of each ("" for none)."""
    found: dict[str, str] = {}
    for path, document in of_kind("NetworkAttachmentDefinition"):
        if path.parent == directory:
            name = document["metadata"]["name"]
            assert name not in found
            found[name] = document["metadata"].get("annotations", {}).get(RESOURCE_NAME, "")
    for path, document in of_kind("SriovNetwork"):
        if path.parent == directory:
            prefix = _DEFAULT_PREFIX["SriovNetworkNodePolicy"]
            found[document["metadata"]["name"]] = f"{prefix}/{document['spec']['resourceName']}"
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_a_file_is_of_a_kind_that_is_read_here(path: Path) -> None:
    if path.suffix == ".yaml":
        for document in documents(path):
            assert document["apiVersion"] == _API_VERSIONS[document["kind"]]
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
    elif path.suffix == ".conflist":
        conflist = json.loads(path.read_text())
        assert set(conflist) == {"cniVersion", "name", "plugins"}
    elif path.name.endswith(".modprobe.conf"):
        # Whether the kernel has that option is seen in the lab.
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert lines == ["options ib_core netns_mode=0"]
    else:
        assert path.name == "README.md", f"no test knows how to read {path.name}"


def test_the_readme_has_each_file_and_no_other() -> None:
    named = re.findall(r"^\| `([^`]+)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    files = [path for path in [*FILES, *MONITORING.iterdir()] if path.name != "README.md"]
    assert sorted(named) == sorted(str(path.relative_to(EXAMPLES)) for path in files)


@pytest.mark.parametrize("conflist", CONFLISTS)
def test_a_network_is_valid(conflist: dict[str, Any]) -> None:
    for plugin in conflist["plugins"]:
        if plugin["type"] == "rdma":
            validate.check("NETCONF", {"cniVersion": conflist["cniVersion"], "name": conflist["name"], **plugin})
            # An unknown key is ignored by the plugin, and would be a slip here.
            assert set(plugin) <= {"type", "pf", "ifName", "mtu", "ipam", "capabilities"}
        if plugin.get("ipam", {}).get("type") == "node-subnet":
            ipam = validate.check("NODE_SUBNET", plugin["ipam"] | {"nodeName": example_files.NODE})
            (share,) = node.shares(ipam)  # type: ignore[arg-type]
            assert re.fullmatch(r"10\.\d+\.7\.0/24", str(share))


@pytest.mark.parametrize("conflist", CONFLISTS)
def test_pf_is_in_net_d_alone(conflist: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Multus puts in a deviceID, beside which `pf` is refused; nobody puts one into a conflist in /etc/cni/net.d."""
    in_net_d = ".conflist" in request.node.name
    assert all(("pf" in plugin) is in_net_d for plugin in conflist["plugins"] if plugin["type"] == "rdma")


def test_a_definition_and_its_network_have_one_name() -> None:
    for _, document in of_kind("NetworkAttachmentDefinition"):
        assert json.loads(document["spec"]["config"])["name"] == document["metadata"]["name"]


def test_what_others_read_has_their_keys_alone() -> None:
    for _, document in of_kind("ConfigMap"):
        config = json.loads(document["data"]["config.json"])
        shared = document["metadata"]["name"] == "rdma-devices"
        assert set(config) <= ({"periodicUpdateInterval", "configList"} if shared else {"resourceList"})
        for resource in config["configList" if shared else "resourceList"]:
            assert set(resource) <= (_SHARED_RESOURCE if shared else _SRIOV_RESOURCE)
            assert set(resource["selectors"]) <= (_SHARED_SELECTORS if shared else _SRIOV_SELECTORS)
            # A hyphen in it is refused.
            assert re.fullmatch(r"[a-zA-Z0-9_]+", resource["resourceName"])
            assert shared or resource["selectors"]["isRdma"] is True
    for kind, keys in _OPERATOR.items():
        for _, document in of_kind(kind):
            assert set(document["spec"]) <= keys


def test_each_network_has_a_resource_that_the_device_plugin_offers() -> None:
    for directory in {path.parent for path in FILES if path.suffix == ".yaml"}:
        for name, resource in definitions(directory).items():
            # macvlan takes no device.
            assert resource in resources(directory) or (directory.name, name) == ("shared-mode", "shared-rail0")


def test_no_pf_is_in_two_resources() -> None:
    for directory in {path.parent for path in FILES if path.suffix == ".yaml"}:
        for one, other in combinations(resources(directory).values(), 2):
            assert not set(one.get("pfNames", [])) & set(other.get("pfNames", []))


def test_a_pod_asks_for_networks_that_are_there_and_for_their_resources() -> None:
    for path, pod in of_kind("Pod"):
        (container,) = pod["spec"]["containers"]
        asked = container["resources"]["limits"]
        assert container["resources"].get("requests", asked) == asked
        offered, defined = resources(path.parent), definitions(path.parent)
        networks = [name for name, _ in example_files.asked_for(pod)]
        needed = [defined[name] for name in networks]
        if path.parent.name == "shared-mode":
            needed = list(offered)
        assert sorted(needed) == sorted(set(asked) - {"nvidia.com/gpu"}) != []
        assert all(asked[resource] == 1 for resource in needed)
        assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes


def test_eight_rails_have_eight_pools_that_do_not_overlap() -> None:
    rails = example_files.networks(documents(EXAMPLES / "multus/eight-rails.yaml"))
    ipams = [conflist["plugins"][0]["ipam"] for conflist in rails.values()]
    pools = [ip_network(pool["subnet"]) for ipam in ipams for pool in ipam["pools"]]
    assert len(rails) == len(pools) == 8
    assert not any(one.overlaps(other) for one, other in combinations(pools, 2))
    # A node has one index on all of them.
    assert all(ipam["nodes"] == ipams[0]["nodes"] for ipam in ipams)
    ((_, pod),) = [(path, pod) for path, pod in of_kind("Pod") if pod["metadata"]["name"] == "eight-rails"]
    assert [name for name, _ in example_files.asked_for(pod)] == list(rails)


def test_the_daemonset_is_for_the_image_that_make_image_makes() -> None:
    ((_, daemonset),) = of_kind("DaemonSet")
    spec = daemonset["spec"]["template"]["spec"]
    assert daemonset["spec"]["selector"]["matchLabels"] == daemonset["spec"]["template"]["metadata"]["labels"]
    (container,) = spec["containers"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container["image"] == image.reference(f"rdma-cni:{version}")

    # The entrypoint, which the DaemonSet leaves as it is, and the probe are commands that there are.
    (mount,) = container["volumeMounts"]
    assert "command" not in container
    assert "args" not in container
    for line in (image._ENTRYPOINT, container["readinessProbe"]["exec"]["command"]):
        assert line[:2] == ["/rdma-cni/rdma-cni", "install"]
        parsed = install.command.make_context("install", list(line[2:])).params
        assert str(parsed["directory"]) == mount["mountPath"]
        assert parsed["check"] is (line is not image._ENTRYPOINT)
        assert parsed["wait"] is (line is image._ENTRYPOINT)
    (volume,) = spec["volumes"]
    assert (volume["name"], volume["hostPath"]["path"]) == (mount["name"], "/opt/cni/bin")
