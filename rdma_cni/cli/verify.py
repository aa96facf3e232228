"""`rdma-cni verify`."""

import contextlib
import ipaddress
import json
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import click

from rdma_cni import netns
from rdma_cni.cli import inventory, neighbour
from rdma_cni.cli.command import FINDINGS, Command, Failure, complain, json_option, nearest, working
from rdma_cni.cli.devices import address
from rdma_cni.cli.inventory import Function, Netdev, Node, RdmaDevice
from rdma_cni.netns import Namespace

OK, MISSING, UNKNOWN = "ok", "missing", "unknown"
VERBS, CM = "verbs", "RDMA CM"
_DEVICES = "dev/infiniband"


@dataclass(frozen=True)
class Step:
    """One thing that RDMA in the pod needs: for `needed_by`, about `subject`; `result` is ok, missing or unknown."""

    needed_by: str
    subject: str
    result: str
    found: str
    remedy: str


@click.command(
    "verify",
    cls=Command,
    help="""Check what a pod needs for RDMA, from the outside: what one looks at with ibv_devinfo before ib_write_bw.

POD is a network namespace (a path, or a name below /run/netns), a process in the pod (its PID), or a pod that has
an attachment (NAMESPACE/NAME, or the ID of its container).

For verbs: an RDMA device whose port is active, its character device, memory that may be locked. For RDMA CM also: the
rdma_cm device, an address of the netdev that is a GID for RoCE v2. With --peer: the route to that address goes
through an RDMA netdev, and the neighbour answers; one UDP packet is sent to it from the pod, to make the kernel ask.
""",
    statuses=[(0, "Nothing is missing."), (FINDINGS, "Something is missing.")],
    examples=[
        ("rdma-cni verify train/llama-0", "A pod with an attachment."),
        ("rdma-cni verify /run/netns/cni-5d3a --peer 10.56.8.2", "Whether it reaches another pod."),
        ("rdma-cni verify $(pgrep -n ib_write_bw)", "The pod of a process."),
    ],
)
@click.argument("pod", metavar="POD")
@click.option("--peer", help="An address that the pod is to reach by RDMA.")
@click.option(
    "--wait", type=click.FloatRange(0, 60), default=2.0, show_default=True, help="Seconds for --peer to answer."
)
@json_option
def command(pod: str, peer: str | None, wait: float, as_json: bool) -> None:
    to = _address(peer) if peer else None
    with working(f"looking into {pod}" + (f", and for {peer}" if peer else "")):
        node = inventory.read()
        namespace, pids = _find(node, pod)
        try:
            steps = list(_verify(node, namespace, pids))
            if to:
                steps += _verify_peer(node, namespace, to, wait)
        finally:
            namespace.close()
    missing = any(step.result == MISSING for step in steps)
    if as_json:
        value = {
            "format": 1,
            "pod": pod,
            "netns": namespace.path,
            "ready": not missing,
            "steps": [asdict(step) for step in steps],
            "problems": list(node.problems),
        }
        click.echo(json.dumps(value, indent=2))
    else:
        complain(*node.problems)
        _show(steps)
    if missing:
        sys.exit(FINDINGS)


