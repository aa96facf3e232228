"""What an address costs: the frozen `node-subnet` beside Debian's Go `host-local`.

Each figure is a median of processes that were timed from outside, one of each kind after the other,
on a /run of the bench's own. The curve goes to build/ipam.png, raw samples to build/bench.json.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from samples import BARE, RUNS, Samples, spawn

ROOT = Path(__file__).parents[2]
BUNDLE = Path(os.environ.get("BUNDLE", ROOT / "dist" / "rdma-cni"))
OURS = str(BUNDLE / "node-subnet")
THEIRS = "/usr/lib/cni/host-local"

SIZES = {"host-local": [0, 100, 1000, 2000, 4000, 16000], "node-subnet": [0, 100, 1000, 2000, 4000, 16000, 60000]}
"""Reservations that are there already."""
AT_ONCE, ADDS, ROUNDS = 8, 1000, 4

STATE = Path("/run/rdma-cni")
FIRST = ip_address("10.56.0.2")
POOL = "10.56.0.0/16"


def environment(command: str, container: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": "/run/netns/none",
        "CNI_IFNAME": "net1",
        "CNI_PATH": "/usr/lib/cni",
    }


def configuration(plugin: str, directory: str = "") -> bytes:
    ipam: dict[str, object] = {"type": plugin}
    if plugin == "host-local":
        ipam |= {"ranges": [[{"subnet": POOL}]], "dataDir": directory}
    else:
        ipam |= {"nodeName": "bench", "nodes": {"bench": 0}, "pools": [{"subnet": POOL, "nodePrefix": 16}]}
    return json.dumps({"cniVersion": "1.0.0", "name": "bench", "type": "bench", "ipam": ipam}).encode()


def fill_ours(size: int) -> None:
    """By the allocator itself, in one transaction."""
    sys.path.insert(0, str(ROOT))
    from ipam import allocator, node
    from ipam.store import Owner, Store
    from rdma_cni.cni import validate

    section = json.loads(configuration("node-subnet"))["ipam"]
    shares = node.shares(validate.check("NODE_SUBNET", section))  # type: ignore[arg-type]
    store = Store()
    with store:
        for number in range(size):
            allocator.allocate(store, Owner("bench", f"{number:064x}", "net1"), shares, [])
    store.close()
    STATE.rename(f"/run/node-subnet-{size}")


def fill_theirs(size: int) -> None:
    """By the files that it keeps: one of each address, and one with the last address given."""
    directory = Path(f"/run/host-local-{size}/bench")
    directory.mkdir(parents=True)
    for number in range(size):
        (directory / str(FIRST + number)).write_text(f"{number:064x}\r\nnet1")
    if size:
        (directory / "last_reserved_ip.0").write_text(str(FIRST + size - 1))


def curve() -> Samples:
    """ADD and DEL at each size, and the bare interpreter."""
    samples: Samples = {"bare": []}
    for size in SIZES["host-local"]:
        fill_theirs(size)
    for size in SIZES["node-subnet"]:
        fill_ours(size)
    plan = sorted((size, plugin) for plugin, sizes in SIZES.items() for size in sizes)
    for run in range(RUNS):
        for size, plugin in plan:
            home = Path(f"/run/{plugin}-{size}")
            binary, config = (
                (THEIRS, configuration(plugin, str(home))) if plugin == "host-local" else (OURS, configuration(plugin))
            )
            if plugin == "node-subnet":
                home.rename(STATE)
            samples["bare"].append(spawn(BARE, environment("", "")))
            for command in ("ADD", "DEL"):
                taken = spawn([binary], environment(command, f"bench-{run}"), config)
                samples.setdefault(f"{plugin} {command} {size}", []).append(taken)
            if plugin == "node-subnet":
                STATE.rename(home)
    return samples


# Started with the bundle's own modules, as the frozen program is; what `rdma` has done before it
# comes to its addresses is done before the clock starts.
_INSIDE = """
import sys
sys.prefix = sys.argv[1]
exec(compile(open(sys.argv[2]).read(), "start.py", "exec"), {"__name__": "start"})
import time
from rdma_cni import allocation, attach, config, state
from rdma_cni.cni import jsontext
from rdma_cni.cni.request import Request
from rdma_cni.cni.undo import Undo
request = Request("ADD")
request.network, request.container, request.ifname = "bench", sys.argv[3], "net1"
request.config = jsontext.parse(sys.argv[4].encode())
conf = config.load(request)
store = state.State()
store.of_network("bench")
undo = Undo()
start = time.perf_counter_ns()
allocation.of(request, conf).add(undo)
print((time.perf_counter_ns() - start) / 1e6)
undo.forget()
"""


def in_process() -> Samples:
    samples: Samples = {"inside rdma": []}
    command = [BARE[0], "-I", "-S", "-c", _INSIDE, str(BUNDLE / "_internal"), str(ROOT / "frozen" / "start.py")]
    for run in range(RUNS):
        done = subprocess.run(
            [*command, f"inside-{run}", configuration("node-subnet").decode()],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"inside rdma: {done.stderr}")
        samples["inside rdma"].append(float(done.stdout))
    return samples


def at_once() -> Samples:
    """How long ADDS attachments take that AT_ONCE processes ask for, in ms of each round; an error ends the bench."""
    samples: Samples = {"node-subnet at once": [], "host-local at once": []}

    def worker(plugin: str, binary: str, config: bytes, part: range) -> None:
        for number in part:
            spawn([binary], environment("ADD", f"{plugin}-{number}"), config)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for turn in range(ROUNDS):
            for plugin, binary in (("node-subnet", OURS), ("host-local", THEIRS)):
                config = configuration(plugin, "/run/host-local-at-once")
                numbers = range(ADDS * turn // ROUNDS, ADDS * (turn + 1) // ROUNDS)
                start = time.perf_counter_ns()
                parts = [numbers[first::AT_ONCE] for first in range(AT_ONCE)]
                for done in [pool.submit(worker, plugin, binary, config, part) for part in parts]:
                    done.result()
                samples[f"{plugin} at once"].append((time.perf_counter_ns() - start) / 1e6)
    return samples


def median(samples: Samples, name: str) -> float:
    return statistics.median(samples[name])


def table(samples: Samples) -> None:
    print(f"  {'reservations':>12}  {'host-local ADD':>15} {'DEL':>8}  {'node-subnet ADD':>16} {'DEL':>8}   (ms)")
    for size in SIZES["node-subnet"]:
        cells = []
        for plugin, width in (("host-local", 15), ("node-subnet", 16)):
            for command, columns in (("ADD", width), ("DEL", 8)):
                name = f"{plugin} {command} {size}"
                cells.append(f"{median(samples, name):{columns}.1f}" if name in samples else f"{'-':>{columns}}")
        print(f"  {size:12}  {cells[0]} {cells[1]}  {cells[2]} {cells[3]}")


def required(samples: Samples) -> bool:
    """Print each requirement with what was found; whether all are met."""
    checks: list[tuple[str, float, float]] = []
    largest = SIZES["node-subnet"][-1]
    for command in ("ADD", "DEL"):
        base = median(samples, f"node-subnet {command} 0")
        checks.append(
            (
                f"{command} at {largest:,} to itself at 0",
                median(samples, f"node-subnet {command} {largest}") / base,
                1.2,
            )
        )
        for size in SIZES["host-local"]:
            ours, theirs = (median(samples, f"{plugin} {command} {size}") for plugin in ("node-subnet", "host-local"))
            if size >= 2000:
                checks.append((f"{command} at {size:,} to host-local's", ours / theirs, 1.0))
        at_hundred = median(samples, f"node-subnet {command} 100")
        checks.append((f"{command} at 100 to the bare interpreter", at_hundred / median(samples, "bare"), 3.0))
    checks.append(("ADD inside rdma, in ms", median(samples, "inside rdma"), 5.0))
    within = True
    for name, found, limit in checks:
        within = within and found <= limit
        print(f"  {name:34} {found:6.2f}  at most {limit:.1f}  {'pass' if found <= limit else 'FAIL'}")
    return within


def plot(samples: Samples, path: Path) -> None:
    os.environ["MPLBACKEND"] = "Agg"
    plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(figsize=(8, 5))
    for plugin, colour in (("host-local", "tab:orange"), ("node-subnet", "tab:blue")):
        for command, style in (("ADD", "-"), ("DEL", "--")):
            medians = [median(samples, f"{plugin} {command} {size}") for size in SIZES[plugin]]
            axes.plot(
                SIZES[plugin], medians, style, color=colour, marker="o", markersize=4, label=f"{plugin} {command}"
            )
    axes.set_xscale("symlog", linthresh=100)
    axes.set_yscale("log")
    axes.set_xticks(SIZES["node-subnet"], [f"{size:,}" for size in SIZES["node-subnet"]])
    axes.set_xlabel("reservations on the node")
    axes.set_ylabel("one process, ms (median)")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def save(samples: Samples, path: Path) -> None:
    """Beside what other benches have put there."""
    path.parent.mkdir(exist_ok=True)
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"unit": "ms", "samples": {}}
    content["samples"]["ipam"] = samples
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    for program in (OURS, THEIRS):
        if not Path(program).exists():
            raise SystemExit(f"{program} is missing: run `make bench`, which installs what it needs")
    if "--apart" not in sys.argv:
        # In a mount namespace with a /run of its own, so that the machine's reservations are left alone.
        script = 'mount -t tmpfs -o size=1g,nr_inodes=200k tmpfs /run && exec "$@"'
        here = [sys.executable, __file__, "--apart"]
        return subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *here], check=False).returncode
    print(f"addresses, on this machine: medians of {RUNS} runs each", flush=True)
    samples = curve()
    table(samples)
    samples |= in_process()
    met = required(samples)
    sys.stdout.flush()
    samples |= at_once()
    ours, theirs = (ADDS / sum(samples[f"{plugin} at once"]) * 1000 for plugin in ("node-subnet", "host-local"))
    print(
        f"  {ADDS:,} ADDs by {AT_ONCE} processes at once: {ours:.0f} in a second, host-local {theirs:.0f} "
        f"(ratio {ours / theirs:.2f}); no error"
    )
    build = ROOT / "build"
    save(samples, build / "bench.json")
    print("  raw samples: build/bench.json")
    plot(samples, build / "ipam.png")
    print("  the curve: build/ipam.png")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
