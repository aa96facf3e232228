"""README's "Installing on a node", followed from top to bottom by running what is printed there."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import guest
import pytest
from guest import Pod
from network import state_rows
from runtime import NET_D, PAYLOAD, Containerd

_INSTALL = re.search(r"\n## Installing on a node\n(.*?)\n## ", (PAYLOAD / "README.md").read_text(), re.DOTALL)
_PF = "ens1f0"
_MODULES = ("rdmasim", "rdma_ucm", "ib_umad", "ib_uverbs", "rdma_cm", "iw_cm", "ib_cm", "ib_core")


def step(number: int) -> str:
    """One of the numbered steps."""
    assert _INSTALL is not None
    steps = re.split(r"^\d\. ", _INSTALL[1], flags=re.MULTILINE)
    return steps[number]


def commands(number: int) -> list[str]:
    """The commands of a step, which are what is indented by seven columns, without their comments."""
    lines = [line.strip().split("  #")[0].strip() for line in step(number).splitlines() if line.startswith(" " * 7)]
    assert lines, step(number)
    return lines


def execute(*lines: str, cwd: Path) -> str:
    done = subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (lines, done)
    return done.stdout


def pf_netdev() -> str:
    (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    return path.name


@pytest.mark.changes_host
def test_a_pod_has_its_vf_when_the_readme_was_followed(
    containerd: Containerd,
    without_our_plugins: None,
    tmp_path: Path,
    make_pod: Callable[[str], Pod],
) -> None:
    # The node as it is before: shared mode, no VFs, no plugin; it has the names that the README uses.
    pf = pf_netdev()
    guest.run("ip", "link", "set", pf, "down")
    guest.run("ip", "link", "set", pf, "name", _PF)
    guest.run("ip", "link", "set", _PF, "up")
    numvfs = Path(f"/sys/class/net/{_PF}/device/sriov_numvfs")
    numvfs.write_text("0")
    guest.run("hostname", "gpu-07")
    for module in _MODULES:
        guest.run("modprobe", "-r", module, check=False)
    guest.run("modprobe", "ib_core")
    assert "netns shared" in guest.run("rdma", "system")
    guest.run("modprobe", "-r", "ib_core")

    write, update_initramfs, reboot, ask = commands(1)
    execute(write, cwd=tmp_path)
    # The guest's root is its initramfs, which a new boot would lay anew. What a reboot does for the mode is to load
    # ib_core with its options.
    assert (update_initramfs, reboot) == ("update-initramfs -u", "reboot")
    guest.run("modprobe", "-a", "ib_core", "ib_uverbs")
    assert "netns exclusive" in execute(ask, cwd=tmp_path)

    shutil.copytree("/opt/bundle-of-the-other-tests", tmp_path / "dist/rdma-cni", symlinks=True)
    assert "as it should be" in execute(*commands(2), cwd=tmp_path)

    chained, alone = re.findall(r"```json\n(.*?)```", step(4), re.DOTALL)
    assert "/etc/cni/net.d/10-rail0.conflist" in step(4)
    (NET_D / "10-lab.conflist").unlink(missing_ok=True)
    conf = {"cniVersion": "1.0.0", "name": "rail0", "type": "rdma", "pf": _PF}
    answer = guest.cni("ADD", conf, netns=make_pod("early"))
    assert (answer.error, "sriov_numvfs" in answer.json["msg"]) == (7, True)

    execute(*commands(3), cwd=tmp_path)
    guest.settle()
    guest.run("modprobe", "rdmasim")
    assert len(guest.pci_functions()) == int(numvfs.read_text()) == 4
    try:
        containerd.use_text(alone, "10-rail0.conflist")
        sandbox = containerd.run(tmp_path)
        assert sandbox.pod.link("eth0")["mtu"] == 9000
        assert sandbox.pod.addresses("eth0") == ["10.56.7.2/24"] == [f"{a}/24" for a in sandbox.addresses]
        assert len(sandbox.pod.rdma_names()) == 1
        sandbox.remove()
        assert (state_rows(), len(guest.rdma_names())) == (0, 4)
        # `sriov` is not in the lab: host-device moves the netdev in its place. The device is what Multus puts in.
        device = guest.pci_functions()[2].device
        config = json.loads(chained)
        assert [plugin["type"] for plugin in config["plugins"]] == ["sriov", "rdma"]
        config["plugins"][0].update(type="host-device", pciBusID=device)
        config["plugins"][1].update(deviceID=device)
        containerd.use_text(json.dumps(config), "10-rail0.conflist")
        sandbox = containerd.run(tmp_path)
        assert sandbox.pod.link("eth0")["parentdev"] == device
        assert (len(sandbox.pod.rdma_names()), sandbox.addresses) == (1, ["10.56.7.3"])
        sandbox.remove()
        assert (state_rows(), len(guest.rdma_names())) == (0, 4)
    finally:
        (NET_D / "10-rail0.conflist").unlink()
