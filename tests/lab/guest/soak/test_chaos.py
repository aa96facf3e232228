"""A run of chaos: a runtime that loses its nerve, pods whose root plays with what they got, a node in trouble.

SOAK_MINUTES (3) is how long, SOAK_SEED which run. What a step does follows from the seed and the step's number
and from what there is at that moment.
"""

import os
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import guest
import pytest
from attachments import functions_written_down, look, pf, pool, rows
from calls import Run
from guest import Answer, Function, Pod
from network import conf
from record import Tried

MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))
SEED = os.environ.get("SOAK_SEED") or str(random.SystemRandom().randrange(10**6))
STATE = Path("/run/rdma-cni")
PODS = 8
LOG: list[str] = []


def log(text: str) -> None:
    LOG.append(text)


@dataclass
class Sandbox:
    """A pod as its runtime knows it: `attached` when ADD succeeded and no DEL did since."""

    name: str
    config: dict[str, Any]
    alive: bool = True
    attached: bool = False
    deleting: bool = False

    @property
    def pod(self) -> Pod:
        return Pod(self.name)


@dataclass
class Node:
    """What there is: pods, and of each VF what it was and whether that may have changed since."""

    vfs: list[Function]
    directory: Path
    pods: dict[str, Sandbox] = field(default_factory=dict)
    rebound: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    serial: int = 0
    state_lost: bool = False

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def call(self, command: str, sandbox: Sandbox, netns: Pod | None, kill_at: int) -> Answer:
        """A command, killed at a call when `kill_at` is not 0."""
        wrapper = Run(self.directory / f"report-{sandbox.name}").at(kill_at, "kill") if kill_at else ()
        answer = guest.cni(command, sandbox.config, container=sandbox.name, netns=netns, wrapper=wrapper)
        killed = answer.code == 137
        code = "killed" if killed else "ok" if answer.ok else str(answer.error)
        device = sandbox.config.get("deviceID", "pf")
        log(f"    {command} {sandbox.name} {netns} {device}: {code} {answer.stderr.strip()}")
        if killed:
            self.count(f"{command} killed")
        else:
            assert "Traceback" not in answer.stderr, answer
            assert answer.ok or answer.error != 199, answer
        if "cannot have" in answer.stderr:
            self.told.append(answer.stderr)
        self.count(command)
        return answer

    def add(self, sandbox: Sandbox, kill_at: int) -> None:
        answer = self.call("ADD", sandbox, sandbox.pod, kill_at)
        sandbox.attached = answer.ok
        # A runtime calls DEL for an ADD that failed.
        sandbox.deleting = not answer.ok

    def delete(self, sandbox: Sandbox, kill_at: int, *, path: bool) -> None:
        answer = self.call("DEL", sandbox, sandbox.pod if path else None, kill_at)
        assert answer.ok or answer.code == 137 or answer.error == 11, answer
        sandbox.deleting = True
        if answer.ok:
            sandbox.attached = False
            if sandbox.alive:
                sandbox.pod.delete()
            del self.pods[sandbox.name]


def new_pod(node: Node, chance: random.Random) -> Sandbox:
    node.serial += 1
    name = f"pod{node.serial}"
    device = {"pf": pf()} if chance.random() < 0.5 else {"deviceID": chance.choice(node.vfs).device}
    more: dict[str, Any] = {"mtu": 1400} if chance.random() < 0.3 else {}
    if chance.random() < 0.3:
        more["args"] = {"cni": {"rdmaDeviceName": f"rail-{name}"}}
    guest.run("ip", "netns", "add", name)
    sandbox = Sandbox(name, conf(None, "1.1.0", ipam=pool(), **more) | device)
    node.pods[name] = sandbox
    return sandbox


def calls(node: Node, chance: random.Random) -> None:
    """One to three ADDs and DELs at once, a third of them killed somewhere."""
    work: list[Callable[[], None]] = []
    busy = sorted(node.pods)
    chance.shuffle(busy)
    for _ in range(chance.randint(1, 3)):
        kill_at = chance.randint(1, 90) if chance.random() < 0.35 else 0
        deleting = [name for name in busy if node.pods[name].deleting] or busy
        if deleting and (len(node.pods) >= PODS or chance.random() < 0.45):
            sandbox = node.pods[deleting[0]]
            busy.remove(sandbox.name)
            work.append(partial(node.delete, sandbox, kill_at, path=chance.random() < 0.7))
        else:
            work.append(partial(node.add, new_pod(node, chance), kill_at))
    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(what) for what in work]:
            done.result()


