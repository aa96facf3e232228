"""Whatever happens at whichever call that changes something: killed before it, SIGTERM there, the call failing.

ADD, and DEL or GC, are run anew for the first of these calls, the second, and so on, until three come to their end
before the number that they were to be disturbed at: all of them are tried.
"""

from collections.abc import Callable

import guest
import pytest
from attachments import ALONE, CHAINED, CHOSEN, KILLED, KINDS, Attachment, Numbers, at_once
from calls import Call, plain_words
from network import lose_state
from record import Tried

Attachments = Callable[[str], list[Attachment]]
RELEASE = {ALONE: "DEL", CHAINED: "DEL", CHOSEN: "GC"}


def kinds(fault: str, area: str = "ADD and {release}, {kind}") -> list[object]:
    return [
        pytest.param(kind, marks=pytest.mark.fault(area.format(release=RELEASE[kind], kind=kind), fault), id=kind)
        for kind in KINDS
    ]


def killed_at(one: Attachment, command: str, numbers: Numbers, told: str) -> str:
    """Run a command that is killed at the next call in turn; what happened. "" when there is no such call."""
    number = numbers.next()
    if number is None:
        return ""
    answer = one.call(command, one.pod, one.run.at(number, "kill"))
    calls = one.run.calls
    if len(calls) < number:
        assert answer.ok, (told, number, answer)
        numbers.miss(number)
        return f"{told}, {command} of {one.container} to its end"
    told = f"{told}, {command} of {one.container} killed at {calls[-1]}"
    assert (answer.code, answer.stdout) == (KILLED, ""), (told, answer)
    numbers.reached.append(number)
    return told


@pytest.mark.parametrize("kind", kinds("killed at a system call"))
def test_killed_at_any_call_del_brings_everything_home_and_the_next_add_succeeds(
    kind: str, attachments: Attachments, tried: Tried
) -> None:
    adds, releases = Numbers(), Numbers()

    def work(one: Attachment) -> None:
        told = ""
        while not (adds.ended and releases.ended):
            happened = killed_at(one, "ADD", adds, told)
            if happened:
                # With the pod's path or, every other time, without: but for addresses on what stays in the pod.
                path = kind == CHAINED or len(adds.reached) % 2
                one.succeed("DEL", one.pod if path else None, happened)
                one.require_nothing_left(happened)
            one.swap()
            one.succeed("ADD", one.pod, happened)
            told = killed_at(one, RELEASE[kind], releases, happened)
            one.succeed("DEL", one.pod, told)
            one.require_nothing_left(told)
        one.earlier_deletes(one.pod)

    at_once(attachments(kind), work)
    for numbers in (adds, releases):
        numbers.require_all()
        assert len(numbers.reached) > 10
        tried(len(numbers.reached))
    tried.note = f"{len(adds.reached)} and {len(releases.reached)} calls"


@pytest.mark.parametrize("kind", kinds("SIGTERM at a system call", "ADD, {kind}"))
def test_terminated_anywhere_an_add_says_so_and_leaves_no_trace(
    kind: str, attachments: Attachments, tried: Tried
) -> None:
    numbers = Numbers()

    def work(one: Attachment) -> None:
        while True:
            number = numbers.next()
            if number is None:
                break
            answer = one.call("ADD", one.pod, one.run.at(number, "term"))
            told = f"{one.container} terminated at {number} of {[str(call) for call in one.run.calls]}: {answer}"
            if answer.ok:
                # All that was left was to count the call and to answer.
                rest = [call.what for call in one.run.calls[number - 1 :]]
                assert all(what.startswith("write") or what.endswith("/rdma-cni/calls") for what in rest), told
                one.succeed("DEL", one.pod, told)
                if not rest:
                    numbers.miss(number)
            else:
                assert answer.error == 11, told
            if len(one.run.calls) >= number:
                numbers.reached.append(number)
            one.require_nothing_left(told)
        one.earlier_deletes(one.pod)

    at_once(attachments(kind), work)
    numbers.require_all()
    assert len(numbers.reached) > 30
    tried(len(numbers.reached))


def failures(one: Attachment, command: str) -> list[tuple[Call, str]]:
    """How each call of a command that succeeds may fail."""
    answer = one.call(command, one.pod, one.run.undisturbed())
    assert answer.ok, answer
    return [(call, failure) for call in one.run.calls for failure in call.failures]


