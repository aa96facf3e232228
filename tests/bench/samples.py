"""Times one process from outside: from before it is spawned until it has been waited for."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping

Samples = dict[str, list[float]]

RUNS = int(os.environ.get("BENCH_RUNS", "30"))
BARE = ["/usr/bin/python3", "-I", "-S", "-c", "pass"]


def spawn(command: list[str], environment: Mapping[str, str], stdin: bytes = b"") -> float:
    """How long a process takes, in ms; it must succeed, with its output nobody waits for."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
        given.write(stdin)
        given.seek(0)
        actions = [
            (os.POSIX_SPAWN_DUP2, given.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, answer.fileno(), 1),
        ]
        start = time.perf_counter_ns()
        pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        taken = (time.perf_counter_ns() - start) / 1e6
        if status:
            answer.seek(0)
            raise SystemExit(f"{' '.join(command)}: status {status}: {answer.read().decode()}")
        return taken


def peak_memory(peak: str, command: list[str], environment: Mapping[str, str], stdin: bytes) -> float:
    """The largest resident size of a process, in MB, by the program made from peak.c."""
    done = subprocess.run([peak, *command], env=dict(environment), input=stdin, capture_output=True, check=True)
    return int(done.stderr.split()[-1]) / 1024
