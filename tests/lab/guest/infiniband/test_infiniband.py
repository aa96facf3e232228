"""InfiniBand: the IPoIB netdev dies when its RDMA device moves, and is born again on the host."""

from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, error, host_local, lose_state, state_rows


def ipoib(vf: Function) -> list[dict[str, Any]]:
    """The VF's IPoIB netdev on the host."""
    return [link for link in guest.links() if link.get("parentdev") == vf.device and link["link_type"] == "infiniband"]


def settled(vf: Function) -> None:
    """Give the netdev that was born again the name that it had when the guest came up."""
    guest.settle()
    (link,) = ipoib(vf)
    if link["ifname"] != vf.netdev:
        guest.run("ip", "link", "set", link["ifname"], "name", vf.netdev)


def test_alone_the_netdev_that_is_born_again_is_moved_and_addressed(vf: Function, pod: Pod) -> None:
    config = conf(vf, "1.0.0", ipam=host_local(routes=[{"dst": "10.1.0.0/16"}]))
    result = attach(config, pod)
    assert pod.rdma_names() == list(vf.rdma)
    (link,) = pod.links()
    assert (link["ifname"], link["link_type"], link["parentdev"]) == ("net1", "infiniband", vf.device)
    assert "UP" in link["flags"]
    assert pod.addresses("net1") == ["10.56.3.2/24"]
    assert result["interfaces"] == [{"name": "net1", "mac": link["address"], "sandbox": pod.netns}]
    assert ipoib(vf) == []
    answer = guest.cni("CHECK", {**config, "prevResult": result}, netns=pod)
    assert answer.ok, answer
    detach(config, pod)


def test_the_functions_ethernet_netdev_stays_on_the_host(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    (ethernet,) = [name for name in vf.netdevs if name != vf.netdev]
    assert ethernet in [link["ifname"] for link in guest.links()]
    detach(conf(vf), pod)


@pytest.mark.parametrize("ended", ["alive", "died"])
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
def test_alone_the_netdev_that_is_born_at_del_has_the_old_name(vf: Function, pod: Pod, ended: str, lost: bool) -> None:
    attach(conf(vf, mtu=1500), pod)
    if lost:
        lose_state()
    if ended == "died":
        pod.delete()
    for _ in range(2):
        detach(conf(vf), pod)
    if lost and ended == "died":
        # It died with all that it carried; nothing tells its name.
        settled(vf)
    assert [link["ifname"] for link in ipoib(vf)] == [vf.netdev]


def test_an_add_that_fails_leaves_the_host_with_its_netdev(vf: Function, pod: Pod) -> None:
    config = conf(vf, ipam={"type": "host-local", "ranges": []})
    assert guest.cni("ADD", config, netns=pod).code == 1
    assert (pod.links(), pod.rdma_names(), state_rows()) == ([], [], 0)
    assert [link["ifname"] for link in ipoib(vf)] == [vf.netdev]


def test_a_mac_cannot_be_asked_for(vf: Function, pod: Pod) -> None:
    """An IPoIB address has twenty bytes, and is the hardware's."""
    error(guest.cni("ADD", conf(vf, mac="02:00:00:00:ab:01"), netns=pod), 108, "MAC")
    assert (pod.links(), state_rows()) == ([], 0)


# Chained: Debian's host-device has put the netdev into the pod.


def host_device(vf: Function, routes: list[dict[str, object]] | None = None) -> dict[str, Any]:
    return {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "host-device",
        "device": vf.netdev,
        "ipam": host_local(routes=routes),
    }


def host_device_cni(command: str, config: dict[str, Any], pod: Pod) -> Any:
    answer = guest.cni(command, config, netns=pod, binary=f"{guest.CNI_PATH}/host-device")
    assert answer.ok, answer
    return answer.json if command == "ADD" else None


def told(pod: Pod) -> tuple[object, ...]:
    """What the pod's interface has, apart from what makes it the one and not the other."""
    link = pod.link("net1")
    return (
        link["link_type"],
        link["mtu"],
        link.get("ifalias"),
        "UP" in link["flags"],
        pod.addresses("net1"),
        sorted(line.strip() for line in pod.run("ip", "route").splitlines()),
    )


def test_chained_the_pod_has_its_netdev_again_with_addresses_and_routes(vf: Function, pod: Pod) -> None:
    earlier = host_device(vf, routes=[{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.0/16", "gw": "10.56.3.9"}])
    previous = host_device_cni("ADD", earlier, pod)
    before = told(pod)
    config = conf(vf, prevResult=previous)
    assert attach(config, pod)["ips"] == previous["ips"]
    assert pod.rdma_names() == list(vf.rdma)
    assert told(pod) == before
    assert ipoib(vf) == []
    answer = guest.cni("CHECK", config, netns=pod)
    assert answer.ok, answer
    detach(config, pod)
    # The earlier plugin finds what it looks for, and gives it the name it had.
    assert pod.link("net1")["ifalias"] == vf.netdev
    host_device_cni("DEL", earlier, pod)
    assert (pod.links(), pod.rdma_names()) == ([], [])


def test_chained_an_address_of_its_own_goes_onto_the_netdev_that_was_born(vf: Function, pod: Pod) -> None:
    earlier = host_device(vf)
    previous = host_device_cni("ADD", earlier, pod)
    config = conf(vf, prevResult=previous, ipam=host_local("10.57.0.0/24"))
    attach(config, pod, ifname="net1")
    assert sorted(pod.addresses("net1")) == ["10.56.3.2/24", "10.57.0.2/24"]
    detach(config, pod)
    host_device_cni("DEL", earlier, pod)


def test_chained_a_check_misses_the_netdev(vf: Function, pod: Pod) -> None:
    earlier = host_device(vf)
    config = conf(vf, prevResult=host_device_cni("ADD", earlier, pod))
    attach(config, pod)
    pod.run("ip", "link", "set", "net1", "down")
    error(guest.cni("CHECK", config, netns=pod), 111, "down")
    detach(config, pod)
    host_device_cni("DEL", earlier, pod)


def test_chained_a_pod_that_died_leaves_the_netdev_on_the_host(vf: Function, pod: Pod) -> None:
    config = conf(vf, prevResult=host_device_cni("ADD", host_device(vf), pod))
    attach(config, pod)
    pod.delete()
    detach(config, pod)
    assert vf.rdma[0] in guest.rdma_names()
    settled(vf)


def test_chained_an_add_that_fails_leaves_the_pod_with_its_netdev(vf: Function, pod: Pod) -> None:
    earlier = host_device(vf)
    previous = host_device_cni("ADD", earlier, pod)
    config = conf(vf, prevResult=previous, ipam={"type": "host-local", "ranges": []})
    assert guest.cni("ADD", config, netns=pod).code == 1
    assert (pod.rdma_names(), state_rows()) == ([], 0)
    assert pod.link("net1")["ifalias"] == vf.netdev
    host_device_cni("DEL", earlier, pod)
