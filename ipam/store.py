"""What is reserved, on disk. It knows addresses as bytes, and nothing of subnets.

A scope is one node's share of one pool under one set of rules. In it addresses are given from the
lowest up until all have been given once, or so many were freed that no more are remembered; then the
one that was freed longest ago is the next.
"""

from rdma_cni.cni import system
from rdma_cni.cni.database import DIRECTORY, Database
from rdma_cni.cni.errors import IO_FAILURE, CniError
from rdma_cni.cni.sqlite import ERRORS, DatabaseError
from rdma_cni.cni.typecast import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from sqlite3 import Connection

_SCHEMA = """
CREATE TABLE scope (
    id INTEGER PRIMARY KEY,
    rules TEXT NOT NULL UNIQUE,
    subnet INTEGER NOT NULL,
    next BLOB NOT NULL
);
CREATE TABLE reservation (
    address BLOB PRIMARY KEY,
    length INTEGER NOT NULL,
    gateway TEXT NOT NULL,
    pool TEXT NOT NULL,
    scope INTEGER NOT NULL,
    network TEXT NOT NULL,
    container TEXT NOT NULL,
    ifname TEXT NOT NULL,
    pod TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX owner ON reservation (network, container, ifname);
CREATE TABLE freed (
    turn INTEGER PRIMARY KEY AUTOINCREMENT,
    scope INTEGER NOT NULL,
    address BLOB NOT NULL,
    UNIQUE (scope, address)
);
CREATE INDEX turns ON freed (scope, turn);
CREATE TABLE suspect (file TEXT NOT NULL)
"""
_VERSION = 1
_NAME = "reservations.db"


class Owner:
    """Whose a reservation is: one interface of one container on one network.

    `pod` is its namespace and name, for people; "" when they are not known.
    """

    __slots__ = ("container", "ifname", "network", "pod")

    def __init__(self, network: str, container: str, ifname: str, pod: str = "") -> None:
        self.network = network
        self.container = container
        self.ifname = ifname
        self.pod = pod

    def __str__(self) -> str:
        pod = f"pod {self.pod}, " if self.pod else ""
        return f"{pod}container {self.container}, interface {self.ifname}, network {self.network}"


class Reservation:
    """An address that was given. `gateway` is "" for none; `pool` the pool's subnet."""

    __slots__ = ("address", "gateway", "length", "pool")

    def __init__(self, address: bytes, length: int, gateway: str, pool: str) -> None:
        self.address = address
        self.length = length
        self.gateway = gateway
        self.pool = pool


