"""Prints, and writes into docs/reliability.md, the table of the faults that the last run of the tests tried."""

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = ROOT / "build" / "faults.jsonl"
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: made by `make reliability` -->\n", "<!-- end of table -->\n"


class Row:
    """A row: `tests` and `tried` are how many of each, `failed` the tests that did, `notes` what they add."""

    def __init__(self) -> None:
        self.tests = self.tried = 0
        self.failed: list[str] = []
        self.notes: list[str] = []


def rows(lines: list[str]) -> dict[tuple[str, str], Row]:
    """What the tests wrote (tests/lab/guest/record.py), by area and fault, in the order of the names."""
    last = {}
    for line in lines:
        entry = json.loads(line)
        last[entry["test"]] = entry
    found: dict[tuple[str, str], Row] = {}
    for entry in last.values():
        row = found.setdefault((entry["area"], entry["fault"]), Row())
        row.tests += 1
        row.tried += entry["tried"]
        if not entry["held"]:
            row.failed.append(entry["test"])
        if entry["note"]:
            row.notes.append(entry["note"])
    return dict(sorted(found.items()))


def table(found: dict[tuple[str, str], Row], when: str) -> str:
    lines = ["| area | fault | tried | result |", "| --- | --- | ---: | --- |"]
    for (area, fault), row in found.items():
        result = f"**{len(row.failed)} of {row.tests} tests failed**" if row.failed else "held"
        notes = f" ({'; '.join(row.notes)})" if row.notes else ""
        lines.append(f"| {area} | {fault} | {row.tried} | {result}{notes} |")
    total = sum(row.tried for row in found.values())
    failed = sum(len(row.failed) for row in found.values())
    lines += ["", f"{total} faults in {len(found)} rows, {failed} tests failed; run of {when}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    if not LINES.exists():
        print(f"{LINES}: not there: `make test` makes it", file=sys.stderr)
        return 1
    found = rows(LINES.read_text(encoding="utf-8").splitlines())
    text = table(found, time.strftime("%Y-%m-%d", time.gmtime(os.stat(LINES).st_mtime)))
    print(text, end="")
    document = DOCUMENT.read_text(encoding="utf-8")
    head, rest = document.split(BEGIN)
    _, tail = rest.split(END)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
