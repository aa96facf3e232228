"""What all tests on the machine have: the recording of the faults that they try."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "reliability"), str(ROOT / "tests" / "lab" / "guest")]

import record  # noqa: E402 - it lies there

os.environ.setdefault("FAULTS", str(ROOT / "build" / "faults.jsonl"))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(record)
