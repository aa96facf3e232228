"""What an ADD cannot do: the code, what the message tells, and that nothing is left of it."""

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, earlier_plugin, error, give_name_back, lose_state, state_rows

STATE = Path("/run/rdma-cni")


@pytest.mark.parametrize("device", ["0000:99:1f.7", "10000:01:00.0", "mlx5_core.sf.99"])
@pytest.mark.parametrize("key", ["deviceID", "pciBusID", "runtimeConfig"])
def test_a_function_that_is_not_there_is_told_of(pod: Pod, device: str, key: str) -> None:
    keys: dict[str, Any] = {key: {"deviceID": device} if key == "runtimeConfig" else device}
    config = conf(None, **keys)
    field = "runtimeConfig.deviceID" if key == "runtimeConfig" else key
    error(guest.cni("ADD", config, netns=pod), 102, field, device)
    detach(config, pod)


def test_a_function_without_an_rdma_device_is_told_of(vf: Function, pod: Pod) -> None:
    pf = Path(os.readlink(guest.PCI / vf.device / "physfn")).name
    error(guest.cni("ADD", conf(pf), netns=pod), 101, pf, "/sys/class/infiniband")
    detach(conf(pf), pod)


@pytest.fixture
def shared_mode() -> Iterator[None]:
    """The mode changes only while there is no other namespace."""

    def change(mode: str) -> bool:
        guest.run("rdma", "system", "set", "netns", mode, check=False)
        return mode in guest.run("rdma", "system")

    assert guest.eventually(lambda: change("shared")), guest.run("ip", "netns")
    yield
    for name in guest.run("ip", "netns").split():
        guest.run("ip", "netns", "del", name, check=False)
    assert guest.eventually(lambda: change("exclusive"))


