"""Names of the VF's netdev, alternative ones included, in the pod and back on the host."""

from collections.abc import Callable

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, error, give_name_back, lose_state, state_rows


def add_altname(netdev: str, altname: str) -> None:
    guest.run("ip", "link", "property", "add", "dev", netdev, "altname", altname)


def del_altname(netdev: str, altname: str) -> None:
    guest.run("ip", "link", "property", "del", "dev", netdev, "altname", altname, check=False)


def host_link(vf: Function) -> dict[str, object]:
    (link,) = [link for link in guest.links() if link.get("parentdev") == vf.device]
    return link


@pytest.mark.parametrize("ended", ["alive", "died"])
def test_an_alternative_name_that_equals_cni_ifname_is_no_obstacle_and_there_again_after_del(
    vf: Function, pod: Pod, ended: str
) -> None:
    add_altname(vf.netdev, "net1")
    add_altname(vf.netdev, "quite-a-long-alternative-name")
    before = guest.host()
    attach(conf(vf), pod)
    assert pod.link("net1")["altnames"] == ["quite-a-long-alternative-name"]
    if ended == "died":
        pod.delete()
    detach(conf(vf), pod)
    assert guest.host() == before
    for altname in ("net1", "quite-a-long-alternative-name"):
        del_altname(vf.netdev, altname)


def test_an_alternative_name_that_is_taken_in_the_pod_is_there_again_after_del(vf: Function, pod: Pod) -> None:
    add_altname(vf.netdev, "rail0")
    before = guest.host()
    pod.run("ip", "link", "add", "rail0", "type", "veth", "peer", "name", "eth9")
    attach(conf(vf), pod)
    detach(conf(vf), pod)
    assert guest.host() == before
    del_altname(vf.netdev, "rail0")


@pytest.mark.parametrize("kind", ["a name", "an alternative name"])
def test_an_interface_name_that_is_taken_in_the_pod_refuses_the_add(vf: Function, pod: Pod, kind: str) -> None:
    name = "net1" if kind == "a name" else "eth0"
    pod.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth9")
    if kind != "a name":
        pod.run("ip", "link", "property", "add", "dev", name, "altname", "net1")
    error(guest.cni("ADD", conf(vf), netns=pod), 103, "CNI_IFNAME", "'net1'", name)
    assert (pod.rdma_names(), state_rows()) == ([], 0)
    detach(conf(vf), pod)


def test_the_old_name_may_be_taken_in_the_pod(vf: Function, pod: Pod) -> None:
    pod.run("ip", "link", "add", vf.netdev, "type", "veth", "peer", "name", "eth9")
    attach(conf(vf), pod)
    assert pod.link("net1")["parentdev"] == vf.device
    detach(conf(vf), pod)


@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
@pytest.mark.parametrize("kind", ["a name", "an alternative name"])
def test_an_old_name_that_another_netdev_took_leaves_a_usable_vf_and_a_line_in_the_log(
    vf: Function, pod: Pod, ended: str, lost: bool, kind: str
) -> None:
    attach(conf(vf, mtu=1400), pod)
    taker = vf.netdev if kind == "a name" else "taker"
    guest.run("ip", "link", "add", taker, "type", "veth", "peer", "name", "taker9")
    if kind != "a name":
        add_altname(taker, vf.netdev)
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    answer = detach(conf(vf), pod)
    link = host_link(vf)
    assert (link["address"], link["mtu"]) == (vf.mac, 1500)
    assert vf.netdev in answer.stderr
    assert str(link["ifname"]) in answer.stderr
    guest.run("ip", "link", "del", taker)
    # It is usable: the next attachment takes it as it is.
    second = Pod("pod") if ended == "alive" else None
    if second:
        attach(conf(vf), second)
        detach(conf(vf), second)
    give_name_back(vf)


@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
def test_the_old_name_as_an_alternative_name_of_its_own_becomes_the_name(
    vf: Function, pod: Pod, ended: str, lost: bool
) -> None:
    """As udev leaves it on a netdev that it saw under another name."""
    attach(conf(vf), pod)
    pod.run("ip", "link", "property", "add", "dev", "net1", "altname", vf.netdev)
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    detach(conf(vf), pod)
    assert host_link(vf)["ifname"] == vf.netdev


def test_a_name_that_is_taken_on_the_host_is_no_obstacle_to_coming_home(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    """Each has the other's name when it comes."""
    pods = make_pod("a"), make_pod("b")
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        attach(conf(function), pod, container=pod.name)
    pods[0].run("ip", "link", "set", "net1", "down")
    pods[0].run("ip", "link", "set", "net1", "name", other_vf.netdev)
    pods[1].run("ip", "link", "set", "net1", "down")
    pods[1].run("ip", "link", "set", "net1", "name", vf.netdev)
    for pod in pods:
        pod.delete()
    for pod, function in zip(pods, (vf, other_vf), strict=True):
        detach(conf(function), pod, container=pod.name)
    assert [host_link(function)["ifname"] for function in (vf, other_vf)] == [vf.netdev, other_vf.netdev]


def test_an_alternative_name_that_another_netdev_took_is_left_to_it(vf: Function, pod: Pod) -> None:
    add_altname(vf.netdev, "rail0")
    add_altname(vf.netdev, "net1")
    attach(conf(vf), pod)
    guest.run("ip", "link", "add", "net1", "type", "veth", "peer", "name", "taker9")
    answer = detach(conf(vf), pod)
    assert "net1" in answer.stderr
    assert host_link(vf)["altnames"] == ["rail0"]
    guest.run("ip", "link", "del", "net1")
    del_altname(vf.netdev, "rail0")


def test_a_long_interface_name_is_taken(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod, ifname="x" * 15)
    assert pod.link("x" * 15)["parentdev"] == vf.device
    detach(conf(vf), pod, ifname="x" * 15)


def test_an_alias_that_an_operator_gave_comes_back(vf: Function, pod: Pod) -> None:
    guest.run("ip", "link", "set", vf.netdev, "alias", "rail 0, left")
    attach(conf(vf), pod)
    detach(conf(vf), pod)
    assert host_link(vf)["ifalias"] == "rail 0, left"
    guest.run("ip", "link", "set", vf.netdev, "alias", "")
