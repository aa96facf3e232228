"""Network configurations, and what other plugins do around this one: IPAM plugins, earlier ones in a chain."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guest
from guest import Answer, Function, Pod

VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
# The newest that Debian's plugins speak.
DEBIAN = "1.0.0"


def conf(device: Function | str | None, version: str = DEBIAN, **more: object) -> dict[str, Any]:
    """A network configuration for `rdma`, as Multus sends it: with the deviceID put in."""
    keys: dict[str, Any] = {"cniVersion": version, "name": "net", "type": "rdma"}
    if device is not None:
        keys["deviceID"] = device.device if isinstance(device, Function) else device
    return {**keys, **more}


def host_local(*subnets: str, routes: list[dict[str, object]] | None = None) -> dict[str, object]:
    """An `ipam` section for Debian's host-local: one address of each subnet."""
    ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.56.3.0/24",)]
    return {"type": "host-local", "ranges": ranges, **({"routes": routes} if routes else {})}


def attach(config: object, pod: Pod, **more: Any) -> dict[str, Any]:
    """ADD, which succeeds: its result."""
    answer = guest.cni("ADD", config, netns=pod, **more)
    assert answer.ok, answer
    result: dict[str, Any] = answer.json
    return result


def detach(config: object, pod: Pod | str | None, **more: Any) -> Answer:
    """DEL, which succeeds."""
    answer = guest.cni("DEL", config, netns=pod, **more)
    assert (answer.code, answer.stdout) == (0, ""), answer
    return answer


def error(answer: Answer, code: int, *words: str) -> str:
    """The message of an error that has this code and these words in it."""
    assert answer.error == code, answer
    message: str = answer.json["msg"]
    assert all(word in message for word in words), message
    return message


def earlier_plugin(
    function: Function,
    pod: Pod,
    version: str = DEBIAN,
    *,
    ifname: str = "net1",
    address: str = "",
    gateway: str = "",
    routes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Put a VF's netdev into the pod as `sriov` does; the result that it hands on."""
    guest.run("ip", "link", "set", function.netdev, "netns", pod.name, "name", ifname)
    ips: list[dict[str, object]] = []
    if address:
        pod.run("ip", "addr", "add", address, "dev", ifname)
        ips = [{"address": address, "interface": 0, **({"gateway": gateway} if gateway else {})}]
        if version < "1.0.0":
            ips[0]["version"] = "6" if ":" in address else "4"
    pod.run("ip", "link", "set", ifname, "up")
    for route in routes:
        pod.run("ip", "route", "add", route, "via", gateway, "dev", ifname)
    return {
        "cniVersion": version,
        "interfaces": [{"name": ifname, "mac": function.mac, "sandbox": pod.netns}],
        "ips": ips,
        "routes": [{"dst": route, "gw": gateway} for route in routes],
        "dns": {"nameservers": ["10.1.0.1"], "search": ["example"]},
    }


def earlier_plugin_deletes(function: Function, pod: Pod, ifname: str = "net1") -> None:
    """Take the netdev back as `sriov` does, after this plugin's DEL."""
    pod.run("ip", "link", "set", ifname, "down")
    pod.run("ip", "link", "set", ifname, "netns", "1", "name", function.netdev)


def give_name_back(function: Function) -> None:
    """Rename a netdev that is on the host under another name; udev has made the old one an alternative name of it."""
    guest.settle()
    (link,) = [link for link in guest.links() if link.get("address") == function.mac]
    here = link["ifname"]
    guest.run("ip", "link", "property", "del", "dev", here, "altname", function.netdev, check=False)
    if here != function.netdev:
        guest.run("ip", "link", "set", here, "name", function.netdev)
    guest.settle()


@contextmanager
def kept_by(pod: Pod, what: str) -> Iterator[None]:
    """What keeps a namespace alive: a process or a thread that is in it, or a socket, which nothing leads to."""
    there = f"libc.setns(os.open('{pod.netns}', 0), 0)"
    script = {
        "process": f"{there}; tell()",
        "thread": f"threading.Thread(target=lambda: ({there}, tell(), time.sleep(60)), daemon=True).start()",
        "socket": f"own = os.open('/proc/self/ns/net', 0); {there}; kept = socket.socket(); libc.setns(own, 0); "
        "os.close(own + 1); tell()",
    }[what]
    process = subprocess.Popen(
        ["python3", "-c", (
            "import ctypes, os, socket, sys, threading, time\n"
            "libc = ctypes.CDLL(None)\ndef tell(): print('ready', flush=True)\n"
            f"{script}\nsys.stdin.readline()\n")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        pod.delete()
        yield
    finally:
        process.stdin.close()
        process.wait()


_SCRIPT = """#!/bin/sh
cd {directory}
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >> calls
cat /proc/$$/environ > environ.$CNI_COMMAND
cat > stdin.$CNI_COMMAND
[ -e $CNI_COMMAND.sh ] || exit 0
. ./$CNI_COMMAND.sh
"""


@dataclass
class ScriptedIpam:
    """Stands for the IPAM plugins that fail, answer nonsense, or whatever `on` tells it to do.

    It notes each call, its environment and its configuration.
    """

    directory: Path
    config: dict[str, object] = field(default_factory=lambda: {"type": "scripted"})

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        plugin = self.directory / "scripted"
        plugin.write_text(_SCRIPT.format(directory=self.directory))
        plugin.chmod(0o755)
        self.answer("ADD", {"cniVersion": DEBIAN, "ips": [{"address": "10.77.0.5/24"}]})

    @property
    def env(self) -> dict[str, str | None]:
        """The environment by which a caller finds it."""
        return {"CNI_PATH": f"/nowhere:{self.directory}:{guest.CNI_PATH}"}

    def on(self, command: str, script: str) -> None:
        """What it does for a command, as a shell script."""
        (self.directory / f"{command}.sh").write_text(script)

    def answer(self, command: str, answer: object, status: int = 0) -> None:
        (self.directory / f"answer.{command}").write_text(json.dumps(answer))
        self.on(command, f"cat answer.{command}; exit {status}")

    def fail(self, command: str, code: int, message: str) -> None:
        self.answer(command, {"cniVersion": DEBIAN, "code": code, "msg": message, "details": "some"}, status=1)

    def speaks(self, *versions: str) -> None:
        self.answer("VERSION", {"cniVersion": versions[-1], "supportedVersions": list(versions)})

    @property
    def calls(self) -> list[str]:
        """COMMAND CONTAINER IFNAME of each call, VERSION left out."""
        path = self.directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if not line.startswith("VERSION")]

    @property
    def commands(self) -> list[str]:
        return [call.split(" ")[0] for call in self.calls]

    def environment(self, command: str) -> dict[str, str]:
        """What the last call of a command found in its environment."""
        text = (self.directory / f"environ.{command}").read_text()
        return dict(pair.split("=", 1) for pair in text.split("\0") if pair)

    def stdin(self, command: str) -> Mapping[str, Any]:
        value: Mapping[str, Any] = json.loads((self.directory / f"stdin.{command}").read_text())
        return value


def state_rows() -> int:
    """How many attachments are written down."""
    import sqlite3

    connection = sqlite3.connect("/run/rdma-cni/state.db")
    try:
        (count,) = connection.execute("SELECT count(*) FROM attachment").fetchone()
    finally:
        connection.close()
    return int(count)


def lose_state() -> None:
    """Forget what is attached, as a node does that lost /run."""
    for path in Path("/run/rdma-cni").glob("state.db*"):
        path.unlink()
