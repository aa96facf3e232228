"""`rdma-cni doctor`: each fault is made, found, and mended; a healthy node has none."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import PCI, Function, Pod
from network import attach, conf, detach, lose_state, state_rows
from operating import DSCP, MODPROBE, PCP, PODS, POOL, flow_control, rdma_cni, trust

SIM = Path("/sys/module/rdmasim/parameters")


def findings(*arguments: str, wrapper: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    said = rdma_cni("doctor", "--json", *arguments, wrapper=wrapper)
    found: list[dict[str, Any]] = said.json["findings"]
    assert said.code == (1 if found else 0), said
    assert all(finding["found"] and finding["remedy"] and finding["subject"] for finding in found)
    return found


def only(check: str, *words: str, severity: str = "error") -> dict[str, Any]:
    """The one finding of a check; each of the words is in it."""
    found = findings("--only", check)
    assert len(found) == 1, found
    assert (found[0]["check"], found[0]["severity"]) == (check, severity)
    text = f"{found[0]['subject']}: {found[0]['found']}; {found[0]['remedy']}"
    assert all(word in text for word in words), text
    return found[0]


def none(*checks: str) -> None:
    assert findings(*(word for check in checks for word in ("--only", check))) == []


def rebound(vf: Function) -> None:
    """Bind its driver anew: rdmasim's parameters hold for what appears."""
    guest.rebind(vf.device, "igbvf")


def test_a_healthy_node_has_no_finding_and_nothing_is_printed() -> None:
    said = rdma_cni("doctor")
    assert (said.code, said.stdout, said.stderr) == (0, "", "")


def test_a_node_whose_pods_have_devices_is_healthy(vf: Function, sf: Function, pod: Pod) -> None:
    attach(conf(vf, ipam=POOL), pod, env=PODS)
    attach(conf(sf), pod, ifname="net2", env=PODS)
    assert findings() == []
    detach(conf(vf, ipam=POOL), pod)
    detach(conf(sf), pod, ifname="net2")


def test_a_finding_is_a_line_with_its_remedy(pf: str) -> None:
    guest.run("ip", "link", "set", pf, "mtu", "1400")
    try:
        said = rdma_cni("doctor", "--only", "mtu", "--only", "mode")
    finally:
        guest.run("ip", "link", "set", pf, "mtu", "1500")
    assert said.code == 1
    assert all(
        line.startswith("error mtu: VF ") and "; remedy: ip link set" in line for line in said.stdout.splitlines()[:-1]
    )
    # Seven VFs and a scalable function.
    assert len(said.stdout.splitlines()) == 8
    assert "\x1b" not in said.stdout


def test_a_check_that_it_does_not_know_suggests_the_nearest() -> None:
    said = rdma_cni("doctor", "--only", "mdoe")
    assert (said.code, said.stdout) == (2, "")
    assert "did you mean 'mode'" in said.stderr


def test_every_check_is_listed() -> None:
    said = rdma_cni("doctor", "--list")
    names = [line.split()[0] for line in said.stdout.splitlines()]
    assert said.code == 0
    assert names == findings_checks()


def findings_checks() -> list[str]:
    names: list[str] = rdma_cni("doctor", "--json").json["checks"]
    return names


def test_an_old_kernel() -> None:
    # The kernel itself says 2.6.x to a process of this personality.
    wrapper = ("setarch", os.uname().machine, "--uname-2.6")
    (found,) = findings("--only", "kernel", wrapper=wrapper)
    assert "2.6." in found["subject"]
    none("kernel")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("", ("nothing sets it", "options ib_core netns_mode=0")),
        ("options ib_core netns_mode=1", (str(MODPROBE), "netns_mode=0")),
        ("options ib-core netns_mode=N", ("asks for exclusive", "reboot", "initramfs")),
    ],
    ids=["nothing", "shared", "exclusive"],
)
def test_shared_mode(option: str, words: tuple[str, ...]) -> None:
    before = MODPROBE.read_text()

    def mode(name: str) -> bool:
        # Refused while another namespace exists; one dies in the background.
        guest.run("rdma", "system", "set", "netns", name, check=False)
        return guest.run("rdma", "system").split()[1] == name

    assert guest.eventually(lambda: mode("shared"))
    MODPROBE.write_text(f"{option}\n")
    try:
        only("mode", *words)
    finally:
        MODPROBE.write_text(before)
        assert guest.eventually(lambda: mode("exclusive"))
    none("mode", "mode-persistent")


