"""`rdma-cni install`."""

import signal
import sys
from pathlib import Path

import click

from rdma_cni.cli import installation
from rdma_cni.cli.command import FINDINGS, Command

directory_option = click.option(
    "--bin-dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default="/opt/cni/bin",
    show_default=True,
    help="Where the runtime looks for CNI plugins.",
)


@click.command(
    "install",
    cls=Command,
    help="""Put the bundle into a directory of CNI plugins.

What bears one of its names there, the Go rdma for one, is kept aside and comes back with uninstall. An upgrade
replaces one name after the other, each at once: a plugin that is started meanwhile is the old one or the new one.
""",
    statuses=[(FINDINGS, "It failed; with --check: something is not as it would be.")],
    examples=[
        ("rdma-cni install", "Into /opt/cni/bin."),
        ("rdma-cni install --bin-dir /host/opt/cni/bin --wait", "In a container of a DaemonSet."),
        ("rdma-cni install --check", "Whether it is there, and of this version."),
    ],
)
@directory_option
@click.option("--check", is_flag=True, help="Only say what is not as it would be.")
@click.option("--wait", is_flag=True, help="Then wait to be told to end, as a container of a DaemonSet does.")
def command(directory: Path, check: bool, wait: bool) -> None:
    source = installation.bundle()
    if check:
        found = installation.problems(directory, source)
        for problem in found:
            click.echo(problem)
        if found:
            sys.exit(FINDINGS)
        click.echo(f"{directory}: version {installation.installed(directory)}, as it should be")
        return
    version = installation.install(directory, source)
    click.echo(f"{directory}: installed version {version}: {', '.join(installation.NAMES)}")
    if wait:
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
