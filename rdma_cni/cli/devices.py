"""`rdma-cni devices`."""

import ipaddress
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rdma_cni.cli import inventory
from rdma_cni.cli.command import Command, complain, json_option, known, nearest, working
from rdma_cni.cli.inventory import Function, Gid, Node

if TYPE_CHECKING:
    from rich.text import Text

_COLUMNS = ("FUNCTION", "KIND", "RDMA", "NETDEV", "LINK", "SPEED", "MTU", "GIDS", "NUMA", "GPU", "STATE")
_WIDE = ("MAC", "DRIVER", "FIRMWARE", "DEVICE")
_LINK_TYPES = {
    "ethernet": "Ethernet",
    "eth": "Ethernet",
    "roce": "Ethernet",
    "infiniband": "InfiniBand",
    "ib": "InfiniBand",
}


@click.command(
    "devices",
    cls=Command,
    help="""Show every RDMA-capable function of the node: PFs, VFs and scalable functions, also those inside pods.

GIDS are those for RoCE v2 (index and address), or InfiniBand's. GPU is the nearest one and how near it is: below a
common PCIe switch, through the host bridge, within the NUMA node, or across the system. STATE says whether a pod can
have it, and who has it.

It asks the kernel (sysfs and netlink, in each network namespace) and changes nothing. It needs root to look into pods;
what it cannot see is told on stderr.
""",
    examples=[
        ("rdma-cni devices", "Everything."),
        ("rdma-cni devices --pf ens1f0 --wide", "One PF and its VFs, with MAC, driver, firmware and model."),
        ("rdma-cni devices --vendor 15b3 --numa 0", "Of one vendor, on one NUMA node."),
        ("rdma-cni devices --watch", "Again every two seconds, until Ctrl-C."),
        ("rdma-cni devices --json", "For a program."),
    ],
)
@click.option("--vendor", help="Only of this vendor: its PCI ID (15b3), or a part of its name.")
@click.option("--driver", help="Only those with this driver.")
@click.option("--pf", help="Only this PF and its VFs and SFs: its netdev or PCI address.")
@click.option("--link-type", help="Only these: ethernet (or roce), infiniband (or ib).")
@click.option("--numa", type=int, help="Only those on this NUMA node.")
@click.option("--wide", is_flag=True, help="Also MAC, driver, firmware, vendor and model.")
@click.option("--watch", is_flag=True, help="Show them again when something changes.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds, of --watch.")
@json_option
def command(
    vendor: str | None,
    driver: str | None,
    pf: str | None,
    link_type: str | None,
    numa: int | None,
    wide: bool,
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    if link_type is not None and link_type.lower() not in _LINK_TYPES:
        found = f"found {link_type!r}, expected a link type{nearest(link_type.lower(), _LINK_TYPES)}"
        raise click.BadParameter(found, param_hint="--link-type")
    layer = _LINK_TYPES[link_type.lower()] if link_type else None

    def look() -> tuple[Node, list[Function]]:
        node = inventory.read(models=True)
        return node, select(node.functions, vendor=vendor, driver=driver, pf=pf, link_layer=layer, numa=numa)

    with working("looking at the node and its pods"):
        node, functions = look()
    complain(*node.problems)
    if not watch:
        _show(node, functions, wide=wide, as_json=as_json)
        return
    _watch(look, (node, functions), interval, wide=wide, as_json=as_json)


def _watch(
    look: Callable[[], tuple[Node, list[Function]]],
    first: tuple[Node, list[Function]],
    interval: float,
    *,
    wide: bool,
    as_json: bool,
) -> None:
    """Show the functions whenever they have changed, over one another on a terminal; until Ctrl-C."""
    terminal = False
    if not as_json:
        from rdma_cni.cli.output import console

        terminal = console().is_terminal
    node, functions = first
    shown = None
    try:
        while True:
            if shown != functions:
                if as_json:
                    click.echo(json.dumps(as_dictionary(node, functions)))
                else:
                    if terminal:
                        click.clear()
                    _show(node, functions, wide=wide, as_json=False)
                shown = functions
            sys.stdout.flush()
            time.sleep(interval)
            node, functions = look()
    except KeyboardInterrupt:
        return


def select(
    functions: Sequence[Function],
    *,
    vendor: str | None = None,
    driver: str | None = None,
    pf: str | None = None,
    link_layer: str | None = None,
    numa: int | None = None,
) -> list[Function]:
    """The functions that all of these fit; None fits any. Raises click.BadParameter for what no function has."""
    found = list(functions)
    if vendor is not None:
        wanted = vendor.lower().removeprefix("0x")
        names = {f.vendor for f in functions} | {f.vendor_name.lower() for f in functions}
        if not any(wanted == name or (len(wanted) > 2 and wanted in name) for name in names):
            known(wanted, names, "--vendor", "a vendor")
        found = [f for f in found if wanted == f.vendor or (len(wanted) > 2 and wanted in f.vendor_name.lower())]
    if driver is not None:
        known(driver, (f.driver for f in functions), "--driver", "a driver")
        found = [f for f in found if f.driver == driver]
    if pf is not None:
        address = pf_address(functions, pf)
        found = [f for f in found if address in (f.id, f.pf)]
    if link_layer is not None:
        found = [f for f in found if f.link_layer == link_layer]
    if numa is not None:
        nodes = sorted({f.numa for f in functions if f.numa is not None})
        if nodes and numa not in nodes:
            there = ", ".join(map(str, nodes))
            raise click.BadParameter(
                f"found {numa}, expected a NUMA node of the functions ({there})", param_hint="--numa"
            )
        found = [f for f in found if f.numa == numa]
    return found


def pf_address(functions: Sequence[Function], name: str) -> str:
    """The PCI address of the PF that has this name: its netdev's, or the address. Raises click.BadParameter."""
    names = {}
    for function in functions:
        if function.kind == "pf":
            names[function.id] = function.id
            names.update((netdev.name, function.id) for netdev in function.netdevs)
            names.update((other, function.id) for netdev in function.netdevs for other in netdev.alternative_names)
    return names[known(name if name in names else name.lower(), names, "--pf", "a PF")]


def as_dictionary(node: Node, functions: Sequence[Function]) -> dict[str, object]:
    """What --json prints: see docs/cli.schema.json."""
    return {
        "format": 1,
        "node": node.name,
        "kernel": node.kernel,
        "netns_mode": {True: "exclusive", False: "shared", None: "unknown"}[node.exclusive],
        "gpus": [asdict(gpu) for gpu in node.gpus],
        "functions": [asdict(function) for function in functions],
        "problems": list(node.problems),
    }


def _show(node: Node, functions: Sequence[Function], *, wide: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(as_dictionary(node, functions), indent=2))
        return
    if not functions:
        click.echo(_nothing(node))
        return
    from rdma_cni.cli.output import print_table

    columns = _COLUMNS[:-1] + (_WIDE if wide else ()) + _COLUMNS[-1:]
    print_table(columns, [_row(node, function, wide=wide) for function in functions])


def _nothing(node: Node) -> str:
    if node.functions:
        return "No RDMA-capable function of this node is of that kind."
    return (
        "This node has no RDMA-capable function: found neither an RDMA device in any namespace nor a NIC whose driver "
        "makes one. Is the NIC's RDMA module loaded (mlx5_ib, irdma, bnxt_re)?"
    )


def _row(node: Node, function: Function, *, wide: bool) -> "list[str | Text | None]":
    from rdma_cni.cli.output import DIM, text

    netdev = function.netdev
    ports = [port for device in function.rdma for port in device.ports]
    row: list[str | Text | None] = [
        text(function.id, "" if function.kind in ("pf", "virtual") else DIM),
        _kind(node, function),
        "\n".join(device.name for device in function.rdma),
        "\n".join(each.name for each in function.netdevs),
        _link(function),
        "\n".join(f"{port.gbps:g} Gb/s" for port in ports if port.gbps) or (_speed(netdev.mbps) if netdev else ""),
        str(netdev.mtu) if netdev else "",
        "\n".join(f"{gid.index} {address(gid)}" for port in ports for gid in port.gids if gid.type != "RoCE v1"),
        "" if function.numa is None else str(function.numa),
        f"{function.gpu.address}\n{function.gpu_distance}" if function.gpu else "",
    ]
    if wide:
        row += [
            "\n".join(each.mac for each in function.netdevs),
            function.driver,
            "\n".join(dict.fromkeys(device.firmware for device in function.rdma)),
            "\n".join(filter(None, (_model(function), f"{function.vendor}:{function.device}"))).removesuffix(":"),
        ]
    return [*row, _state(function)]


def _kind(node: Node, function: Function) -> str:
    index = "" if function.index is None else f" {function.index}"
    if function.kind != "pf":
        return function.kind.upper() + index if function.kind != "virtual" else "virtual"
    if not function.vfs_possible:
        return "PF"
    vfs = f"PF\n{function.vfs} of {function.vfs_possible} VFs"
    return f"{vfs}\n{node.free(function.id)} free" if function.vfs else vfs


def _link(function: Function) -> "Text":
    from rdma_cni.cli.output import GOOD, WARN, text

    states = [port.state for device in function.rdma for port in device.ports]
    words = [f"{port.link_layer} {port.state}" for device in function.rdma for port in device.ports]
    netdev = function.netdev
    if netdev:
        # An RDMA port of RoCE has no state of its own beside its netdev's.
        words.append("up" if netdev.up and netdev.carrier else "no carrier" if netdev.up else "down")
    good = bool(states) and all(state == "ACTIVE" for state in states)
    return text("\n".join(words), GOOD if good else WARN)


def _speed(mbps: int | None) -> str:
    return "" if mbps is None else f"{mbps / 1000:g} Gb/s"


def _model(function: Function) -> str:
    return f"{function.vendor_name} {function.device_name}".strip()


def address(gid: Gid) -> str:
    """A GID as the IP address that it stands for, on RoCE; as it is on InfiniBand."""
    if gid.type == "IB":
        return gid.gid
    try:
        found = ipaddress.IPv6Address(gid.gid)
    except ValueError:
        return gid.gid
    return str(found.ipv4_mapped or found)


_STYLES = {"free": "green", "attached": "bold cyan", "left": "yellow", "no RDMA": "yellow", "no driver": "yellow"}


def _state(function: Function) -> "Text":
    from rdma_cni.cli.output import DIM, text

    holder = function.holder
    words = ["" if function.state == "host" else function.state]
    if holder:
        who = holder.pod or (f"container {holder.container[:12]}" if holder.container else "")
        words += [who, f"{holder.interface} of {holder.network}" if holder.network else "", holder.netns]
    shown = text("\n".join(word for word in words if word), DIM)
    shown.stylize(_STYLES.get(function.state, ""), 0, len(function.state))
    return shown
