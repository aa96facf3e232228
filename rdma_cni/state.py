"""What is attached, on disk: written before the kernel is touched, so that DEL knows what to undo."""

from rdma_cni.cni import checks, jsontext, log, system
from rdma_cni.cni.database import PATIENCE, Database, Lock
from rdma_cni.cni.errors import TRY_AGAIN, CniError
from rdma_cni.cni.sqlite import ERRORS, DatabaseError
from rdma_cni.cni.typecast import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection
    from typing import Any

_SCHEMA = """
CREATE TABLE attachment (
    network TEXT NOT NULL,
    container TEXT NOT NULL,
    ifname TEXT NOT NULL,
    function TEXT NOT NULL UNIQUE,
    record TEXT NOT NULL,
    PRIMARY KEY (network, container, ifname)
) WITHOUT ROWID
"""
_VERSION = 1
_MAX_TEXT = 256
"""Bytes. The longest that the kernel has for a netdev or an RDMA device is an alias, of 255."""
_COLUMNS = "network, container, ifname, function, record"


class RdmaRecord:
    """An RDMA device as it was on the host. `name` is "" when that is not known any more."""

    __slots__ = ("guid", "index", "name")

    def __init__(self, index: int, guid: int, name: str) -> None:
        self.index = index
        self.guid = guid
        self.name = name


class NetdevRecord:
    """A netdev as it was on the host. `kind` is its ARPHRD_*; `up` whether it was up."""

    __slots__ = ("alias", "altnames", "kind", "mac", "mtu", "name", "up")

    def __init__(
        self, name: str, mac: str, mtu: int, kind: int, altnames: list[str] | None, alias: str, up: bool
    ) -> None:
        self.name = name
        self.mac = mac
        self.mtu = mtu
        self.kind = kind
        self.altnames = altnames
        self.alias = alias
        self.up = up


class Attachment:
    """What one ADD gave to one pod.

    `runtime_ifname` is CNI_IFNAME, by which the runtime knows it; `ifname` the interface that it is
    about. `pod` is namespace/name, "" when not known. `cookie` is the pod namespace's (0: not known),
    `netns` the path it had. `netdev` is None when the netdev was not for this plugin to move;
    `borrowed` is then the InfiniBand netdev as an earlier plugin left it in the pod, which dies and is
    put there again with each move. `addresses` and `routes` are what this plugin set itself: CIDRs,
    and (dst, gw, table) with "" and 0 for none.
    """

    __slots__ = (
        "addresses",
        "borrowed",
        "container",
        "cookie",
        "function",
        "ifname",
        "netdev",
        "netns",
        "network",
        "pod",
        "rdma",
        "routes",
        "runtime_ifname",
    )

    def __init__(self, network: str, container: str, ifname: str, function: str, netns: str, cookie: int) -> None:
        self.network = network
        self.container = container
        self.ifname = self.runtime_ifname = ifname
        self.pod = ""
        self.function = function
        self.netns = netns
        self.cookie = cookie
        self.rdma: list[RdmaRecord] = []
        self.netdev: NetdevRecord | None = None
        self.borrowed: NetdevRecord | None = None
        self.addresses: list[str] = []
        self.routes: list[tuple[str, str, int]] = []

    @property
    def key(self) -> tuple[str, str, str]:
        """What the runtime tells it from others by, and the interface."""
        return self.network, self.container, self.ifname

    def __str__(self) -> str:
        pod = f"pod {self.pod}, " if self.pod else ""
        return f"{pod}container {self.container}, interface {self.ifname}, network {self.network}"


