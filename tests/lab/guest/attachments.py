"""Attachments that something happens to: a VF and two pods of one's own, so that several are tried at once."""

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guest
from calls import Run, Stopped
from guest import Answer, Function, Pod
from network import conf, earlier_plugin, earlier_plugin_deletes

ALONE, CHAINED, CHOSEN = "alone", "chained", "with pf"
KINDS = [ALONE, CHAINED, CHOSEN]
KILLED = 137
DATABASES = {"state.db": "attachment", "reservations.db": "reservation"}


def pool(number: int = 3) -> dict[str, Any]:
    """A section for node-subnet."""
    pools = [{"subnet": "10.56.0.0/16", "nodePrefix": 24}, {"subnet": "fd00:56::/48", "nodePrefix": 64}]
    return {"type": "node-subnet", "nodeName": "n", "nodes": {"n": number}, "pools": pools}


def pf() -> str:
    """The PF's netdev."""
    (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    return path.name


def rows(container: str | None = None) -> list[str]:
    """What the databases say of a container, or of all."""
    found = []
    for name, table in DATABASES.items():
        if not Path(f"/run/rdma-cni/{name}").exists():
            continue
        with closing(sqlite3.connect(f"/run/rdma-cni/{name}", timeout=30)) as connection:
            holders = connection.execute(f"SELECT container FROM {table}").fetchall()
            found += [f"{table} {holder}" for (holder,) in holders if container in (None, holder)]
    return found


def functions_written_down() -> set[str]:
    """The functions that attachments have."""
    with closing(sqlite3.connect("/run/rdma-cni/state.db", timeout=30)) as connection:
        return {function for (function,) in connection.execute("SELECT function FROM attachment")}


def look(device: str) -> dict[str, object]:
    """What a function has on the host: netdevs with MAC, MTU and whether they are up, RDMA devices with GUIDs.

    What another command takes away meanwhile is not on the host.
    """
    found: dict[str, object] = {}
    for path in (guest.PCI / device / "net").glob("*"):
        with suppress(OSError):
            flags = int((path / "flags").read_text(), 16)
            found[f"netdev {path.name}"] = ((path / "address").read_text(), (path / "mtu").read_text(), flags & 1)
    for path in (guest.PCI / device / "infiniband").glob("*"):
        with suppress(OSError):
            found[f"RDMA device {path.name}"] = (path / "node_guid").read_text()
    return found


@dataclass
class Attachment:
    """One pod after the other that gets a VF: `pod`, and `other` for the next ADD."""

    kind: str
    number: int
    vf: Function
    pod: Pod
    other: Pod
    directory: Path
    before: dict[str, dict[str, object]]

    def __post_init__(self) -> None:
        self.run = Run(self.directory / f"report{self.number}")
        self.container = f"c{self.number}"
        self.previous: dict[str, Any] | None = None
        self.info = self.directory / f"info{self.number}"

    def earlier(self, pod: Pod) -> None:
        """What an earlier plugin of the list does."""
        if self.kind == CHAINED:
            self.previous = earlier_plugin(self.vf, pod, "1.1.0")

    def earlier_deletes(self, pod: Pod) -> None:
        if self.kind == CHAINED:
            earlier_plugin_deletes(self.vf, pod)

    @property
    def config(self) -> dict[str, Any]:
        device = {"pf": pf()} if self.kind == CHOSEN else {"deviceID": self.vf.device}
        more: dict[str, Any] = {"name": f"net{self.number}", "ipam": pool()}
        if self.kind == CHAINED:
            more["prevResult"] = self.previous
        if self.kind == ALONE:
            more |= {
                "mtu": 1400,
                "mac": f"02:00:00:00:ab:0{self.number}",
                "args": {"cni": {"rdmaDeviceName": f"rail{self.number}"}},
                "runtimeConfig": {"CNIDeviceInfoFile": str(self.info)},
            }
        return conf(None, "1.1.0") | device | more

    def call(self, command: str, pod: Pod | None, wrapper: Sequence[str] = ()) -> Answer:
        if command == "GC":
            config = self.config | {"cni.dev/valid-attachments": []}
            config.pop("prevResult", None)
            return guest.cni("GC", config, container=None, ifname=None, wrapper=wrapper)
        return guest.cni(command, self.config, container=self.container, netns=pod, wrapper=wrapper)

    def succeed(self, command: str, pod: Pod | None, told: object = "") -> Answer:
        answer = self.call(command, pod)
        assert answer.ok, (told, command, answer)
        assert bool(answer.stdout) == (command == "ADD"), (told, command, answer)
        return answer

    def stopped(self, command: str, number: int) -> Stopped:
        """A command that stands still before the call with this number."""
        line = [*self.run.at(number, "stop"), f"{guest.CNI_PATH}/rdma"]
        return Stopped(self.run, line, self.config, guest.cni_environment(command, self.container, self.pod))

    def left(self) -> list[str]:
        """What is not as it was before the first ADD: devices, what is written down, what is in the pods."""
        found = rows(self.container)
        # Which one was chosen nobody knows any more: none is away but those that others have.
        devices = [self.vf.device] if self.kind != CHOSEN else sorted(set(self.before) - functions_written_down())
        for device in devices:
            before, now = self.before[device], look(device)
            if self.kind == CHAINED:
                # Its netdev is in the pod, or on the way from one to the other.
                before = {key: value for key, value in before.items() if key.startswith("RDMA")}
            found += [f"missing: {device} {k} {v}" for k, v in before.items() if now.get(k) != v]
            found += [f"new: {device} {k} {v}" for k, v in now.items() if before.get(k) != v]
        found += [f"file {path.name}" for path in self.directory.glob(f"{self.info.name}*")]
        if self.kind == CHAINED:
            found += self.pod.addresses("net1")
        return found

    def require_nothing_left(self, told: object) -> None:
        """The pod's own namespace may still be giving something back."""
        if self.left():
            assert guest.eventually(lambda: not self.left()), (told, self.left())

    def swap(self) -> None:
        """The next ADD is that of another pod."""
        self.earlier_deletes(self.pod)
        self.pod, self.other = self.other, self.pod
        self.earlier(self.pod)


class Numbers:
    """1, 2, 3, ... for several at once, until there is no such number.

    `reached` are those that there were. A run may have a call or two fewer than another, as the databases have
    less to write: a number that was missed comes again, and ends it when it was missed three times.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._again: list[int] = []
        self._missed: Counter[int] = Counter()
        self._given_up: list[int] = []
        self.reached: list[int] = []

    @property
    def ended(self) -> bool:
        with self._lock:
            return bool(self._given_up) and not self._again

    def next(self) -> int | None:
        with self._lock:
            if self._again:
                return self._again.pop()
            if self._given_up:
                return None
            self._last += 1
            assert self._last < 400, "it never came to its end"
            return self._last

    def miss(self, number: int) -> None:
        with self._lock:
            self._missed[number] += 1
            (self._again if self._missed[number] < 3 else self._given_up).append(number)

    def require_all(self) -> None:
        """All were reached, up to the first that no run had."""
        with self._lock:
            assert set(self.reached) >= set(range(1, min(self._given_up))), (self.reached, self._given_up)


def at_once(attachments: Sequence[Attachment], work: Callable[[Attachment], None]) -> None:
    """`work` for all of them at once; fails with what each that failed has to say."""
    with ThreadPoolExecutor(len(attachments)) as threads:
        running = [threads.submit(work, attachment) for attachment in attachments]
    failures = [failure for failure in (done.exception() for done in running) if failure]
    assert not failures, "\n".join(map(str, failures))
