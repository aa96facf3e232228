"""The lab itself, with InfiniBand."""

import guest
from guest import Function, Pod


def test_each_function_has_an_infiniband_netdev_beside_its_ethernet_one(vfs: list[Function]) -> None:
    assert [len(vf.netdevs) for vf in vfs] == [2] * 7
    assert all(len(vf.mac.split(":")) == 20 for vf in vfs)


def test_the_netdev_dies_with_the_move_and_is_born_again_on_the_host(vf: Function, pod: Pod) -> None:
    (before,) = [link["ifindex"] for link in guest.links() if link["ifname"] == vf.netdev]
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", pod.name)
    guest.settle()
    again = [link["ifindex"] for link in guest.links() if link.get("address") == vf.mac]
    assert len(again) == 1
    assert again[0] != before
