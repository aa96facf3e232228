"""ADD: where devices and netdevs are afterwards, and what the pod's interface has."""

import json
from collections.abc import Callable
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, earlier_plugin, earlier_plugin_deletes, error, host_local


def test_alone_the_pod_gets_the_rdma_device_and_the_netdev_with_address_and_routes(vf: Function, pod: Pod) -> None:
    config = conf(vf, ipam=host_local(routes=[{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.0/16", "gw": "10.56.3.9"}]))
    attach(config, pod)
    assert pod.rdma_names() == list(vf.rdma)
    assert vf.rdma[0] not in guest.rdma_names()
    link = pod.link("net1")
    assert (link["parentdev"], link["address"]) == (vf.device, vf.mac)
    assert "UP" in link["flags"]
    assert pod.addresses("net1") == ["10.56.3.2/24"]
    routes = {line.strip() for line in pod.run("ip", "route").splitlines()}
    assert "10.1.0.0/16 via 10.56.3.1 dev net1" in routes
    assert "10.2.0.0/16 via 10.56.3.9 dev net1" in routes
    detach(config, pod)
    assert pod.links() == []


def test_each_of_two_pods_sees_its_own_rdma_device_and_no_other(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pods = make_pod("a"), make_pod("b")
    configs = [conf(function, ipam=host_local()) for function in (vf, other_vf)]
    for pod, config in zip(pods, configs, strict=True):
        attach(config, pod, container=pod.name)
    assert [pod.rdma_names() for pod in pods] == [list(vf.rdma), list(other_vf.rdma)]
    assert not {*vf.rdma, *other_vf.rdma} & set(guest.rdma_names())
    pods[0].run("ping", "-c", "2", "-i", "0.2", "-w", "15", pods[1].addresses("net1")[0].split("/")[0])
    for pod, config in zip(pods, configs, strict=True):
        detach(config, pod, container=pod.name)


def test_chained_only_the_rdma_device_moves(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod, address="10.8.0.2/24")
    before = pod.links()
    config = conf(vf, prevResult=previous)
    attach(config, pod)
    assert pod.rdma_names() == list(vf.rdma)
    assert pod.links() == before
    detach(config, pod)
    assert (pod.rdma_names(), pod.links()) == ([], before)
    earlier_plugin_deletes(vf, pod)


def test_chained_with_ipam_the_interface_gets_another_address_that_goes_at_del(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod, address="10.8.0.2/24")
    config = conf(vf, prevResult=previous, ipam=host_local(routes=[{"dst": "10.1.0.0/16"}]))
    attach(config, pod)
    assert sorted(pod.addresses("net1")) == ["10.56.3.2/24", "10.8.0.2/24"]
    assert "10.1.0.0/16 via 10.56.3.1 dev net1" in pod.run("ip", "route")
    detach(config, pod)
    assert pod.addresses("net1") == ["10.8.0.2/24"]
    assert "10.1.0.0/16" not in pod.run("ip", "route")
    earlier_plugin_deletes(vf, pod)


def test_chained_an_address_that_an_earlier_plugin_set_stays_at_del(vf: Function, pod: Pod) -> None:
    previous = earlier_plugin(vf, pod, address="10.56.3.2/24")
    config = conf(vf, prevResult=previous, ipam=host_local())
    attach(config, pod)
    detach(config, pod)
    assert pod.addresses("net1") == ["10.56.3.2/24"]
    earlier_plugin_deletes(vf, pod)


def test_without_ipam_the_interface_is_up_and_has_no_address(vf: Function, pod: Pod) -> None:
    result = attach(conf(vf), pod)
    assert "ips" not in result
    assert "UP" in pod.link("net1")["flags"]
    assert pod.addresses("net1") == []
    detach(conf(vf), pod)


@pytest.mark.parametrize("ipam", [{}, None], ids=["empty", "null"])
def test_an_ipam_section_that_says_nothing_is_none(vf: Function, pod: Pod, ipam: object) -> None:
    assert "ips" not in attach(conf(vf, ipam=ipam), pod)
    detach(conf(vf, ipam=ipam), pod)


def test_an_ipv6_address_is_usable_at_once(vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]) -> None:
    pods = make_pod("a"), make_pod("b")
    configs = [conf(function, ipam=host_local("fd00:9::/64")) for function in (vf, other_vf)]
    for pod, config in zip(pods, configs, strict=True):
        attach(config, pod, container=pod.name)
        (address,) = pod.addresses("net1")
        # A tentative address cannot be bound to.
        pod.run("python3", "-c", f"import socket; socket.socket(socket.AF_INET6).bind(('{address.split('/')[0]}', 0))")
    pods[0].run("ping", "-c", "2", "-i", "0.2", "-w", "15", pods[1].addresses("net1")[0].split("/")[0])
    for pod, config in zip(pods, configs, strict=True):
        detach(config, pod, container=pod.name)


def test_an_ipv6_address_that_another_node_has_is_told_of(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pods = make_pod("a"), make_pod("b")
    config = conf(other_vf)
    attach(config, pods[1], container="b")
    pods[1].run("ip", "addr", "add", "fd00:9::2/64", "dev", "net1", "nodad")
    pods[1].run("ping", "-c", "1", "-w", "5", "fd00:9::2")
    taken = conf(vf, ipam=host_local("fd00:9::/64"))
    error(guest.cni("ADD", taken, netns=pods[0], container="a"), 110, "fd00:9::2")
    detach(taken, pods[0], container="a")
    detach(config, pods[1], container="b")


def test_ipv6_works_in_a_pod_that_disables_it(vf: Function, pod: Pod) -> None:
    for scope in ("all", "default"):
        pod.run("sysctl", "-qw", f"net.ipv6.conf.{scope}.disable_ipv6=1")
    config = conf(vf, ipam=host_local("10.56.3.0/24", "fd00:9::/64"))
    attach(config, pod)
    assert sorted(pod.addresses("net1")) == ["10.56.3.2/24", "fd00:9::2/64"]
    assert pod.run("sysctl", "-n", "net.ipv6.conf.lo.disable_ipv6").strip() == "1"
    detach(config, pod)


@pytest.mark.parametrize(("subnet", "address"), [("10.56.3.0/24", "10.56.3.2"), ("fd00:9::/64", "fd00:9::2")])
def test_a_neighbour_that_remembers_another_mac_for_the_address_learns_the_new_one(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod], subnet: str, address: str
) -> None:
    pod, neighbour = make_pod("a"), make_pod("b")
    attach(conf(other_vf), neighbour, container="b")
    mine = "10.56.3.100/24" if "." in address else "fd00:9::100/64"
    neighbour.run("ip", "addr", "add", mine, "dev", "net1", *(["nodad"] if ":" in mine else []))
    neighbour.run("ip", "neigh", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", "net1", "nud", "stale")
    config = conf(vf, ipam=host_local(subnet))
    attach(config, pod, container="a")

    def learned() -> bool:
        return vf.mac in neighbour.run("ip", "neigh", "show", address, "dev", "net1")

    assert guest.eventually(learned, 5), neighbour.run("ip", "neigh")
    detach(config, pod, container="a")
    detach(conf(other_vf), neighbour, container="b")


def test_a_route_to_where_one_leads_already_is_left_out_and_check_does_not_miss_it(vf: Function, pod: Pod) -> None:
    pod.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0peer")
    pod.run("ip", "link", "set", "eth0peer", "up")
    pod.run("ip", "addr", "add", "10.200.0.2/24", "dev", "eth0")
    pod.run("ip", "link", "set", "eth0", "up")
    pod.run("ip", "route", "add", "default", "via", "10.200.0.1")
    config = conf(vf, ipam=host_local(routes=[{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16"}]))
    result = attach(config, pod)
    assert pod.run("ip", "route", "show", "default").split()[:5] == ["default", "via", "10.200.0.1", "dev", "eth0"]
    answer = guest.cni("CHECK", {**config, "prevResult": result}, netns=pod)
    assert answer.ok, answer
    detach(config, pod)
    assert "default via 10.200.0.1" in pod.run("ip", "route")


@pytest.mark.parametrize("key", ["mac", "runtimeConfig"])
def test_the_mac_that_is_asked_for_is_set_and_the_old_one_comes_back(vf: Function, pod: Pod, key: str) -> None:
    mac = "02:00:00:00:AB:01"
    asked: dict[str, Any] = {"mac": mac} if key == "mac" else {"runtimeConfig": {"mac": mac}}
    result = attach(conf(vf, **asked), pod)
    assert pod.link("net1")["address"] == mac.lower()
    assert result["interfaces"][0]["mac"] == mac.lower()
    detach(conf(vf, **asked), pod)


def test_the_runtimes_mac_goes_before_the_configurations(vf: Function, pod: Pod) -> None:
    config = conf(vf, mac="02:00:00:00:ab:01", runtimeConfig={"mac": "02:00:00:00:ab:02"})
    attach(config, pod)
    assert pod.link("net1")["address"] == "02:00:00:00:ab:02"
    detach(config, pod)


def test_the_mtu_that_is_asked_for_is_set_and_the_old_one_comes_back(vf: Function, pod: Pod) -> None:
    result = attach(conf(vf, version="1.1.0", mtu=1400), pod)
    assert pod.link("net1")["mtu"] == 1400
    assert result["interfaces"][0]["mtu"] == 1400
    detach(conf(vf, mtu=1400), pod)


def test_an_mtu_that_the_driver_refuses_is_told_of(vf: Function, pod: Pod) -> None:
    error(guest.cni("ADD", conf(vf, mtu=65535), netns=pod), 108, "MTU 65535", "EINVAL")
    detach(conf(vf, mtu=65535), pod)


def test_a_netdev_that_was_up_comes_home_up(vf: Function, pod: Pod) -> None:
    guest.run("ip", "link", "set", vf.netdev, "up")
    before = guest.host()
    attach(conf(vf, mac="02:00:00:00:ab:01", mtu=1400), pod)
    detach(conf(vf), pod)
    assert guest.eventually(lambda: guest.host() == before)
    guest.run("ip", "link", "set", vf.netdev, "down")


def test_a_device_id_in_upper_case_is_the_same(vfs: list[Function], pod: Pod) -> None:
    vf = vfs[-1]
    config = conf(vf.device.upper())
    attach(config, pod)
    assert pod.rdma_names() == list(vf.rdma)
    detach(config, pod)


def test_a_scalable_function_is_attached_by_its_auxiliary_device(sf: Function, pod: Pod) -> None:
    config = conf(sf, version="1.1.0")
    result = attach(config, pod)
    assert pod.rdma_names() == list(sf.rdma)
    assert pod.link("net1")["address"] == sf.mac
    assert "pciID" not in result["interfaces"][0]
    detach(config, pod)


def test_a_function_without_a_netdev_moves_its_rdma_device_alone(bare_vf: Function, pod: Pod) -> None:
    config = conf(bare_vf)
    result = attach(config, pod)
    assert (pod.rdma_names(), pod.links()) == (list(bare_vf.rdma), [])
    assert "interfaces" not in result
    detach(config, pod)


def test_ipam_for_a_function_without_a_netdev_is_refused(bare_vf: Function, pod: Pod) -> None:
    config = conf(bare_vf, ipam=host_local())
    error(guest.cni("ADD", config, netns=pod), 113, bare_vf.device)
    detach(config, pod)


def test_chained_a_function_without_a_netdev_needs_none_in_the_pod(bare_vf: Function, pod: Pod) -> None:
    config = conf(bare_vf, prevResult={"cniVersion": "1.0.0", "interfaces": [], "ips": []})
    assert attach(config, pod) == {"cniVersion": "1.0.0", "interfaces": [], "ips": []}
    assert pod.rdma_names() == list(bare_vf.rdma)
    detach(config, pod)


def test_two_interfaces_of_one_pod_are_two_attachments(vf: Function, other_vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    attach(conf(other_vf), pod, ifname="net2")
    assert pod.rdma_names() == sorted([*vf.rdma, *other_vf.rdma])
    detach(conf(vf), pod)
    assert pod.rdma_names() == list(other_vf.rdma)
    assert [link["ifname"] for link in pod.links()] == ["net2"]
    detach(conf(other_vf), pod, ifname="net2")


# Where the device ID is from


PARENT, MAC = "the device below CNI_IFNAME", "the MAC in prevResult"
SOURCES = ["deviceID", "pciBusID", "runtimeConfig.deviceID", "pciID in prevResult", PARENT, MAC]


@pytest.mark.parametrize("first", SOURCES)
def test_the_device_is_named_by_the_first_source_that_has_one(
    vf: Function, other_vf: Function, pod: Pod, first: str
) -> None:
    """The sources after it name another VF."""

    def named(source: str) -> Function | None:
        return None if SOURCES.index(source) < SOURCES.index(first) else vf if source == first else other_vf

    below = named(PARENT)
    if below:
        guest.run("ip", "link", "set", below.netdev, "netns", pod.name, "name", "net1")
    interface: dict[str, object] = {"name": "net1", "sandbox": pod.netns}
    with_mac = named(MAC)
    if with_mac:
        interface["mac"] = with_mac.mac.upper()
    config = conf(None, prevResult={"cniVersion": "1.0.0", "interfaces": [{"name": "eth9"}, interface]})
    for source in SOURCES[:4]:
        function = named(source)
        if function and source == "pciID in prevResult":
            interface["pciID"] = function.device
        elif function and source == "runtimeConfig.deviceID":
            config["runtimeConfig"] = {"deviceID": function.device}
        elif function:
            config[source] = function.device
    attach(config, pod)
    assert pod.rdma_names() == list(vf.rdma)
    detach(config, pod)
    assert pod.rdma_names() == []
    if below:
        earlier_plugin_deletes(below, pod)


def test_an_interface_of_another_name_or_on_the_host_names_no_device(vf: Function, pod: Pod) -> None:
    interfaces = [
        {"name": "net1", "pciID": vf.device, "mac": vf.mac},
        {"name": "net2", "pciID": vf.device, "mac": vf.mac, "sandbox": pod.netns},
    ]
    config = conf(None, prevResult={"cniVersion": "1.0.0", "interfaces": interfaces})
    error(guest.cni("ADD", config, netns=pod), 7, "deviceID", "pciBusID", "prevResult", "resourceName")
    detach(config, pod)


def test_with_no_device_named_the_error_tells_where_it_looked(pod: Pod) -> None:
    error(guest.cni("ADD", conf(None), netns=pod), 7, "deviceID", "pciBusID", "runtimeConfig.deviceID", "prevResult")
    detach(conf(None), pod)


def test_neighbours_that_remember_another_mac_learn_of_the_pods(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pools = [{"subnet": "10.56.0.0/16", "nodePrefix": 24}, {"subnet": "fd00:56::/48", "nodePrefix": 64}]
    ipam = {"type": "node-subnet", "nodeName": "n", "nodes": {"n": 3}, "pools": pools}
    there, here = make_pod("there"), make_pod("here")
    config, other = conf(vf, ipam=ipam, name="one"), conf(other_vf, ipam=ipam, name="one")
    addresses = ("10.56.3.3", "fd00:56:0:3::3")
    # The second ADD on this node gets them; `there` believes that they are another's.
    attach(other, there)
    for address in addresses:
        there.run("ip", "neigh", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", "net1", "nud", "stale")
    attach(config, here, container="container2")
    assert here.addresses("net1") == [f"{addresses[0]}/24", f"{addresses[1]}/64"]
    mac = here.link("net1")["address"]

    def known() -> list[str]:
        shown = json.loads(there.run("ip", "-j", "neigh", "show", "dev", "net1"))
        return [entry["lladdr"] for entry in shown if entry["dst"] in addresses]

    assert guest.eventually(lambda: known() == [mac, mac]), known()
    assert "FAILED" not in here.run("ip", "neigh") + here.run("ip", "-6", "neigh")
    detach(config, here, container="container2")
    detach(other, there)


def test_the_announcement_does_not_wait_for_a_carrier_that_does_not_come(
    vfs: list[Function], vf: Function, pod: Pod
) -> None:
    (pf,) = [link["ifname"] for link in guest.links() if "vfinfo_list" in link]
    guest.run("ip", "link", "set", pf, "down")
    try:
        config = conf(vf, ipam=host_local())
        attach(config, pod)
        assert pod.addresses("net1") == ["10.56.3.2/24"]
        detach(config, pod)
    finally:
        guest.run("ip", "link", "set", pf, "up")
        # igb's VFs find their PF again only when they come up anew, see tests/lab/init.
        guest.settle()
        for state in ("up", "down"):
            for function in vfs:
                guest.run("ip", "link", "set", function.netdev, state)


def test_what_a_pods_interface_has_is_told_by_ip_as_by_the_result(vf: Function, pod: Pod) -> None:
    config = conf(vf, ipam=host_local())
    result = attach(config, pod)
    shown = json.loads(pod.run("ip", "-j", "addr", "show", "net1"))[0]
    assert shown["address"] == result["interfaces"][0]["mac"]
    assert shown["addr_info"][0]["broadcast"] == "10.56.3.255"
    detach(config, pod)
