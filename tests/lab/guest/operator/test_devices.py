"""`rdma-cni devices`, against what iproute2 and sysfs say of the same kernel."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import PCI, Function, Pod
from network import attach, conf, detach
from operating import COMMAND, PODS, POOL, rdma_cni

CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
POD_UID = "9f1c2d3e-0000-4000-8000-00000000beef"


def devices(*arguments: str) -> list[dict[str, Any]]:
    said = rdma_cni("devices", "--json", *arguments)
    assert (said.code, said.stderr) == (0, ""), said
    found: list[dict[str, Any]] = said.json["functions"]
    return found


def device(one: Function, *arguments: str) -> dict[str, Any]:
    (found,) = [each for each in devices(*arguments) if each["id"] == one.device]
    return found


def sysfs(one: str, name: str) -> str:
    return (PCI / one / name).read_text().strip()


def test_every_function_is_there_once_with_what_the_kernel_tells_of_it(
    vfs: list[Function], sf: Function, pf: str, pf_address: str
) -> None:
    found = devices()
    assert [each["id"] for each in found] == [pf_address, *(vf.device for vf in vfs), sf.device]
    assert [each["kind"] for each in found] == ["pf", *["vf"] * 7, "sf"]
    assert [each["index"] for each in found] == [None, *range(7), 0]
    assert {each["pf"] for each in found[1:]} == {pf_address}
    by_name = {entry["ifname"]: entry for entry in guest.rdma_devices()}
    links = {link["ifname"]: link for link in guest.links()}
    for each in found:
        (rdma,) = each["rdma"]
        (netdev,) = each["netdevs"]
        assert (rdma["index"], rdma["guid"]) == (by_name[rdma["name"]]["ifindex"], by_name[rdma["name"]]["node_guid"])
        link = links[netdev["name"]]
        assert (netdev["mac"], netdev["mtu"], netdev["up"]) == (link["address"], link["mtu"], "UP" in link["flags"])
        (port,) = rdma["ports"]
        at = Path(f"/sys/class/infiniband/{rdma['name']}")
        assert rdma["firmware"] == (at / "fw_ver").read_text().strip() == "28.42.1000"
        assert (rdma["hca_type"], rdma["board"]) == ("MT4126", "SIM_0000000001")
        assert port["rate"] == (at / "ports/1/rate").read_text().strip()
        assert (port["gbps"], port["state"], port["link_layer"]) == (400.0, "ACTIVE", "Ethernet")
        assert port["gids"][0]["gid"] == (at / "ports/1/gids/0").read_text().strip()
        assert port["gids"][0]["type"] == "RoCE v2"
        assert (Path("/dev/infiniband") / rdma["verbs"]).is_char_device()
    for each in found[:-1]:
        assert f"0x{each['vendor']}" == sysfs(each["id"], "vendor")
        assert f"0x{each['device']}" == sysfs(each["id"], "device")
        assert each["driver"] == (PCI / each["id"] / "driver").resolve().name
    assert (found[0]["vfs"], found[0]["vfs_possible"]) == (7, 7)


def test_the_gpu_below_the_same_switch_is_the_nearest(pf_address: str) -> None:
    near, far = sorted(path.parent for path in PCI.glob("*/class") if path.read_text().startswith("0x0300"))[::-1]
    said = rdma_cni("devices", "--json").json
    assert [gpu["address"] for gpu in said["gpus"]] == [far.name, near.name]
    assert {each["gpu"]["address"] for each in said["functions"]} == {near.name}
    assert {each["gpu_distance"] for each in said["functions"]} == {"PCIe switch"}
    assert {each["numa"] for each in said["functions"]} == {1}


def test_names_are_udevs_or_those_of_pci_ids(pf_address: str) -> None:
    first = devices()[0]
    # What udev has of them in this guest, too.
    known = guest.run("udevadm", "info", "--query=property", f"/sys/bus/pci/devices/{pf_address}")
    assert f"ID_VENDOR_FROM_DATABASE={first['vendor_name']}\n" in known
    assert f"ID_MODEL_FROM_DATABASE={first['device_name']}\n" in known
    path = Path("/usr/share/misc/pci.ids")
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "# a comment\n1234  Somebody\n\t10c9  Else\n8086  Of pci.ids\n\t10c9  A model\n\t\t8086 a000  A board\n"
    )
    try:
        first = devices()[0]
    finally:
        path.unlink()
    assert (first["vendor_name"], first["device_name"]) == ("Of pci.ids", "A model")


def test_a_function_in_a_pod_is_shown_with_the_pod_that_has_it(vf: Function, sf: Function, pod: Pod) -> None:
    config = conf(vf, ipam=POOL)
    result = attach(config, pod, env=PODS)
    attach(conf(sf), pod, ifname="net2", env=PODS)
    (entry,) = result["ips"]
    found = device(vf)
    assert (found["state"], found["where"]) == ("attached", pod.netns)
    holder = found["holder"]
    assert (holder["pod"], holder["container"]) == ("train/llama-0", "container1")
    assert (holder["interface"], holder["network"]) == ("net1", "net")
    (netdev,), (rdma,) = found["netdevs"], found["rdma"]
    assert (netdev["name"], netdev["mac"]) == ("net1", vf.mac)
    assert entry["address"] in netdev["addresses"]
    assert rdma["name"] == vf.rdma[0]
    # Its own kernel files, read inside the pod: there the netdev is net1.
    gids = {gid["gid"]: gid for gid in rdma["ports"][0]["gids"]}
    address = bytes(map(int, entry["address"].split("/")[0].split(".")))
    assert gids[f"0000:0000:0000:0000:0000:ffff:{address[:2].hex()}:{address[2:].hex()}"]["netdev"] == "net1"
    assert device(sf)["netdevs"][0]["name"] == "net2"
    said = rdma_cni("devices")
    assert "train/llama-0" in said.stdout
    assert entry["address"].split("/")[0] in said.stdout
    assert sum(each["state"] == "free" for each in devices()) == 6
    detach(conf(sf), pod, ifname="net2")
    detach(config, pod)
    assert device(vf)["state"] == "free"


def test_a_function_that_another_plugin_moved_is_found_with_the_pod_of_its_processes(vf: Function, pod: Pod) -> None:
    guest.run("ip", "link", "set", vf.netdev, "netns", pod.name)
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", pod.name)
    container = "c0ffee" * 10 + "beef"
    group = Path(f"/sys/fs/cgroup/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{container}.scope")
    group.mkdir(parents=True)
    logs = Path(f"/var/log/pods/train_llama-1_{POD_UID}")
    logs.mkdir(parents=True)
    with subprocess.Popen(["ip", "netns", "exec", pod.name, "sleep", "600"]) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        found = device(vf)
        process.kill()
    group.rmdir()
    group.parent.rmdir()
    logs.rmdir()
    assert (found["state"], found["where"]) == ("in a pod", pod.netns)
    holder = found["holder"]
    assert (holder["pod"], holder["container"], holder["attached"]) == ("train/llama-1", container, False)
    assert holder["pids"] == [process.pid]


def test_a_name_that_a_pods_root_made_up_reaches_no_terminal_as_it_is(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    evil = "a\x1b[31m/[bold]b"
    pod.run("rdma", "dev", "set", vf.rdma[0], "name", evil)
    assert [each["name"] for each in device(vf)["rdma"]] == [evil]
    said = rdma_cni("devices", env={"FORCE_COLOR": "1", "COLUMNS": "200"})
    assert "\x1b[31m/" not in said.stdout
    assert r"a\x1b[31m/[bold]b" in said.stdout
    detach(conf(vf), pod)


def test_filters(vfs: list[Function], sf: Function, pf: str, pf_address: str) -> None:
    everything = [pf_address, *(vf.device for vf in vfs), sf.device]

    def ids(*arguments: str) -> list[str]:
        return [each["id"] for each in devices(*arguments)]

    assert ids("--vendor", "8086") == ids("--vendor", "intel") == everything
    assert ids("--driver", "igbvf") == everything[1:-1]
    assert ids("--pf", pf) == ids("--pf", pf_address) == everything
    assert ids("--link-type", "roce", "--numa", "1") == everything
    assert ids("--link-type", "infiniband") == []
    assert ids("--driver", "igb", "--numa", "1") == [pf_address]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--driver", "igbvff"], "'igbvf'"),
        (["--link-type", "infiniban"], "'infiniband'"),
        (["--pf", "PF0"], "'PF'"),
        (["--vendor", "intle"], "intel"),
        (["--numa", "7"], "(1)"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_filter_does_not_know_suggests_the_nearest(arguments: list[str], meant: str, pf: str) -> None:
    asked = [word.replace("PF", pf) for word in arguments]
    said = rdma_cni("devices", *asked)
    assert (said.code, said.stdout) == (2, "")
    assert meant.replace("PF", pf) in said.stderr


def test_what_kubelet_gave_away_is_not_free(vf: Function) -> None:
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "DeviceIDs": {"-1": [vf.device]}}
    CHECKPOINT.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 1}))
    try:
        assert device(vf)["state"] == "allocated"
    finally:
        CHECKPOINT.unlink()


def test_what_has_an_address_on_the_host_is_in_use(vf: Function) -> None:
    guest.run("ip", "addr", "add", "10.9.9.1/24", "dev", vf.netdev)
    try:
        assert device(vf)["state"] == "in use"
    finally:
        guest.run("ip", "addr", "flush", "dev", vf.netdev)


@contextmanager
def watching(*arguments: str) -> Iterator[Callable[[], str]]:
    """A line of --watch at a time; its interval is short."""
    command = [COMMAND, "devices", "--watch", "--interval", "0.2", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_watch_shows_them_again_when_something_changes(vf: Function, pod: Pod) -> None:
    with watching("--json") as line:

        def state() -> str:
            return next(str(each["state"]) for each in json.loads(line())["functions"] if each["id"] == vf.device)

        assert state() == "free"
        attach(conf(vf), pod)
        seen = [state()]
        while seen[-1] != "attached" and len(seen) < 20:
            seen.append(state())
        assert seen[-1] == "attached"
    detach(conf(vf), pod)


def test_a_device_that_hangs_below_no_function_is_shown_by_its_name() -> None:
    """Software RDMA."""
    guest.run("modprobe", "rdma_rxe")
    # Loaded on its own, the module makes a dummy0 on the host.
    guest.run("modprobe", "dummy", "numdummies=0")
    guest.run("ip", "link", "add", "dummy7", "type", "dummy")
    guest.run("rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "dummy7")
    try:
        (found,) = [each for each in devices() if each["kind"] == "virtual"]
        shown = rdma_cni("devices").stdout
    finally:
        guest.run("rdma", "link", "delete", "rxe7")
        guest.run("ip", "link", "del", "dummy7")
        guest.run("modprobe", "-r", "rdma_rxe")
    assert (found["id"], found["state"], found["driver"]) == ("rxe7", "host", "")
    assert [each["name"] for each in found["rdma"]] == ["rxe7"]
    assert "rxe7" in shown


def test_in_shared_mode_a_device_is_shown_once(pod: Pod) -> None:
    pod.delete()

    def mode(name: str) -> bool:
        guest.run("rdma", "system", "set", "netns", name, check=False)
        return guest.run("rdma", "system").split()[1] == name

    assert guest.eventually(lambda: mode("shared"))
    guest.run("ip", "netns", "add", "pod")
    guest.run("ip", "netns", "exec", "pod", "ip", "link", "set", "lo", "up")
    said = rdma_cni("devices", "--json").json
    pod.delete()
    assert guest.eventually(lambda: mode("exclusive"))
    assert said["netns_mode"] == "shared"
    assert [len(each["rdma"]) for each in said["functions"]] == [1] * 9


def test_a_narrow_terminal_gets_them_one_below_the_other(vf: Function) -> None:
    said = rdma_cni("devices", env={"COLUMNS": "60"})
    assert said.code == 0
    assert all(len(line) <= 60 for line in said.stdout.splitlines()), said.stdout
    assert vf.device in said.stdout
    wide = rdma_cni("devices")
    assert "\x1b" not in wide.stdout
    assert "FUNCTION" in wide.stdout.splitlines()[1]


def test_without_root_in_a_namespace_of_its_own_or_without_sys_it_says_so_and_shows_what_it_can(vf: Function) -> None:
    said = rdma_cni("devices", wrapper=("setpriv", "--reuid", "1000", "--clear-groups"))
    assert said.code == 0
    assert "not root" in said.stderr
    assert vf.device in said.stdout
    said = rdma_cni("devices", wrapper=("unshare", "--net"))
    assert said.code == 0
    assert "a network namespace of its own" in said.stderr
    assert vf.device in said.stdout
    said = rdma_cni("devices", wrapper=("unshare", "--mount", "sh", "-c", 'umount -l /sys; exec "$@"', "sh"))
    assert said.code == 0
    assert "is /sys mounted?" in said.stderr
    Path("/run/.containerenv").touch()
    try:
        assert "in a container" in rdma_cni("devices").stderr
    finally:
        os.unlink("/run/.containerenv")
