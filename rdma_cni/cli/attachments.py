"""`rdma-cni attachments`."""

import click

from rdma_cni.cli import holdings
from rdma_cni.cli.command import FINDINGS, Command, json_option, nearest, print_json

_COLUMNS = ("POD", "NETWORK", "INTERFACE", "FUNCTION", "RDMA", "NETDEV", "ADDRESSES", "CONTAINER", "STATE")


@click.command(
    "attachments",
    cls=Command,
    help="""Show what pods were given, as the plugin wrote it down, compared with what the kernel has.

RDMA and NETDEV are the names on the host, and after an arrow the name in the pod where that differs. STATE is
"in place"; "differs", with what does; or "pod gone": its namespace is no more and no DEL came.

It changes nothing. What is left of pods that are gone is brought home by `rdma-cni gc`.
""",
    statuses=[(0, "All of it is in place."), (FINDINGS, "Something is not, or cannot be read.")],
    examples=[
        ("rdma-cni attachments", "All of them."),
        ("rdma-cni attachments --pod train/worker-3", "Those of one pod."),
        ("rdma-cni attachments --json", "For a program."),
    ],
)
@click.option("--pod", help="Only those of this pod: NAMESPACE/NAME, or NAME.")
@click.option("--network", help="Only those of this network.")
@json_option
def command(pod: str | None, network: str | None, as_json: bool) -> int:
    held = holdings.read()
    found = [
        each
        for each in held.attachments
        if (pod is None or pod in (each.pod, each.pod.rpartition("/")[2])) and network in (None, each.network)
    ]
    if not found and held.attachments:
        for option, asked, known in (
            ("--network", network, [each.network for each in held.attachments]),
            ("--pod", pod, [each.pod for each in held.attachments]),
        ):
            if asked is not None and asked not in known:
                raise click.BadParameter(f"found no attachment of {asked!r}{nearest(asked, known)}", param_hint=option)
    if as_json:
        print_json({"format": 1, "attachments": found, "damaged": held.damaged, "problems": held.problems})
    else:
        _print(found, held)
    return FINDINGS if held.damaged or any(each.state != holdings.IN_PLACE for each in found) else 0


def _print(found: list[holdings.Attachment], held: holdings.Holdings) -> None:
    from rdma_cni.cli import output

    shown = output.console()
    colours = {holdings.IN_PLACE: output.GOOD, holdings.DIFFERS: output.BAD, holdings.GONE: output.WARN}
    rows = [
        (
            each.pod,
            each.network,
            each.interface,
            each.function,
            "\n".join(_renamed(device.name, device.name_now) for device in each.rdma),
            _renamed(each.netdev, each.interface if each.netdev and each.state == holdings.IN_PLACE else ""),
            "\n".join(each.addresses),
            each.container[:12],
            output.text("\n".join([each.state, *each.problems]), colours[each.state]),
        )
        for each in found
    ]
    if rows:
        shown.print(output.table(_COLUMNS, rows))
    else:
        click.echo("No attachments.")
    for path in held.damaged:
        shown.print(output.text(f"{path}: was damaged and is kept aside; see docs/ipam.md", output.WARN))
    for problem in held.problems:
        click.echo(f"rdma-cni: {output.printable(problem)}", err=True)


def _renamed(before: str, now: str) -> str:
    return f"{before or '?'} -> {now}" if now and now != before else before
