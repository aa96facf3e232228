"""`make bench`: what a start, an ADD and a DEL cost, as ratios of medians, both sides interleaved.

Bare is the distribution's interpreter that does nothing. Raw samples go to build/bench.json.
"""

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
FIGURES: dict[str, list[tuple[str, str, float | None]]] = {
    "machine": [("VERSION", "bare", 2.5)],
    "lab": [
        ("chained ADD", "bare", 4.0),
        ("chained DEL", "bare", 4.0),
        ("alone ADD", "host-device ADD", None),
        ("alone DEL", "host-device DEL", None),
    ],
}


def on_this_machine() -> Samples:
    environment = {"PATH": os.environ["PATH"], "CNI_COMMAND": "VERSION"}
    samples: Samples = {"bare": [], "VERSION": []}
    for _ in range(RUNS):
        samples["bare"].append(spawn(BARE, environment))
        samples["VERSION"].append(spawn([str(BUNDLE / "rdma")], environment))
    return samples


def in_the_lab() -> Samples:
    with tempfile.TemporaryDirectory() as out:
        lab = ROOT / "tests" / "lab" / "lab"
        here = Path(__file__).parent
        environment = os.environ | {"LAB_OUT": out, "LAB_SIM": "", "LAB_TIMEOUT": "600"}
        subprocess.run([lab, "run", here / "in-lab", BUNDLE, here], env=environment, check=True)
        samples: Samples = json.loads((Path(out) / "samples.json").read_text())
        return samples


def report(where: str, samples: Samples) -> bool:
    """Print the figures of one place; whether all of them are within their limits."""
    within = True
    for name, base, limit in FIGURES[where]:
        median, reference = statistics.median(samples[name]), statistics.median(samples[base])
        ratio = median / reference
        line = f"  {name:12} {median:6.1f} ms   {base:16} {reference:6.1f} ms   ratio {ratio:.2f}"
        if limit is not None:
            line += f"  (at most {limit})" if ratio <= limit else f"  MORE THAN {limit}"
            within = within and ratio <= limit
        print(line)
    return within


def main() -> int:
    print(f"medians of {RUNS} runs each; bare is {' '.join(BARE)}", flush=True)
    samples = {"machine": on_this_machine()}
    print("on this machine")
    within = report("machine", samples["machine"])
    print("in the lab (its CPU is emulated: take the ratios, not the times)", flush=True)
    samples["lab"] = in_the_lab()
    within = report("lab", samples["lab"]) and within
    path = ROOT / "build" / "bench.json"
    path.write_text(json.dumps({"unit": "ms", "samples": samples}, indent=1) + "\n")
    print(f"raw samples: {path.relative_to(ROOT)}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