def test_in_shared_mode_the_error_tells_how_to_leave_it(
    shared_mode: None, vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pod = make_pod("pod")
    error(guest.cni("ADD", conf(vf), netns=pod), 100, "options ib_core netns_mode=0", "/etc/modprobe.d/", "reboot")
    error(guest.cni("CHECK", conf(vf), netns=pod), 100, "shared")
    status = guest.cni("STATUS", conf(vf, "1.1.0"), container=None, ifname=None)
    error(status, 50, "options ib_core netns_mode=0", "reboot")
    for netns in (pod, None):
        detach(conf(vf), netns)
    assert [link["ifname"] for link in guest.links() if link.get("parentdev") == vf.device] == [vf.netdev]


def test_a_vf_that_a_living_pod_has_is_refused_naming_the_pod(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    first, second = make_pod("a"), make_pod("b")
    attach(conf(vf), first, container="first")
    error(guest.cni("ADD", conf(vf), netns=second, container="second"), 11, vf.device, "container first", "net1")
    # Its DEL takes nothing from the one that has it.
    detach(conf(vf), second, container="second")
    assert first.rdma_names() == list(vf.rdma)
    detach(conf(vf), first, container="first")


def test_a_second_add_of_the_same_attachment_is_refused(vf: Function, other_vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    error(guest.cni("ADD", conf(vf), netns=pod), 11, vf.device)
    error(guest.cni("ADD", conf(other_vf), netns=pod), 11, vf.device, other_vf.device)
    assert (pod.rdma_names(), state_rows()) == (list(vf.rdma), 1)
    detach(conf(vf), pod)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "chained"])
def test_a_vf_that_an_attachment_left_for_which_no_del_came_is_taken_over(
    vf: Function, make_pod: Callable[[str], Pod], alone: bool
) -> None:
    first = make_pod("a")
    more: dict[str, Any] = {"mtu": 1400} if alone else {"prevResult": earlier_plugin(vf, first)}
    attach(conf(vf, **more), first, container="first")
    first.run("rdma", "dev", "set", vf.rdma[0], "name", "stolen")
    first.delete()
    assert guest.eventually(lambda: "stolen" in guest.rdma_names())
    second = make_pod("b")
    if not alone:
        give_name_back(vf)
    attach(conf(vf), second, container="second")
    assert second.rdma_names() == list(vf.rdma)
    assert second.link("net1")["mtu"] == 1500
    # The DEL that comes at last is not about this one.
    detach(conf(vf), None, container="first")
    assert second.rdma_names() == list(vf.rdma)
    detach(conf(vf), second, container="second")


def test_a_vf_that_another_tool_has_moved_is_refused(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    other, pod = make_pod("other"), make_pod("pod")
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", "other")
    error(guest.cni("ADD", conf(vf), netns=pod), 11, vf.device, "another network namespace")
    assert other.rdma_names() == list(vf.rdma)
    detach(conf(vf), pod)
    assert other.rdma_names() == list(vf.rdma)


def test_alone_a_netdev_that_is_elsewhere_is_told_of(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    other, pod = make_pod("other"), make_pod("pod")
    guest.run("ip", "link", "set", vf.netdev, "netns", "other")
    error(guest.cni("ADD", conf(vf), netns=pod), 11, vf.device, "prevResult")
    other.run("ip", "link", "set", vf.netdev, "netns", "1")


def test_without_state_two_adds_for_one_vf_do_not_both_succeed(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    first, second = make_pod("a"), make_pod("b")
    attach(conf(vf), first, container="first")
    lose_state()
    error(guest.cni("ADD", conf(vf), netns=second, container="second"), 11, vf.device)
    detach(conf(vf), first, container="first")


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_a_lock_that_is_held_is_waited_for_and_its_holder_named(vf: Function, pod: Pod, command: str) -> None:
    attach(conf(vf), pod)
    if command == "ADD":
        detach(conf(vf), pod)
    with (STATE / f"{vf.device}.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write("process 4711, ADD of someone/net9\n")
        lock.flush()
        error(guest.cni(command, conf(vf), netns=pod), 11, vf.device, "process 4711", "someone/net9")
    detach(conf(vf), pod)


def test_two_adds_at_once_for_one_vf_give_it_to_one_of_them(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    pods = make_pod("a"), make_pod("b")
    calls = [
        subprocess.Popen(
            [f"{guest.CNI_PATH}/rdma"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=guest.cni_environment("ADD", pod.name, pod),
        )
        for pod in pods
    ]
    for call in calls:
        assert call.stdin
        call.stdin.write(json.dumps(conf(vf)))
        call.stdin.close()
        call.stdin = None
    answers = [guest.Answer(call.wait(timeout=60), call.stdout.read() if call.stdout else "", "") for call in calls]
    assert sorted(answer.code for answer in answers) == [0, 1], answers
    for answer, pod in zip(answers, pods, strict=True):
        if answer.ok:
            assert pod.rdma_names() == list(vf.rdma)
        else:
            error(answer, 11, vf.device)
            assert pod.rdma_names() == []
    for pod in pods:
        detach(conf(vf), pod, container=pod.name)


def test_a_database_that_is_damaged_while_a_pod_is_attached_stops_no_del(vf: Function, pod: Pod) -> None:
    attach(conf(vf, mtu=1400), pod)
    (STATE / "state.db").write_bytes(b"no database" * 1000)
    answer = detach(conf(vf), pod)
    assert "moved aside" in answer.stderr
    assert vf.rdma[0] in guest.rdma_names()


def test_state_that_cannot_be_written_fails_the_add_before_anything_is_touched(vf: Function, pod: Pod) -> None:
    STATE.symlink_to("/tmp")
    try:
        error(guest.cni("ADD", conf(vf), netns=pod), 5, "/run/rdma-cni")
        assert (pod.rdma_names(), pod.links()) == ([], [])
    finally:
        STATE.unlink()


def test_alone_the_plugins_own_namespace_may_be_forced(vf: Function) -> None:
    """CNI_NETNS_OVERRIDE: the caller means it."""
    config = conf(vf, prevResult={})
    own = "/proc/1/ns/net"
    error(guest.cni("ADD", config, netns=own), 8, own)
    forced = {"CNI_NETNS_OVERRIDE": "1"}
    answer = guest.cni("ADD", config, netns=own, env=forced)
    assert answer.ok, answer
    detach(config, own, env=forced)
