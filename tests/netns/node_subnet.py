"""What the tests of the frozen `node-subnet` share: a node of one's own, and configurations."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import guest
from conftest import BUNDLE

NODE_SUBNET = str(BUNDLE / "node-subnet")
POOL: dict[str, Any] = {"subnet": "10.56.0.0/16", "nodePrefix": 24}
POOL6: dict[str, Any] = {"subnet": "fd00:56::/48", "nodePrefix": 64}
IPAM: dict[str, Any] = {"type": "node-subnet", "nodeName": "gpu-07", "nodes": {"gpu-07": 3}, "pools": [POOL, POOL6]}
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
KEY = "cni.dev/valid-attachments"


def conf(
    version: str = "1.1.0", /, *, name: str = "rail", top: Mapping[str, object] | None = None, **ipam: object
) -> dict[str, Any]:
    """A network configuration; what is None is not in its section `ipam`."""
    section = {key: value for key, value in {**IPAM, **ipam}.items() if value is not None}
    return {"cniVersion": version, "name": name, "type": "macvlan", "ipam": section, **(top or {})}


def one_pool(subnet: str = "10.56.0.0/16", prefix: int | None = 24, index: int = 3, **more: object) -> dict[str, Any]:
    """The configuration of one pool; `more` is of the pool."""
    pool = {"subnet": subnet, **({} if prefix is None else {"nodePrefix": prefix}), **more}
    return conf(pools=[pool], nodes={"gpu-07": index})


class Node:
    """A mount namespace with a /run of its own, and a hostname; `size` is that file system's."""

    def __init__(self, size: str = "64m") -> None:
        script = f"mount -t tmpfs -o size={size} tmpfs /run && hostname gpu-07 && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--uts", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout
        assert self._holder.stdout.readline() == b"up\n"
        self.inside = ("nsenter", f"--target={self._holder.pid}", "--mount", "--uts", "--")
        self.run_dir = Path(f"/proc/{self._holder.pid}/root/run")
        self.state = self.run_dir / "rdma-cni"
        self.database = self.state / "reservations.db"
        self.node_file = self.state / "node.json"

    def close(self) -> None:
        self._holder.communicate(timeout=10)

    def run(self, *command: str) -> None:
        subprocess.run([*self.inside, *command], check=True, timeout=30)

    def cni(
        self,
        command: str | None,
        config: object = None,
        container: str | None = "c1",
        *,
        wrapper: Sequence[str] = (),
        ifname: str | None = "net1",
        env: Mapping[str, str | None] | None = None,
    ) -> guest.Answer:
        if command in ("GC", "STATUS", "VERSION"):
            container = ifname = None
        # A namespace that nobody can open: node-subnet has no business there.
        return guest.cni(
            command,
            config,
            container=container,
            ifname=ifname,
            netns="/run/netns/none",
            env=env,
            binary=NODE_SUBNET,
            wrapper=(*self.inside, *wrapper),
        )

    def start(self, command: str, config: object, container: str = "c1") -> subprocess.Popen[bytes]:
        """A call that is not waited for."""
        process = subprocess.Popen(
            [*self.inside, NODE_SUBNET],
            env=guest.cni_environment(command, container, "/run/netns/none", "net1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin
        process.stdin.write(json.dumps(config).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def add(self, config: object, container: str = "c1", **more: Any) -> list[str]:
        """An ADD's addresses, with their prefix lengths."""
        answer = self.cni("ADD", config, container, **more)
        assert answer.ok, answer
        return addresses(answer.json)

    def delete(self, config: object, container: str = "c1", **more: Any) -> None:
        answer = self.cni("DEL", config, container, **more)
        assert (answer.code, answer.stdout) == (0, ""), answer

    def python(self, script: str) -> subprocess.Popen[bytes]:
        """Another program on the node."""
        command = [*self.inside, "/usr/bin/python3", "-c", script]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write_node_file(self, content: object) -> None:
        """As a node agent does: whole at once."""
        self.state.mkdir(mode=0o700, exist_ok=True)
        new = self.state / "node.json.new"
        new.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        new.rename(self.node_file)

    def reserved(self) -> dict[str, str]:
        """Address to container, by another reader of the file."""
        # SQLite would follow /proc/PID/root to a path of this process's own /run.
        with tempfile.TemporaryDirectory() as copy:
            for name in ("reservations.db", "reservations.db-journal"):
                if (self.state / name).exists():
                    shutil.copy(self.state / name, copy)
            connection = sqlite3.connect(f"{copy}/reservations.db")
            try:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                rows = connection.execute("SELECT address, container FROM reservation").fetchall()
            finally:
                connection.close()
        return {str(ip_address(address)): container for address, container in rows}


@contextmanager
def a_node(size: str = "64m") -> Iterator[Node]:
    assert Path(NODE_SUBNET).is_file(), f"{NODE_SUBNET} is missing: run `make bundle`"
    node = Node(size)
    try:
        yield node
    finally:
        node.close()


def addresses(result: dict[str, Any]) -> list[str]:
    return [ip["address"] for ip in result["ips"]]


def finish(process: subprocess.Popen[bytes]) -> guest.Answer:
    stdout, stderr = process.communicate(timeout=60)
    return guest.Answer(process.returncode, stdout.decode(), stderr.decode())


def kill_soon(process: subprocess.Popen[bytes], chance: random.Random) -> None:
    """SIGKILL at some instant of its short life."""
    time.sleep(chance.uniform(0, 0.05))
    os.kill(process.pid, signal.SIGKILL)