@contextmanager
def file(path: Path, text: str) -> Iterator[None]:
    """A file that was not there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink()


def test_exclusive_mode_that_the_next_boot_forgets() -> None:
    before = MODPROBE.read_text()
    try:
        MODPROBE.unlink()
        only("mode-persistent", "no option of ib_core says so", "netns_mode=0")
        # A comment is no option, and neither is another module's.
        MODPROBE.write_text("# options ib_core netns_mode=0\noptions ib_uverbs netns_mode=0\n")
        only("mode-persistent")
        MODPROBE.write_text(before)
        with file(Path("/etc/modprobe.d/zz.conf"), "options ib_core \\\n netns_mode=Y\n"):
            only("mode-persistent", "/etc/modprobe.d/zz.conf sets shared mode")
        # Of two files of one name the administrator's counts.
        with file(Path("/usr/lib/modprobe.d/rdma-cni.conf"), "options ib_core netns_mode=1\n"):
            none("mode-persistent")
    finally:
        MODPROBE.write_text(before)
    none("mode-persistent")


@pytest.mark.changes_host
def test_a_vf_without_a_driver(vfs: list[Function]) -> None:
    vf = vfs[-1]
    (PCI / vf.device / "driver" / "unbind").write_text(vf.device)
    only("driver", vf.device, "no driver", "drivers_probe")
    Path("/sys/bus/pci/drivers_probe").write_text(vf.device)
    guest.settle()
    none("driver", "rdma-device")


@pytest.mark.changes_host
def test_a_vf_for_virtual_machines(vfs: list[Function]) -> None:
    vf = vfs[-1]
    guest.run("modprobe", "vfio-pci")
    guest.rebind(vf.device, "vfio-pci")
    only("driver", vf.device, "vfio-pci", "virtual machines", severity="warning")
    rebound(vf)
    none("driver", "rdma-device")


@pytest.mark.changes_host
def test_a_vf_without_an_rdma_device(vfs: list[Function]) -> None:
    vf = vfs[-1]
    (SIM / "without").write_text(vf.device)
    rebound(vf)
    only("rdma-device", vf.device, "no RDMA device", "igbvf", "enable_roce")
    (SIM / "without").write_text("none")
    rebound(vf)
    none("rdma-device")


@pytest.mark.changes_host
def test_a_vf_with_roce_v1_alone(vfs: list[Function]) -> None:
    vf = vfs[-1]
    (SIM / "roce").write_text("v1")
    rebound(vf)
    only("gid", vf.device, "RoCE v1 only", "RoCE v2")
    (SIM / "roce").write_text("v2")
    rebound(vf)
    none("gid")


def test_a_pf_that_is_down(pf: str, pf_address: str) -> None:
    guest.run("ip", "link", "set", pf, "down")
    try:
        only("pf-up", pf_address, "is down", f"ip link set {pf} up")
    finally:
        guest.run("ip", "link", "set", pf, "up")
        guest.settle()
    assert guest.eventually(lambda: Path(f"/sys/class/net/{pf}/carrier").read_text().strip() == "1")
    none("pf-up")


def test_a_vf_whose_mtu_is_above_its_pfs_also_inside_a_pod(vf: Function, pod: Pod, pf: str) -> None:
    config = conf(vf, mtu=1600)
    attach(config, pod)
    only("mtu", vf.device, "net1 has MTU 1600", f"1500 of its PF {pf}")
    detach(config, pod)
    none("mtu")


def test_no_priority_flow_control(sf: Function) -> None:
    flow_control("sf0")
    try:
        only("lossless", sf.device, "sf0", "priority flow control", "dcb pfc set", severity="warning")
    finally:
        flow_control("sf0", 3)
    none("lossless")


def test_no_trust_in_dscp(sf: Function) -> None:
    trust("sf0", PCP)
    try:
        only("lossless", sf.device, "does not trust DSCP", "apptrust", severity="warning")
    finally:
        trust("sf0", PCP, DSCP)
    none("lossless")
    trust("sf0", DSCP)


def test_the_nic_and_the_gpus_on_different_numa_nodes(vf: Function, pf_address: str) -> None:
    """The firmware tells the node of the NIC's host bridge, and nothing of the other's: root may tell the kernel."""
    near, far = sorted(path.parent for path in PCI.glob("*/class") if path.read_text().startswith("0x0300"))[::-1]
    (far / "numa_node").write_text("0")
    none("gpu-numa")
    assert (PCI / vf.device / "numa_node").read_text() == "1\n"
    (near / "remove").write_text("1")
    try:
        found = findings("--only", "gpu-numa")
        assert len(found) == 8
        assert pf_address in found[0]["subject"]
        assert f"on NUMA node 1, the nearest GPU ({far.name}) on 0" in found[0]["found"]
    finally:
        Path("/sys/bus/pci/rescan").write_text("1")
    assert guest.eventually(near.exists)
    none("gpu-numa")


@pytest.mark.changes_host
def test_udev_renames_one_of_the_rdma_devices(vfs: list[Function]) -> None:
    vf = vfs[-1]
    rule = 'ACTION=="add", SUBSYSTEM=="infiniband", PROGRAM="rdma_rename %k NAME_FALLBACK"\n'
    path = Path("/etc/udev/rules.d/60-rdma-persistent-naming.rules")
    with file(path, rule):
        guest.run("udevadm", "control", "--reload")
        rebound(vf)
        assert guest.eventually(lambda: any(name.startswith("roce") for name in guest.rdma_names()))
        only("names", str(path), "roce", "NAME_KERNEL", severity="warning")
    guest.run("udevadm", "control", "--reload")
    rebound(vf)
    none("names")


def test_a_rule_that_names_a_vf_by_its_mac(vf: Function) -> None:
    path = Path("/etc/udev/rules.d/70-persistent-net.rules")
    rule = f'SUBSYSTEM=="net", ACTION=="add", ATTR{{address}}=="{vf.mac}", NAME="{vf.netdev}"\n'
    with file(path, rule):
        only("names", str(path), vf.netdev, "MAC", severity="warning")
    none("names")


def test_a_vf_that_another_plugin_left_under_a_pods_name(vf: Function) -> None:
    guest.run("ip", "link", "set", vf.netdev, "name", "net1")
    guest.settle()
    try:
        only("names", vf.device, "'net1'", severity="warning")
    finally:
        guest.run("ip", "link", "property", "del", "dev", "net1", "altname", vf.netdev, check=False)
        guest.run("ip", "link", "set", "net1", "name", vf.netdev)
        guest.settle()
    none("names")


def test_an_attachment_whose_pod_is_gone_is_repaired(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    gone, alive = make_pod("gone"), make_pod("alive")
    attach(conf(vf, ipam=POOL), gone, container="gone", env=PODS)
    attach(conf(other_vf), alive, container="alive")
    gone.delete()
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    found = only("attachments", "train/llama-0", "no DEL came", severity="warning")
    assert found["repairable"]
    said = rdma_cni("doctor", "--json", "--repair")
    assert (said.code, said.json["findings"]) == (0, [])
    assert [each["check"] for each in said.json["repaired"]] == ["attachments"]
    assert vf.netdev in {link["ifname"] for link in guest.links()}
    # Who has a device keeps it.
    assert (state_rows(), alive.rdma_names()) == (1, list(other_vf.rdma))
    detach(conf(other_vf), alive, container="alive")
    detach(conf(vf, ipam=POOL), None, container="gone")


@pytest.mark.changes_host
def test_an_attachment_whose_devices_are_new_ones_on_the_host(vfs: list[Function], pod: Pod) -> None:
    """A driver that is bound anew takes a VF's devices out of the pod."""
    vf = vfs[-1]
    attach(conf(vf), pod, env=PODS)
    rebound(vf)
    found = only("attachments", "train/llama-0", vf.device)
    assert not found["repairable"]
    detach(conf(vf), pod)
    none("attachments")