class State(Database):
    """The attachments of this node."""

    def __init__(self) -> None:
        super().__init__("state.db", _SCHEMA, _VERSION)

    def salvage(self, new: "Connection", old: "Connection", damaged: str) -> str:
        """Take over the attachments that can be read; of the others the kernel tells."""
        kept = lost = 0
        # A text that is no UTF-8 spoils its own row alone.
        old.text_factory = bytes
        try:
            if old.execute("PRAGMA integrity_check(attachment)").fetchall() != [(b"ok",)]:
                raise DatabaseError("its table is damaged")
            for row in old.execute(f"SELECT {_COLUMNS} FROM attachment"):
                try:
                    attachment = _attachment(row)
                except (LookupError, OverflowError, TypeError, ValueError):
                    lost += 1
                    continue
                new.execute(
                    f"INSERT OR IGNORE INTO attachment ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                    (*attachment.key, attachment.function, _record(attachment)),
                )
                kept += 1
        except ERRORS as error:
            return f"begun anew ({error}): of what is attached the kernel tells"
        return f"{kept} attachments could be read and are kept, {lost} could not: of these the kernel tells"

    def lock(self, function: str, holder: str, patience: float = PATIENCE) -> Lock:
        """Have a function for oneself, for as long as its devices are moved. Raises CniError 11."""
        return Lock(self.directory, f"{function}.lock", holder, patience)

    def get(self, network: str, container: str, ifname: str) -> Attachment | None:
        where = "WHERE network=? AND container=? AND ifname=?"
        return self._one(f"SELECT {_COLUMNS} FROM attachment {where}", (network, container, ifname))

    def of_function(self, function: str) -> Attachment | None:
        return self._one(f"SELECT {_COLUMNS} FROM attachment WHERE function=?", (function,))

    def of_network(self, network: str) -> list[Attachment]:
        rows = self.execute(f"SELECT {_COLUMNS} FROM attachment WHERE network=?", (network,))
        return self._readable(rows)

    def all(self) -> list[Attachment]:
        """Those of all networks."""
        return self._readable(self.execute(f"SELECT {_COLUMNS} FROM attachment"))

    def put(self, attachment: Attachment) -> None:
        """Write it down, in the place of what was known of the same attachment. Raises CniError 11."""
        with self:
            rows = self.execute(
                f"INSERT INTO attachment ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (network, container, ifname) "
                "DO UPDATE SET record=excluded.record WHERE function=excluded.function RETURNING 1",
                (attachment.network, attachment.container, attachment.ifname, attachment.function, _record(attachment)),
            )
        if not rows:
            raise CniError(
                TRY_AGAIN, f"{attachment}: was given another function than {attachment.function} meanwhile; try again"
            )

    def remove(self, attachment: Attachment) -> None:
        self.reclaim(
            "DELETE FROM attachment WHERE network=? AND container=? AND ifname=? AND function=?",
            (attachment.network, attachment.container, attachment.ifname, attachment.function),
        )

    def _one(self, statement: str, values: tuple[str, ...]) -> Attachment | None:
        return next(iter(self._readable(self.execute(statement, values))), None)

    def _readable(self, rows: list[tuple[object, ...]]) -> list[Attachment]:
        """The rows as attachments. One that nobody can read is dropped: then the kernel tells what is attached."""
        found = []
        for row in rows:
            try:
                found.append(_attachment(row))
            except (LookupError, OverflowError, TypeError, ValueError) as error:
                log.warning(f"{self.path}: dropping what it says of {row[:4]}, which cannot be read: {error!r}")
                self.execute("DELETE FROM attachment WHERE network=? AND container=? AND ifname=?", row[:3])
        return found


def _record(attachment: Attachment) -> str:
    return jsontext.dump(
        {
            "runtime_ifname": attachment.runtime_ifname,
            "pod": attachment.pod,
            "netns": attachment.netns,
            "cookie": attachment.cookie,
            "rdma": [[device.index, device.guid, device.name] for device in attachment.rdma],
            "netdev": _values(attachment.netdev),
            "borrowed": _values(attachment.borrowed),
            "addresses": attachment.addresses,
            "routes": [list(route) for route in attachment.routes],
        }
    ).decode()


def _values(netdev: NetdevRecord | None) -> list[object] | None:
    if netdev is None:
        return None
    return [netdev.name, netdev.mac, netdev.mtu, netdev.kind, netdev.altnames, netdev.alias, netdev.up]


def _typed(values: object, *kinds: object) -> "list[Any]":
    """A list of values of these types, in this order. Raises ValueError: a file may say anything."""
    if not isinstance(values, list) or [type(value) for value in values] != list(kinds):
        raise ValueError(f"found {str(values)[:80]}, expected {len(kinds)} values of the known types")
    return values


def _texts(values: object) -> list[str]:
    return _typed(values, *([str] * len(values) if isinstance(values, list) else []))


def _netdev(values: object) -> NetdevRecord | None:
    if values is None:
        return None
    altnames = values[4] if isinstance(values, list) and len(values) == 7 else None
    netdev = NetdevRecord(*_typed(values, str, str, int, int, type(altnames), str, bool))
    # What is given to the kernel must have a form for it; whether it can be is the kernel's to say.
    for text in (netdev.name, netdev.alias, *([] if altnames is None else _texts(altnames))):
        if len(system.fsencode(text)) > _MAX_TEXT:
            raise ValueError(f"a name of {len(text)} characters")
    bytes.fromhex(netdev.mac.replace(":", ""))
    netdev.mtu.to_bytes(4, "big")
    return netdev


def _attachment(row: tuple[object, ...]) -> Attachment:
    network, container, ifname, function, text = (
        column.decode() if isinstance(column, bytes) else str(column) for column in row
    )
    if not checks.device_id(function):
        raise ValueError("no function")
    record = cast("dict[str, Any]", jsontext.parse(text.encode()))
    netns, cookie = _typed([record["netns"], record["cookie"]], str, int)
    attachment = Attachment(network, container, ifname, function, netns, cookie)
    attachment.runtime_ifname, attachment.pod = _texts([record["runtime_ifname"], record["pod"]])
    for device in record["rdma"]:
        index, guid, name = _typed(device, int, int, str)
        if len(system.fsencode(name)) > _MAX_TEXT:
            raise ValueError(f"a name of {len(name)} characters")
        attachment.rdma.append(RdmaRecord(index, guid, name))
    attachment.netdev = _netdev(record["netdev"])
    attachment.borrowed = _netdev(record["borrowed"])
    attachment.addresses = [checks.cidr(address) for address in _texts(record["addresses"])]
    for route in record["routes"]:
        dst, gw, table = _typed(route, str, str, int)
        attachment.routes.append((checks.cidr(dst), checks.address(gw) if gw else "", table))
    return attachment