class Store(Database):
    """The reservations of this node, of all networks. Used within `with store:`, one transaction."""

    def __init__(self) -> None:
        super().__init__(_NAME, _SCHEMA, _VERSION)

    @staticmethod
    def exists() -> bool:
        """Whether this node has, or had, any."""
        return system.exists(f"{DIRECTORY}/{_NAME}")

    def salvage(self, new: "Connection", old: "Connection", damaged: str) -> str:
        """Take over the reservations of a damaged file if all of them are there to be read.

        Otherwise some may be missing: which addresses pods have cannot be told from the outside,
        where a pod may be a virtual machine, so `require_certainty` refuses to give any.
        """
        columns = "address, length, gateway, pool, network, container, ifname, pod"
        try:
            if old.execute("PRAGMA integrity_check(reservation)").fetchall() != [("ok",)]:
                raise DatabaseError("the table of the reservations is damaged")
            rows = old.execute(f"SELECT {columns} FROM reservation").fetchall()
            suspects = old.execute("SELECT file FROM suspect").fetchall()
        except ERRORS as error:
            new.execute("INSERT INTO suspect (file) VALUES (?)", (damaged,))
            return f"its reservations are lost ({error}): no address is given until somebody has seen to it"
        new.executemany(f"INSERT INTO reservation ({columns}, scope) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)", rows)
        new.executemany("INSERT INTO suspect (file) VALUES (?)", suspects)
        return f"all of its {len(rows)} reservations could be read and are kept"

    def require_certainty(self) -> None:
        """Raises CniError 5 when reservations were lost, until the damaged file has been removed."""
        for (file,) in self.execute("SELECT file FROM suspect"):
            if system.lexists(str(file)):
                raise CniError(
                    IO_FAILURE,
                    f"{file}: found the damaged record of which addresses are reserved, expected none: an address that "
                    "a pod still has must not be given again. Drain this node's pods with addresses of node-subnet, "
                    "then remove that file",
                )
            self.execute("DELETE FROM suspect WHERE file=?", (file,))

    def of_owner(self, owner: Owner) -> list[Reservation]:
        rows = self.execute(
            "SELECT address, length, gateway, pool FROM reservation WHERE network=? AND container=? AND ifname=?",
            (owner.network, owner.container, owner.ifname),
        )
        return [Reservation(*cast("tuple[bytes, int, str, str]", row)) for row in rows]

    def holder(self, address: bytes) -> Owner | None:
        """Who has an address."""
        rows = self.execute("SELECT network, container, ifname, pod FROM reservation WHERE address=?", (address,))
        return Owner(*cast("tuple[str, str, str, str]", rows[0])) if rows else None

    def scope(self, rules: str) -> tuple[int, int, bytes]:
        """(id, number of the subnet, next address there) of the scope with these rules; b"" is its start."""
        rows = self.execute("SELECT id, subnet, next FROM scope WHERE rules=?", (rules,))
        if not rows:
            rows = self.execute(
                "INSERT INTO scope (rules, subnet, next) VALUES (?, 0, x'') RETURNING id, subnet, next", (rules,)
            )
        return cast("tuple[int, int, bytes]", rows[0])

    def advance(self, scope: int, subnet: int, address: bytes) -> None:
        """The next address never given so far is looked for from here on."""
        self.execute("UPDATE scope SET subnet=?, next=? WHERE id=?", (subnet, address, scope))

    def was_given(self, scope: int, address: bytes) -> bool:
        """Whether an address is reserved, or was given in this scope before."""
        return bool(
            self.execute(
                "SELECT 1 FROM reservation WHERE address=? UNION ALL SELECT 1 FROM freed WHERE scope=? AND address=?",
                (address, scope, address),
            )
        )

    def longest_free(self, scope: int) -> bytes | None:
        """The address that was freed before all others of the scope."""
        while True:
            rows = self.execute("SELECT address FROM freed WHERE scope=? ORDER BY turn LIMIT 1", (scope,))
            if not rows:
                return None
            address = cast("bytes", rows[0][0])
            if self.holder(address) is None:
                return address
            # It was given under other rules meanwhile; it comes back under those.
            self.execute("DELETE FROM freed WHERE scope=? AND address=?", (scope, address))

    def freed_since(self, scope: int) -> int:
        """How many addresses were freed, in all scopes, since the one that was freed before all others of this."""
        rows = self.execute("SELECT (SELECT max(turn) FROM freed) - min(turn) FROM freed WHERE scope=?", (scope,))
        return cast("int", rows[0][0] or 0)

    def reserved(self, first: bytes, last: bytes) -> list[bytes]:
        """The reserved addresses of a range, from the lowest up."""
        rows = self.execute(
            "SELECT address FROM reservation WHERE address BETWEEN ? AND ? AND length(address)=? ORDER BY address",
            (first, last, len(first)),
        )
        return [cast("bytes", row[0]) for row in rows]

    def reserve(self, reservation: Reservation, scope: int, owner: Owner) -> None:
        """Raises CniError 5 when the address is reserved already."""
        self.execute("DELETE FROM freed WHERE scope=? AND address=?", (scope, reservation.address))
        self.execute(
            "INSERT INTO reservation (address, length, gateway, pool, scope, network, container, ifname, pod) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                reservation.address,
                reservation.length,
                reservation.gateway,
                reservation.pool,
                scope,
                owner.network,
                owner.container,
                owner.ifname,
                owner.pod,
            ),
        )

    def release(self, owner: Owner, keep: "Collection[bytes]" = ()) -> None:
        """Free what an attachment has, but for the addresses in `keep`; nothing is fine."""
        but = f"AND address NOT IN ({', '.join('?' * len(keep))})" if keep else ""
        rows = self.execute(
            f"DELETE FROM reservation WHERE network=? AND container=? AND ifname=? {but} RETURNING scope, address",
            (owner.network, owner.container, owner.ifname, *keep),
        )
        for scope, address in rows:
            self.execute("INSERT OR REPLACE INTO freed (scope, address) VALUES (?, ?)", (scope, address))

    def owners(self, network: str) -> list[Owner]:
        """The attachments of a network that have reservations."""
        rows = self.execute("SELECT DISTINCT container, ifname FROM reservation WHERE network=?", (network,))
        return [Owner(network, str(container), str(ifname)) for container, ifname in rows]
