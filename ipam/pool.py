"""Address arithmetic: pools, their subnets, and which addresses of a subnet may be given.

Addresses are integers here, of 32 or 128 bits. `netaddr` can do all this; it takes four times as
long to import as an ADD may last, so it serves the tests as the second opinion.
"""

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from itertools import pairwise

from rdma_cni.cni import checks
from rdma_cni.cni.errors import INVALID_CONFIG, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ipam import models


_MAX_POOLS = 64


def parse(text: str) -> tuple[int, int]:
    """(address, bits) of an address in text form."""
    raw = inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    return int.from_bytes(raw, "big"), len(raw) * 8


def unparse(address: int, bits: int) -> str:
    """The text form of an address."""
    return inet_ntop(AF_INET if bits == 32 else AF_INET6, address.to_bytes(bits // 8, "big"))


class Subnet:
    """The addresses from `first` to `last`, of `bits` bits each; `length` is the prefix length."""

    __slots__ = ("bits", "first", "last", "length")

    def __init__(self, first: int, length: int, bits: int) -> None:
        self.first = first
        self.last = first | ((1 << (bits - length)) - 1)
        self.length = length
        self.bits = bits

    def __str__(self) -> str:
        return f"{unparse(self.first, self.bits)}/{self.length}"

    def __contains__(self, other: "Subnet") -> bool:
        return self.bits == other.bits and self.first <= other.first and other.last <= self.last

    def has(self, address: int, bits: int) -> bool:
        return self.bits == bits and self.first <= address <= self.last

    def overlaps(self, other: "Subnet") -> bool:
        return self.bits == other.bits and self.first <= other.last and other.first <= self.last


def subnet(text: str, field: str) -> Subnet:
    """The subnet that a checked CIDR names. Raises CniError 7 when it has host bits."""
    head, _, length = text.partition("/")
    address, bits = parse(head)
    found = Subnet(address, int(length), bits)
    host_bits = bits - found.length
    network = address >> host_bits << host_bits
    if network != address:
        raise _bad(field, text, f"a subnet without host bits, which is {Subnet(network, found.length, bits)}")
    return found


def _bad(field: str, found: object, expected: str) -> CniError:
    return CniError(INVALID_CONFIG, f"{field}: found {found}, expected {expected}")


class Pool:
    """A pool of the configuration, checked. `field` is its place there, for messages."""

    __slots__ = ("exclude", "field", "flat_gateway", "gateway", "mode", "node_prefix", "pool_route", "subnet")

    def __init__(self, conf: "models.Pool", field: str, pool_route: bool) -> None:
        self.field = field
        self.subnet = subnet(conf.subnet, f"{field}.subnet")
        self.node_prefix = conf.nodePrefix
        self.mode = conf.mode or "routed"
        self.pool_route = pool_route if conf.poolRoute is None else conf.poolRoute
        bits, length = self.subnet.bits, self.subnet.length
        if self.node_prefix is not None and not length <= self.node_prefix <= bits:
            raise _bad(
                f"{field}.nodePrefix",
                self.node_prefix,
                f"a prefix length from the pool's {length} to its family's {bits}",
            )
        self.gateway, self.flat_gateway = self._gateway(conf.gateway)
        self.exclude: list[Subnet] = []
        for number, text in enumerate(conf.exclude or []):
            where = f"{field}.exclude[{number}]"
            excluded = subnet(text if "/" in text else f"{text}/{128 if ':' in text else 32}", where)
            if excluded not in self.subnet:
                raise _bad(where, text, f"an address or a subnet within the pool {self.subnet}")
            self.exclude.append(excluded)

    def _gateway(self, found: str | None) -> tuple[str, int | None]:
        """("first", "last" or "none"; the address of a flat pool's gateway or None)."""
        field = f"{self.field}.gateway"
        if self.mode == "routed":
            if found not in (None, "first", "last", "none"):
                raise _bad(field, found, '"first", "last" or "none" in a routed pool')
            return found or "first", None
        if found in (None, "none"):
            return "none", None
        try:
            address, bits = parse(checks.address(str(found)))
        except ValueError:
            address = bits = 0
        if not self.subnet.has(address, bits):
            raise _bad(field, found, f"an address of the pool {self.subnet}, or no gateway, in a flat pool")
        return "none", address

    def at(self, index: int, field: str) -> Subnet:
        """The subnet with this index. Raises CniError 7 when there is none."""
        if self.node_prefix is None:
            raise _bad(f"{self.field}.nodePrefix", "nothing", f"the size of the subnets that {field} counts")
        count = 1 << (self.node_prefix - self.subnet.length)
        if index >= count:
            raise _bad(
                field,
                index,
                f"an index below {count}: {self.subnet} has that many subnets with prefix {self.node_prefix}",
            )
        bits = self.subnet.bits
        return Subnet(self.subnet.first + (index << (bits - self.node_prefix)), self.node_prefix, bits)

    def indices(self, one: Subnet, used: dict[int, str]) -> list[int]:
        """Those of the used indices whose subnets overlap `one`."""
        if self.node_prefix is None:
            return []
        shift = self.subnet.bits - self.node_prefix
        low, high = (one.first - self.subnet.first) >> shift, (one.last - self.subnet.first) >> shift
        if high - low < len(used):
            return [index for index in range(low, high + 1) if index in used]
        return [index for index in used if low <= index <= high]


class Range:
    """One of this node's subnets in a pool, and what of it may be given to pods.

    `gateway` is an address or None; `length` is the prefix length that the pods' addresses have.
    """

    __slots__ = ("blocked", "gateway", "length", "subnet")

    def __init__(self, pool: Pool, own: Subnet) -> None:
        self.subnet = own
        self.length = own.length
        self.gateway: int | None = None
        blocked = [(excluded.first, excluded.last, "excluded") for excluded in pool.exclude]
        blocked += _edges(pool.subnet, "pool")
        if pool.mode == "routed":
            blocked += _edges(own, "node's subnet")
            usable_first, usable_last = _ends(own)
            # A subnet of one address has none for a gateway.
            if own.first != own.last and pool.gateway != "none":
                self.gateway = usable_first if pool.gateway == "first" else usable_last
        else:
            self.length = pool.subnet.length
            self.gateway = pool.flat_gateway
        if self.gateway is not None:
            blocked.append((self.gateway, self.gateway, "the gateway"))
        self.blocked = sorted(blocked)

    def why_not(self, address: int) -> str:
        """Why an address of this subnet is never given; "" when it may be."""
        for first, last, why in self.blocked:
            if first <= address <= last:
                return why
        return ""

    def next(self, address: int) -> int | None:
        """The lowest address from `address` up that may be given, or None."""
        address = max(address, self.subnet.first)
        for first, last, _ in self.blocked:
            if address < first:
                break
            if address <= last:
                address = last + 1
        return address if address <= self.subnet.last else None


def _edges(whole: Subnet, what: str) -> list[tuple[int, int, str]]:
    """The addresses of a subnet that stand for all of it.

    In a /31 or /127 there are none (RFC 3021, RFC 6164). IPv6 has no broadcast address; its first
    one is the routers' (subnet-router anycast, RFC 4291).
    """
    if whole.bits - whole.length < 2:
        return []
    edges = [(whole.first, whole.first, f"the network address of the {what}")]
    if whole.bits == 32:
        edges.append((whole.last, whole.last, f"the broadcast address of the {what}"))
    return edges


def _ends(whole: Subnet) -> tuple[int, int]:
    """The first and the last address of a subnet that a host can have."""
    taken = [first for first, _, _ in _edges(whole, "")]
    return whole.first + (whole.first in taken), whole.last - (whole.last in taken)


def pools(conf: "models.NodeSubnet") -> list[Pool]:
    """The pools of a configuration. Raises CniError 7, naming the field."""
    if not conf.pools:
        raise _bad("ipam.pools", "an empty list", "at least one pool")
    if len(conf.pools) > _MAX_POOLS:
        raise _bad(
            "ipam.pools", f"{len(conf.pools)} pools", f"at most {_MAX_POOLS}: an interface gets an address of each"
        )
    pool_route = conf.poolRoute is not False
    found = [Pool(pool, f"ipam.pools[{number}]", pool_route) for number, pool in enumerate(conf.pools)]
    for number, pool in enumerate(found):
        for other in found[:number]:
            if pool.subnet.overlaps(other.subnet):
                raise _bad(
                    f"{pool.field}.subnet", pool.subnet, f"a pool that does not overlap {other.field}, {other.subnet}"
                )
    return found


def _first_overlap(subnets: "list[tuple[Subnet, str]]") -> "tuple[tuple[Subnet, str], tuple[Subnet, str]] | None":
    """Two of them that overlap. In order, a subnet overlaps the one before it if it does any: it lies within it."""
    ordered = sorted(subnets, key=lambda entry: (entry[0].bits, entry[0].first, entry[0].length))
    return next(((a, b) for a, b in pairwise(ordered) if a[0].overlaps(b[0])), None)


def listed(entries: list[str], all_pools: list[Pool], field: str, *, others: bool = False) -> list[tuple[Pool, Subnet]]:
    """Each of the subnets in a list, with the pool it lies in. Raises CniError 7.

    `others`: the list may have subnets of other networks' pools, too, which are left out.
    """
    found: list[tuple[Pool, Subnet]] = []
    places: list[tuple[Subnet, str]] = []
    for number, text in enumerate(entries):
        where = f"{field}[{number}]"
        one = subnet(text, where)
        pool = next((pool for pool in all_pools if one in pool.subnet), None)
        if pool is None:
            if others and not any(one.overlaps(pool.subnet) for pool in all_pools):
                continue
            raise _bad(where, text, f"a subnet in one of the pools: {', '.join(str(p.subnet) for p in all_pools)}")
        found.append((pool, one))
        places.append((one, where))
    clash = _first_overlap(places)
    if clash:
        (other, _), (one, where) = clash
        raise _bad(where, one, f"a subnet that does not overlap {other} in the same list")
    return found


def parts(conf: "models.NodeSubnet", all_pools: list[Pool], name: str) -> list[tuple[Pool, Subnet]] | None:
    """The subnets that `nodes` has for the node called `name`; None when it is not in there.

    Raises CniError 7, also when two nodes overlap. All of them are looked at, not this node's
    alone: the definition is the same on every node, and a mistake in it should come out on the
    first one. Indices are compared as numbers: a large cluster has thousands.
    """
    indices: dict[int, str] = {}
    lists: dict[str, list[tuple[Pool, Subnet]]] = {}
    for node, part in (conf.nodes or {}).items():
        if isinstance(part, int):
            if part in indices:
                raise _bad(f"ipam.nodes.{node}", part, f"an index of its own: node {indices[part]} has it")
            indices[part] = node
        else:
            lists[node] = listed(part, all_pools, f"ipam.nodes.{node}")
    if indices:
        highest = max(indices)
        for pool in all_pools:
            pool.at(highest, f"ipam.nodes.{indices[highest]}")
    spans = sorted(((one.bits, one.first), node, pool, one) for node, own in lists.items() for pool, one in own)
    before = None
    for _, node, pool, one in spans:
        # Of those that begin before it, the last one overlaps it if any does.
        if before and before[1].overlaps(one):
            raise _overlap(node, one, *before)
        before = node, one
        for index in pool.indices(one, indices):
            raise _overlap(node, one, indices[index], pool.at(index, ""))
    if name in lists:
        return lists[name]
    own_index = (conf.nodes or {}).get(name)
    return None if own_index is None else [(pool, pool.at(own_index, "")) for pool in all_pools]


def require_own(conf: "models.NodeSubnet", own: list[tuple[Pool, Subnet]], field: str) -> None:
    """See that no node has any of `own` in `nodes`, which it would share with this one. Raises CniError 7."""
    expected = "a subnet that does not overlap {} of node {} in `ipam.nodes`"
    nodes = conf.nodes or {}
    indices = {part: node for node, part in nodes.items() if isinstance(part, int)}
    for pool, one in own:
        for index in pool.indices(one, indices):
            raise _bad(field, one, expected.format(pool.at(index, ""), indices[index]))
    lists = {node: part for node, part in nodes.items() if not isinstance(part, int)}
    clash = _first_overlap(
        [(one, "") for _, one in own] + [(subnet(text, ""), node) for node, part in lists.items() for text in part]
    )
    if clash:
        (one, _), (other, node) = clash if clash[1][1] else clash[::-1]
        raise _bad(field, one, expected.format(other, node))


def _overlap(node: str, one: Subnet, other_node: str, other: Subnet) -> CniError:
    return _bad(f"ipam.nodes.{node}", one, f"a subnet that does not overlap {other} of node {other_node}")
