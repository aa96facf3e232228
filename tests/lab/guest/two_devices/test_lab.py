"""The lab itself, with two RDMA devices on each function."""

from guest import Function


def test_each_function_has_two_rdma_devices(vfs: list[Function]) -> None:
    assert [len(vf.rdma) for vf in vfs] == [2] * 7
