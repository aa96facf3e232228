"""The frozen `node-subnet`, and `rdma` making its state: whatever happens at whichever call that changes something.

The calls are counted in a run that nothing happens to, and each is tried: killed before it, ended by SIGTERM
there, and with the call failing.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from calls import Call, Run, Stopped, plain_words
from node_subnet import NODE_SUBNET, POOL, POOL6, Node, a_node, conf, finish, one_pool
from record import Tried

# One address for one container, beside one that another network's container has.
CONFIG = conf(pools=[{**POOL, "nodePrefix": 30}, POOL6])
NEIGHBOUR = {**one_pool(), "name": "other"}
OURS = "10.56.0.14/30"
GC = {**CONFIG, "cni.dev/valid-attachments": []}
COMMANDS = ["first ADD", "ADD", "DEL", "GC"]


@pytest.fixture
def call_run(tmp_path: Path) -> Run:
    return Run(tmp_path / "report")


def prepare(node: Node, command: str) -> None:
    """The node as it is before the command."""
    if command == "first ADD":
        shutil.rmtree(node.state, ignore_errors=True)
        return
    node.add(NEIGHBOUR, "c0")
    if command in ("DEL", "GC"):
        assert node.add(CONFIG)[0] == OURS


def ask(node: Node, command: str, wrapper: tuple[str, ...]) -> guest.Answer:
    name = command.removeprefix("first ")
    return node.cni(name, GC if name == "GC" else CONFIG, wrapper=wrapper)


def recorded(node: Node) -> list[str]:
    """Whose the addresses are that are reserved."""
    return sorted(node.reserved().values()) if node.database.exists() else []


def neighbours(command: str) -> list[str]:
    return [] if command == "first ADD" else ["c0"]


def changing_calls(node: Node, command: str, run: Run) -> list[Call]:
    if command != "first ADD":
        # The store has more to write from when the first address has come back.
        node.add(CONFIG)
        node.delete(CONFIG)
    prepare(node, command)
    answer = ask(node, command, run.undisturbed())
    assert answer.ok, answer
    calls = run.calls
    node.delete(CONFIG)
    assert len(calls) > 20
    return calls


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.fault(f"node-subnet: {c}", "killed at a system call")) for c in COMMANDS],
)
def test_killed_at_any_call_it_is_done_or_not_begun(command: str, call_run: Run, tried: Tried) -> None:
    with a_node() as node:
        for call in changing_calls(node, command, call_run):
            prepare(node, command)
            answer = ask(node, command, call_run.at(call.number, "kill"))
            assert (answer.code, answer.stdout) == (137, ""), (call, answer)
            assert call_run.reached(call), (call, call_run.calls)
            assert recorded(node) in (neighbours(command), [*neighbours(command), "c1", "c1"]), call
            # DEL succeeds, and the next ADD finds a store that works and the one address that the /30 has.
            node.delete(CONFIG)
            assert node.add(CONFIG, "c2")[0] == OURS, call
            node.delete(CONFIG, "c2")
            assert recorded(node) == neighbours(command), call
            tried()


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=pytest.mark.fault(f"node-subnet: {c}", "SIGTERM at a system call")) for c in COMMANDS],
)
def test_terminated_at_any_call_it_says_so_and_an_add_is_undone(command: str, call_run: Run, tried: Tried) -> None:
    with a_node() as node:
        for call in changing_calls(node, command, call_run):
            prepare(node, command)
            answer = ask(node, command, call_run.at(call.number, "term"))
            if answer.ok:
                # Its work was done: it counted the call and answered.
                rest = [later.what for later in call_run.calls[call.number - 1 :]]
                assert all(what.startswith("write") or what.endswith("/rdma-cni/calls") for what in rest), (call, rest)
            else:
                assert answer.error == 11, (call, answer)
                if "ADD" in command:
                    assert recorded(node) == neighbours(command), (call, answer)
            node.delete(CONFIG)
            assert recorded(node) == neighbours(command), call
            tried()


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=pytest.mark.fault(f"node-subnet: {c}", "a system call fails")) for c in COMMANDS]
)
def test_where_any_call_fails_it_says_so_and_leaves_nothing_half_done(
    command: str, call_run: Run, tried: Tried
) -> None:
    with a_node() as node:
        for call in changing_calls(node, command, call_run):
            for failure in call.failures:
                prepare(node, command)
                answer = ask(node, command, call_run.at(call.number, failure))
                assert call_run.reached(call), (call, call_run.calls)
                if answer.ok:
                    done = [*neighbours(command), *(["c1", "c1"] if "ADD" in command else [])]
                    assert recorded(node) == done, (call, failure, answer)
                else:
                    plain_words(answer)
                    if "ADD" in command:
                        assert recorded(node) == neighbours(command), (call, failure, answer)
                # DEL, called again, succeeds.
                node.delete(CONFIG)
                assert recorded(node) == neighbours(command), (call, failure)
                tried()


RDMA = {"cniVersion": "1.1.0", "name": "net", "type": "rdma", "deviceID": "0000:ff:1f.7"}


@pytest.mark.fault("rdma: the first DEL", "killed at a system call")
def test_rdma_that_is_killed_while_it_makes_its_state_is_no_hindrance_to_the_next(
    rdma: Callable[..., guest.Answer], run_dir: Path, call_run: Run, tried: Tried
) -> None:
    assert rdma("DEL", RDMA, wrapper=call_run.undisturbed()).ok
    for call in call_run.calls:
        shutil.rmtree(run_dir / "rdma-cni", ignore_errors=True)
        answer = rdma("DEL", RDMA, wrapper=call_run.at(call.number, "kill"))
        assert (answer.code, answer.stdout) == (137, ""), (call, answer)
        answer = rdma("DEL", RDMA)
        assert (answer.code, answer.stdout) == (0, ""), (call, answer)
        tried()
    assert tried.count > 10


@pytest.mark.fault("rdma: the first DEL", "a system call fails")
def test_rdma_that_cannot_make_its_state_says_so_and_makes_it_the_next_time(
    rdma: Callable[..., guest.Answer], run_dir: Path, call_run: Run, tried: Tried
) -> None:
    assert rdma("DEL", RDMA, wrapper=call_run.undisturbed()).ok
    for call in call_run.calls:
        for failure in call.failures:
            shutil.rmtree(run_dir / "rdma-cni", ignore_errors=True)
            answer = rdma("DEL", RDMA, wrapper=call_run.at(call.number, failure))
            if not answer.ok:
                plain_words(answer)
            again: Any = rdma("DEL", RDMA)
            assert (again.code, again.stdout) == (0, ""), (call, failure, again)
            tried()
    assert tried.count > 10


@pytest.mark.fault("together", "node-subnet stands still while it writes")
def test_while_one_stands_still_in_its_writing_the_others_say_who_in_their_time(
    call_run: Run, tried: Tried, tmp_path: Path
) -> None:
    """They wait the ten seconds that they wait on a node, all of them at once."""
    with a_node() as node:
        calls = changing_calls(node, "ADD", call_run)
        (first, *_) = [call for call in calls if call.what.endswith("/reservations.db") and call.name == "pwrite"]
        command = [*node.inside, *call_run.at(first.number, "stop"), NODE_SUBNET]
        env = guest.cni_environment("ADD", "c1", "/run/netns/none", "net1")
        stopped = Stopped(call_run, command, CONFIG, env)
        try:
            waiting = [
                node.start("ADD", NEIGHBOUR, "c3"),
                node.start("DEL", NEIGHBOUR, "c0"),
                node.start("DEL", CONFIG),
            ]
            for process in waiting:
                answer = finish(process)
                assert answer.error == 11, answer
                assert f"process {stopped.pid}" in answer.json["msg"], answer
                tried()
        finally:
            answer = stopped.go_on()
        assert answer.ok, answer
        assert recorded(node) == ["c0", "c1", "c1"]
