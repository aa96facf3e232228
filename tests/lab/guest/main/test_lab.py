"""The lab itself: what the plugin's tests take for granted of the guest's kernel."""

from collections.abc import Callable

import guest
import pytest
from guest import Function, Pod


def test_there_are_six_vfs_a_bare_one_and_a_scalable_function(
    vfs: list[Function], bare_vf: Function, sf: Function
) -> None:
    assert len(vfs) == 6
    assert len(bare_vf.rdma) == 1
    assert (sf.device, len(sf.rdma), sf.netdev) == ("mlx5_core.sf.0", 1, "sf0")


def test_rdma_is_in_exclusive_mode() -> None:
    assert guest.run("rdma", "system").split()[:2] == ["netns", "exclusive"]


def test_an_rdma_device_moves_keeps_its_index_and_comes_home_when_the_namespace_dies(vf: Function, pod: Pod) -> None:
    before = guest.rdma_devices()
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", pod.name)
    assert pod.rdma_devices() == [device for device in before if device["ifname"] == vf.rdma[0]]
    assert vf.rdma[0] not in guest.rdma_names()
    pod.delete()
    assert guest.eventually(lambda: guest.rdma_devices() == before)


def test_vfs_in_two_namespaces_exchange_packets(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pods = make_pod("a"), make_pod("b")
    for pod, function, address in zip(pods, (vf, other_vf), ("10.9.9.1/24", "10.9.9.2/24"), strict=True):
        guest.run("ip", "link", "set", function.netdev, "netns", pod.name)
        pod.run("ip", "addr", "add", address, "dev", function.netdev)
        pod.run("ip", "link", "set", function.netdev, "up")
    pods[0].run("ping", "-c", "3", "-i", "0.2", "-w", "15", "10.9.9.2")


@pytest.mark.changes_host
def test_a_rebound_driver_makes_a_new_rdma_device(vfs: list[Function]) -> None:
    vf = vfs[-1]
    before = {device["ifindex"] for device in guest.rdma_devices()}
    guest.rebind(vf.device, "igbvf")
    after = {device["ifindex"] for device in guest.rdma_devices()}
    assert len(after) == len(before)
    assert len(after - before) == 1
