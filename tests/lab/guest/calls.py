"""Every system call by which a plugin changes something: its list, and runs that something happens to at one of them.

The work is done by `atcall` (tests/reliability/atcall.c), on the machine and in the guest.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EBUSY, EIO, ENOBUFS, ENOSPC, EPERM
from pathlib import Path

import guest
from guest import Answer

ATCALL = os.environ.get("ATCALL", "/payload/atcall")

_ENTERING = ("setns", "fsopen", "fsconfig", "fsmount")
"""What the kernel takes back when the process ends, so that a kill before or after is the same."""
_SENDING = ("sendto", "sendmsg")


@dataclass(frozen=True)
class Call:
    """The `number`-th of a run's changing calls. `what` is its name, and its file's or its netlink message's type."""

    number: int
    what: str

    def __str__(self) -> str:
        return f"call {self.number} ({self.what})"

    @property
    def name(self) -> str:
        return self.what.split(" ")[0]

    @property
    def lasting(self) -> bool:
        """Whether what it changes is still so when the process has ended."""
        return self.name not in _ENTERING

    @property
    def failures(self) -> list[str]:
        """How it may fail, as actions of `atcall`. To whoever writes a file, one want is as good as another."""
        if self.name in _SENDING:
            # A type below 16 is no request: a packet.
            request = int(self.what.split(" ")[2]) >= 16
            return [f"fail={ENOBUFS}", *([f"refuse={EBUSY}", f"refuse={EPERM}"] if request else [])]
        if self.name in (*_ENTERING, "fchown", "fchmod", "chmod"):
            return [f"fail={EPERM}"]
        return [f"fail={ENOSPC if self.number % 2 else EIO}"]


class Run:
    """Runs a plugin under `atcall`, as a `wrapper` of `guest.cni`; `report` is a file that is its own."""

    def __init__(self, report: Path) -> None:
        self._report = report

    def undisturbed(self) -> tuple[str, ...]:
        """The plugin runs undisturbed."""
        return self.at(0, "list")

    def at(self, number: int, action: str) -> tuple[str, ...]:
        """`action` (kill, term, stop, fail=ERRNO, refuse=ERRNO) at the call with this number."""
        self._report.unlink(missing_ok=True)
        return (ATCALL, str(number), action, str(self._report))

    @property
    def pid(self) -> int:
        """The plugin's process ID."""
        return int(self._report.read_text().split("\n", 1)[0])

    @property
    def calls(self) -> list[Call]:
        """The changing calls of the last run, as far as it came."""
        lines = self._report.read_text(errors="replace").splitlines()[1:]
        return [Call(number, _plain(line)) for number, line in enumerate(lines, start=1)]

    def reached(self, call: Call) -> bool:
        """Whether the last run came to this very call: what others left may have given it more to do."""
        calls = self.calls
        return len(calls) >= call.number and calls[call.number - 1].what == call.what


def _plain(line: str) -> str:
    """A report's line without what differs from run to run."""
    return re.sub(r"\d+", "", line) if not line.startswith(_SENDING) else line


class Stopped:
    """A command that stands still just before one of its calls, until it is told to go on.

    `command` is all of the command line, `run.at(..., "stop")` first; `pid` is the plugin's own process.
    """

    def __init__(self, run: Run, command: Sequence[str], config: object, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdin
        self._process.stdin.write(json.dumps(config).encode())
        self._process.stdin.close()
        self._process.stdin = None
        stat = Path(f"/proc/{self._process.pid}/stat")
        assert guest.eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZ", seconds=30)
        assert self._process.poll() is None, self._process.communicate()
        self.pid = run.pid

    def go_on(self) -> Answer:
        """What it says in the end."""
        self._process.send_signal(signal.SIGCONT)
        stdout, stderr = self._process.communicate(timeout=120)
        assert self._process.returncode != guest.WRAPPER_FAILED, stderr
        return Answer(self._process.returncode, stdout.decode(), stderr.decode(errors="replace"))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.go_on().code == 128 + signal.SIGKILL


def plain_words(answer: Answer) -> None:
    """A failure is one that a person can read: an error object of a known code, no defect, no traceback."""
    assert answer.error != 199, answer
    assert "Traceback" not in answer.stderr, answer
    assert answer.json["msg"].strip(), answer
