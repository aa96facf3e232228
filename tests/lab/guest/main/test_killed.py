"""A plugin that is killed at any point leaves what DEL needs.

Every third point is tried: a run under strace takes seconds on the guest's emulated CPU.
"""

from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, earlier_plugin, earlier_plugin_deletes, host_local

KILLED = 137, -9


def killed_at(call: str, number: int) -> list[str]:
    """Runs a plugin that dies when it makes a system call for the n-th time; the call itself is not executed."""
    return ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "chained"])
def test_an_add_that_is_killed_after_any_request_to_the_kernel_is_taken_back_by_del(
    vf: Function, pod: Pod, alone: bool
) -> None:
    """Killed before it reads an answer: what was asked for is done by then."""
    more: dict[str, Any] = {"ipam": host_local(), "mtu": 1400} if alone else {"prevResult": earlier_plugin(vf, pod)}
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}}, **more)
    before = guest.host()
    for number in range(1, 200, 3):
        answer = guest.cni("ADD", config, netns=pod, wrapper=killed_at("recvfrom", number))
        if answer.ok:
            break
        assert answer.code in KILLED, answer
        # With the pod's path or, every other time, without.
        detach(config, pod if number % 2 else None)
        assert guest.eventually(lambda: guest.host() == before), (number, guest.differences(before, guest.host()))
    assert 5 < number < 199
    detach(config, pod)
    if not alone:
        earlier_plugin_deletes(vf, pod)


def test_a_del_that_is_killed_after_any_request_to_the_kernel_is_finished_by_the_next(vf: Function, pod: Pod) -> None:
    config = conf(vf, mtu=1400, args={"cni": {"rdmaDeviceName": "rail0"}})
    before = guest.host()
    for number in range(1, 200, 3):
        attach(config, pod)
        answer = guest.cni("DEL", config, netns=pod, wrapper=killed_at("recvfrom", number))
        detach(config, pod)
        assert guest.eventually(lambda: guest.host() == before), (number, guest.differences(before, guest.host()))
        if answer.ok:
            break
        assert answer.code in KILLED, answer
    assert 5 < number < 199


def test_an_add_that_is_killed_while_it_writes_its_state_leaves_a_database_that_serves(vf: Function, pod: Pod) -> None:
    detach(conf(vf), pod)
    for number in range(1, 100, 3):
        answer = guest.cni("ADD", conf(vf), netns=pod, wrapper=killed_at("pwrite64", number))
        if answer.ok:
            break
        detach(conf(vf), pod)
        assert vf.rdma[0] in guest.rdma_names()
    assert 2 < number < 99
    detach(conf(vf), pod)
