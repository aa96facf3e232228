"""What every subcommand is made of: its help, its options, its failures.

Texts are arguments, not docstrings: the bundle has none of those.
"""

import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, is_dataclass
from typing import Any

import click

FINDINGS = 1
"""The exit status of a command that found what is not as it should be, or could not do what it was told."""
USAGE = 2


def printable(value: object) -> str:
    """What may be printed of a name: control characters, and bytes that are no UTF-8, are escaped."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(*texts: object) -> None:
    """Say on stderr what went wrong, or could not be seen: a line each, in which nothing is but text."""
    for each in texts:
        click.echo(f"rdma-cni: {printable(each)}", err=True)


class Failure(click.ClickException):
    """What was found, what was expected, what to do: one line on stderr, exit status 1."""

    def show(self, file: Any = None) -> None:
        complain(self.message)


class Command(click.Command):
    """A subcommand whose help has the sections of a manual page.

    `examples` are (command line, what it does); `statuses` (exit status, when), 0 and 2 aside when they say
    nothing special.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[tuple[str, str]] = (),
        statuses: Sequence[tuple[int, str]] = (),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.examples = examples
        self.statuses = statuses

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections(formatter, self.examples, self.statuses)


def sections(
    formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]], statuses: Sequence[tuple[int, str]] = ()
) -> None:
    """The sections after the options."""
    with formatter.section("Exit status"):
        said = {0: "Done, and nothing found.", FINDINGS: "It failed.", USAGE: "The command line is wrong."}
        said.update(statuses)
        formatter.write_dl([(str(status), text) for status, text in sorted(said.items())])
    if examples:
        with formatter.section("Examples"):
            for line, text in examples:
                formatter.write_text(f"$ {line}")
                with formatter.indentation():
                    formatter.write_text(text)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="JSON for programs; see docs/cli.schema.json.")(
        function
    )


def working(what: str) -> AbstractContextManager[object]:
    """Say on stderr what takes a while, until it is done; nothing when that is no terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rdma_cni.cli.output import DIM, console, text

    return console(stderr=True).status(text(what, DIM))


def print_json(value: object) -> None:
    """Print a dataclass, or a dictionary or list of them, as JSON, in ASCII: other bytes of a name are escaped."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(type(value).__name__)


def require_root() -> None:
    """Raises Failure: what is changed, or taken for gone, must have been seen whole."""
    if os.geteuid():
        raise Failure(f"found user {os.geteuid()}, expected root: pods and the plugin's state are seen by root alone")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the nearest, in parentheses, or what there is."""
    choice = sorted({each for each in known if each})
    close = difflib.get_close_matches(name, choice, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (there are {', '.join(choice[:12])}{', ...' if len(choice) > 12 else ''})" if choice else ""


def known(name: str, choice: Iterable[str], option: str, kind: str) -> str:
    """`name` when it is one of `choice`. Raises click.BadParameter, which names the nearest."""
    among = list(choice)
    if name in among:
        return name
    raise click.BadParameter(f"found {name!r}, expected {kind} of this node{nearest(name, among)}", param_hint=option)
