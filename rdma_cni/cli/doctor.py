"""`rdma-cni doctor`."""

import json
import sys
from pathlib import Path

import click

from rdma_cni.cli import diagnosis, inventory
from rdma_cni.cli.command import FINDINGS, Command, complain, json_option, known, working
from rdma_cni.cli.diagnosis import CHECKS, Finding, Situation
from rdma_cni.host import Host


@click.command(
    "doctor",
    cls=Command,
    help="""Look for what would make a pod's RDMA fail: a line for each finding, and its remedy.

A healthy node has no finding, and nothing is printed. An error keeps pods from working; a warning makes some of them
slow, or is a matter of what is wanted: --skip leaves such a check out.

With --repair it does what it can do safely: VFs that came back from pods under the pods' names get back what they
were, and attachments of pods that are gone are forgotten.
""",
    statuses=[(0, "Nothing found."), (FINDINGS, "Something was found, and not all of it repaired.")],
    examples=[
        ("rdma-cni doctor", "All checks."),
        ("rdma-cni doctor --skip lossless --skip gpu-numa", "Without those that do not matter here."),
        ("rdma-cni doctor --repair", "Bring home what pods have left."),
        ("rdma-cni doctor --list", "What it looks at."),
    ],
)
@click.option("--only", multiple=True, metavar="CHECK", help="This check; may be given several times.")
@click.option("--skip", multiple=True, metavar="CHECK", help="Not this check; may be given several times.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired safely.")
@click.option("--list", "listing", is_flag=True, help="List the checks, and do none.")
@click.option(
    "--bin-dir",
    type=click.Path(path_type=Path),
    default="/opt/cni/bin",
    show_default=True,
    help="Where the runtime looks for CNI plugins.",
)
@click.option(
    "--net-dir",
    type=click.Path(path_type=Path),
    default="/etc/cni/net.d",
    show_default=True,
    help="Where the runtime looks for CNI configurations.",
)
@json_option
def command(
    only: tuple[str, ...],
    skip: tuple[str, ...],
    repair: bool,
    listing: bool,
    bin_dir: Path,
    net_dir: Path,
    as_json: bool,
) -> None:
    for name, option in [*((name, "--only") for name in only), *((name, "--skip") for name in skip)]:
        known(name, CHECKS, option, "a check")
    names = [name for name in CHECKS if name not in skip and (not only or name in only)]
    if listing:
        for name in names:
            click.echo(f"{name:<22}{CHECKS[name][0]}")
        return
    repaired: list[Finding] = []
    with working("looking at the node"):
        node, findings = _examine(names, bin_dir, net_dir)
        if repair:
            repaired = _repair(findings)
            if repaired:
                node, findings = _examine(names, bin_dir, net_dir)
    if as_json:
        click.echo(json.dumps(as_dictionary(node, names, findings, repaired), indent=2))
    else:
        complain(*node.problems)
        _show(findings, repaired)
        if not findings and sys.stdout.isatty():
            click.echo(f"{len(names)} checks, nothing found.")
    if findings:
        sys.exit(FINDINGS)


def _examine(names: list[str], bin_dir: Path, net_dir: Path) -> tuple[inventory.Node, list[Finding]]:
    node = inventory.read()
    # Left open: a finding's repair uses its sockets.
    situation = Situation(node, Host(), bin_dir, net_dir)
    return node, list(diagnosis.examine(situation, names))


def _repair(findings: list[Finding]) -> list[Finding]:
    """Those that could be repaired; what was refused is told on stderr."""
    done = []
    for finding in findings:
        if finding.repair is None:
            continue
        try:
            finding.repair()
        except diagnosis.REFUSED as error:
            complain(f"{finding.subject}: not repaired: {error}")
        else:
            done.append(finding)
    return done


def as_dictionary(
    node: inventory.Node, names: list[str], findings: list[Finding], repaired: list[Finding]
) -> dict[str, object]:
    """What --json prints: see docs/cli.schema.json."""
    return {
        "format": 1,
        "node": node.name,
        "checks": names,
        "findings": [_plain(finding) for finding in findings],
        "repaired": [_plain(finding) for finding in repaired],
        "problems": list(node.problems),
    }


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "severity": finding.severity,
        "subject": finding.subject,
        "found": finding.found,
        "remedy": finding.remedy,
        "repairable": finding.repair is not None,
    }


def _show(findings: list[Finding], repaired: list[Finding]) -> None:
    """On a terminal a finding has its remedy in a line of its own; for a program, each is one line."""
    from rich.text import Text

    from rdma_cni.cli.output import BAD, DIM, GOOD, WARN, console, printable

    where = console()
    for finding in repaired:
        where.print(
            Text().append("repaired", GOOD).append(f" {finding.check}: ", DIM).append(printable(finding.subject))
        )
    for finding in findings:
        line = Text().append(finding.severity, BAD if finding.severity == diagnosis.ERROR else WARN)
        line.append(f" {finding.check}: ", DIM).append(printable(f"{finding.subject}: {finding.found}"))
        if where.is_terminal:
            where.print(line)
            where.print(Text().append("    remedy: ", DIM).append(printable(finding.remedy), GOOD))
        else:
            where.print(line.append(printable(f"; remedy: {finding.remedy}")))
