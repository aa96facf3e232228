"""Tables and coloured lines for people, by rich, which nothing else imports.

What comes from the kernel may have been named by a pod's root: no byte of it reaches the terminal as
anything but a printable character, and none is read as markup.
"""

import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rdma_cni.cli import command

# Wide enough for what is read by a program, or by a person who pipes it to `less -S`.
_UNLIMITED = 10_000

GOOD, BAD, WARN, DIM, HEAD = "green", "bold red", "yellow", "bright_black", "bold cyan"

printable = command.printable


def console(*, stderr: bool = False) -> Console:
    """A console of the width of the terminal; without one it has no colour and no end."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal() else _UNLIMITED
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def text(value: object, style: str = "") -> Text:
    """A value as rich's text, whatever is in it. Lines stay lines."""
    return Text("\n".join(printable(line) for line in str(value).split("\n")), style=style)


Cell = str | int | Text | None


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = "") -> Table:
    """A table; a column that is empty in every row is left out. None is an empty cell."""
    shown = _filled(columns, rows)
    drawn = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, header_style=HEAD)
    for number in shown:
        drawn.add_column(columns[number], overflow="fold")
    for row in rows:
        drawn.add_row(*(_cell(row[number]) for number in shown))
    return drawn


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table, or, where the terminal is too narrow for it, the rows one below the other."""
    where = console()
    drawn = table(columns, rows)
    if where.measure(drawn, options=where.options.update(max_width=_UNLIMITED)).maximum <= where.width:
        where.print(drawn)
        return
    shown = _filled(columns, rows)
    for row in rows:
        where.print(_cell(row[shown[0]]))
        for number in shown[1:]:
            name, cell = columns[number], _cell(row[number])
            if not cell.plain:
                continue
            line = Text().append(f"    {name.lower():<10}", HEAD)
            where.print(line.append_text(Text("  ").join(cell.split("\n"))))


def _filled(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Sequence[int]:
    filled = [n for n in range(len(columns)) if any(str(row[n] if row[n] is not None else "") for row in rows)]
    return filled or range(len(columns))


def _cell(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else text("" if cell is None else cell)
