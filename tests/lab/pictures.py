"""Puts what the commands print in the lab into docs/operating.md, and draws the pictures there.

tests/lab/pictures-job is what runs in the guest. A block of text in operating.md that has a comment `lab: NAME`
above it becomes what the job left under that name; pictures are of what it left in colour.
"""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "pictures"
# Without the fonts that rich would have the reader's browser fetch from elsewhere.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


# A piece of a line that begins with blanks, which not every viewer keeps.
_INDENTED = re.compile(
    r'<text class="(?P<style>[^"]*)" x="(?P<x>[^"]*)" y="(?P<y>[^"]*)" textLength="(?P<width>[^"]*)" (?P<clip>[^>]*)>'
    r"(?P<blanks>(?:&#160;)+)(?P<rest>[^<]*)</text>"
)


def _moved(match: re.Match[str]) -> str:
    """The same piece without its blanks, further to the right."""
    rest = match["rest"].rstrip()
    blanks = match["blanks"].count("&#160;")
    if not rest:
        return ""
    letter = float(match["width"]) / (blanks + len(html.unescape(rest)))
    x, width = float(match["x"]) + blanks * letter, letter * len(html.unescape(rest))
    place = f'x="{x:g}" y="{match["y"]}" textLength="{width:g}" {match["clip"]}'
    return f'<text class="{match["style"]}" {place}>{rest}</text>'


def draw(source: Path, title: str, target: Path) -> None:
    """A terminal's output, with its colours, as an SVG."""
    lines = [line.rstrip() for line in source.read_text().splitlines()]
    shown = Text.from_ansi("\n".join(lines).strip("\n"))
    width = max(len(line) for line in shown.plain.splitlines())
    console = Console(record=True, width=width + 1, file=Path(os.devnull).open("w"))  # noqa: SIM115
    console.print(shown, soft_wrap=True)
    svg = _INDENTED.sub(_moved, _FONTS.sub("", console.export_svg(title=title, unique_id=target.stem)))
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def fill(page: Path, texts: Path) -> None:
    """Replace the blocks of a page by what was printed."""

    def block(match: re.Match[str]) -> str:
        lines = (texts / f"{match[1]}.txt").read_text().splitlines()
        printed = "\n".join(line.rstrip() for line in lines)
        return f"<!-- lab: {match[1]} -->\n```text\n{printed}\n```"

    page.write_text(re.sub(r"<!-- lab: (\S+) -->\n```text\n.*?```", block, page.read_text(), flags=re.DOTALL))


def main() -> None:
    """The guest is that of the boot `operator`."""
    sys.path.insert(0, str(ROOT))
    # A program that the tests' guests have, and this one not.
    os.environ.setdefault("ATCALL", os.devnull)
    from tests.lab.test_boots import BOOTS

    lab = ROOT / "tests" / "lab"
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    environment = os.environ | BOOTS["operator"] | {"LAB_OUT": str(OUT)}
    command = [str(path) for path in (lab / "lab", "run", lab / "pictures-job", ROOT / "dist" / "rdma-cni")]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True)
    fill(ROOT / "docs" / "operating.md", OUT / "pictures")
    for name in ("devices", "doctor"):
        draw(OUT / "pictures" / f"{name}.ansi", f"rdma-cni {name}", ROOT / "docs" / f"{name}.svg")


if __name__ == "__main__":
    main()
