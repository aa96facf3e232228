"""`make bench`: what a start, an ADD and a DEL cost, as ratios of medians, both sides interleaved.

Bare is the distribution's interpreter that does nothing. Raw samples go to build/bench.json.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from samples import BARE, RUNS, Samples, spawn

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "dist" / "rdma-cni"

# What is measured, against what, and at most how often that.
FIGURES: dict[str, list[tuple[str, str, float]]] = {
    "machine": [("VERSION", "bare", 2.2)],
    "lab": [
        ("chained ADD", "bare", 3.0),
        ("chained DEL", "bare", 3.0),
        ("alone ADD", "host-device ADD", 1.5),
        ("alone ADD, dual stack", "host-device ADD, dual stack", 1.0),
        ("alone DEL", "host-device DEL", 1.5),
        ("rails ADD", "host-device rails ADD", 1.5),
        ("memory", "host-device memory", 2.0),
    ],
}
UNITS = {"memory": "MB"}


def on_this_machine() -> Samples:
    environment = {"PATH": os.environ["PATH"], "CNI_COMMAND": "VERSION"}
    samples: Samples = {"bare": [], "VERSION": []}
    for _ in range(RUNS):
        samples["bare"].append(spawn(BARE, environment))
        samples["VERSION"].append(spawn([str(BUNDLE / "rdma")], environment))
    return samples


def on_disk() -> bool:
    """Print what the bundle takes of the disk; whether it is within its limit."""
    files = [path for path in BUNDLE.rglob("*") if path.is_file() and not path.is_symlink()]
    bundle = sum(path.stat().st_size for path in files) / 1e6
    debian = sum(Path(f"/usr/lib/cni/{name}").stat().st_size for name in ("host-device", "host-local")) / 1e6
    # 2.5 times what host-device, host-local and rdma take as their projects release them, which is 20 MB.
    print(
        f"  bundle on disk {bundle:.1f} MB {'(at most 50)' if bundle <= 50 else 'MORE THAN 50'}; "
        f"Debian's stripped host-device and host-local, without a Go rdma: {debian:.1f} MB"
    )
    return bundle <= 50


def in_the_lab() -> Samples:
    with tempfile.TemporaryDirectory() as out:
        lab = ROOT / "tests" / "lab" / "lab"
        here = Path(__file__).parent
        peak = Path(out) / "peak"
        subprocess.run(["gcc", "-static", "-Os", "-Wall", "-Werror", "-o", peak, here / "peak.c"], check=True)
        environment = os.environ | {"LAB_OUT": out, "LAB_SIM": "sf=1", "LAB_TIMEOUT": "1800"}
        subprocess.run([lab, "run", here / "in-lab", BUNDLE, here, peak], env=environment, check=True)
        samples: Samples = json.loads((Path(out) / "samples.json").read_text())
        return samples


def report(where: str, samples: Samples) -> bool:
    """Print the figures of one place; whether all of them are within their limits."""
    within = True
    for name, base, limit in FIGURES[where]:
        median, reference = statistics.median(samples[name]), statistics.median(samples[base])
        ratio = median / reference
        unit = UNITS.get(name, "ms")
        verdict = f"(at most {limit})" if ratio <= limit else f"MORE THAN {limit}"
        print(f"  {name:22} {median:7.1f} {unit}   {base:28} {reference:7.1f} {unit}   ratio {ratio:.2f}  {verdict}")
        within = within and ratio <= limit
    return within


def plot(samples: dict[str, Samples], path: Path) -> None:
    """Each figure as a bar, its reference as 1, its limit as a tick, and the spread of its samples (quartiles)."""
    os.environ["MPLBACKEND"] = "Agg"
    plt = importlib.import_module("matplotlib.pyplot")
    rows = [(where, *figure) for where, figures in FIGURES.items() for figure in figures]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.5))
    for row, (where, name, base, limit) in enumerate(reversed(rows)):
        reference = statistics.median(samples[where][base])
        ratios = [sample / reference for sample in samples[where][name]]
        low, median, high = statistics.quantiles(ratios, n=4)
        axes.barh(row, median, color="tab:blue" if median <= limit else "tab:red", height=0.55)
        axes.errorbar(median, row, xerr=[[median - low], [high - median]], color="black", capsize=3)
        axes.plot([limit, limit], [row - 0.4, row + 0.4], color="tab:orange", linewidth=3)
    axes.set_yticks(range(len(rows)), [f"{name}\nto {base} ({where})" for where, name, base, _ in reversed(rows)])
    axes.axvline(1, color="grey", linestyle=":")
    axes.set_xlabel("ratio to the median of the reference; orange: at most; bars: medians with quartiles")
    axes.tick_params(axis="y", labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    print(f"medians of {RUNS} runs each; bare is {' '.join(BARE)}", flush=True)
    samples = {"machine": on_this_machine()}
    print("on this machine")
    within = report("machine", samples["machine"])
    within = on_disk() and within
    print("in the lab (its CPU is emulated: take the ratios, not the times)", flush=True)
    samples["lab"] = in_the_lab()
    within = report("lab", samples["lab"]) and within
    path = ROOT / "build" / "bench.json"
    path.write_text(json.dumps({"unit": "ms", "samples": samples}, indent=1) + "\n")
    print(f"raw samples: {path.relative_to(ROOT)}")
    plot(samples, path.with_suffix(".png"))
    print("drawn: build/bench.png")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
