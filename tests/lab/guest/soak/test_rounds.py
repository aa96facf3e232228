"""Rounds of ADD and DEL over all VFs, SOAK_ROUNDS (50) of them: nothing is left behind, and nothing grows.

The plugin is a process for each call, which takes with it what it had. What could stay is in the kernel and in
/run; and in a process that stays, which calls the plugin's code as the executable does.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import guest
import pytest
from attachments import look, pool, rows
from guest import Function, Pod
from network import attach, conf, detach
from record import Tried

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "50"))
WARMING = 10
AT_ONCE = 4
RESIDENT = ("python3", "-I", "-S", "/payload/guest/resident.py", str(ROUNDS))

STATE = Path("/run/rdma-cni")

MakePod = Callable[[str], Pod]


def config(vf: Function) -> dict[str, Any]:
    """With so few addresses that all have been given, and freed addresses fill the store, before it is measured."""
    ranges = [{"subnet": "10.56.0.0/16", "nodePrefix": 26}, {"subnet": "fd00:56::/112", "nodePrefix": 122}]
    return conf(vf, "1.1.0", ipam=pool() | {"pools": ranges}, mtu=1400)


def namespaces() -> int:
    """How many network namespaces the kernel has, whoever keeps them alive."""
    # Of those that have died the kernel keeps the last few until another one dies.
    another = Pod("another")
    guest.run("ip", "netns", "add", another.name)
    another.delete()
    time.sleep(0.5)
    # What a CPU keeps in reserve counts as taken until then.
    Path("/sys/kernel/slab/net_namespace/shrink").write_text("1")
    (line,) = [line for line in Path("/proc/slabinfo").read_text().splitlines() if line.startswith("net_namespace ")]
    return int(line.split()[1])


def on_the_node() -> dict[str, int]:
    """How much there is, all over the node, when the last namespace has died and udev's processes have ended."""
    guest.settle()
    # The host's, and the one that died last.
    assert guest.eventually(lambda: namespaces() <= 2, seconds=30), namespaces()
    seen = []
    # Udev's wait three seconds for more to do.
    for _ in range(16):
        seen.append(counted())
        time.sleep(0.5)
    return {what: min(each[what] for each in seen) for what in seen[0]}


def counted() -> dict[str, int]:
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        "netlink sockets": len(Path("/proc/net/netlink").read_text().splitlines()),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "files of the state": len(list(STATE.iterdir())),
        "bytes of the databases": sum(path.stat().st_size for path in STATE.glob("*.db")),
        "open files": int(Path("/proc/sys/fs/file-nr").read_text().split()[0]),
        "kB of the kernel": int(memory["SUnreclaim"].split()[0]),
    }


@pytest.mark.fault("together", "rounds of ADD and DEL over all VFs, each in a new pod")
def test_rounds_over_all_vfs_leave_nothing_behind_on_the_node(
    vfs: list[Function], tried: Tried, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = {vf.device: look(vf.device) for vf in vfs}
    pods = [Pod(f"p{number}") for number in range(len(vfs))]
    before: dict[str, int] = {}
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for number in range(1, ROUNDS + 1):
                for pod in pods:
                    guest.run("ip", "netns", "add", pod.name)
                list(threads.map(lambda vf, pod: attach(config(vf), pod, container=pod.name), vfs, pods))
                list(threads.map(lambda vf, pod: detach(config(vf), pod, container=pod.name), vfs, pods))
                for pod in pods:
                    pod.delete()
                tried()
                if number == WARMING:
                    before = on_the_node()
    finally:
        for pod in pods:
            pod.delete()
    after = on_the_node()
    tried.note = f"of {len(vfs)} VFs each"
    with capsys.disabled():
        print(f"\nrounds: {before}, then {after}", flush=True)
    # The kernel counts files in batches, and its memory is never still: a kilobyte for each call of 50 rounds, a tenth
    # of that for each of 1,000.
    assert after.pop("open files") < before.pop("open files") + 200
    assert after.pop("kB of the kernel") < before.pop("kB of the kernel") + max(512, ROUNDS)
    assert after == before
    assert (rows(), {vf.device: look(vf.device) for vf in vfs}) == ([], devices)


@pytest.mark.fault("together", "rounds of ADD and DEL over all VFs, in a process that stays")
def test_rounds_over_all_vfs_leave_nothing_behind_in_a_process_that_stays(
    vfs: list[Function], make_pod: MakePod, tried: Tried, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = {vf.device: look(vf.device) for vf in vfs}
    pods = [make_pod(f"p{number}") for number in range(len(vfs))]
    jobs = [
        {"config": config(vf), "container": pod.name, "netns": pod.netns} for vf, pod in zip(vfs, pods, strict=True)
    ]
    done = subprocess.run(
        RESIDENT, input=json.dumps(jobs), capture_output=True, text=True, timeout=60 + 20 * ROUNDS, check=False
    )
    assert done.returncode == 0, done
    kept = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\nrounds: {kept}", flush=True)
    before, after = kept["before"], kept["after"]
    assert after["descriptors"] == before["descriptors"]
    # See resident.py. What 50 rounds keep of each call would be more of either.
    assert after["blocks"] < before["blocks"] + 200
    assert after["bytes of malloc"] < before["bytes of malloc"] + 256 * 1024
    assert (rows(), {vf.device: look(vf.device) for vf in vfs}) == ([], devices)
    tried(ROUNDS)
    tried.note = f"of {len(vfs)} VFs each"