def test_a_vf_that_is_stranded_under_a_pods_name_is_repaired(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    pod = make_pod("gone")
    attach(conf(vf, mac="02:00:00:00:00:99", mtu=1450), pod)
    lose_state()
    pod.delete()
    assert guest.eventually(lambda: "net1" in {link["ifname"] for link in guest.links()})
    guest.settle()
    found = only("stranded", vf.device, "'net1'", "no attachment")
    assert found["repairable"]
    said = rdma_cni("doctor", "--repair")
    assert (said.code, said.stdout.startswith("repaired stranded: ")) == (0, True), said
    none("stranded", "names", "mtu")


def test_a_reservation_that_nobody_has(pod: Pod) -> None:
    config = {"cniVersion": "1.0.0", "name": "net", "type": "rdma", "ipam": POOL}
    binary = f"{guest.CNI_PATH}/node-subnet"
    assert guest.cni("ADD", config, netns=pod, binary=binary, env=PODS).ok
    only("reservations", "10.56.3.2/24", "train/llama-0", "net1 of net", severity="warning")
    # A container is known by the cgroup of its processes.
    group = Path("/sys/fs/cgroup/container1")
    group.mkdir()
    with subprocess.Popen(["sleep", "600"]) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        none("reservations")
        process.kill()
    group.rmdir()
    assert guest.cni("DEL", config, netns=pod, binary=binary).ok
    none("reservations")


@contextmanager
def running(path: Path, *wrapper: str) -> Iterator[int]:
    """A process of a program's name; the program itself is `sleep`."""
    shutil.copy("/bin/sleep", path)
    with subprocess.Popen([*wrapper, str(path), "infinity"]) as process:
        try:
            assert guest.eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text().strip() == path.name[:15])
            yield process.pid
        finally:
            process.kill()


