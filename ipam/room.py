"""What the store tells of a node's part of a pool: its subnets, and how many addresses are free. For people."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ipam import pool as ipam_pool
from ipam.store import Store


@dataclass(frozen=True)
class Room:
    """This node's share of a pool under one set of rules.

    `usable` is the number of addresses that may be given, `reserved` of those that are, `networks` have
    them. Once the rules of a pool have changed it is there twice; `current` is the one made last.
    """

    pool: str
    mode: str
    subnets: tuple[str, ...]
    gateways: tuple[str, ...]
    exclude: tuple[str, ...]
    usable: int
    reserved: int
    networks: tuple[str, ...]
    current: bool

    @property
    def free(self) -> int:
        return self.usable - self.reserved


def rooms(store: Store) -> list[Room]:
    """Each share that the store knows and that is in use, or current, in the order of the pools."""
    scopes = store.execute("SELECT id, rules FROM scope ORDER BY id DESC")
    seen: set[str] = set()
    found = []
    for identity, rules in scopes:
        try:
            pool, ranges = _parse(str(rules))
        except (ValueError, IndexError, KeyError):
            continue
        current = str(pool.subnet) not in seen
        seen.add(str(pool.subnet))
        size = pool.subnet.bits // 8
        reserved = 0
        for own in ranges:
            limits = (own.subnet.first.to_bytes(size, "big"), own.subnet.last.to_bytes(size, "big"), size)
            counted = store.execute(
                "SELECT count(*) FROM reservation WHERE address BETWEEN ? AND ? AND length(address)=?", limits
            )
            reserved += int(str(counted[0][0]))
        users = store.execute("SELECT DISTINCT network FROM reservation WHERE scope=? ORDER BY network", (identity,))
        if not (current or users):
            continue
        found.append(
            Room(
                pool=str(pool.subnet),
                mode=pool.mode,
                subnets=tuple(str(own.subnet) for own in ranges),
                gateways=tuple(
                    ipam_pool.unparse(own.gateway, own.subnet.bits) for own in ranges if own.gateway is not None
                ),
                exclude=tuple(map(str, pool.exclude)),
                usable=sum(map(usable, ranges)),
                reserved=reserved,
                networks=tuple(str(network) for (network,) in users),
                current=current,
            )
        )
    return sorted(found, key=lambda room: (":" in room.pool, ipam_pool.parse(room.pool.partition("/")[0])))


def usable(own: ipam_pool.Range) -> int:
    """How many addresses of a node's subnet may be given."""
    count, start = 0, own.subnet.first
    # In order; one may lie within another.
    for first, last, _ in own.blocked:
        count += max(min(first, own.subnet.last + 1) - start, 0)
        start = max(start, last + 1)
    return count + max(own.subnet.last + 1 - start, 0)


def _parse(rules: str) -> tuple[ipam_pool.Pool, list[ipam_pool.Range]]:
    """From what the allocator writes: `POOL MODE SUBNET>GATEWAY ... !EXCLUDED ...`. Raises ValueError and kin."""
    before, _, excluded = rules.partition(" !")
    subnet, mode, *owns = before.split(" ")
    bits = 128 if ":" in subnet else 32
    parsed = []
    for text in owns:
        own, _, gateway = text.partition(">")
        parsed.append((ipam_pool.subnet(own, ""), None if gateway == "None" else int(gateway)))
    pools: list[Any] = []
    for own_subnet, address in parsed:
        name: str | None = "none"
        if address is not None and mode == "flat":
            name = ipam_pool.unparse(address, bits)
        elif address is not None:
            name = "first" if address - own_subnet.first <= 1 and address != own_subnet.last else "last"
        conf: Any = SimpleNamespace(
            subnet=subnet, nodePrefix=None, mode=mode, gateway=name, exclude=excluded.split(), poolRoute=None
        )
        pools.append(ipam_pool.Pool(conf, "", pool_route=True))
    return pools[0], [ipam_pool.Range(pool, own) for pool, (own, _) in zip(pools, parsed, strict=True)]
