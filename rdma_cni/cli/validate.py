"""`rdma-cni validate`."""

import sys
from collections.abc import Iterator

import click

from rdma_cni.cli import configurations
from rdma_cni.cli.command import FINDINGS, Command, json_option, print_json
from rdma_cni.cli.documents import MAX_FILE


def _read(files: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for name in files:
        if name == "-":
            yield "-", sys.stdin.buffer.read(MAX_FILE + 1)
            continue
        with open(name, "rb") as file:
            yield name, file.read(MAX_FILE + 1)


def _shown(files: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The same, with progress on the terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from rdma_cni.cli.output import console

    columns = (TextColumn("Validating"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=len(files))
        for each in _read(files):
            yield each
            shown.advance(task)


@click.command(
    "validate",
    cls=Command,
    help="""Check configurations before a node does.

A FILE is a CNI configuration, a conflist, node.json, or objects of Kubernetes in YAML or JSON: of those,
NetworkAttachmentDefinitions, SriovNetworks and what has pods are looked at. What belongs together is best given
together: some mistakes only show between files. - is stdin. It needs no root, and nothing of a node.

An error is what the plugins refuse; they use the same checks. A warning is what they accept and what would still
go wrong: in Multus, in the runtime, or because two files do not agree.
""",
    statuses=[(0, "Nothing was found."), (FINDINGS, "There are errors or warnings, or a file cannot be read.")],
    examples=[
        ("rdma-cni validate /etc/cni/net.d/*.conflist /run/rdma-cni/node.json", "What this node has."),
        ("rdma-cni validate rails.yaml pods.yaml", "Definitions, and the pods that use them."),
        ("kubectl get net-attach-def -A -o json | rdma-cni validate -", "What a cluster has."),
        ("rdma-cni validate --errors rails.yaml", "Only what the plugins would refuse."),
    ],
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("--errors", is_flag=True, help="No warnings.")
@json_option
def command(files: tuple[str, ...], errors: bool, as_json: bool) -> int:
    findings = configurations.validate_files(_shown(files) if sys.stderr.isatty() else _read(files))
    if errors:
        findings = [finding for finding in findings if finding.severity == configurations.ERROR]
    if as_json:
        print_json({"format": 1, "findings": findings})
    else:
        from rdma_cni.cli import output

        console = output.console()
        for finding in findings:
            style = output.BAD if finding.severity == configurations.ERROR else output.WARN
            console.print(output.text(finding, style), soft_wrap=True)
        count = ", ".join(f"{number} {severity}{'s' * (number != 1)}" for severity, number in summary(findings))
        click.echo(f"{len(files)} files: {count}" if len(files) > 1 else count, err=True)
    return FINDINGS if findings else 0


summary = configurations.summary