def test_a_runtime_that_may_not_lock_memory(tmp_path: Path) -> None:
    with running(tmp_path / "containerd", "prlimit", "--memlock=65536") as pid:
        only("memlock", f"containerd (process {pid})", "64 KiB", "LimitMEMLOCK=infinity", severity="warning")
    with running(tmp_path / "containerd", "prlimit", "--memlock=unlimited"):
        none("memlock")


def test_a_device_plugin_that_shares_devices(tmp_path: Path) -> None:
    with running(tmp_path / "k8s-rdma-shared-dp") as pid:
        only("shared-device-plugin", f"(process {pid})", "exclusive mode")
    none("shared-device-plugin")


def test_plugins_that_are_missing_or_another_program(tmp_path: Path) -> None:
    found = findings("--only", "bundle", "--bin-dir", str(tmp_path))
    assert [each["subject"] for each in found] == [f"{tmp_path}/rdma", f"{tmp_path}/node-subnet"]
    for name, script in (("rdma", "echo another >&2"), ("node-subnet", "exit 127")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    found = findings("--only", "bundle", "--bin-dir", str(tmp_path))
    assert len(found) == 2
    assert "'another'" in found[0]["found"]
    (tmp_path / "rdma").write_text("#!/bin/sh\necho 'rdma 0.0.1: a CNI plugin' >&2\n")
    found = findings("--only", "bundle", "--bin-dir", str(tmp_path))
    assert (found[0]["severity"], "another version" in found[0]["found"]) == ("warning", True)
    (tmp_path / "rdma").unlink()
    (tmp_path / "rdma").write_text("no program")
    assert len(findings("--only", "bundle", "--bin-dir", str(tmp_path))) == 2
    none("bundle")


def test_configurations_that_are_missing_or_wrong(tmp_path: Path) -> None:
    at = ("--only", "configuration", "--net-dir", str(tmp_path))
    (found,) = findings(*at)
    assert "no configuration" in found["found"]
    multus = {"cniVersion": "1.0.0", "name": "multus", "type": "multus"}
    (tmp_path / "00-multus.conf").write_text(json.dumps(multus))
    assert findings(*at) == []
    bad = {"cniVersion": "1.0.0", "name": "rail0", "plugins": [{"type": "rdma", "pf": "ens1", "mtu": "large"}]}
    (tmp_path / "10-rail0.conflist").write_text(json.dumps(bad))
    (found,) = findings(*at)
    assert found["subject"].startswith(str(tmp_path / "10-rail0.conflist"))
    assert "plugins[0].mtu" in found["found"]
    (tmp_path / "10-rail0.conflist").write_text('{"type": "rdma"')
    (found,) = findings(*at)
    assert "JSON" in found["found"]


def test_without_root_it_says_so_and_shows_what_it_can() -> None:
    said = rdma_cni("doctor", wrapper=("setpriv", "--reuid", "1000", "--clear-groups"))
    assert "not root" in said.stderr


@pytest.mark.changes_host
def test_no_vfs_no_rdma_devices_and_no_rdma_subsystem(pf_address: str) -> None:
    """Taken apart and put together again; the mode is then what modprobe's configuration says."""
    parameters = {path.name: path.read_text().strip() for path in SIM.iterdir()}
    vfs = PCI / pf_address / "sriov_numvfs"
    count = vfs.read_text()
    guest.run("modprobe", "-r", "rdmasim")
    only("subsystem", "none in any namespace", "mlx5_ib")
    modules = ["rdma_ucm", "rdma_cm", "iw_cm", "ib_cm", "ib_umad", "ib_uverbs", "ib_core"]
    guest.run("modprobe", "-r", *modules, check=False)
    assert not Path("/sys/module/ib_core").exists()
    # The kernel loads it when somebody asks for its netlink.
    with file(Path("/etc/modprobe.d/none.conf"), "install ib_core /bin/false\n"):
        found = findings("--only", "subsystem", "--only", "mode", "--only", "mode-persistent")
    assert [each["subject"] for each in found] == ["RDMA netlink"]
    assert "modprobe ib_core" in found[0]["remedy"]
    vfs.write_text("0")
    guest.run("modprobe", "-a", "ib_core", "ib_uverbs")
    assert guest.run("rdma", "system").split()[1] == "exclusive"
    kept = [f"{name}={value}" for name, value in parameters.items() if value and name != "without"]
    # A scalable function would do for pods.
    guest.run("modprobe", "rdmasim", *kept, "sf=0")
    only("vfs", pf_address, "has no VFs, 7 are possible", "sriov_numvfs")
    vfs.write_text(count)
    guest.settle()
    none("vfs", "mode", "rdma-device", "driver")
    guest.run("modprobe", "-r", "rdmasim")
    guest.run("modprobe", "rdmasim", *kept)
    guest.settle()
    assert [each["check"] for each in findings()] == ["lossless", "lossless"]
    flow_control("sf0", 3)
    trust("sf0", DSCP)
