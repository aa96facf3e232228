"""The guest is what the other tests think it is."""

import guest
from guest import Function
from runtime import CniTool, Containerd, crictl, said


def test_there_are_seven_vfs_with_an_rdma_device_each(vfs: list[Function]) -> None:
    assert [len(vf.rdma) for vf in vfs] == [1] * 7


def test_containerd_answers_crictl(containerd: Containerd) -> None:
    assert "RuntimeName:  containerd" in said(crictl("version"))


def test_cnitool_knows_gc_and_status(cnitool: CniTool) -> None:
    usage = said(cnitool("help", ""))
    assert "gc" in usage.split()
    assert "status" in usage.split()


def test_no_namespace_is_left_over() -> None:
    assert guest.run("ip", "netns", "list") == ""
