"""The entry of `rdma-cni`, the operator's command. Exit status: 0, 1 for a finding or a failure, 2 for usage."""

import signal
import sys
from pathlib import Path

import click

from rdma_cni.cli import install as installation
from rdma_cni.cni import __version__
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.request import VERSIONS
from rdma_cni.state import State

_DIRECTORY = click.option(
    "--bin-dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default="/opt/cni/bin",
    show_default=True,
    help="Where the runtime looks for CNI plugins.",
)


# Texts are arguments, not docstrings: the bundle has none of those.
_INSTALL = """Put the bundle into a directory of CNI plugins.

What bears one of its names there, the Go rdma for one, is kept aside and comes back with uninstall. An upgrade
replaces one name after the other, each at once: a plugin that is started meanwhile is the old one or the new one.

\b
rdma-cni install
rdma-cni install --bin-dir /host/opt/cni/bin --wait
rdma-cni install --check
"""
_UNINSTALL = """Remove what install put there, and bring back what was there before.

\b
rdma-cni uninstall
"""


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Install the CNI plugins rdma and node-subnet on this node.",
)
@click.version_option(__version__, prog_name="rdma-cni", message=f"%(prog)s %(version)s, CNI {', '.join(VERSIONS)}")
def commands() -> None:
    pass


@commands.command(help=_INSTALL)
@_DIRECTORY
@click.option("--check", is_flag=True, help="Only say what is not as it would be; exit status 1 if anything is.")
@click.option("--wait", is_flag=True, help="Then wait to be told to end, as a container of a DaemonSet does.")
def install(directory: Path, check: bool, wait: bool) -> None:
    source = installation.bundle()
    if check:
        found = installation.problems(directory, source)
        for problem in found:
            click.echo(problem)
        if found:
            sys.exit(1)
        click.echo(f"{directory}: version {installation.installed(directory)}, as it should be")
        return
    version = installation.install(directory, source)
    click.echo(f"{directory}: installed version {version}: {', '.join(installation.NAMES)}")
    if wait:
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


@commands.command(help=_UNINSTALL)
@_DIRECTORY
@click.option("--force", is_flag=True, help="Although pods have devices that only this plugin can take back.")
def uninstall(directory: Path, force: bool) -> None:
    if not force:
        attached = _attachments()
        if attached:
            raise installation.InstallError(
                f"found {len(attached)} attachments, the first with {attached[0]}; expected none: their DEL needs this "
                "plugin. Delete those pods first, or use --force"
            )
    back = installation.uninstall(directory)
    click.echo(f"{directory}: removed" + (f"; {', '.join(back)} is what it was before" if back else ""))


def _attachments() -> list[str]:
    state = State()
    try:
        return [str(attachment) for attachment in state.all()]
    finally:
        state.close()


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if "--wait" in arguments:
        # Blocked from the start, so that none is lost before it is waited for.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        commands(arguments, prog_name="rdma-cni", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 1
    except (installation.InstallError, CniError) as error:
        click.echo(f"rdma-cni: {error}", err=True)
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
