"""The lab itself, with rdma-core's udev rules."""

import guest
from guest import Function


def test_udev_names_rdma_devices_after_their_place(vfs: list[Function]) -> None:
    assert [vf.rdma for vf in vfs] == [(f"rocep1s0v{n}",) for n in range(7)]


def test_udev_leaves_netdevs_their_names(vfs: list[Function]) -> None:
    assert sorted(link["ifname"] for link in guest.links() if "v" in link["ifname"]) == [vf.netdev for vf in vfs]
