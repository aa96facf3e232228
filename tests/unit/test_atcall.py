"""`atcall`, which the tests of faults rely on: it says when it failed itself, and leaves nothing behind."""

import os
import signal
import subprocess
from pathlib import Path

import guest
import pytest
from calls import ATCALL, Run


@pytest.fixture
def program(tmp_path: Path) -> str:
    """One that makes two changing calls and fails."""
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\necho one\necho two\nexit 3\n")
    path.chmod(0o755)
    return str(path)


def test_it_lists_the_changing_calls_and_ends_as_its_program_does(tmp_path: Path, program: str) -> None:
    run = Run(tmp_path / "report")
    answer = guest.cni("VERSION", binary=program, wrapper=run.undisturbed())
    assert (answer.code, answer.stdout) == (3, "one\ntwo\n")
    assert [call.name for call in run.calls] == ["write", "write"]


def test_a_program_is_killed_before_the_call_or_the_call_fails(tmp_path: Path, program: str) -> None:
    run = Run(tmp_path / "report")
    answer = guest.cni("VERSION", binary=program, wrapper=run.at(2, "kill"))
    assert (answer.code, answer.stdout) == (137, "one\n")
    answer = guest.cni("VERSION", binary=program, wrapper=run.at(1, "fail=28"))
    assert (answer.code, answer.stdout) == (3, "two\n")


@pytest.mark.parametrize("wrapper", [(ATCALL,), (ATCALL, "1", "kill", "/nowhere/report")], ids=["usage", "report"])
def test_a_failure_of_its_own_fails_the_test(wrapper: tuple[str, ...], program: str) -> None:
    with pytest.raises(AssertionError, match=r"usage|/nowhere/report"):
        guest.cni("VERSION", binary=program, wrapper=wrapper)


def test_a_program_that_is_not_there_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No such file"):
        guest.cni("VERSION", binary="/nowhere/rdma", wrapper=Run(tmp_path / "report").undisturbed())


def test_a_program_that_stands_still_ends_with_it(tmp_path: Path, program: str) -> None:
    run = Run(tmp_path / "report")
    process = subprocess.Popen([*run.at(1, "stop"), program], stdout=subprocess.PIPE)
    stat = Path(f"/proc/{process.pid}/stat")
    assert guest.eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    stopped = Path(f"/proc/{run.pid}")
    assert stopped.exists()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    # A zombie at the most, until whoever inherits it has taken note.
    assert guest.eventually(
        lambda: not stopped.exists() or (stopped / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    )
