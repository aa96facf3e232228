"""`rdma-cni gc`."""

import click

from rdma_cni import home, netns
from rdma_cni.cli import holdings
from rdma_cni.cli.command import FINDINGS, Command, json_option, print_json, require_root
from rdma_cni.cni.errors import CniError
from rdma_cni.host import Host


@click.command(
    "gc",
    cls=Command,
    help="""Take back what pods have left behind that are gone.

An attachment whose pod's namespace is no more, and for which no DEL came: its VF gets back its name, MAC, MTU and
alternative names, its addresses of node-subnet are free again, and it is forgotten. A DEL that comes later succeeds.
What lives is never touched.

Addresses that neither an attachment nor the runtime's own records (/var/lib/cni) know of are listed, not freed: their
interface may be one that no plugin of this bundle made. `rdma-cni ipam release` frees them.
""",
    statuses=[
        (0, "There was nothing, or all of it was taken back."),
        (FINDINGS, "With --dry-run: there is something. Else: something could not be taken back, or is only listed."),
    ],
    examples=[
        ("rdma-cni gc --dry-run", "What would be done."),
        ("rdma-cni gc", "Do it."),
    ],
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
def command(dry_run: bool, as_json: bool) -> int:
    require_root()
    held = holdings.read()
    gone = [each for each in held.attachments if each.state == holdings.GONE]
    left = [each for each in held.reservations if each.state == holdings.LEFT]
    failures = {} if dry_run else {each: problem for each in gone if (problem := collect(each))}
    if as_json:
        taken = [] if dry_run else [each for each in gone if each not in failures]
        failed = [{"attachment": each, "problem": problem} for each, problem in failures.items()]
        print_json(
            {
                "format": 1,
                "stale": gone,
                "collected": taken,
                "failed": failed,
                "unknown": left,
                "problems": held.problems,
            }
        )
    else:
        _print(held, gone, left, failures, dry_run=dry_run)
    return FINDINGS if failures or left or (dry_run and gone) else 0


def _print(
    held: holdings.Holdings,
    gone: list[holdings.Attachment],
    left: list[holdings.Reservation],
    failures: dict[holdings.Attachment, str],
    *,
    dry_run: bool,
) -> None:
    from rdma_cni.cli import output

    shown = output.console()
    done = "would be taken back" if dry_run else "taken back"
    for each in gone:
        addresses = [
            one.address
            for one in held.reservations
            if (one.network, one.container, one.interface) == (each.network, each.container, each.interface)
        ]
        whose = f"pod {each.pod}" if each.pod else f"container {each.container[:12]}"
        what = [each.function, *(device.name for device in each.rdma), each.netdev, *addresses]
        line = f"{whose}, {each.interface} of {each.network}: {', '.join(filter(None, what))}: "
        failure = failures.get(each)
        shown.print(output.text(line + (failure or done), output.BAD if failure else output.GOOD), soft_wrap=True)
    for one in left:
        whose = f"pod {one.pod}" if one.pod else f"container {one.container[:12]}"
        hint = "known to no attachment and no runtime: `rdma-cni ipam release` frees it"
        text = f"{one.address}, {whose}, {one.interface} of {one.network}: {hint}"
        shown.print(output.text(text, output.WARN), soft_wrap=True)
    for problem in held.problems:
        click.echo(f"rdma-cni: {output.printable(problem)}", err=True)
    if not gone and not left:
        click.echo("Nothing was left behind.")


_PATIENCE = 2.0
"""Seconds to wait for who works on the function: if somebody does, it is not left behind."""


def collect(stale: holdings.Attachment) -> str:
    """Take back what an attachment has; "" or what is in the way."""
    try:
        host = Host()
        try:
            lock = host.state.lock(stale.function, "rdma-cni gc", _PATIENCE)
            try:
                # It was looked at without the lock.
                record = host.state.get(stale.network, stale.container, stale.interface)
                if record is None or record.function != stale.function:
                    return ""
                alive = netns.find(record.cookie)
                if alive:
                    alive.close()
                    return f"found its namespace alive ({alive.path}), so it is left alone"
                home.bring_home(host, record, None)
                host.state.remove(record)
            finally:
                lock.release()
        finally:
            host.close()
        _release(stale)
    except CniError as error:
        return str(error)
    return ""


def _release(stale: holdings.Attachment) -> None:
    from ipam.store import Owner, Store

    store = Store()
    try:
        with store:
            store.release(Owner(stale.network, stale.container, stale.interface))
    finally:
        store.close()
