"""`pf` and `ifName`: a VF that the plugin chooses, and one beside another plugin's interface."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import ScriptedIpam, attach, conf, detach, error

CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
POOL = {
    "type": "node-subnet",
    "nodeName": "gpu-03",
    "nodes": {"gpu-03": 3},
    "pools": [{"subnet": "10.56.0.0/16", "nodePrefix": 24}],
}


@pytest.fixture(scope="session")
def pf() -> str:
    """The PF's netdev."""
    (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    return path.name


@pytest.fixture(scope="session")
def pf_address(pf: str) -> str:
    return Path(f"/sys/class/net/{pf}/device").resolve().name


@pytest.fixture
def checkpoint() -> Iterator[Path]:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    yield CHECKPOINT
    CHECKPOINT.unlink()


def choosing(pf: str | list[str], version: str = "1.1.0", **more: object) -> dict[str, Any]:
    return conf(None, version, pf=pf, **more)


def taken(result: dict[str, Any], ifname: str = "net1") -> str:
    """The PCI address of the VF that became an interface."""
    (address,) = [entry["pciID"] for entry in result["interfaces"] if entry["name"] == ifname]
    return str(address)


def with_eth0(pod: Pod) -> dict[str, Any]:
    """What an earlier plugin made: eth0 in the pod, and the result that says so."""
    # Loaded on its own, the module makes a dummy0 on the host.
    guest.run("modprobe", "dummy", "numdummies=0")
    pod.run("ip", "link", "add", "eth0", "type", "dummy")
    pod.run("ip", "addr", "add", "10.1.0.2/24", "dev", "eth0")
    pod.run("ip", "link", "set", "eth0", "up")
    return {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": pod.netns}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}],
    }


@pytest.mark.parametrize("by", ["name", "address", "list"])
def test_a_free_vf_of_the_pf_becomes_the_interface_and_comes_back(
    by: str, pf: str, pf_address: str, vfs: list[Function], pod: Pod
) -> None:
    ways: dict[str, str | list[str]] = {"name": pf, "address": pf_address.upper(), "list": [pf]}
    config = choosing(ways[by], ipam=POOL)
    result = attach(config, pod)
    (function,) = [vf for vf in vfs if vf.device == taken(result)]
    assert pod.rdma_names() == list(function.rdma)
    assert pod.link("net1")["parentdev"] == function.device
    assert guest.cni("CHECK", config | {"prevResult": result}, netns=pod).ok
    detach(config, pod)


def test_pods_at_once_get_a_vf_each(pf: str, vfs: list[Function], make_pod: Callable[[str], Pod]) -> None:
    pods = [make_pod(f"p{number}") for number in range(4)]
    config = choosing(pf, ipam=POOL)
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda pod: attach(config, pod, container=pod.name), pods))
        assert len({taken(result) for result in results}) == 4
        assert len({result["ips"][0]["address"] for result in results}) == 4
        assert [len(pod.rdma_names()) for pod in pods] == [1, 1, 1, 1]
        list(pool.map(lambda pod: detach(config, pod, container=pod.name), pods))


def test_none_free_is_told_with_the_pf_and_how_many_vfs_it_has(
    pf: str, vfs: list[Function], make_pod: Callable[[str], Pod]
) -> None:
    pods = [make_pod(f"p{number}") for number in range(len(vfs))]
    for pod in pods:
        attach(choosing(pf), pod, container=pod.name)
    one_more = make_pod("more")
    error(guest.cni("ADD", choosing(pf), netns=one_more, container="more"), 11, "pf", f"{pf} has 7 VFs")
    detach(choosing(pf), pods[0], container=pods[0].name)
    attach(choosing(pf), one_more, container="more")
    for pod in pods[1:]:
        detach(choosing(pf), pod, container=pod.name)
    detach(choosing(pf), one_more, container="more")


def test_a_vf_in_use_on_the_host_is_not_taken(
    pf: str, vfs: list[Function], make_pod: Callable[[str], Pod], checkpoint: Path
) -> None:
    addressed, mastered, given, *others = vfs
    guest.run("ip", "addr", "add", "192.0.2.1/24", "dev", addressed.netdev)
    guest.run("ip", "link", "add", "br9", "type", "bridge")
    guest.run("ip", "link", "set", mastered.netdev, "master", "br9")
    entry = {"PodUID": "u", "ResourceName": "nvidia.com/rail0", "DeviceIDs": {"0": [given.device]}}
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 1}))
    try:
        pods = [make_pod(f"p{number}") for number in range(len(others))]
        results = [attach(choosing(pf), pod, container=pod.name) for pod in pods]
        assert {taken(result) for result in results} == {vf.device for vf in others}
        error(guest.cni("ADD", choosing(pf), netns=make_pod("more"), container="more"), 11)
        for pod in pods:
            detach(choosing(pf), pod, container=pod.name)
    finally:
        guest.run("ip", "addr", "del", "192.0.2.1/24", "dev", addressed.netdev)
        guest.run("ip", "link", "del", "br9")


def test_a_checkpoint_that_cannot_be_read_gives_no_vf_away(pf: str, pod: Pod, checkpoint: Path) -> None:
    checkpoint.write_text("{")
    error(guest.cni("ADD", choosing(pf), netns=pod), 5, str(checkpoint))


