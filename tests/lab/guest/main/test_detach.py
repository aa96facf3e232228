"""DEL: the mirror image of ADD, whatever happened to the pod in between. The host is as it was, see conftest.py."""

import subprocess
from collections.abc import Callable
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import (
    attach,
    conf,
    detach,
    earlier_plugin,
    earlier_plugin_deletes,
    error,
    give_name_back,
    host_local,
    lose_state,
    state_rows,
)

MakePod = Callable[[str], Pod]


def home(*functions: Function) -> bool:
    """Whether the functions' RDMA devices are on the host under their names."""
    return {name for function in functions for name in function.rdma} <= set(guest.rdma_names())


@pytest.mark.parametrize("chained", [False, True])
def test_a_second_and_a_third_del_are_successes(vf: Function, pod: Pod, chained: bool) -> None:
    more: dict[str, Any] = {"prevResult": earlier_plugin(vf, pod)} if chained else {"ipam": host_local()}
    config = conf(vf, **more)
    attach(config, pod)
    for _ in range(3):
        detach(config, pod)
        assert home(vf)
        assert state_rows() == 0
    if chained:
        earlier_plugin_deletes(vf, pod)


def test_a_container_that_never_was_is_a_success(vf: Function, pod: Pod) -> None:
    before = guest.host()
    detach(conf(vf), pod, container="never")
    assert guest.host() == before


@pytest.mark.fault("node", "the pod's path is gone, or leads to something else")
@pytest.mark.parametrize("netns", [None, "", "/run/netns/none", "/etc/hostname", "/run", "/dev/null"])
@pytest.mark.parametrize("ended", ["alive", "died"])
def test_with_a_path_that_leads_to_the_pod_no_more_the_devices_come_home(
    vf: Function, pod: Pod, netns: str | None, ended: str
) -> None:
    attach(conf(vf, mtu=1400), pod)
    if ended == "died":
        pod.delete()
    detach(conf(vf), netns)
    assert home(vf)
    assert [link["ifname"] for link in guest.links() if link.get("parentdev") == vf.device] == [vf.netdev]


@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "chained"])
@pytest.mark.parametrize("ended", ["alive", "died"])
def test_the_devices_are_what_they_were(vf: Function, pod: Pod, alone: bool, ended: str, lost: bool) -> None:
    guest.run("ip", "link", "set", vf.netdev, "mtu", "1450")
    more: dict[str, Any] = (
        {"mac": "02:00:00:00:ab:01", "mtu": 1400} if alone else {"prevResult": earlier_plugin(vf, pod)}
    )
    config = conf(vf, **more)
    attach(config, pod)
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    # The runtime hands prevResult to DEL, too.
    detach(config, pod)
    assert home(vf)
    if not alone and ended == "alive":
        earlier_plugin_deletes(vf, pod)
    elif not alone:
        assert guest.eventually(lambda: "net1" in [link["ifname"] for link in guest.links()])
        give_name_back(vf)
    (link,) = [link for link in guest.links() if link.get("parentdev") == vf.device]
    assert (link["ifname"], link["address"], link["mtu"]) == (vf.netdev, vf.mac, 1450)
    guest.run("ip", "link", "set", vf.netdev, "mtu", "1500")


@pytest.mark.fault("node", "namespaces die together")
def test_two_pods_that_died_together_both_with_a_net1_get_their_names_back(
    vf: Function, other_vf: Function, make_pod: MakePod
) -> None:
    pods = make_pod("a"), make_pod("b")
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        attach(conf(function), pod, container=pod.name)
    for pod in pods:
        pod.delete()
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        detach(conf(function), pod, container=pod.name)
    assert home(vf, other_vf)


@pytest.mark.fault("node", "namespaces die together")
def test_two_pods_that_died_together_get_their_names_back_without_state(
    vf: Function, other_vf: Function, make_pod: MakePod
) -> None:
    pods = make_pod("a"), make_pod("b")
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        attach(conf(function), pod, container=pod.name)
    lose_state()
    for pod in pods:
        pod.delete()
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        detach(conf(function), pod, container=pod.name)
    assert home(vf, other_vf)


