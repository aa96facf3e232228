"""Names that root in a pod gives its devices: they reach no shell, no path and no line of the log as they are."""

import os
import re
import subprocess
from pathlib import Path

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, lose_state
from record import Tried

LOG = Path("/tmp/rdma-cni.log")
PWNED = Path("/tmp/pwned")
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (error|warning|info|debug) rdma (ADD|DEL|CHECK) net container1 net1: "
)
FORGED = "\n2026-01-01T00:00:00Z error forged"

RDMA_NAMES = [
    *("/", ".", "..", "../../../../tmp/pwned", "/tmp/pwned", "a/b", " ", "-rf", "--", "x" * 63),
    *("$(touch /tmp/pwned)", "`touch /tmp/pwned`", ";touch /tmp/pwned;", "|touch /tmp/pwned", "'\"\\", "*", "%s%n%d"),
    *(f"a{FORGED}", "\x1b[31mred", "\r", "é", "\u202e", "\udcff\udcfe", "\x7f", "rdma-cni name=x", "null", "{}"),
]
NETDEV_NAMES = [
    "$(id)",
    "`id`",
    ";id;",
    "|id",
    "'\"\\",
    "*",
    "-rf",
    "...",
    "{}",
    "\x1b[31m",
    "é\u202e",
    "\udcff",
    "x" * 15,
]
ALIASES = [
    f"rdma-cni name=x{FORGED}",
    "rdma-cni name=../../etc mac=$(id) mtu=99999 up=1 rdma=/,..,$(id)",
    f"rdma-cni name={'x' * 230}",
    "rdma-cni " + "name=a " * 30,
    "\udcff\x1b[31m",
    "rdma-cni name=lo mac=00:00:00:00:00:00 mtu=1",
]


def check_log() -> None:
    """Each line is one that the plugin wrote, whole, and none could steer a terminal."""
    for line in LOG.read_text(encoding="utf-8").splitlines():
        assert LINE.match(line), line
        assert line.isprintable(), line
    assert not PWNED.exists()


def logged(vf: Function) -> dict[str, object]:
    LOG.unlink(missing_ok=True)
    return conf(vf, logFile=str(LOG), logLevel="debug")


def given(pod: Pod, *command: str) -> bool:
    """Whether the kernel lets root in the pod do that."""
    done = subprocess.run(
        ["ip", "netns", "exec", pod.name, *map(os.fsencode, command)], capture_output=True, timeout=30, check=False
    )
    return done.returncode == 0


def end(number: int, config: dict[str, object], pod: Pod) -> None:
    """DEL: with all there is, without state, and after the namespace went; a different one each time."""
    if number % 3 == 1:
        lose_state()
    if number % 3 == 2:
        pod.delete()
    else:
        answer = guest.cni("CHECK", config | {"cniVersion": "1.0.0"}, netns=pod)
        assert answer.ok or answer.error == 111, answer
    detach(config, pod)
    check_log()


def as_before(before: dict[str, list[tuple[object, ...]]]) -> bool:
    guest.settle()
    return not guest.differences(before, guest.host())


@pytest.mark.fault("hostile pod", "a name for the RDMA device that means something to a shell, a path or a terminal")
def test_an_rdma_devices_name_is_a_name_and_nothing_else(vf: Function, tried: Tried) -> None:
    before = guest.host()
    config = logged(vf)
    for number, name in enumerate(RDMA_NAMES):
        guest.run("ip", "netns", "add", "pod")
        pod = Pod("pod")
        try:
            attach(config, pod)
            (was,) = pod.rdma_names()
            if given(pod, "rdma", "dev", "set", was, "name", name):
                tried()
            end(number, config, pod)
        finally:
            pod.delete()
        assert guest.eventually(lambda: as_before(before)), (name, guest.differences(before, guest.host()))
    assert tried.count > 20


@pytest.mark.fault("hostile pod", "a name for the netdev that means something to a shell, a path or a terminal")
def test_a_netdevs_name_is_a_name_and_nothing_else(vf: Function, tried: Tried) -> None:
    before = guest.host()
    config = logged(vf)
    for number, name in enumerate(NETDEV_NAMES):
        guest.run("ip", "netns", "add", "pod")
        pod = Pod("pod")
        try:
            attach(config, pod)
            given(pod, "ip", "link", "set", "net1", "down")
            if given(pod, "ip", "link", "set", "net1", "name", name):
                tried()
            end(number, config, pod)
        finally:
            pod.delete()
        assert guest.eventually(lambda: as_before(before)), (name, guest.differences(before, guest.host()))
    assert tried.count > 8


@pytest.mark.fault("hostile pod", "an alias for the netdev that a mark of this plugin's is forged with")
def test_a_netdevs_alias_is_believed_no_further_than_a_name_goes(vf: Function, tried: Tried) -> None:
    before = guest.host()
    config = logged(vf)
    for alias in ALIASES:
        guest.run("ip", "netns", "add", "pod")
        pod = Pod("pod")
        try:
            attach(config, pod)
            if given(pod, "ip", "link", "set", "net1", "alias", alias):
                tried()
            # With the state the alias is of no interest; without, it is all there is.
            detach(config, pod)
            check_log()
            assert guest.eventually(lambda: as_before(before)), (alias, guest.differences(before, guest.host()))
        finally:
            pod.delete()
    assert tried.count > 3
