"""What all tests on the machine have: the recording of the faults that they try, and `atcall`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "reliability"), str(ROOT / "tests" / "lab" / "guest")]

import record  # noqa: E402 - it lies there

os.environ.setdefault("FAULTS", str(ROOT / "build" / "faults.jsonl"))
os.environ["ATCALL"] = str(ROOT / "build" / "atcall")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(record)
    source, program = ROOT / "tests" / "reliability" / "atcall.c", Path(os.environ["ATCALL"])
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-O2", "-static", "-Wall", "-Wextra", "-o", program, source], check=True)
