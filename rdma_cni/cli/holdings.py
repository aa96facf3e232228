"""What the plugins have written down - attachments, reservations - compared with what the kernel has."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from ipam.room import Room, rooms
from ipam.store import Owner, Store
from rdma_cni import netns
from rdma_cni.cli import inventory
from rdma_cni.cli.inventory import HOST, Function, Node
from rdma_cni.cni.database import DIRECTORY
from rdma_cni.cni.errors import CniError
from rdma_cni.state import Attachment as Record

IN_PLACE, DIFFERS, GONE = "in place", "differs", "pod gone"
"""The states of an attachment: as ADD made it; not so, but its pod lives; its pod's namespace is no more."""
NONE = "no attachment"
"""Of a reservation whose interface this plugin did not make; it is another plugin's, or left behind."""
LEFT = "left behind"
"""Of a reservation that neither an attachment nor the runtime's own records know."""

_RESULTS = ("/var/lib/cni/results", "/var/lib/cni/multus/results")
"""Where libcni keeps the result of each ADD until its DEL: the runtime's, and Multus's."""


@dataclass(frozen=True)
class Device:
    """An RDMA device: its name on the host and, where it can be seen, the one that it has now."""

    index: int
    name: str
    name_now: str


@dataclass(frozen=True)
class Attachment:
    """What one ADD gave to one pod. `interface` is what it is about, `runtime_interface` CNI_IFNAME.

    `state` is one of IN_PLACE, DIFFERS, GONE; `problems` says why, a sentence each. `netdev` is the name on
    the host, "" where the netdev was not for this plugin to move.
    """

    network: str
    pod: str
    container: str
    interface: str
    runtime_interface: str
    function: str
    netns: str
    rdma: tuple[Device, ...]
    netdev: str
    addresses: tuple[str, ...]
    state: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Reservation:
    """An address that node-subnet gave. `state` is that of its attachment, NONE or LEFT."""

    address: str
    gateway: str
    pool: str
    network: str
    pod: str
    container: str
    interface: str
    state: str


@dataclass(frozen=True)
class Holdings:
    """All of it. `problems` are what could not be read."""

    attachments: tuple[Attachment, ...]
    reservations: tuple[Reservation, ...]
    rooms: tuple[Room, ...]
    damaged: tuple[str, ...]
    problems: tuple[str, ...]


def read(node: Node | None = None) -> Holdings:
    """What is held; `node` when the inventory was read already. Nothing here changes anything."""
    node = node or inventory.read(gids=False)
    problems: list[str] = []
    attachments = _attachments(node)
    reservations, shares = _reservations(attachments, problems)
    # An inventory's problems are about seeing; those of the state come from there, too.
    return Holdings(attachments, reservations, shares, tuple(_damaged()), (*node.problems, *problems))


def _attachments(node: Node) -> tuple[Attachment, ...]:
    functions = {function.id: function for function in node.functions}
    lives = _Lives()
    found = []
    for record in sorted(node.attachments, key=lambda each: (each.pod, each.key)):
        function = functions.get(record.function)
        state, problems = _compare(record, function, lives)
        names = {device.index: device.name for device in function.rdma} if function else {}
        found.append(
            Attachment(
                record.network,
                record.pod,
                record.container,
                record.ifname,
                record.runtime_ifname,
                record.function,
                record.netns,
                tuple(Device(each.index, each.name, names.get(each.index, "")) for each in record.rdma),
                record.netdev.name if record.netdev else "",
                tuple(record.addresses),
                state,
                tuple(problems),
            )
        )
    return tuple(found)


class _Lives:
    """Which namespaces live; looked at when first asked."""

    def __init__(self) -> None:
        self._cookies: set[int] | None = None

    def __call__(self, cookie: int) -> bool:
        if self._cookies is None:
            self._cookies = set()
            for namespace in netns.live():
                self._cookies.add(namespace.cookie)
                namespace.close()
        return cookie in self._cookies


