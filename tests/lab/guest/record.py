"""Notes which faults the tests tried and what came of them, for the table in docs/reliability.md.

A pytest plugin, on the machine and in the guest. A test is a row of the table by its marker,

    @pytest.mark.fault("ADD", "the kernel's answer is cut short")

and counts as one fault tried, or as many as it says by the fixture `tried`. Several tests may be one
row. Lines of JSON go to the file that $FAULTS names (build/faults.jsonl; /out/faults.jsonl in the guest):

    {"test": node ID, "area": "ADD", "fault": "the kernel's ...", "tried": 12, "held": true, "note": ""}

`make reliability` makes the table of them; of a test that ran more than once, the last line counts.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

_count = pytest.StashKey["Tried"]()


class Tried:
    """How many faults a test has tried by now; `note` is for the table, where a number does not say all."""

    def __init__(self) -> None:
        self.count = 0
        self.note = ""

    def __call__(self, more: int = 1) -> None:
        self.count += more


@pytest.fixture
def tried(request: pytest.FixtureRequest) -> Tried:
    """`tried()` after each fault, or `tried(n)`, for a test that tries more than one."""
    count: Tried = request.node.stash.setdefault(_count, Tried())
    return count


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(area, fault): what the test tries, a row of docs/reliability.md")


# Debian 12's pytest does not know wrappers of the newer kind.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    marker = item.get_closest_marker("fault")
    if marker is None or report.skipped:
        return
    # A test that passed fails in its teardown when the host is not as it was.
    if report.when == "call" or report.failed:
        _write(item, *marker.args, held=report.passed)


def _write(item: pytest.Item, area: str, fault: str, *, held: bool) -> None:
    path = os.environ.get("FAULTS")
    if not path:
        return
    count = item.stash.get(_count, None)
    line = {
        "test": item.nodeid,
        "area": area,
        "fault": fault,
        "tried": 1 if count is None else count.count,
        "held": held,
        "note": count.note if count else "",
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