def attached(node: Node) -> list[Sandbox]:
    return [node.pods[name] for name in sorted(node.pods) if node.pods[name].attached and node.pods[name].alive]


def a_namespace_dies(node: Node, chance: random.Random) -> None:
    alive = [node.pods[name] for name in sorted(node.pods) if node.pods[name].alive]
    if alive:
        sandbox = chance.choice(alive)
        log(f"    {sandbox.name} dies")
        sandbox.alive = False
        sandbox.pod.delete()


def root_in_a_pod_renames(node: Node, chance: random.Random) -> None:
    if not attached(node):
        return
    pod = chance.choice(attached(node)).pod
    log(f"    root in {pod.name} renames")
    for name in pod.rdma_names():
        pod.run("rdma", "dev", "set", name, "name", f"mine{chance.randrange(1000)}", check=False)
    for link in pod.links():
        pod.run("ip", "link", "set", link["ifname"], "down", check=False)
        pod.run("ip", "link", "set", link["ifname"], "name", f"mine{chance.randrange(3)}", "mtu", "1300", check=False)


def a_driver_is_rebound(node: Node, chance: random.Random) -> None:
    device = chance.choice(node.vfs).device
    log(f"    {device} is rebound")
    rebind(node, device)


def the_state_is_lost(node: Node, chance: random.Random) -> None:
    """What node-subnet knows is not: without it no node can tell which addresses are free."""
    log("    state.db is lost")
    node.state_lost = True
    for path in STATE.glob("state.db*"):
        path.unlink()


def the_node_reboots(node: Node, chance: random.Random) -> None:
    """As far as it can here: no namespace and no state is left, and drivers are bound anew."""
    log("    reboot")
    for sandbox in node.pods.values():
        sandbox.alive = sandbox.attached = False
        sandbox.deleting = True
        sandbox.pod.delete()
    shutil.rmtree(STATE, ignore_errors=True)
    for vf in node.vfs:
        rebind(node, vf.device)


def rebind(node: Node, device: str) -> None:
    node.rebound.add(device)
    (guest.PCI / device / "driver" / "unbind").write_text(device)
    Path("/sys/bus/pci/drivers_probe").write_text(device)
    guest.settle()


def gc(node: Node, chance: random.Random) -> None:
    """The runtime keeps what it has not begun to delete."""
    valid = [sandbox for sandbox in node.pods.values() if not sandbox.deleting]
    listed = [{"containerID": sandbox.name, "ifname": "net1"} for sandbox in valid]
    config = conf(None, "1.1.0", ipam=pool()) | {"cni.dev/valid-attachments": listed}
    answer = guest.cni("GC", config, container=None, ifname=None)
    kept = sorted(sandbox.name for sandbox in valid)
    log(f"    GC keeps {kept}: {answer.code} {answer.stdout}{answer.stderr.strip()}")
    assert answer.ok or answer.error == 11, answer


Step = Callable[[Node, random.Random], None]
STEPS: list[tuple[Step, int]] = [
    (calls, 60),
    (a_namespace_dies, 8),
    (root_in_a_pod_renames, 8),
    (a_driver_is_rebound, 4),
    (the_state_is_lost, 2),
    (the_node_reboots, 1),
    (gc, 5),
]


def problems(node: Node) -> list[str]:
    """What must never be: a VF that is nowhere or in two places, a pod with two, an address without a pod."""
    found: list[str] = []
    where: dict[str, list[str]] = {}
    names = {sandbox.name for sandbox in node.pods.values() if sandbox.alive}
    for name in sorted(names):
        for link in Pod(name).links():
            where.setdefault(link.get("parentdev", "?"), []).append(name)
        devices = Pod(name).rdma_names()
        if len(devices) > 1:
            found.append(f"{name} has the RDMA devices {devices}")
        if node.pods[name].attached and not devices and not node.rebound:
            found.append(f"{name} has no RDMA device any more")
    for vf in node.vfs:
        here = sorted(look(vf.device))
        places = where.get(vf.device, [])
        if len(places) + sum(entry.startswith("netdev") for entry in here) != 1:
            found.append(f"{vf.device}: its netdev is in {places} and on the host: {here}")
    known = {f"reservation {name}" for name in node.pods}
    found += [f"{row} is of no pod" for row in rows() if row.startswith("reservation") and row not in known]
    return found


