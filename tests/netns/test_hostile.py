"""Input that means harm, and moments that are bad, through the frozen `rdma` on the machine itself."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import guest
import pytest
from conftest import BUNDLE
from record import Tried

BASE: dict[str, Any] = {"cniVersion": "1.1.0", "name": "net", "type": "rdma"}
RANDOM = random.Random(7)  # noqa: S311 - the same moments each time


@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS"])
def test_the_plugin_itself_is_no_ipam_plugin(command: str, rdma: Callable[..., guest.Answer]) -> None:
    """It would start itself without end."""
    config = BASE | {"deviceID": "0000:00:00.0", "ipam": {"type": "rdma"}}
    answer = rdma(command, config, env={"CNI_PATH": str(BUNDLE)})
    # No RDMA subsystem is found here; what is found first does not matter, that it ends does.
    assert answer.error in (7, 50, 102, 109)


@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_what_releases_does_so_in_spite_of_it(command: str, rdma: Callable[..., guest.Answer]) -> None:
    answer = rdma(command, BASE | {"ipam": {"type": "rdma"}}, env={"CNI_PATH": str(BUNDLE)})
    assert answer.ok, answer
    assert "ipam.type" in answer.stderr


def test_a_log_that_cannot_be_written_stops_nothing(rdma: Callable[..., guest.Answer]) -> None:
    config = BASE | {"logFile": "/dev/full", "logLevel": "debug", "mtu": "x"}
    answer = rdma("DEL", config, wrapper=("sh", "-c", 'exec "$0" "$@" 2>/dev/full'))
    assert answer.ok, answer


@pytest.mark.parametrize("name", ["a%", "net%d", "all", "default"])
def test_a_name_with_a_meaning_to_the_kernel_is_no_interfaces(name: str, rdma: Callable[..., guest.Answer]) -> None:
    assert rdma("ADD", BASE, ifname=name).error == 4


def test_many_mistakes_are_not_all_told() -> None:
    ipam = {"type": "node-subnet", "x" * 100_000: 1, **{f"key{number}": 1 for number in range(60_000)}}
    answer = guest.cni("STATUS", BASE | {"ipam": ipam}, binary=str(BUNDLE / "node-subnet"))
    assert answer.error == 7
    assert len(answer.stdout) < 8192


@pytest.mark.fault("signals", "SIGTERM or SIGINT at a moment of the start or of an ADD")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_leaves_one_object_or_nothing(sent: signal.Signals, tried: Tried) -> None:
    """Nothing, when it came before the plugin was there to take it."""
    env = guest.cni_environment("ADD", "c", "/nowhere", "net1")
    config = json.dumps(BASE | {"deviceID": "0000:00:00.0"}).encode()
    seen = set()
    for _ in range(60):
        process = subprocess.Popen(
            [BUNDLE / "rdma"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(config)
        process.stdin.close()
        process.stdin = None
        time.sleep(RANDOM.random() * 0.03)
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
        tried()
        assert b"Traceback" not in err, err
        assert b"panic" not in err, err
        if process.returncode == 1:
            code = json.loads(out)["code"]
            assert code in (3, 11), out
            seen.add(code)
        else:
            assert (process.returncode, out) == (-sent, b""), (process.returncode, out, err)
    assert seen
