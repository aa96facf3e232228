"""A function with two RDMA devices: both go, and both come back."""

from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, earlier_plugin, earlier_plugin_deletes, error, lose_state, state_rows


@pytest.mark.parametrize("chained", [False, True], ids=["alone", "chained"])
def test_both_devices_go_and_come_back(vf: Function, pod: Pod, chained: bool) -> None:
    more: dict[str, Any] = {"prevResult": earlier_plugin(vf, pod)} if chained else {}
    config = conf(vf, **more)
    attach(config, pod)
    assert pod.rdma_names() == sorted(vf.rdma)
    assert not set(vf.rdma) & set(guest.rdma_names())
    answer = guest.cni("CHECK", config, netns=pod)
    assert answer.ok, answer
    detach(config, pod)
    assert pod.rdma_names() == []
    if chained:
        earlier_plugin_deletes(vf, pod)


@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
def test_the_second_device_is_called_name_1_and_the_old_names_come_back(
    vf: Function, pod: Pod, ended: str, lost: bool
) -> None:
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, pod)
    assert pod.rdma_names() == ["rail0", "rail0_1"]
    names = [device["ifname"] for device in sorted(pod.rdma_devices(), key=lambda device: device["ifindex"])]
    assert names == ["rail0", "rail0_1"]
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    detach(config, pod)
    assert set(vf.rdma) <= set(guest.rdma_names())


@pytest.mark.parametrize("ended", ["alive", "died"])
def test_names_that_root_in_the_pod_swapped_are_put_right(vf: Function, pod: Pod, ended: str) -> None:
    attach(conf(vf), pod)
    first, second = vf.rdma
    pod.run("rdma", "dev", "set", first, "name", "aside")
    pod.run("rdma", "dev", "set", second, "name", first)
    pod.run("rdma", "dev", "set", "aside", "name", second)
    if ended == "died":
        pod.delete()
    detach(conf(vf), pod)


def test_check_misses_one_of_them(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    guest.run("ip", "netns", "attach", "host", "1")
    pod.run("rdma", "dev", "set", vf.rdma[1], "netns", "host")
    guest.run("ip", "netns", "del", "host")
    error(guest.cni("CHECK", conf(vf), netns=pod), 111, vf.device, vf.rdma[1])
    detach(conf(vf), pod)


def test_when_the_second_name_is_taken_both_are_home_again(vf: Function, other_vf: Function, pod: Pod) -> None:
    guest.run("rdma", "dev", "set", other_vf.rdma[0], "name", "rail0_1")
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}})
    error(guest.cni("ADD", config, netns=pod), 103, "rail0_1")
    assert set(vf.rdma) <= set(guest.rdma_names())
    assert state_rows() == 0
    guest.run("rdma", "dev", "set", "rail0_1", "name", other_vf.rdma[0])
