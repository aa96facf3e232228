"""`make profile`, in the lab's guest: what an ADD and a DEL are made of, medians of a few runs."""

import json
import os
import statistics
import subprocess
import time
from collections import defaultdict
from pathlib import Path

from in_lab import IPV4, POD, RDMA, configuration, environment, ip, ours
from samples import BARE, spawn

RUNS = 7
_INTERNAL = "/opt/cni/rdma-cni/_internal"
_PYTHON = BARE[:-2]


def until_stdin_is_read(command: str, config: bytes) -> tuple[float, float]:
    """(ms from before the program is spawned until it waits for its configuration, ms from then to its end)."""
    reading, writing = os.pipe()
    begin = time.perf_counter_ns()
    process = subprocess.Popen([RDMA], stdin=reading, stdout=subprocess.DEVNULL, env=environment(command))
    os.close(reading)
    # "0 0x0 ..." is read() of descriptor 0 (x86-64).
    while not Path(f"/proc/{process.pid}/syscall").read_text().startswith("0 0x0 "):
        time.sleep(0.0005)
    waits = time.perf_counter_ns()
    os.write(writing, config)
    os.close(writing)
    if process.wait():
        raise SystemExit(f"{command} failed")
    return (waits - begin) / 1e6, (time.perf_counter_ns() - waits) / 1e6


def steps(command: str, config: bytes) -> list[tuple[str, str, float]]:
    """What `timed.py` says of one run."""
    harness = [*_PYTHON, "bench/timed.py", _INTERNAL, "frozen/start.py", "/tmp/timed"]
    subprocess.run(harness, env=environment(command), input=config, stdout=subprocess.DEVNULL, check=True)
    return [(kind, what, ms) for kind, what, ms in json.loads(Path("/tmp/timed").read_text())]


def imports(command: str, config: bytes) -> dict[str, float]:
    """The ms that each module takes to import by itself, without those that it imports."""
    harness = [*_PYTHON, "-X", "importtime", "guest/imported.py", _INTERNAL, "frozen/start.py", "rdma"]
    done = subprocess.run(harness, env=environment(command), input=config, capture_output=True, check=True)
    found = {}
    for line in done.stderr.decode().splitlines():
        microseconds, _, name = line.removeprefix("import time:").partition("|")
        if line.startswith("import time:") and microseconds.strip().isdecimal():
            found[name.rpartition("|")[2].strip()] = int(microseconds) / 1000
    return found


def report(title: str, configs: dict[str, bytes]) -> None:
    """ADD and DEL in turns, so that each finds what the other left."""
    outside: dict[str, list[tuple[float, float]]] = defaultdict(list)
    inside: dict[str, dict[tuple[str, str], list[float]]] = {command: defaultdict(list) for command in configs}
    modules: dict[str, dict[str, list[float]]] = {command: defaultdict(list) for command in configs}
    for _ in range(RUNS):
        for command, config in configs.items():
            outside[command].append(until_stdin_is_read(command, config))
        for command, config in configs.items():
            sums: dict[tuple[str, str], float] = defaultdict(float)
            for kind, what, ms in steps(command, config):
                sums[kind, what] += ms
            for key, ms in sums.items():
                inside[command][key].append(ms)
        for command, config in configs.items():
            for name, ms in imports(command, config).items():
                modules[command][name].append(ms)
    for command in configs:
        start, rest = (statistics.median(part) for part in zip(*outside[command], strict=True))
        print(f"\n{title} {command}: {start + rest:.0f} ms")
        print(f"  {start:7.1f} ms  from exec to the read of stdin: loader, interpreter, modules")
        print(f"  {rest:7.1f} ms  from there to the end of the process")
        print("  of which, timed inside another interpreter:")
        for (kind, what), samples in inside[command].items():
            print(f"  {statistics.median(samples):7.1f} ms  {kind:14} {what}")
        medians = {name: statistics.median(samples) for name, samples in modules[command].items()}
        print(f"  {sum(medians.values()):7.1f} ms  imports, one by one (the program has most of them at once), such as")
        for name, ms in sorted(medians.items(), key=lambda item: -item[1])[:12]:
            print(f"  {ms:7.1f} ms                 {name}")


def main() -> None:
    pf = next(Path("/sys/bus/pci/drivers/igb").glob("0000:*"))
    vf = Path(os.path.realpath(pf / "virtfn0")).name
    (netdev,) = os.listdir(f"/sys/bus/pci/devices/{vf}/net")
    mac = Path(f"/sys/class/net/{netdev}/address").read_text().strip()
    ip("netns", "add", "pod")
    bare = statistics.median(spawn(BARE, {}) for _ in range(RUNS))
    version = statistics.median(spawn([RDMA], environment("VERSION")) for _ in range(RUNS))
    print(f"medians of {RUNS} runs each, in the lab (its CPU is emulated)")
    print(f"  {bare:7.1f} ms  {' '.join(BARE)}")
    print(f"  {version:7.1f} ms  rdma VERSION")
    report("alone, with node-subnet:", dict.fromkeys(("ADD", "DEL"), ours(vf, IPV4)))
    ip("link", "set", netdev, "netns", "pod", "name", "net1")
    ip("-n", "pod", "link", "set", "net1", "up")
    result = {"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "mac": mac, "sandbox": POD}]}
    report("chained:", dict.fromkeys(("ADD", "DEL"), configuration("rdma", deviceID=vf, prevResult=result)))


if __name__ == "__main__":
    main()
