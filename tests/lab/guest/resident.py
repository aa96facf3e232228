"""Many ADDs and DELs in one process, as a program that stays would make them: what does it keep of each?

    python3 -I -S resident.py ROUNDS < JOBS

JOBS is a JSON list of {"config": ..., "container": ..., "netns": ...}. A round is an ADD of all of them, then a DEL of
all. Prints a JSON object: what the process had after the first rounds, and what it has at the end. It is the bundle's
own code that runs, in the guest's interpreter.

The plugin itself runs with the collector of cycles off, since it ends before there would be anything to collect: a
cycle that a call leaves (an exception and the frame that it is in) is gone with its process. A process that stays has
the collector, so what counts is what is still there after it ran. Counted are the interpreter's own blocks
(`sys.getallocatedblocks`) and what malloc has given out (`mallinfo2`), which has SQLite's memory and all larger
objects, and up to 200 kB that are free but kept at hand for the thread. Two things grow, and stop growing, that are
not the plugin's: the interpreter's cache of attributes, which holds the names that were looked up, 4,096 of them (keys
out of JSON among them, a new text each time), and is emptied here; and the resident size, since of what was freed
malloc keeps as much as it likes, which is why that is only told.
"""

import sys

START = "/payload/frozen/start.py"
WARMING = 10
"""Rounds until all that is made once has been made: modules, interned names, free lists, SQLite's own."""

sys.prefix = "/opt/cni/rdma-cni/_internal"
rounds, sys.argv = int(sys.argv[1]), ["", ""]
with open(START, encoding="utf-8") as file:
    exec(compile(file.read(), START, "exec"), {"__name__": "start"})  # noqa: S102

import ctypes  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402

gc.enable()


class Mallinfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = [
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo


def call(command: str, job: dict[str, object]) -> None:
    """One call of the plugin, with stdin and stdout as a runtime gives them."""
    from rdma_cni.cni import system
    from rdma_cni.cni.plugin import run
    from rdma_cni.plugin import RdmaPlugin

    system.environ.update(
        CNI_COMMAND=command,
        CNI_CONTAINERID=str(job["container"]),
        CNI_NETNS=str(job["netns"]),
        CNI_IFNAME="net1",
        CNI_PATH="/opt/cni/bin",
    )
    given, answer = os.memfd_create("config"), os.memfd_create("answer")
    os.write(given, json.dumps(job["config"]).encode())
    os.lseek(given, 0, os.SEEK_SET)
    stdout = os.dup(1)
    os.dup2(given, 0)
    os.dup2(answer, 1)
    status = run(RdmaPlugin())
    os.dup2(stdout, 1)
    said = os.pread(answer, 1 << 20, 0).decode()
    for fd in (given, answer, stdout):
        os.close(fd)
    if status or bool(said) != (command == "ADD"):
        raise SystemExit(f"{command} {job}: {said}")


def target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
    except FileNotFoundError:
        # The directory that is being listed.
        return ""


def kept() -> dict[str, object]:
    """What this process has at this moment."""
    unreachable = gc.collect()
    sys._clear_type_cache()
    info = mallinfo2()
    with open("/proc/self/status", encoding="ascii") as status:
        (resident,) = [int(line.split()[1]) for line in status if line.startswith("RssAnon:")]
    return {
        "descriptors": sorted(filter(None, map(target, os.listdir("/proc/self/fd")))),
        "blocks": sys.getallocatedblocks(),
        "bytes of malloc": info.uordblks + info.hblkhd,
        "collected": unreachable,
        "resident kB": resident,
    }


def main() -> None:
    jobs = json.load(sys.stdin)
    before: dict[str, object] = {}
    for number in range(rounds):
        for job in jobs:
            call("ADD", job)
        for job in jobs:
            call("DEL", job)
        if number + 1 == WARMING:
            before = kept()
    json.dump({"before": before, "after": kept(), "calls": 2 * len(jobs) * (rounds - WARMING)}, sys.stdout)


if __name__ == "__main__":
    main()
