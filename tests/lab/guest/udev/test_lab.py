"""The lab itself, with rdma-core's udev rules."""

import guest
from guest import Function


def test_udev_renamed_an_rdma_device_after_its_place(vfs: list[Function]) -> None:
    # All of igb's VFs get the same name from Debian 12's rdma-core, so one at a time has it.
    assert any(name.startswith("rocep1s0") for vf in vfs for name in vf.rdma), vfs


def test_udev_leaves_netdevs_their_names(vfs: list[Function]) -> None:
    assert sorted(link["ifname"] for link in guest.links() if "v" in link["ifname"]) == [vf.netdev for vf in vfs]
