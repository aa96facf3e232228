"""Runs `rdma` in this interpreter with its steps timed: timed.py INTERNAL START OUT.

Each module is imported by itself, as it is not in the frozen program, which has most of them at once
(frozen/start.py). What is timed is written to OUT as JSON: a list of (kind, what, ms).
"""

import json
import posix
import sys
import time
from collections.abc import Callable
from typing import Any

_, sys.prefix, start, out = sys.argv
sys.argv = ["", ""]
with open(start, encoding="utf-8") as file:
    exec(compile(file.read(), start, "exec"), {"__name__": "start"})  # noqa: S102

import ipam.plugin  # noqa: E402, F401
import rdma_cni.attach  # noqa: E402
import rdma_cni.detach  # noqa: E402, F401
from rdma_cni import addressing, config, netlink, netns  # noqa: E402
from rdma_cni.cni import calls, database  # noqa: E402
from rdma_cni.main import main  # noqa: E402

_MESSAGES = {
    16: "RTM_NEWLINK",
    18: "RTM_GETLINK",
    20: "RTM_NEWADDR",
    22: "RTM_GETADDR",
    24: "RTM_NEWROUTE",
    28: "RTM_NEWNEIGH",
    29: "RTM_DELNEIGH",
    5121: "RDMA_NLDEV_CMD_GET",
    5122: "RDMA_NLDEV_CMD_SET",
    5126: "RDMA_NLDEV_CMD_SYS_GET",
}
taken: list[tuple[str, str, float]] = []


def timed(owner: Any, name: str, kind: str, label: Callable[..., str]) -> None:
    inner = getattr(owner, name)

    def outer(*arguments: Any, **more: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return inner(*arguments, **more)
        finally:
            taken.append((kind, label(*arguments, **more), (time.perf_counter_ns() - begin) / 1e6))

    setattr(owner, name, outer)


timed(netlink.Socket, "request", "netlink", lambda socket, kind, *_: _MESSAGES.get(kind, str(kind)))
timed(netlink.Socket, "__init__", "netlink", lambda *_: "(a socket)")
timed(netns, "setns", "namespace", lambda *_: "setns")
timed(database.Database, "__init__", "state", lambda _, name, *more: f"open {name}")
timed(database.Database, "execute", "state", lambda _, statement, *more: " ".join(statement.split()[:3]))
timed(database, "Lock", "state", lambda *_: "lock of the function")
timed(calls, "record", "state", lambda *_: "count the call")
timed(config, "load", "configuration", lambda *_: "checked")
timed(addressing, "_has_carrier", "kernel", lambda *_: "wait for the carrier")
begin = time.perf_counter_ns()
status = main(["rdma"])
taken.append(("all", "main", (time.perf_counter_ns() - begin) / 1e6))
with open(out, "w", encoding="utf-8") as file:
    json.dump(taken, file)
posix._exit(status)