def _compare(record: Record, function: Function | None, lives: Callable[[int], bool]) -> tuple[str, list[str]]:
    """(state, problems) of an attachment."""
    try:
        alive = lives(record.cookie)
    except (CniError, OSError):
        alive = True
    state = DIFFERS if alive else GONE
    if function is None:
        return state, [f"{record.function}: is not there any more: the VFs were made anew, or the driver was unbound"]
    if not alive and function.where == HOST:
        return GONE, ["its pod is gone and no DEL came; the next ADD, or `rdma-cni gc`, brings its names back"]
    if function.where == HOST:
        return DIFFERS, [f"{record.function}: found on the host, expected in the pod: something took it out"]
    if function.holder and function.holder.cookie != record.cookie:
        return state, [f"{record.function}: found in another namespace ({function.where}), expected in the pod's"]
    problems = _within(record, function)
    return (DIFFERS if problems else IN_PLACE), problems


def _within(record: Record, function: Function) -> list[str]:
    """What differs of a function that is in the pod."""
    there = {device.index for device in function.rdma}
    problems = [
        f"RDMA device {device.name}: not there any more: its driver was bound anew, or it was moved"
        for device in record.rdma
        if device.index not in there
    ]
    moved = record.netdev or record.borrowed
    if moved is None and not record.addresses:
        return problems
    netdev = next((each for each in function.netdevs if each.name == record.ifname), None)
    if netdev is None:
        names = ", ".join(each.name for each in function.netdevs) or "none"
        # Addresses may be on an interface that is no function's own: macvlan, ipvlan.
        return [*problems, f"{record.ifname}: not there, the function's netdevs are {names}"] if moved else problems
    if not netdev.up:
        problems.append(f"{record.ifname}: is down")
    missing = [address for address in record.addresses if address not in netdev.addresses]
    return problems + [f"{record.ifname}: has no address {address}" for address in missing]


def _reservations(
    attachments: tuple[Attachment, ...], problems: list[str]
) -> tuple[tuple[Reservation, ...], tuple[Room, ...]]:
    path = f"{DIRECTORY}/reservations.db"
    try:
        if not os.path.exists(path):
            return (), ()
        store = Store()
    except (CniError, OSError) as error:
        problems.append(f"{path}: cannot be read: {error}")
        return (), ()
    states = {(each.network, each.container, each.interface): each.state for each in attachments}
    try:
        rows = store.execute(
            "SELECT address, length, gateway, pool, network, pod, container, ifname FROM reservation "
            "ORDER BY length(address), address"
        )
        found = []
        for raw, length, gateway, *texts in rows:
            address = _text(raw) + f"/{length}"
            pool, network, pod, container, interface = map(str, texts)
            state = states.get((network, container, interface)) or _elsewhere(network, container, interface)
            found.append(Reservation(address, str(gateway), pool, network, pod, container, interface, state))
        return tuple(found), tuple(rooms(store))
    except CniError as error:
        problems.append(f"{path}: {error}")
        return (), ()
    finally:
        store.close()


def _text(raw: object) -> str:
    from ipam.pool import unparse

    data = raw if isinstance(raw, bytes) else b""
    return unparse(int.from_bytes(data, "big"), 128 if len(data) == 16 else 32)


def _elsewhere(network: str, container: str, interface: str) -> str:
    """Of an interface that this plugin did not make: whether a runtime says that it is there."""
    name = os.path.basename(f"{network}-{container}-{interface}")
    known = [directory for directory in _RESULTS if os.path.isdir(directory)]
    if known and not any(os.path.exists(f"{directory}/{name}") for directory in known):
        return LEFT
    return NONE


def _damaged() -> list[str]:
    """Databases that were moved aside."""
    names = sorted(name for name in inventory.listed(DIRECTORY) if ".db.bad-" in name)
    return [f"{DIRECTORY}/{name}" for name in names if not name.endswith("-journal")]


def owners(holdings: Holdings) -> dict[Owner, list[Reservation]]:
    """The reservations by whose they are, in their order."""
    found: dict[tuple[str, str, str], tuple[Owner, list[Reservation]]] = {}
    for each in holdings.reservations:
        key = each.network, each.container, each.interface
        found.setdefault(key, (Owner(*key, each.pod), []))[1].append(each)
    return dict(found.values())