def _address(peer: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address":
    try:
        return ipaddress.ip_address(peer)
    except ValueError:
        raise click.BadParameter(f"found {peer!r}, expected an IP address", param_hint="--peer") from None


def _find(node: Node, pod: str) -> tuple[Namespace, tuple[int, ...]]:
    """(its namespace, the processes that are in it). Raises Failure."""
    if pod.isdecimal() and os.path.isdir(f"/proc/{pod}"):
        namespace = netns.open_if_there(f"/proc/{pod}/ns/net")
        if namespace:
            return namespace, (int(pod),)
    for path in (pod, f"/run/netns/{pod}", f"/var/run/netns/{pod}"):
        namespace = netns.open_if_there(path) if inventory.plain(pod) or path == pod else None
        if namespace:
            return namespace, _inside(namespace)
    names: set[str] = set()
    for attachment in node.attachments:
        names |= {attachment.pod, attachment.container}
        if pod not in (attachment.pod, attachment.container):
            continue
        namespace = netns.open_if_there(attachment.netns)
        if namespace and namespace.cookie not in (0, attachment.cookie):
            namespace.close()
            namespace = None
        namespace = namespace or netns.find(attachment.cookie)
        if namespace is None:
            raise Failure(f"{pod}: its namespace ({attachment.netns}) is gone: `rdma-cni doctor` tells what it left")
        return namespace, _inside(namespace)
    raise Failure(
        f"{pod}: found no such namespace, process or attachment, expected a path, a PID or NAMESPACE/NAME of a pod"
        f"{nearest(pod, names)}"
    )


def _inside(namespace: Namespace) -> tuple[int, ...]:
    inode = os.fstat(namespace.fd).st_ino
    found = []
    for entry in inventory.listed("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino == inode:
                    found.append(int(entry))
    return tuple(sorted(found))


def _here(node: Node, namespace: Namespace) -> list[Function]:
    """The functions that are in the namespace, with what of them is there."""
    inode = os.fstat(namespace.fd).st_ino
    found = []
    for function in node.functions:
        path = function.where if function.where != inventory.HOST else "/proc/self/ns/net"
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                rdma = tuple(device for device in function.rdma if device.where == function.where)
                netdevs = tuple(netdev for netdev in function.netdevs if netdev.where == function.where)
                found.append(replace(function, rdma=rdma, netdevs=netdevs))
    return found


def _verify(node: Node, namespace: Namespace, pids: tuple[int, ...]) -> Iterator[Step]:
    functions = [function for function in _here(node, namespace) if function.rdma]
    if not functions:
        yield Step(
            VERBS,
            namespace.path,
            MISSING,
            "no RDMA device is in this namespace",
            "does the pod's network name the plugin rdma? `rdma-cni devices` shows where the devices are",
        )
        return
    for function in functions:
        for device in function.rdma:
            yield from _ports(device)
            yield _character_device(device, pids)
            yield from _gids(function, device)
    yield _cm_device(pids)
    yield from _memory(pids)


def _ports(device: RdmaDevice) -> Iterator[Step]:
    if not device.ports:
        yield Step(VERBS, device.name, UNKNOWN, "its ports cannot be read", "run it on the host, as root")
    for port in device.ports:
        good = port.state == "ACTIVE"
        yield Step(
            VERBS,
            f"{device.name} port {port.number}",
            OK if good else MISSING,
            f"{port.link_layer}, {port.state or 'state unknown'}, {port.rate or 'rate unknown'}",
            "" if good else "is the netdev up and the PF, is the cable in? On InfiniBand: is there a subnet manager?",
        )


def _character_device(device: RdmaDevice, pids: tuple[int, ...]) -> Step:
    if not device.verbs:
        return Step(VERBS, device.name, MISSING, "it has no character device", "load ib_uverbs: modprobe ib_uverbs")
    return _node(VERBS, device.name, device.verbs, pids, "the device plugin of its resource gives it to the container")


def _cm_device(pids: tuple[int, ...]) -> Step:
    return _node(CM, "rdma_cm", "rdma_cm", pids, "the device plugin gives it with the others, or modprobe rdma_ucm")


def _node(needed_by: str, subject: str, name: str, pids: tuple[int, ...], remedy: str) -> Step:
    """Whether a device node is there: in the container when a process of it is known, else on the host."""
    roots = [(f"/proc/{pid}/root", f"in the pod (process {pid})") for pid in pids] or [("", "on the host")]
    problem = ""
    for root, where in roots:
        path = f"{root}/{_DEVICES}/{name}"
        try:
            if stat.S_ISCHR(os.stat(path).st_mode):
                return Step(needed_by, subject, OK, f"/{_DEVICES}/{name} is there {where}", "")
            problem = f"/{_DEVICES}/{name} is no character device {where}"
        except OSError as error:
            problem = f"/{_DEVICES}/{name}: {(error.strerror or 'cannot be seen').lower()} {where}"
    return Step(needed_by, subject, MISSING, problem, remedy)


def _gids(function: Function, device: RdmaDevice) -> Iterator[Step]:
    """On RoCE, RDMA CM looks for the GID of the address that a program binds or routes from."""
    if function.link_layer != "Ethernet":
        return
    netdev = function.netdev
    if netdev is None:
        yield Step(
            CM,
            device.name,
            MISSING,
            "its netdev is not in the pod",
            "a RoCE device needs its netdev beside it: see ADD's log",
        )
        return
    if not netdev.up or not netdev.carrier:
        what = "is down" if not netdev.up else "has no carrier"
        yield Step(
            CM, netdev.name, MISSING, what, f"ip link set {netdev.name} up" if not netdev.up else "is the PF up?"
        )
    addresses = [a.partition("/")[0] for a in netdev.addresses]
    routable = [a for a in addresses if not a.startswith("fe80:")]
    if not routable:
        yield Step(CM, netdev.name, MISSING, "it has no address", "name an IPAM plugin in the network's configuration")
    table = {address(gid): gid for port in device.ports for gid in port.gids if gid.type == "RoCE v2"}
    for each in routable:
        gid = table.get(each)
        yield Step(
            CM,
            f"{netdev.name} {each}",
            OK if gid else MISSING,
            f"GID {gid.index} of {device.name}, RoCE v2"
            if gid
            else f"{device.name} has no RoCE v2 GID for this address",
            ""
            if gid
            else "is RoCE v2 enabled? The kernel makes the GID when the netdev gets the address: set it again",
        )


def _memory(pids: tuple[int, ...]) -> Iterator[Step]:
    for pid in pids[:1]:
        for line in inventory.text(f"/proc/{pid}/limits").splitlines():
            if line.startswith("Max locked memory"):
                soft = line.removeprefix("Max locked memory").split()[0]
                good = soft == "unlimited"
                yield Step(
                    VERBS,
                    f"process {pid}",
                    OK if good else UNKNOWN,
                    f"may lock {'any amount of' if good else f'{int(soft) >> 10} KiB of'} memory",
                    ""
                    if good
                    else "enough for small tests; else LimitMEMLOCK=infinity for the runtime, or CAP_IPC_LOCK",
                )


def _verify_peer(
    node: Node, namespace: Namespace, to: "ipaddress.IPv4Address | ipaddress.IPv6Address", wait: float
) -> Iterator[Step]:
    peer = str(to)
    by_index: dict[int, tuple[Function, Netdev]] = {
        netdev.ifindex: (function, netdev) for function in _here(node, namespace) for netdev in function.netdevs
    }
    with namespace:
        routes = neighbour.Routes()
    try:
        route = routes.to(peer)
        if route is None:
            yield Step(CM, peer, MISSING, "the pod has no route to it", "routes come from the IPAM plugin's result")
            return
        through = f"through {route.gateway} " if route.gateway else ""
        function, netdev = by_index.get(route.ifindex, (None, None))
        if function is None or netdev is None or not function.rdma:
            yield Step(
                CM,
                peer,
                MISSING,
                f"the route {through}leaves by interface {route.ifindex}, which is of no RDMA device",
                "give the rail's network a route to the peer's (node-subnet does, by poolRoute)",
            )
            return
        yield Step(CM, peer, OK, f"the route {through}leaves by {netdev.name}, of {function.rdma[0].name}", "")
        yield _neighbour(namespace, routes, route, peer, netdev, wait)
    finally:
        routes.close()


def _neighbour(
    namespace: Namespace, routes: "neighbour.Routes", route: "neighbour.Route", peer: str, netdev: Netdev, wait: float
) -> Step:
    hop = route.gateway or peer
    what = "gateway" if route.gateway else "neighbour"
    state = routes.neighbour(route.ifindex, hop)
    if state not in neighbour.USABLE:
        # The kernel asks when something is to be sent; port 9 is there to throw things away.
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        with contextlib.suppress(OSError), namespace, socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"", (peer, 9))
        deadline = time.monotonic() + wait
        while state not in neighbour.USABLE and time.monotonic() < deadline:
            time.sleep(0.02)
            state = routes.neighbour(route.ifindex, hop)
    good = state in neighbour.USABLE
    return Step(
        CM,
        hop,
        OK if good else MISSING,
        f"the {what} is {state or 'not known'} on {netdev.name}",
        ""
        if good
        else "does the peer run, is it in the same VLAN, does the switch let ARP and neighbour discovery through?",
    )


def _show(steps: list[Step]) -> None:
    from rdma_cni.cli.output import BAD, GOOD, WARN, print_table, text

    styles = {OK: GOOD, MISSING: BAD, UNKNOWN: WARN}
    rows = [
        (text(step.result, styles[step.result]), step.needed_by, step.subject, step.found, step.remedy)
        for step in steps
    ]
    print_table(("RESULT", "FOR", "WHAT", "FOUND", "REMEDY"), rows)