def test_the_vf_of_a_pod_that_died_without_a_del_is_taken_when_no_other_is_left(
    pf: str, vfs: list[Function], make_pod: Callable[[str], Pod]
) -> None:
    pods = [make_pod(f"p{number}") for number in range(len(vfs))]
    results = [attach(choosing(pf), pod, container=pod.name) for pod in pods]
    pods[0].delete()
    assert guest.eventually(lambda: len(guest.rdma_names()) > 2)
    again = make_pod("again")
    assert taken(attach(choosing(pf), again, container="again")) == taken(results[0])
    for pod in [*pods[1:], again]:
        detach(choosing(pf), pod, container=pod.name)


def test_with_the_state_lost_and_the_pod_dead_del_brings_the_vf_home(pf: str, pod: Pod) -> None:
    attach(choosing(pf), pod)
    guest.run("rm", "-r", "/run/rdma-cni")
    pod.delete()
    assert guest.eventually(lambda: "net1" in [link["ifname"] for link in guest.links()])
    detach(choosing(pf), pod.netns)


@pytest.mark.parametrize("named", ["nothing", "lo", "0000:00:00.0", "a/b"])
def test_what_is_no_pf_is_told(named: str, pod: Pod) -> None:
    error(guest.cni("ADD", choosing(named), netns=pod), 7, "pf", named)


def test_a_vf_is_no_pf(vf: Function, pod: Pod) -> None:
    error(guest.cni("ADD", choosing(vf.netdev), netns=pod), 7, "pf", vf.netdev, vf.device)


@pytest.mark.parametrize("wrong", [[], [""], 3, [3], {"name": "x"}, ""])
def test_a_pf_of_the_wrong_type_is_told(wrong: Any, pod: Pod) -> None:
    error(guest.cni("ADD", choosing(wrong), netns=pod), 7, "pf")


@pytest.mark.parametrize(
    "device", [{"deviceID": "0000:01:10.0"}, {"pciBusID": "0000:01:10.0"}, {"runtimeConfig": {"deviceID": "a.b.1"}}]
)
def test_a_pf_beside_a_device_is_told(device: dict[str, object], pf: str, pod: Pod) -> None:
    error(guest.cni("ADD", choosing(pf) | device, netns=pod), 7, "pf", pf)


def test_further_interfaces_stand_beside_that_of_an_earlier_plugin(pf: str, pod: Pod, ipam: ScriptedIpam) -> None:
    previous = with_eth0(pod)
    entries = [choosing(pf, ifName=f"rail{number}", ipam=POOL) for number in range(2)]
    result = previous
    for entry in entries:
        result = attach(entry | {"prevResult": result}, pod, ifname="eth0")
    assert [interface["name"] for interface in result["interfaces"]] == ["eth0", "rail0", "rail1"]
    assert [ip["interface"] for ip in result["ips"]] == [0, 1, 2]
    assert result["routes"][0] == previous["routes"][0]
    assert [pod.addresses(f"rail{number}") for number in range(2)] == [["10.56.3.2/24"], ["10.56.3.3/24"]]
    assert pod.addresses("eth0") == ["10.1.0.2/24"]
    assert len(pod.rdma_names()) == 2
    for entry in entries:
        assert guest.cni("CHECK", entry | {"prevResult": result}, netns=pod, ifname="eth0").ok
    pod.run("ip", "link", "set", "rail1", "down")
    error(guest.cni("CHECK", entries[1] | {"prevResult": result}, netns=pod, ifname="eth0"), 111, "rail1")
    assert guest.cni("CHECK", entries[0] | {"prevResult": result}, netns=pod, ifname="eth0").ok
    for entry in reversed(entries):
        detach(entry | {"prevResult": result}, pod, ifname="eth0")
    assert [link["ifname"] for link in pod.links()] == ["eth0"]


def test_gc_knows_a_further_interface_by_the_name_that_the_runtime_gave(pf: str, pod: Pod) -> None:
    entry = choosing(pf, ifName="rail0", ipam=POOL)
    result = attach(entry | {"prevResult": with_eth0(pod)}, pod, ifname="eth0")
    valid = [{"containerID": "container1", "ifname": "eth0"}]
    assert guest.cni("GC", entry | {"cni.dev/valid-attachments": valid}, container=None, ifname=None).ok
    assert guest.cni("CHECK", entry | {"prevResult": result}, netns=pod, ifname="eth0").ok
    assert guest.cni("GC", entry | {"cni.dev/valid-attachments": []}, container=None, ifname=None).ok
    assert [link["ifname"] for link in pod.links()] == ["eth0"]


@pytest.mark.parametrize("which", ["no previous result", "the runtime's name", "another interface's name", "no name"])
def test_a_further_interface_that_cannot_be_is_told(which: str, pf: str, pod: Pod) -> None:
    previous = with_eth0(pod)
    previous["interfaces"].append({"name": "net7", "sandbox": pod.netns})
    config = choosing(pf, ifName="rail0", prevResult=previous)
    if which == "no previous result":
        del config["prevResult"]
    config["ifName"] = {"the runtime's name": "eth0", "another interface's name": "net7", "no name": "a/b"}.get(
        which, "rail0"
    )
    error(guest.cni("ADD", config, netns=pod, ifname="eth0"), 7, "ifName", config["ifName"])
