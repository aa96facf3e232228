"""The entry of `rdma-cni`, the operator's command. Exit status: 0, 1 for a finding or a failure, 2 for usage.

A subcommand is the module of its name in this package, imported when it is called, and its attribute `command`.
"""

import importlib
import os
import signal
import sys
from typing import Any

import click

from rdma_cni.cli.command import FINDINGS, USAGE, complain, nearest, sections
from rdma_cni.cni import __version__
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.request import VERSIONS

COMMANDS = {
    "devices": "Show the node's RDMA functions, also those inside pods.",
    "doctor": "Look for what would make a pod's RDMA fail; repair it.",
    "verify": "Check what a pod needs for RDMA, from the outside.",
    "validate": "Check CNI configurations, definitions, pods and node.json.",
    "attachments": "Show what pods were given, compared with what the kernel has.",
    "ipam": "Show pools, room and reservations; free an address.",
    "metrics": "Prometheus metrics: printed, written to a file, or served.",
    "gc": "Take back what pods have left behind that are gone.",
    "generate": "Write configurations from the node's devices.",
    "labels": "Print the node's RDMA as labels for the scheduler.",
    "install": "Put the bundle into a directory of CNI plugins.",
    "uninstall": "Remove it, and bring back what was there before.",
    "completion": "Print a shell's completion script.",
}
"""In the order of their listing, with a line for each, so that the listing imports none of them."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rdma_cni.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}{nearest(args[0], COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections(formatter, _EXAMPLES, [(FINDINGS, "It failed, or it found what is not as it should be.")])


_EXAMPLES = [
    ("rdma-cni devices", "What the node has, and who has it."),
    ("rdma-cni COMMAND --help", "What a command does, with examples."),
]


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="See the RDMA functions of this node, understand them, configure them for pods.",
)
@click.version_option(__version__, prog_name="rdma-cni", message=f"%(prog)s %(version)s, CNI {', '.join(VERSIONS)}")
def commands() -> None:
    pass


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    # The bundle starts with the default action, for the plugins. Who ignores it goes on to.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "--wait" in arguments:
        # Blocked from the start, so that none is lost before it is waited for.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. What is left in the buffer must not be written at the end, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FINDINGS
    except OSError as error:
        complain(f"{error.filename or 'stdout'}: {error.strerror or error}")
        return FINDINGS
    return status


def _run(arguments: list[str]) -> int:
    try:
        answer: Any = commands(arguments, prog_name="rdma-cni", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return FINDINGS
    except CniError as error:
        complain(error)
        return FINDINGS
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FINDINGS
    except OSError:
        raise
    except Exception as error:
        complain(_defect(error))
        return FINDINGS
    return answer if isinstance(answer, int) else 0


def _defect(error: Exception) -> str:
    """A defect of ours, in one line: what was raised, and the lines that led there."""
    places = []
    trace = error.__traceback__
    while trace:
        places.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    where = " > ".join(places)
    return f"internal error: {type(error).__name__}: {error}; this is a defect: please report it (at {where})"
