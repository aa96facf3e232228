"""Several calls at once, a call that stands still, and many rounds of calls."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import guest
import pytest
from attachments import ALONE, Attachment, functions_written_down, look, pool, rows
from guest import Function, Pod
from network import conf, detach, error
from record import Tried

MakePod = Callable[[str], Pod]


def ask(command: str, vf: Function, pod: Pod, container: str, **more: Any) -> guest.Answer:
    return guest.cni(command, conf(vf, "1.1.0", ipam=pool(), **more), netns=pod, container=container)


@pytest.mark.fault("together", "seven pods at once on seven VFs, ADD and DEL")
def test_seven_pods_at_once_on_seven_vfs(vfs: list[Function], make_pod: MakePod, tried: Tried) -> None:
    pods = [make_pod(f"p{number}") for number in range(len(vfs))]
    before = {vf.device: look(vf.device) for vf in vfs}
    assert len(pods) == 7
    with ThreadPoolExecutor(7) as threads:
        for _ in range(2):
            answers = list(
                threads.map(lambda pair: ask("ADD", pair[0], pair[1], pair[1].name), zip(vfs, pods, strict=True))
            )
            assert all(answer.ok for answer in answers), answers
            assert len({answer.json["ips"][0]["address"] for answer in answers}) == 7
            assert [pod.rdma_names() for pod in pods] == [list(vf.rdma) for vf in vfs]
            answers = list(
                threads.map(lambda pair: ask("DEL", pair[0], pair[1], pair[1].name), zip(vfs, pods, strict=True))
            )
            assert all(answer.ok for answer in answers), answers
            assert (rows(), {vf.device: look(vf.device) for vf in vfs}) == ([], before)
            tried(14)


@pytest.mark.fault("together", "ADD and DEL of one attachment at once")
def test_an_add_and_a_del_of_one_attachment_at_once(vf: Function, pod: Pod, tried: Tried) -> None:
    before = look(vf.device)
    with ThreadPoolExecutor(2) as threads:
        for number in range(8):
            both = [threads.submit(ask, "ADD", vf, pod, "c")]
            time.sleep(number * 0.05)
            both.append(threads.submit(ask, "DEL", vf, pod, "c"))
            added, deleted = (one.result() for one in both)
            assert deleted.ok or deleted.error == 11, deleted
            assert added.ok or added.error == 11, added
            if added.ok and functions_written_down():
                assert pod.rdma_names() == list(vf.rdma)
            detach(conf(vf, "1.1.0", ipam=pool()), pod, container="c")
            assert (rows(), look(vf.device), pod.links()) == ([], before, [])
            tried()


@pytest.mark.fault("together", "two ADDs for one VF at once")
def test_of_two_adds_for_one_vf_one_wins_and_the_other_is_told_who_has_it(
    vf: Function, make_pod: MakePod, tried: Tried
) -> None:
    pods = make_pod("a"), make_pod("b")
    with ThreadPoolExecutor(2) as threads:
        for _ in range(6):
            answers = list(threads.map(lambda pod: ask("ADD", vf, pod, f"container-{pod.name}"), pods))
            won, lost = (0, 1) if answers[0].ok else (1, 0)
            assert answers[won].ok, answers
            error(answers[lost], 11, vf.device, f"container-{pods[won].name}")
            assert (pods[won].rdma_names(), pods[lost].rdma_names()) == (list(vf.rdma), [])
            # The address of the one that lost is free again.
            assert set(rows()) == {f"{table} container-{pods[won].name}" for table in ("attachment", "reservation")}
            for pod in pods:
                detach(conf(vf, "1.1.0", ipam=pool()), pod, container=f"container-{pod.name}")
            tried()


@pytest.fixture
def stopped(tmp_path: Path, vf: Function, pod: Pod) -> Attachment:
    """One whose ADD can be stopped in its middle."""
    one = Attachment(ALONE, 0, vf, pod, pod, tmp_path, {vf.device: look(vf.device)})
    one.succeed("ADD", pod)
    one.succeed("DEL", pod)
    return one


def rdma_move(one: Attachment, command: str) -> int:
    """The number of the call by which a command moves the RDMA device."""
    answer = one.call(command, one.pod, one.run.undisturbed())
    assert answer.ok, answer
    (number, *_) = [call.number for call in one.run.calls if call.what == "sendto type 5122"]
    return number


@pytest.mark.fault("together", "a call stands still (SIGSTOP) while it has the VF")
def test_while_one_that_stands_still_has_a_vf_the_others_say_who_in_their_time(
    stopped: Attachment, make_pod: MakePod, tried: Tried
) -> None:
    """They wait the ten seconds that they wait on a node, all of them at once."""
    other = make_pod("other")
    number = rdma_move(stopped, "ADD")
    stopped.succeed("DEL", stopped.pod)
    call = stopped.stopped("ADD", number)
    try:
        with ThreadPoolExecutor(3) as threads:
            others = [
                threads.submit(ask, "ADD", stopped.vf, other, "another"),
                threads.submit(stopped.call, "DEL", stopped.pod),
                threads.submit(stopped.call, "GC", None),
            ]
            for waiting in others:
                error(
                    waiting.result(), 11, stopped.vf.device, f"process {call.pid}", f"ADD of {stopped.container}/net1"
                )
                tried()
    finally:
        answer = call.go_on()
    assert answer.ok, answer
    # It went on as if nothing had been.
    assert stopped.pod.rdma_names() == ["rail0"]
    stopped.succeed("DEL", stopped.pod)
    stopped.require_nothing_left("stopped")


@pytest.mark.fault("together", "a call that stood still is killed")
def test_one_that_stood_still_and_is_killed_leaves_the_vf_to_the_next(stopped: Attachment) -> None:
    number = rdma_move(stopped, "ADD")
    stopped.succeed("DEL", stopped.pod)
    stopped.stopped("ADD", number + 1).kill()
    stopped.succeed("DEL", stopped.pod)
    stopped.require_nothing_left("stopped")