def usable(node: Node, vf: Function) -> None:
    """A pod gets the VF, and gives it back."""
    sandbox = Sandbox(f"last-{vf.netdev}", conf(vf, "1.1.0", ipam=pool()))
    guest.run("ip", "netns", "add", sandbox.name)
    try:
        answer = node.call("ADD", sandbox, sandbox.pod, 0)
        assert answer.ok, (vf.device, answer)
        assert (len(sandbox.pod.rdma_names()), len(sandbox.pod.links())) == (1, 1)
        answer = node.call("DEL", sandbox, sandbox.pod, 0)
        assert answer.ok, (vf.device, answer)
    finally:
        sandbox.pod.delete()


@pytest.mark.changes_host
@pytest.mark.fault("chaos", "random pods, kills, unbinds, renames, dying namespaces, lost state, reboots")
def test_a_run_of_chaos_ends_with_every_vf_home_or_with_one_live_pod(
    vfs: list[Function], tmp_path: Path, tried: Tried, capsys: pytest.CaptureFixture[str]
) -> None:
    # At once, and whatever comes: a guest that stands still tells nothing more.
    with capsys.disabled():
        print(f"\nchaos: SOAK_MINUTES={MINUTES:g} SOAK_SEED={SEED}", flush=True)
    node = Node(vfs, tmp_path)
    before = {vf.device: look(vf.device) for vf in vfs}
    deadline = time.monotonic() + MINUTES * 60
    step = 0
    try:
        while time.monotonic() < deadline:
            step += 1
            chance = random.Random(f"{SEED}:{step}")  # noqa: S311
            (what,) = chance.choices([step for step, _ in STEPS], [weight for _, weight in STEPS])
            name = getattr(what, "__name__", "").replace("_", " ")
            log(f"step {step}: {name}")
            what(node, chance)
            if what is not calls:
                node.count(name)
            if step % 20 == 0:
                assert guest.eventually(lambda: not problems(node), seconds=15), (step, problems(node))
        audit(node, before)
    except BaseException:
        print("\n".join(LOG[-150:]), flush=True)
        raise
    finally:
        for sandbox in node.pods.values():
            sandbox.pod.delete()
    tried(sum(number for what, number in node.counts.items() if what not in ("ADD", "DEL", "gc")))
    tried.note = f"{step} steps, seed {SEED}: " + ", ".join(
        f"{number} {what}" for what, number in sorted(node.counts.items())
    )
    with capsys.disabled():
        print(f"\nchaos: {tried.note}", flush=True)


def audit(node: Node, before: dict[str, dict[str, object]]) -> None:
    """At the end: each VF is home or with a live pod that has it, each reservation with a live attachment."""
    log("audit")
    # The runtime ends what it has begun, as kubelet does: it calls until DEL succeeds.
    for sandbox in [sandbox for sandbox in node.pods.values() if sandbox.deleting or not sandbox.alive]:
        for _ in range(3):
            if sandbox.name in node.pods:
                node.delete(sandbox, 0, path=True)
        assert sandbox.name not in node.pods, sandbox
    guest.settle()
    assert guest.eventually(lambda: not problems(node), seconds=15), problems(node)
    living = {sandbox.name for sandbox in node.pods.values()}
    assert {row.split()[1] for row in rows()} <= living, (rows(), living)
    if not node.state_lost:
        away = {vf.device for vf in node.vfs if not any(entry.startswith("RDMA") for entry in look(vf.device))}
        assert away <= functions_written_down(), (away, functions_written_down())
    for sandbox in list(node.pods.values()):
        node.delete(sandbox, 0, path=True)
        assert sandbox.name not in node.pods, sandbox
    assert rows() == []
    for vf in node.vfs:
        usable(node, vf)
    guest.settle()
    assert rows() == []
    for vf in node.vfs:
        now = look(vf.device)
        assert (len(now), sum(entry.startswith("netdev") for entry in now)) == (2, 1), (vf.device, now)
        if not node.state_lost:
            assert f"netdev {vf.netdev}" in now, (vf.device, now)
        if not node.state_lost and vf.device not in node.rebound and not node.told:
            assert now == before[vf.device], (vf.device, before[vf.device], now)
