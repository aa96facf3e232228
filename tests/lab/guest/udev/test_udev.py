"""With rdma-core's rules udev renames what appears, while the plugin works on it."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import guest
import pytest
from attachments import Attachment
from guest import Function, Pod
from network import attach, conf, detach, host_local, lose_state
from record import Tried


@contextmanager
def udev_waits() -> Iterator[None]:
    """What the kernel reports meanwhile, udev deals with at the end."""
    guest.run("udevadm", "control", "--stop-exec-queue")
    try:
        yield
    finally:
        guest.run("udevadm", "control", "--start-exec-queue")


@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
def test_names_are_what_they_were_when_udev_is_done(vf: Function, pod: Pod, ended: str, lost: bool) -> None:
    config = conf(vf, ipam=host_local())
    attach(config, pod)
    assert pod.rdma_names() == list(vf.rdma)
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    detach(config, pod)
    guest.settle()
    assert vf.rdma[0] in guest.rdma_names()
    assert [link["ifname"] for link in guest.links() if link.get("parentdev") == vf.device] == [vf.netdev]


def test_an_attachment_at_once_after_a_del_finds_everything(vf: Function, pod: Pod) -> None:
    for number in range(5):
        attach(conf(vf), pod, container=f"c{number}")
        assert (pod.rdma_names(), [link["ifname"] for link in pod.links()]) == (list(vf.rdma), ["net1"])
        detach(conf(vf), pod, container=f"c{number}")


@pytest.mark.parametrize("ended", ["alive", "died"])
def test_a_device_that_root_in_the_pod_renamed_has_the_name_that_udev_gave_it(
    vf: Function, pod: Pod, ended: str
) -> None:
    attach(conf(vf), pod)
    pod.run("rdma", "dev", "set", vf.rdma[0], "name", "stolen")
    if ended == "died":
        pod.delete()
    detach(conf(vf), pod)
    assert vf.rdma[0] in guest.rdma_names()


def test_the_name_that_is_asked_for_stays_while_udev_is_at_work(vf: Function, pod: Pod) -> None:
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, pod)
    guest.settle()
    assert pod.rdma_names() == ["rail0"]
    detach(config, pod)


@pytest.mark.changes_host
def test_a_vf_is_attached_while_udev_renames_its_new_device(vf: Function, pod: Pod) -> None:
    """A driver that is bound again makes an mlx5_N, which udev renames a moment later."""
    (guest.PCI / vf.device / "driver" / "unbind").write_text(vf.device)
    Path("/sys/bus/pci/drivers_probe").write_text(vf.device)
    attach(conf(vf), pod)
    assert len(pod.rdma_names()) == 1
    detach(conf(vf), pod)
    guest.settle()
    again = guest.function(guest.PCI / vf.device)
    assert len(again.rdma) == 1
    if again.rdma != vf.rdma:
        guest.run("rdma", "dev", "set", again.rdma[0], "name", vf.rdma[0])


@pytest.mark.changes_host
@pytest.mark.fault("node", "udev renames a new netdev while ADD runs")
def test_an_add_waits_for_the_name_that_udev_is_about_to_give(vf: Function, pod: Pod) -> None:
    """Udev makes its entry for a netdev just before it renames that: so it is here, for longer than of itself."""
    with ThreadPoolExecutor() as threads:
        with udev_waits():
            (guest.PCI / vf.device / "driver" / "unbind").write_text(vf.device)
            Path("/sys/bus/pci/drivers_probe").write_text(vf.device)
            (kernels,) = os.listdir(guest.PCI / vf.device / "net")
            assert kernels != vf.netdev
            index = (guest.PCI / vf.device / "net" / kernels / "ifindex").read_text().strip()
            Path(f"/run/udev/data/n{index}").write_text("E:ID_RENAMING=1\n")
            adding = threads.submit(guest.cni, "ADD", conf(vf), netns=pod)
            time.sleep(1)
        answer = adding.result()
    assert answer.ok, answer
    detach(conf(vf), pod)
    guest.settle()
    again = guest.function(guest.PCI / vf.device)
    assert (again.netdev, len(again.rdma)) == (vf.netdev, 1)
    guest.run("rdma", "dev", "set", again.rdma[0], "name", vf.rdma[0], check=False)


@pytest.mark.fault("node", "udev renames the RDMA device while ADD runs, by rdma-core's rule")
def test_an_rdma_device_that_udev_renames_between_lookup_and_move(
    one: Attachment, vfs: list[Function], tried: Tried
) -> None:
    # The rule gives all VFs the same name; one of them has it.
    (vf,) = [vf for vf in vfs if vf.rdma[0].startswith("ro")]
    one.vf = vf
    answer = one.call("ADD", one.pod, one.run.undisturbed())
    assert answer.ok, answer
    asking = [call for call in one.run.calls if call.name in ("sendto", "ftruncate", "write")]
    one.succeed("DEL", one.pod)
    guest.settle()
    for call in asking:
        (name,) = guest.function(guest.PCI / vf.device).rdma
        guest.run("rdma", "dev", "set", name, "name", "mlx5_99")
        with udev_waits():
            guest.run("udevadm", "trigger", "--action=add", "--sysname-match=mlx5_99")
            stopped = one.stopped("ADD", call.number)
        guest.settle()
        answer = stopped.go_on()
        assert answer.ok, (call, answer)
        # What the configuration asks for.
        assert one.pod.rdma_names() == ["rail0"], (call, answer)
        one.succeed("DEL", one.pod, call)
        guest.settle()
        (name,) = guest.function(guest.PCI / vf.device).rdma
        assert name in (vf.rdma[0], "mlx5_99"), call
        tried()
    if name != vf.rdma[0]:
        guest.run("rdma", "dev", "set", name, "name", vf.rdma[0])
    guest.settle()
