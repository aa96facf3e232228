"""VFs that are removed and made again (sriov_numvfs) while pods have them, and while ADD or DEL runs."""

from collections.abc import Callable
from pathlib import Path

import guest
import pytest
from attachments import Attachment, look, pf, pool, rows
from calls import plain_words
from guest import Function, Pod
from network import attach, conf, detach
from record import Tried

MakePod = Callable[[str], Pod]
pytestmark = pytest.mark.changes_host


def set_vfs(count: int) -> None:
    """Make that many VFs, with a carrier (see the guest's init), after removing those that there are."""
    (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*")
    (path / "sriov_numvfs").write_text("0")
    guest.settle()
    (path / "sriov_numvfs").write_text(str(count))
    guest.settle()
    for state in ("up", "down"):
        for vf in guest.pci_functions():
            guest.run("ip", "link", "set", vf.netdev, state)


@pytest.mark.parametrize("deleted", ["before", "after", "never"])
@pytest.mark.fault("node", "sriov_numvfs set to 0 and back while pods have VFs")
def test_vfs_that_are_removed_and_made_again_while_pods_have_them(
    deleted: str, vfs: list[Function], make_pod: MakePod, tried: Tried
) -> None:
    """DEL comes while there are no VFs, when there are new ones, or not before other pods get those."""
    pods = [make_pod(f"p{number}") for number in range(3)]
    configs = [conf(vf, "1.1.0", ipam=pool()) for vf in vfs[:2]] + [conf(None, "1.1.0", pf=pf(), ipam=pool())]
    for pod, config in zip(pods, configs, strict=True):
        attach(config, pod, container=pod.name)
    if deleted == "before":
        (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*")
        (path / "sriov_numvfs").write_text("0")
        for pod, config in zip(pods, configs, strict=True):
            detach(config, pod, container=pod.name)
            detach(config, pod, container=pod.name)
        assert rows() == []
    set_vfs(len(vfs))
    before = {vf.device: look(vf.device) for vf in guest.pci_functions()}
    assert len(before) == len(vfs)
    if deleted == "after":
        for pod, config in zip(pods, configs, strict=True):
            detach(config, pod, container=pod.name)
            assert guest.cni("DEL", config, netns=pod, container=pod.name).ok
        assert rows() == []
    others = [make_pod(f"q{number}") for number in range(3)]
    for pod, config in zip(others, configs, strict=True):
        attach(config, pod, container=pod.name)
        assert len(pod.rdma_names()) == 1
        tried()
    for pod, config in [*zip(pods, configs, strict=True), *zip(others, configs, strict=True)]:
        detach(config, pod, container=pod.name)
    assert rows() == []
    for vf in guest.pci_functions():
        assert look(vf.device) == before[vf.device], vf.device


@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.fault("node", "sriov_numvfs set to 0 while ADD or DEL runs")
def test_vfs_that_are_removed_while_a_command_runs(command: str, one: Attachment, tried: Tried) -> None:
    if command == "DEL":
        one.succeed("ADD", one.pod)
    answer = one.call(command, one.pod, one.run.undisturbed())
    assert answer.ok, answer
    calls = [call for call in one.run.calls if call.name == "sendto"]
    for call in calls[:: len(calls) // 3]:
        one.succeed("DEL", one.pod)
        if command == "DEL":
            one.succeed("ADD", one.pod)
        stopped = one.stopped(command, call.number)
        (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*")
        (path / "sriov_numvfs").write_text("0")
        answer = stopped.go_on()
        if not answer.ok:
            plain_words(answer)
        one.succeed("DEL", one.pod, (call, answer))
        assert (rows(), one.pod.rdma_names(), one.pod.links()) == ([], [], []), (call, answer)
        set_vfs(7)
        tried()
    one.succeed("ADD", one.pod)
    one.succeed("DEL", one.pod)
