"""`rdma-cni uninstall`."""

from pathlib import Path

import click

from rdma_cni.cli import installation
from rdma_cni.cli.command import Command
from rdma_cni.cli.install import directory_option
from rdma_cni.state import State


@click.command(
    "uninstall",
    cls=Command,
    help="Remove what install put there, and bring back what was there before.",
    examples=[("rdma-cni uninstall", "From /opt/cni/bin.")],
)
@directory_option
@click.option("--force", is_flag=True, help="Although pods have devices that only this plugin can take back.")
def command(directory: Path, force: bool) -> None:
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
