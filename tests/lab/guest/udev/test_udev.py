"""With rdma-core's rules udev renames what appears, while the plugin works on it."""

from pathlib import Path

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, host_local, lose_state


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
