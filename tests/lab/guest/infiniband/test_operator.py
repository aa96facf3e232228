"""The operator's command, on InfiniBand."""

import guest
from guest import Function, Pod
from network import attach, conf, detach
from operating import rdma_cni


def test_devices_of_infiniband_are_shown_with_the_netdev_that_is_theirs(
    vfs: list[Function], vf: Function, pod: Pod
) -> None:
    attach(conf(vf), pod)
    said = rdma_cni("devices", "--link-type", "infiniband", "--json")
    detach(conf(vf), pod)
    assert said.code == 0, said
    found = {each["id"]: each for each in said.json["functions"] if each["kind"] == "vf"}
    assert sorted(found) == sorted(each.device for each in vfs)
    (port,) = found[vf.device]["rdma"][0]["ports"]
    assert (port["link_layer"], port["gids"][0]["type"]) == ("InfiniBand", "IB")
    assert (found[vf.device]["state"], found[vf.device]["where"]) == ("attached", pod.netns)
    there = {netdev["name"]: netdev for netdev in found[vf.device]["netdevs"] if netdev["where"] == pod.netns}
    assert [netdev["infiniband"] for netdev in there.values()] == [True]
    assert set(there) == {"net1"}


def test_a_pod_with_infiniband_needs_no_gid_of_an_address(vf: Function, pod: Pod) -> None:
    guest.run("modprobe", "rdma_ucm")
    guest.settle()
    attach(conf(vf), pod)
    said = rdma_cni("verify", pod.name, "--json")
    detach(conf(vf), pod)
    assert (said.code, said.json["ready"]) == (0, True), said
    assert any("InfiniBand, ACTIVE" in step["found"] for step in said.json["steps"])


def test_networks_of_infiniband_have_its_plugin() -> None:
    said = rdma_cni("generate", "networks", "--node", "gpu-03=3")
    assert said.code == 0, said
    assert '"type": "ib-sriov"' in said.stdout
