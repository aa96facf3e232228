"""`rdma-cni completion`."""

import click
from click.shell_completion import get_completion_class

from rdma_cni.cli.command import Command, Failure

_HOW = {
    "bash": "rdma-cni completion bash > /etc/bash_completion.d/rdma-cni",
    "zsh": "rdma-cni completion zsh > /usr/local/share/zsh/site-functions/_rdma-cni",
    "fish": "rdma-cni completion fish > /etc/fish/completions/rdma-cni.fish",
}


@click.command(
    "completion",
    cls=Command,
    help="Print a script that teaches a shell to complete this command's subcommands and options.",
    examples=[(line, f"For all users of {shell}.") for shell, line in _HOW.items()],
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    completion = get_completion_class(shell)
    root = ctx.find_root()
    if completion is None:
        raise Failure(f"{shell}: found no completion for it, expected one of {', '.join(_HOW)}")
    click.echo(completion(root.command, {}, "rdma-cni", "_RDMA_CNI_COMPLETE").source())
