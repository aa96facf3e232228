"""`rdma-cni ipam`."""

import sys

import click

from ipam.store import Owner, Store
from rdma_cni.cli import holdings
from rdma_cni.cli.command import FINDINGS, Command, Failure, json_option, nearest, print_json, require_root, sections


class _Group(click.Group):
    """A subcommand that has subcommands of its own, with the same sections in its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        examples = [
            ("rdma-cni ipam", "Pools, this node's part of them, and who has which address."),
            ("rdma-cni ipam --network rail0", "Of one network."),
            ("rdma-cni ipam release 10.56.3.7", "Free an address that nobody will give back."),
        ]
        statuses = [(FINDINGS, "An address is left behind, a database is damaged, or it failed.")]
        sections(formatter, examples, statuses)


@click.group(
    "ipam",
    cls=_Group,
    invoke_without_command=True,
    help="""Show the addresses of node-subnet on this node: pools, this node's subnets, room, reservations.

A pool is known from the first ADD on; one whose rules have changed while addresses are reserved is there twice. FREE
is what can still be given. STATE of a reservation is that of its attachment (see `rdma-cni attachments`); "no
attachment" where another plugin made the interface; "left behind" where the runtime does not know of it, either.
""",
)
@click.option("--network", help="Only reservations of this network.")
@click.option("--pod", help="Only reservations of this pod: NAMESPACE/NAME, or NAME.")
@json_option
@click.pass_context
def command(ctx: click.Context, network: str | None, pod: str | None, as_json: bool) -> int:
    if ctx.invoked_subcommand:
        return 0
    held = holdings.read()
    found = [
        each
        for each in held.reservations
        if network in (None, each.network) and (pod is None or pod in (each.pod, each.pod.rpartition("/")[2]))
    ]
    if network is not None and held.reservations and not any(each.network == network for each in held.reservations):
        known = nearest(network, [each.network for each in held.reservations])
        raise click.BadParameter(f"found no reservation of {network!r}{known}", param_hint="--network")
    if as_json:
        shares = [{**vars(room), "free": room.free} for room in held.rooms]
        print_json(
            {"format": 1, "pools": shares, "reservations": found, "damaged": held.damaged, "problems": held.problems}
        )
    else:
        _print(held, found)
    return FINDINGS if held.damaged or any(each.state == holdings.LEFT for each in found) else 0


def _print(held: holdings.Holdings, found: list[holdings.Reservation]) -> None:
    from rdma_cni.cli import output

    shown = output.console()
    if held.rooms:
        rows = [
            (
                room.pool,
                room.mode,
                "\n".join(room.subnets),
                "\n".join(room.gateways),
                "\n".join(room.exclude),
                _number(room.usable),
                str(room.reserved),
                output.text(_number(room.free), "" if room.free else output.BAD),
                "" if room.current else "as it was before",
            )
            for room in held.rooms
        ]
        columns = ("POOL", "MODE", "THIS NODE", "GATEWAY", "EXCLUDED", "USABLE", "RESERVED", "FREE", "RULES")
        shown.print(output.table(columns, rows))
    if found:
        colours = {holdings.IN_PLACE: output.GOOD, holdings.DIFFERS: output.BAD, holdings.NONE: ""}
        table = [
            (
                each.address,
                each.pod,
                each.network,
                each.interface,
                each.container[:12],
                output.text(each.state, colours.get(each.state, output.WARN)),
            )
            for each in found
        ]
        shown.print(output.table(("ADDRESS", "POD", "NETWORK", "INTERFACE", "CONTAINER", "STATE"), table))
    else:
        click.echo("No reservations.")
    for path in held.damaged:
        shown.print(output.text(f"{path}: was damaged and is kept aside; see docs/ipam.md", output.WARN))
    for problem in held.problems:
        click.echo(f"rdma-cni: {output.printable(problem)}", err=True)


def _number(count: int) -> str:
    """A count of addresses; of an IPv6 subnet, the power of two that it comes near."""
    return str(count) if count < 1 << 32 else f"2^{count.bit_length() - (count & (count - 1) == 0)}"


@command.command(
    "release",
    cls=Command,
    help="""Free addresses that nobody will give back.

An ADDRESS stands for all that its interface has: they are freed together, as a DEL would. It is asked before, unless
--yes. An interface whose pod lives keeps its addresses, unless --force: another pod might get them, too.
""",
    statuses=[(FINDINGS, "Nothing was freed: refused, not confirmed, or nobody has the address.")],
    examples=[
        ("rdma-cni ipam release 10.56.3.7", "That address, and the others of its interface."),
        ("rdma-cni ipam release --container 4f1c... --yes", "All of a container's, without asking."),
    ],
)
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1)
@click.option("--container", default="", help="All that this container has; the ID's beginning is enough.")
@click.option("--yes", is_flag=True, help="Without asking.")
@click.option("--force", is_flag=True, help="Also what a living pod has.")
def release(addresses: tuple[str, ...], container: str, yes: bool, force: bool) -> int:
    if not addresses and not container:
        raise click.UsageError("found neither ADDRESS nor --container, expected one of them")
    require_root()
    held = holdings.read()
    chosen = _chosen(holdings.owners(held), addresses, container)
    for owner, reservations in chosen.items():
        what = ", ".join(each.address for each in reservations)
        if reservations[0].state in (holdings.IN_PLACE, holdings.DIFFERS) and not force:
            raise Failure(
                f"{what}: found it in use by {owner}, whose pod lives; expected one that nobody has. Delete the pod; "
                "or use --force, and the address may be given to a second pod"
            )
        click.echo(f"{what}: {owner} ({reservations[0].state})")
    if not yes:
        if not sys.stdin.isatty():
            raise Failure("found no terminal to ask on, expected --yes: nothing was freed")
        click.confirm(f"Free {'it' if len(chosen) == 1 else 'them'}?", abort=True)
    store = Store()
    try:
        with store:
            for owner in chosen:
                store.release(owner)
    finally:
        store.close()
    click.echo("Freed.")
    return 0


def _chosen(
    owners: dict[Owner, list[holdings.Reservation]], addresses: tuple[str, ...], container: str
) -> dict[Owner, list[holdings.Reservation]]:
    """Whose reservations are meant. Raises Failure where it is nobody's."""
    chosen = {}
    for address in addresses:
        holders = {
            owner: reservations
            for owner, reservations in owners.items()
            if any(address.partition("/")[0] == each.address.partition("/")[0] for each in reservations)
        }
        if not holders:
            known = [each.address.partition("/")[0] for reservations in owners.values() for each in reservations]
            raise Failure(f"{address}: found no reservation of it{nearest(address, known)}")
        chosen.update(holders)
    if container:
        ids = {owner.container for owner in owners if owner.container.startswith(container)}
        if len(ids) != 1:
            found = f"{len(ids)} containers that begin so" if ids else "no reservation of such a container"
            raise Failure(f"--container {container}: found {found}, expected one")
        chosen.update({owner: reservations for owner, reservations in owners.items() if owner.container in ids})
    return chosen
