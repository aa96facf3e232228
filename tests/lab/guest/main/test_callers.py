"""What Multus and Kubernetes' runtimes pass on: device information, the pod's name, one network twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, earlier_plugin, earlier_plugin_deletes, error

POD_ARGS = (
    "IgnoreUnknown=true;K8S_POD_NAMESPACE=training;K8S_POD_NAME=llm-0;K8S_POD_INFRA_CONTAINER_ID=container1;"
    "K8S_POD_UID=u-1"
)


def with_info(vf: Function, path: Path, **more: Any) -> dict[str, Any]:
    return conf(vf, runtimeConfig={"CNIDeviceInfoFile": str(path)}, **more)


def test_the_device_information_file_is_made_and_goes_again(vf: Function, pod: Pod, tmp_path: Path) -> None:
    path = tmp_path / "devinfo" / "x.json"
    config = with_info(vf, path)
    attach(config, pod)
    pci = json.loads(path.read_text())["pci"]
    assert (pci["pci-address"], pci["rdma-device"]) == (vf.device, ",".join(vf.rdma))
    assert pci["pf-pci-address"] == Path(f"/sys/bus/pci/devices/{vf.device}/physfn").resolve().name
    detach(config, pod)
    assert list(path.parent.iterdir()) == []


def test_what_others_wrote_into_the_device_information_file_stays(vf: Function, pod: Pod, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    others = {
        "type": "pci",
        "version": "1.0.0",
        "pci": {"pci-address": vf.device, "representor-device": "eth7"},
        "x": 1,
    }
    path.write_text(json.dumps(others))
    config = with_info(vf, path, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, pod)
    assert json.loads(path.read_text()) == others | {"pci": others["pci"] | {"rdma-device": "rail0"}}  # type: ignore[operator]
    detach(config, pod)
    assert json.loads(path.read_text()) == others


@pytest.mark.parametrize("what", ["a directory", "a symlink", "below a file", "no JSON", "a list"])
def test_a_device_information_file_that_cannot_be_had_stops_nothing(
    what: str, vf: Function, pod: Pod, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    if what == "a directory":
        path.mkdir()
    elif what == "a symlink":
        path.symlink_to("/etc/passwd")
    elif what == "below a file":
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "x.json"
    else:
        path.write_text("{" if what == "no JSON" else "[]")
    before = Path("/etc/passwd").read_text()
    config = with_info(vf, path)
    answer = guest.cni("ADD", config, netns=pod)
    assert answer.ok
    assert "CNIDeviceInfoFile" in answer.stderr
    assert Path("/etc/passwd").read_text() == before
    detach(config, pod)


def test_an_add_that_fails_leaves_no_device_information(vf: Function, pod: Pod, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    answer = guest.cni("ADD", with_info(vf, path), netns=pod, wrapper=["sh", "-c", 'exec "$0" >&-'])
    assert answer.code == 1
    assert not path.exists()


def test_a_busy_device_is_told_with_the_pods_name(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    first, second = make_pod("a"), make_pod("b")
    attach(conf(vf), first, env={"CNI_ARGS": POD_ARGS})
    error(guest.cni("ADD", conf(vf), netns=second, container="other"), 11, "training/llm-0", "container1")
    detach(conf(vf), first)


def test_one_network_twice_in_one_container(vfs: list[Function], pod: Pod) -> None:
    pool = {
        "type": "node-subnet",
        "nodeName": "n",
        "nodes": {"n": 3},
        "pools": [{"subnet": "10.56.0.0/16", "nodePrefix": 24}],
    }
    configs = [conf(vf, "0.3.1", ipam=pool, pciBusID=vf.device) for vf in vfs[:2]]
    for number, config in enumerate(configs, 1):
        attach(config, pod, ifname=f"net{number}", env={"CNI_ARGS": POD_ARGS})
    assert [pod.addresses(f"net{number}") for number in (1, 2)] == [["10.56.3.2/24"], ["10.56.3.3/24"]]
    assert pod.rdma_names() == sorted([*vfs[0].rdma, *vfs[1].rdma])
    for number, config in enumerate(configs, 1):
        detach(config, pod, ifname=f"net{number}", env={"CNI_ARGS": POD_ARGS})


def test_under_chroot_as_the_thick_daemon_runs_plugins(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod)
    config = conf(vf, prevResult=previous)
    wrapper = ["chroot", "/"]
    assert guest.cni("ADD", config, netns=pod, wrapper=wrapper).ok
    assert pod.rdma_names() == list(vf.rdma)
    assert guest.cni("DEL", config, netns=pod, wrapper=wrapper).ok
    earlier_plugin_deletes(vf, pod)