@pytest.mark.parametrize("kind", kinds("a system call fails"))
def test_where_any_call_fails_it_is_said_so_and_an_add_leaves_no_trace_and_a_del_ends_it(
    kind: str, attachments: Attachments, tried: Tried
) -> None:
    made = attachments(kind)
    # With how often each was missed.
    adds, releases = (
        [(call, failure, 0) for call, failure in failures(made[0], command)] for command in ("ADD", RELEASE[kind])
    )
    made[0].succeed("DEL", made[0].pod)
    assert min(len(adds), len(releases)) > 40
    known = len(adds) + len(releases)
    given_up: list[str] = []
    tried.note = f"{len(adds)} and {len(releases)}"

    def failing(one: Attachment, command: str, left: list[tuple[Call, str, int]]) -> tuple[bool, str]:
        """Whether a command succeeded although a call failed, and what happened."""
        try:
            call, failure, misses = left.pop()
        except IndexError:
            return False, ""
        answer = one.call(command, one.pod, one.run.at(call.number, failure))
        told = f"{command} of {one.container}: {call} {failure}: {answer}"
        if one.run.reached(call):
            tried()
        else:
            # The databases had more or less to write this time: it is elsewhere, or comes again another time.
            numbers = [each.number for each in one.run.calls if each.what == call.what] or [call.number]
            nearest = min(numbers, key=lambda number: abs(number - call.number))
            if misses < 8:
                left.insert(0, (Call(nearest, call.what), failure, misses + 1))
            else:
                given_up.append(told)
        if not answer.ok:
            plain_words(answer)
            # The kernel may not refuse the next time.
            assert command == "ADD" or answer.error == 11 or not call.name.startswith("send"), told
        return answer.ok, told

    def work(one: Attachment) -> None:
        while adds or releases:
            attached, told = failing(one, "ADD", adds)
            if not attached:
                one.require_nothing_left(told)
                one.succeed("ADD", one.pod, told)
            released, told = failing(one, RELEASE[kind], releases)
            if not released:
                one.succeed("DEL", one.pod, told)
            elif "cannot have its MAC again: EPERM" in told:
                # It is how a driver says that a VF may not choose its address, ever: that is told, and no more.
                guest.run("ip", "link", "set", one.vf.netdev, "address", one.vf.mac)
            if "it may still tell of" in told:
                # What Multus is told is information, which stops nothing.
                one.info.unlink()
            one.require_nothing_left(told)
        one.earlier_deletes(one.pod)

    at_once(made, work)
    assert (adds, releases) == ([], [])
    # A page that only some commands write.
    assert len(given_up) < known / 10, given_up


def lose(one: Attachment) -> None:
    one.succeed("ADD", one.pod)
    lose_state()


def looks(one: Attachment) -> list[Call]:
    """The calls by which a DEL without state looks into the pod, moves and renames: its files are as any other's."""
    lose(one)
    answer = one.call("DEL", one.pod, one.run.undisturbed())
    assert answer.ok, answer
    calls = [call for call in one.run.calls if call.name in ("setns", "fsopen", "fsconfig", "fsmount", "sendto")]
    assert len(calls) > 10
    return calls


@pytest.mark.fault("DEL, alone, when the state is lost", "SIGTERM at a system call")
def test_terminated_anywhere_a_del_without_state_is_not_taken_for_done(attachments: Attachments, tried: Tried) -> None:
    (one, *_) = attachments(ALONE)
    for call in looks(one):
        lose(one)
        answer = one.call("DEL", one.pod, one.run.at(call.number, "term"))
        told = f"terminated at {call}: {answer}"
        assert one.run.reached(call), (told, one.run.calls)
        if not answer.ok:
            assert answer.error == 11, told
            one.succeed("DEL", one.pod, told)
        one.require_nothing_left(told)
        tried()


@pytest.mark.fault("DEL, alone, when the state is lost", "a system call fails")
def test_where_any_call_fails_a_del_without_state_is_not_taken_for_done(attachments: Attachments, tried: Tried) -> None:
    (one, *_) = attachments(ALONE)
    for call, failure in [(each, failure) for each in looks(one) for failure in each.failures]:
        lose(one)
        answer = one.call("DEL", one.pod, one.run.at(call.number, failure))
        told = f"{call} {failure}: {answer}"
        assert one.run.reached(call), (told, one.run.calls)
        if not answer.ok:
            plain_words(answer)
            assert answer.error == 11 or call.name != "sendto", told
            one.succeed("DEL", one.pod, told)
        elif "cannot have its MAC again: EPERM" in told:
            guest.run("ip", "link", "set", one.vf.netdev, "address", one.vf.mac)
        one.require_nothing_left(told)
        tried()
