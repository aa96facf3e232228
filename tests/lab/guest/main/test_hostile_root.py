"""Root in a pod, with CAP_NET_ADMIN there, prepares for the DEL: nothing of that keeps a device, or another's name."""

from collections.abc import Callable

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, error, kept_by, state_rows
from record import Tried

MakePod = Callable[[str], Pod]

# RTM_NEWLINKPROP for each name: how many of them the kernel takes.
ADD_ALTNAMES = """
import os, socket, struct, sys
def attribute(kind, value): return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
taken = 0
for name in map(os.fsencode, sys.argv[2:]):
    body = struct.pack("=BxHiII", 0, 0, int(sys.argv[1]), 0, 0) + attribute(0x8034, attribute(53, name + bytes(1)))
    route.send(struct.pack("=IHHII", 16 + len(body), 108, 0x605, 1, 0) + body)
    taken += struct.unpack_from("=i", route.recv(65536), 16)[0] == 0
print(taken)
"""


@pytest.mark.fault("hostile pod", "the names that a netdev could have for the way home are taken in the pod")
def test_a_netdev_comes_home_from_a_pod_that_has_the_names_for_the_way(vf: Function, pod: Pod, tried: Tried) -> None:
    """One whose name udev would change goes by another, which root in the pod could have foreseen."""
    attach(conf(vf), pod)
    index = pod.link("net1")["ifindex"]
    for name in (f"vf{index}", "dev0", f"dev{index}", "vf0", "eth0", vf.netdev):
        pod.run("ip", "link", "add", "name", name, "type", "bridge")
        tried()
    pod.run("ip", "link", "set", "net1", "down")
    pod.run("ip", "link", "set", "net1", "name", "{}")
    detach(conf(vf), pod)
    assert vf.netdev in [link["ifname"] for link in guest.links()]
    assert state_rows() == 0


@pytest.mark.fault("hostile pod", "the netdev takes packets that are for others")
@pytest.mark.parametrize("ended", ["alive", "died"])
def test_a_netdev_that_was_made_promiscuous_is_not_when_it_is_home(vf: Function, pod: Pod, ended: str) -> None:
    attach(conf(vf), pod)
    pod.run("ip", "link", "set", "net1", "promisc", "on", "allmulticast", "on")
    if ended == "died":
        pod.delete()
    detach(conf(vf), pod)
    (link,) = [link for link in guest.links() if link["ifname"] == vf.netdev]
    assert not {"PROMISC", "ALLMULTI"} & set(link["flags"]), link


@pytest.mark.fault("hostile pod", "alternative names that nothing else would have")
def test_a_netdev_comes_home_with_whatever_alternative_names(
    vf: Function, other_vf: Function, make_pod: MakePod, tried: Tried
) -> None:
    """The kernel takes any, but for those of more than 127 bytes; iproute2 is more particular."""
    pods = make_pod("a"), make_pod("b")
    names = ["", " ", "%d", "dev%d", "dev0", "dev1", "a/b", "..", "-", "x" * 127, "\x1b[31m", "é", "lo"]
    names += [vf.netdev, other_vf.netdev]
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        attach(conf(function), pod, container=pod.name)
    for pod in pods:
        taken = pod.run("python3", "-c", ADD_ALTNAMES, str(pod.link("net1")["ifindex"]), *names)
        tried(int(taken))
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        detach(conf(function), pod, container=pod.name)
    assert tried.count >= 20
    assert state_rows() == 0


@pytest.mark.fault("hostile pod", "an RDMA device has another's name, a second one the name that it would get instead")
def test_the_name_of_an_rdma_device_comes_back_from_a_pod_with_two(vfs: list[Function], make_pod: MakePod) -> None:
    victim, first, second = vfs[:3]
    theirs, hostile = make_pod("theirs"), make_pod("hostile")
    config = conf(victim, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, theirs, container="theirs")
    attach(conf(first), hostile, container="hostile")
    attach(conf(second), hostile, container="hostile", ifname="net2")
    (index,) = [device["ifindex"] for device in hostile.rdma_devices() if device["ifname"] == first.rdma[0]]
    hostile.run("rdma", "dev", "set", second.rdma[0], "name", f"rdma-{index}")
    hostile.run("rdma", "dev", "set", first.rdma[0], "name", victim.rdma[0])
    detach(config, theirs, container="theirs")
    assert victim.rdma[0] in guest.rdma_names()
    detach(conf(first), hostile, container="hostile")
    detach(conf(second), hostile, container="hostile", ifname="net2")


@pytest.mark.fault("hostile pod", "an RDMA device in a namespace of the pod's own has another's name")
def test_the_name_of_an_rdma_device_comes_back_from_a_namespace_in_a_pod(
    vf: Function, other_vf: Function, make_pod: MakePod
) -> None:
    theirs, hostile, nested = make_pod("theirs"), make_pod("hostile"), make_pod("nested")
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}})
    attach(config, theirs, container="theirs")
    attach(conf(other_vf), hostile, container="hostile")
    hostile.run("rdma", "dev", "set", other_vf.rdma[0], "netns", nested.name)
    nested.run("rdma", "dev", "set", other_vf.rdma[0], "name", vf.rdma[0])
    detach(config, theirs, container="theirs")
    assert vf.rdma[0] in guest.rdma_names()
    detach(conf(other_vf), hostile, container="hostile")


@pytest.mark.fault("the pod's root", "gives the devices to a namespace of its own")
@pytest.mark.parametrize("kept", ["process", "thread"])
@pytest.mark.parametrize("device", ["RDMA device", "netdev", "both"])
def test_devices_come_home_from_a_namespace_that_root_in_the_pod_made(
    vf: Function, pod: Pod, make_pod: MakePod, device: str, kept: str
) -> None:
    nested = make_pod("nested")
    attach(conf(vf), pod)
    if device != "netdev":
        pod.run("rdma", "dev", "set", vf.rdma[0], "netns", nested.name)
        nested.run("rdma", "dev", "set", vf.rdma[0], "name", "mine")
    if device != "RDMA device":
        pod.run("ip", "link", "set", "net1", "netns", nested.name, "name", "mine")
    with kept_by(nested, kept):
        detach(conf(vf), pod)
        assert state_rows() == 0


@pytest.mark.fault("the pod's root", "gives the devices to a namespace of its own")
def test_what_is_in_a_namespace_that_nothing_leads_to_is_asked_for_again(
    vf: Function, pod: Pod, make_pod: MakePod
) -> None:
    nested = make_pod("nested")
    attach(conf(vf), pod)
    pod.run("rdma", "dev", "set", vf.rdma[0], "netns", nested.name)
    with kept_by(nested, "socket"):
        error(guest.cni("DEL", conf(vf), netns=pod), 11, vf.device)
        assert state_rows() == 1
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    detach(conf(vf), pod)
    assert state_rows() == 0
