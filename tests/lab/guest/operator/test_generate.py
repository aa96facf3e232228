"""`rdma-cni generate`: what it writes passes `validate`, and names what this node has."""

import json
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import PCI, Pod
from network import attach
from operating import rdma_cni

NODES = ("--node", "gpu-03=3", "--node", "gpu-04=4")


def generated(what: str, *arguments: str) -> str:
    said = rdma_cni("generate", what, *arguments)
    assert (said.code, said.stderr) == (0, ""), said
    return said.stdout


def test_networks_and_a_pod_of_them_are_valid_together(tmp_path: Path) -> None:
    pools = ("--pool", "10.56.0.0/16", "--node-prefix", "24", "--pool", "fd00:56::/48", "--node-prefix", "64")
    (tmp_path / "networks.yaml").write_text(generated("networks", *NODES, *pools, "--namespace", "train"))
    (tmp_path / "pod.yaml").write_text(generated("pod", "--namespace", "train"))
    said = rdma_cni("validate", str(tmp_path / "networks.yaml"), str(tmp_path / "pod.yaml"))
    assert said.code == 0, said
    assert "k8s.v1.cni.cncf.io/resourceName: rdma-cni.io/rail0" in (tmp_path / "networks.yaml").read_text()
    assert "rdma-cni.io/rail0: '1'" in (tmp_path / "pod.yaml").read_text()


def test_a_conflist_is_valid_and_gives_a_pod_a_vf(pf: str, tmp_path: Path, pod: Pod) -> None:
    text = generated("conflist", "--pf", pf, "--mtu", "1400", "--node", f"{guest.run('uname', '-n').strip()}=3")
    (tmp_path / "10-rail0.conflist").write_text(text)
    said = rdma_cni("validate", str(tmp_path / "10-rail0.conflist"))
    assert said.code == 0, said
    document = json.loads(text)
    (plugin,) = document["plugins"]
    config = {"cniVersion": document["cniVersion"], "name": document["name"], **plugin}
    result = attach(config, pod)
    assert result["ips"][0]["address"] == "10.56.3.2/24"
    assert pod.link("net1")["mtu"] == 1400
    assert guest.cni("DEL", config, netns=pod).ok


def test_the_device_plugins_select_what_the_kernel_shows(pf: str, pf_address: str) -> None:
    (entry,) = json.loads(generated("sriov-device-plugin"))["resourceList"]
    vf = (PCI / pf_address / "virtfn0").resolve()
    assert (entry["resourcePrefix"], entry["resourceName"]) == ("rdma-cni.io", "rail0")
    assert entry["selectors"] == {
        "vendors": [(vf / "vendor").read_text().strip()[2:]],
        "devices": [(vf / "device").read_text().strip()[2:]],
        "drivers": ["igbvf"],
        "pfNames": [pf],
        "isRdma": True,
    }
    (entry,) = json.loads(generated("shared-device-plugin"))["configList"]
    selectors: dict[str, Any] = entry["selectors"]
    assert (selectors["ifNames"], selectors["drivers"], selectors["linkTypes"]) == ([pf], ["igb"], ["ether"])


def test_the_operators_policy_names_the_pf(pf: str, pf_address: str) -> None:
    text = generated("node-policy", "--mtu", "9000", "--namespace", "sriov")
    for line in ("kind: SriovNetworkNodePolicy", "  numVfs: 7", "  isRdma: true", "  linkType: eth", "  mtu: 9000"):
        assert f"{line}\n" in text, text
    assert f"    - '{pf_address}'\n" in text
    assert f"    - {pf}\n" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["networs"], ["did you mean 'networks'"]),
        (["networks", "--pool", "10.56.3.1/24"], ["--pool", "host bits"]),
        (["networks", "--pool", "10.56.0.0/26"], ["--pool", "/24"]),
        (["networks", "--pool", "10.0.0.0/8", "--pool", "10.1.0.0/16"], ["overlaps"]),
        (["networks", "--node", "gpu-03"], ["NAME=INDEX"]),
        (["networks", "--node", "a=1", "--node", "b=1"], ["once"]),
        (["networks", "--node-prefix", "24", "--node-prefix", "64"], ["one for each pool"]),
        (["pod", "--resource-prefix", "A_B"], ["DNS"]),
        (["pod", "--pf", "ens9"], ["--pf"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_cannot_write_is_told(arguments: list[str], words: list[str]) -> None:
    said = rdma_cni("generate", *arguments)
    assert (said.code, said.stdout) == (2, "")
    assert all(word in said.stderr for word in words), said.stderr
