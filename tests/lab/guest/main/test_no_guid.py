"""VFs that nobody gave a GUID: all of them have 0."""

from collections.abc import Callable, Iterator
from pathlib import Path

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, lose_state

NO_GUID = Path("/sys/module/rdmasim/parameters/no_guid")


@pytest.fixture
def guidless(vfs: list[Function]) -> Iterator[list[Function]]:
    """Two VFs whose RDMA devices have the node GUID 0."""
    pair = vfs[-2:]
    NO_GUID.write_text("Y")
    try:
        for vf in pair:
            guest.rebind(vf.device, "igbvf")
        yield [guest.function(guest.PCI / vf.device) for vf in pair]
    finally:
        NO_GUID.write_text("N")
        for vf in pair:
            guest.rebind(vf.device, "igbvf")


@pytest.mark.changes_host
@pytest.mark.fault("node", "VFs whose RDMA devices have the GUID 0")
@pytest.mark.parametrize("lost", [False, True], ids=["state", "no state"])
@pytest.mark.parametrize("rebound", [False, True], ids=["bound", "rebound"])
def test_vfs_with_guid_0_are_told_apart(
    guidless: list[Function], make_pod: Callable[[str], Pod], rebound: bool, lost: bool
) -> None:
    first, second = guidless
    by_name = {device["ifname"]: device["node_guid"] for device in guest.rdma_devices()}
    assert {by_name[name] for vf in guidless for name in vf.rdma} == {"0000:0000:0000:0000"}
    pods = [make_pod("a"), make_pod("b")]
    attach(conf(first), pods[0], container="first")
    attach(conf(second), pods[1], container="second")
    if rebound:
        guest.rebind(first.device, "igbvf")
    if lost:
        lose_state()
    detach(conf(first), pods[0], container="first")
    # The one that is home does not stand for the other.
    assert pods[1].rdma_names() == list(second.rdma)
    detach(conf(second), pods[1], container="second")
    for before in guidless:
        again = guest.function(guest.PCI / before.device)
        assert (len(again.rdma), again.netdev) == (1, before.netdev)