@pytest.mark.fault("node", "the namespace's mount is removed, a process keeps it alive")
def test_a_namespace_that_a_process_keeps_alive_gives_its_devices_back(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    process = subprocess.Popen(["ip", "netns", "exec", pod.name, "sleep", "100"])
    try:
        guest.eventually(lambda: bool(guest.run("ip", "netns", "pids", pod.name).strip()))
        pod.delete()
        detach(conf(vf), pod)
        assert home(vf)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def kept_by_a_socket(pod: Pod, seconds: float) -> "subprocess.Popen[str]":
    """A process whose open socket keeps a namespace alive that no path and no process leads to.

    It ends so many seconds after its stdin.
    """
    holder = subprocess.Popen(
        ["python3", "-c", (
         "import ctypes, os, socket, sys, time\n"
         f"own = os.open('/proc/self/ns/net', 0); there = os.open('{pod.netns}', 0)\n"
         "libc = ctypes.CDLL(None); libc.setns(there, 0); kept = socket.socket(); libc.setns(own, 0); os.close(there)\n"
         f"print('ready', flush=True); sys.stdin.readline(); time.sleep({seconds})\n")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout
    assert holder.stdout.readline() == "ready\n"
    return holder


@pytest.mark.fault("node", "the namespace's mount is removed, a socket keeps it alive")
def test_a_namespace_that_dies_while_del_runs_is_waited_for(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    with kept_by_a_socket(pod, 1.5) as holder:
        pod.delete()
        assert not home(vf)
        assert holder.stdin
        holder.stdin.close()
        detach(conf(vf), pod)
        assert home(vf)


@pytest.mark.fault("node", "the namespace's mount is removed, a socket keeps it alive, and the state is lost")
def test_a_namespace_that_takes_long_to_die_is_not_taken_for_nothing_to_do_without_state(
    vf: Function, pod: Pod
) -> None:
    attach(conf(vf), pod)
    lose_state()
    with kept_by_a_socket(pod, 0):
        pod.delete()
        error(guest.cni("DEL", conf(vf), netns=pod), 11, vf.device, "try again", "socket")
    detach(conf(vf), pod)
    assert home(vf)


@pytest.mark.fault("node", "another pod has the VF, and the state is lost")
def test_a_vf_that_another_pod_has_is_left_to_it_without_state(vf: Function, pod: Pod, make_pod: MakePod) -> None:
    other = make_pod("other")
    attach(conf(vf), other)
    lose_state()
    pod.delete()
    detach(conf(vf), pod)
    assert other.rdma_names() == list(vf.rdma)
    detach(conf(vf), other)
    assert home(vf)


@pytest.mark.fault("the pod's root", "renames the RDMA device")
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("name", ["stolen", "a/b", "a b", "a%db", "%d", "..", "x" * 63, "\x1b[31m", "ü"], ids=ascii)
def test_an_rdma_device_that_root_in_the_pod_renamed_has_its_name_again(
    vf: Function, pod: Pod, name: str, ended: str, lost: bool
) -> None:
    attach(conf(vf), pod)
    pod.run("rdma", "dev", "set", vf.rdma[0], "name", name)
    (renamed,) = pod.rdma_names()
    assert renamed != vf.rdma[0]
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    answer = detach(conf(vf), pod)
    assert home(vf)
    assert "\x1b" not in answer.stderr


@pytest.mark.fault("the pod's root", "takes the name of another RDMA device")
def test_devices_that_swapped_their_names_in_pods_have_their_own_again(
    vf: Function, other_vf: Function, make_pod: MakePod
) -> None:
    pods = make_pod("a"), make_pod("b")
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        attach(conf(function), pod, container=pod.name)
    pods[0].run("rdma", "dev", "set", vf.rdma[0], "name", "aside")
    pods[1].run("rdma", "dev", "set", other_vf.rdma[0], "name", vf.rdma[0])
    pods[0].run("rdma", "dev", "set", "aside", "name", other_vf.rdma[0])
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        detach(conf(function), pod, container=pod.name)
    # host_as_it_was looks at each device's name.
    assert home(vf, other_vf)


def test_a_name_that_another_tool_gave_to_its_own_device_is_left_to_it(
    vf: Function, other_vf: Function, pod: Pod
) -> None:
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, pod)
    guest.run("rdma", "dev", "set", other_vf.rdma[0], "name", vf.rdma[0])
    answer = detach(config, pod)
    assert vf.rdma[0] in answer.stderr
    assert {vf.rdma[0], "rail0"} <= set(guest.rdma_names())
    guest.run("rdma", "dev", "set", vf.rdma[0], "name", other_vf.rdma[0])
    guest.run("rdma", "dev", "set", "rail0", "name", vf.rdma[0])


def test_the_name_in_the_pod_is_args_cni_rdma_device_name_and_the_old_one_comes_back(vf: Function, pod: Pod) -> None:
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, pod)
    assert pod.rdma_names() == ["rail0"]
    detach(config, pod)
    assert home(vf)


def test_an_rdma_device_name_that_is_taken_on_the_node_is_told_of(vf: Function, other_vf: Function, pod: Pod) -> None:
    config = conf(vf, args={"cni": {"rdmaDeviceName": other_vf.rdma[0]}})
    error(guest.cni("ADD", config, netns=pod), 103, "args.cni.rdmaDeviceName", other_vf.rdma[0])
    assert (home(vf), pod.links(), state_rows()) == (True, [], 0)


@pytest.mark.fault("the pod's root", "changes name, MAC, MTU and alternative names of the netdev")
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
@pytest.mark.parametrize("ended", ["alive", "died"])
def test_a_netdev_that_root_in_the_pod_changed_is_what_it_was(vf: Function, pod: Pod, ended: str, lost: bool) -> None:
    attach(conf(vf, ipam=host_local()), pod)
    pod.run("ip", "link", "set", "net1", "down")
    pod.run("ip", "link", "set", "net1", "name", "mine", "address", "02:00:00:00:ab:09", "mtu", "1300")
    pod.run("ip", "link", "property", "add", "dev", "mine", "altname", "ours")
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    detach(conf(vf, ipam=host_local()), pod)
    if lost:
        # Which alternative names it had of old, nothing tells.
        guest.run("ip", "link", "property", "del", "dev", vf.netdev, "altname", "ours", check=False)


@pytest.mark.fault("the pod's root", "forges the netdev's mark")
def test_a_netdev_whose_alias_root_in_the_pod_forged_is_brought_home_without_state(vf: Function, pod: Pod) -> None:
    """The mark that the plugin leaves is a hint: without a sensible name the netdev keeps the one it has."""
    attach(conf(vf), pod)
    pod.run("ip", "link", "set", "net1", "alias", "rdma-cni name=../x mac=zz mtu=9999999 up=7 rdma=a/b")
    lose_state()
    detach(conf(vf), pod)
    assert home(vf)
    assert pod.links() == []
    give_name_back(vf)


def test_a_netdev_without_a_mark_and_without_state_is_left_to_whoever_moved_it(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod)
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", pod.name)
    detach(conf(vf, prevResult=previous), pod)
    assert home(vf)
    assert [link["ifname"] for link in pod.links()] == ["net1"]
    earlier_plugin_deletes(vf, pod)


@pytest.mark.parametrize("ended", ["alive", "died"])
def test_what_the_go_plugin_attached_before_the_swap_comes_home(vf: Function, pod: Pod, ended: str) -> None:
    """It moved the RDMA device by name, keeps its own state, and asks for nothing but its configuration."""
    previous = earlier_plugin(vf, pod, "0.4.0")
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", pod.name)
    config = {"cniVersion": "0.4.0", "name": "net", "type": "rdma", "deviceID": vf.device, "prevResult": previous}
    if ended == "died":
        pod.delete()
        assert guest.eventually(lambda: "net1" in [link["ifname"] for link in guest.links()])
        give_name_back(vf)
    for _ in range(2):
        detach(config, pod)
        assert home(vf)
    if ended == "alive":
        earlier_plugin_deletes(vf, pod)


@pytest.mark.parametrize("source", ["pciID", "parent", "mac"])
def test_without_state_the_device_is_found_as_add_finds_it(vf: Function, pod: Pod, source: str) -> None:
    previous = earlier_plugin(vf, pod)
    if source == "pciID":
        previous["interfaces"][0]["pciID"] = vf.device
    if source == "mac":
        earlier_plugin_deletes(vf, pod)
    config = conf(None, prevResult=previous)
    attach(config, pod)
    lose_state()
    detach(config, pod)
    assert home(vf)
    if source != "mac":
        earlier_plugin_deletes(vf, pod)


def test_with_state_del_needs_nothing_but_what_identifies_the_attachment(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    detach({"name": "net"}, None)
    assert home(vf)


def test_an_add_that_failed_for_its_configuration_is_followed_by_a_del_with_the_same(vf: Function, pod: Pod) -> None:
    config = conf(vf, mtu="1500", mac=5)
    error(guest.cni("ADD", config, netns=pod), 7)
    answer = detach(config, pod)
    assert "mtu: found" in answer.stderr


@pytest.mark.fault("node", "the pod's path is another pod's now")
def test_a_path_that_is_now_another_pods_is_never_touched(vf: Function, other_vf: Function, make_pod: MakePod) -> None:
    first = make_pod("pod")
    attach(conf(vf), first, container="first")
    first.delete()
    second = make_pod("pod")
    attach(conf(other_vf), second, container="second")
    detach(conf(vf), second, container="first")
    assert (second.rdma_names(), [link["ifname"] for link in second.links()]) == (list(other_vf.rdma), ["net1"])
    # A late one, and one that has lost its device ID.
    detach(conf(vf), second, container="first")
    detach(conf(None), second, container="first")
    assert second.rdma_names() == list(other_vf.rdma)
    detach(conf(other_vf), second, container="second")


@pytest.mark.fault("node", "a late DEL, when another pod has the VF")
def test_a_vf_that_another_pod_has_by_now_is_not_taken_from_it(vf: Function, make_pod: MakePod) -> None:
    first, second = make_pod("a"), make_pod("b")
    attach(conf(vf), first, container="first")
    detach(conf(vf), first, container="first")
    attach(conf(vf), second, container="second")
    for netns in (first, second, None):
        detach(conf(vf), netns, container="first")
    assert second.rdma_names() == list(vf.rdma)
    detach(conf(vf), second, container="second")


def test_a_del_in_another_network_is_another_attachments(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    detach(conf(vf, name="other"), pod)
    assert pod.rdma_names() == list(vf.rdma)
    detach(conf(vf), pod)


@pytest.mark.fault("node", "the driver is rebound while the pod has the VF")
@pytest.mark.changes_host
@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
def test_a_driver_that_was_rebound_while_the_pod_had_the_vf_is_a_success(
    vfs: list[Function], pod: Pod, ended: str, lost: bool
) -> None:
    vf = vfs[-1]
    config = conf(vf, ipam=host_local())
    attach(config, pod)
    guest.rebind(vf.device, "igbvf")
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    for _ in range(2):
        detach(config, pod)
    again = guest.function(guest.PCI / vf.device)
    assert (len(again.rdma), again.netdev) == (1, vf.netdev)
    if ended == "alive":
        attach(config, pod)
        detach(config, pod)


@pytest.mark.fault("node", "the driver is taken off while the pod has the VF")
@pytest.mark.changes_host
def test_a_driver_that_was_taken_off_while_the_pod_had_the_vf_is_a_success(vfs: list[Function], pod: Pod) -> None:
    vf = vfs[-1]
    attach(conf(vf), pod)
    (guest.PCI / vf.device / "driver" / "unbind").write_text(vf.device)
    try:
        for _ in range(2):
            detach(conf(vf), pod)
    finally:
        guest.rebind(vf.device, "igbvf")
    assert state_rows() == 0
