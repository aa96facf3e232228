"""`rdma-cni` as an operator calls it, and what a healthy node has that a guest has not."""

import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guest

COMMAND = f"{guest.CNI_PATH}/rdma-cni"
OUT = Path("/out/json")
MODPROBE = Path("/etc/modprobe.d/rdma-cni.conf")
NET_D = Path("/etc/cni/net.d")
POOL = {
    "type": "node-subnet",
    "nodeName": "gpu-03",
    "nodes": {"gpu-03": 3},
    "pools": [{"subnet": "10.56.0.0/16", "nodePrefix": 24}],
}
PODS = {"CNI_ARGS": "K8S_POD_NAMESPACE=train;K8S_POD_NAME=llama-0"}
IEEE_PFC, IEEE_TRUST = 2, 11
DSCP, PCP = 5, 255


@dataclass(frozen=True)
class Said:
    """What a command said: `code` is its exit status."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def rdma_cni(*arguments: str, wrapper: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Said:
    """Run the frozen command, whose output is no terminal.

    What --json prints goes to /out as well, where the documented schema is held against it.
    """
    done = subprocess.run(
        [*wrapper, COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | (env or {}),
        check=False,
    )
    if "--json" in arguments and done.stdout:
        OUT.mkdir(exist_ok=True)
        (OUT / f"{arguments[0]}-{len(list(OUT.iterdir()))}.json").write_text(done.stdout)
    assert "Traceback" not in done.stderr, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def set_dcb(ifname: str, kind: int, value: bytes) -> None:
    """DCB_CMD_IEEE_SET: Debian 12's `dcb` does not know everything that the kernel does."""
    ieee = _attribute(13 | 0x8000, _attribute(kind | (0x8000 if kind == IEEE_TRUST else 0), value))
    body = struct.pack("=BBH", 0, 20, 0) + _attribute(1, ifname.encode() + b"\0") + ieee
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.bind((0, 0))
        kernel.send(struct.pack("=IHHII", 16 + len(body), 79, 0x5, 1, 0) + body)
        answer = kernel.recv(65536)
    fields = dict(_attributes(answer[20:]))
    assert fields.get(13, b"\1")[0] == 0, f"the driver of {ifname} refused: {answer.hex()}"


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            return
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]


def trust(ifname: str, *selectors: int) -> None:
    """What the port takes a packet's priority from."""
    set_dcb(ifname, IEEE_TRUST, b"".join(_attribute(1 if s == DSCP else 2, bytes([s])) for s in selectors))


def flow_control(ifname: str, *priorities: int) -> None:
    setting = ",".join(f"{priority}:{'on' if priority in priorities else 'off'}" for priority in range(8))
    guest.run("dcb", "pfc", "set", "dev", ifname, "prio-pfc", *setting.split(","))
