"""Pod sandboxes by containerd: what each conflist puts into them, and the host as it was when they are gone."""

from pathlib import Path

import guest
from guest import Function
from network import state_rows
from runtime import Containerd, conflist, pool, remove_at_once, vf_of

_BRIDGE = {
    "type": "bridge",
    "bridge": "cni0",
    "isDefaultGateway": True,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]},
}


def names(pod: guest.Pod) -> list[str]:
    return sorted(link["ifname"] for link in pod.links())


def namespaces() -> list[str]:
    return guest.run("ip", "netns", "list").splitlines()


def nothing_is_left(vfs: list[Function]) -> None:
    """No attachment, no namespace, and each RDMA device on the host; the netdevs are looked at after every test."""
    assert (state_rows(), namespaces()) == (0, [])
    assert {device for vf in vfs for device in vf.rdma} <= set(guest.rdma_names())


def test_alone_a_vf_is_the_only_interface_of_each_of_four_at_once(
    containerd: Containerd, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    containerd.use(conflist("alone", {"type": "rdma", "pf": pf, "ipam": pool()}))
    sandboxes = containerd.run_at_once(tmp_path, 4)
    pods = [sandbox.pod for sandbox in sandboxes]
    taken = [vf_of(pod.link("eth0"), vfs) for pod in pods]
    assert len({vf.device for vf in taken}) == 4
    assert [names(pod) for pod in pods] == [["eth0"]] * 4
    assert [pod.rdma_names() for pod in pods] == [list(vf.rdma) for vf in taken]
    addresses = [pod.addresses("eth0") for pod in pods]
    assert sorted(addresses) == [[f"10.56.3.{number}/24"] for number in (2, 3, 4, 5)]
    assert [[f"{address}/24" for address in sandbox.addresses] for sandbox in sandboxes] == addresses
    other = addresses[1][0].removesuffix("/24")
    assert guest.eventually(lambda: " 0% packet loss" in pods[0].run("ping", "-c1", "-W2", other, check=False))
    remove_at_once(sandboxes)
    nothing_is_left(vfs)


def test_behind_bridge_a_vf_is_a_further_interface_of_each_of_four_at_once(
    containerd: Containerd, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    rail = {"type": "rdma", "pf": pf, "ifName": "rail0", "ipam": pool()}
    containerd.use(conflist("bridged", _BRIDGE, rail))
    sandboxes = containerd.run_at_once(tmp_path, 4)
    pods = [sandbox.pod for sandbox in sandboxes]
    taken = [vf_of(pod.link("rail0"), vfs) for pod in pods]
    assert len({vf.device for vf in taken}) == 4
    assert [names(pod) for pod in pods] == [["eth0", "rail0"]] * 4
    assert [pod.rdma_names() for pod in pods] == [list(vf.rdma) for vf in taken]
    assert sorted(pod.addresses("rail0") for pod in pods) == [[f"10.56.3.{number}/24"] for number in (2, 3, 4, 5)]
    assert sorted(pod.addresses("eth0") for pod in pods) == [[f"10.1.0.{number}/24"] for number in (2, 3, 4, 5)]
    # The pod's own address is the bridge's, not the rail's.
    assert [[f"{a}/24" for a in sandbox.addresses] for sandbox in sandboxes] == [pod.addresses("eth0") for pod in pods]
    assert ["via 10.1.0.1 dev eth0" in pod.run("ip", "route", "show", "default") for pod in pods] == [True] * 4
    remove_at_once(sandboxes)
    nothing_is_left(vfs)


def test_behind_host_device_the_rdma_device_follows_the_netdev(
    containerd: Containerd, vf: Function, vfs: list[Function], tmp_path: Path
) -> None:
    moved = {"type": "host-device", "pciBusID": vf.device, "ipam": pool()}
    containerd.use(conflist("device", moved, {"type": "rdma"}))
    sandbox = containerd.run(tmp_path)
    pod = sandbox.pod
    assert (names(pod), pod.link("eth0")["parentdev"]) == (["eth0"], vf.device)
    assert pod.rdma_names() == list(vf.rdma)
    assert [f"{address}/24" for address in sandbox.addresses] == pod.addresses("eth0") == ["10.56.3.2/24"]
    sandbox.remove()
    nothing_is_left(vfs)
