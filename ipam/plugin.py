"""node-subnet: one address of this node's own subnet in each pool.

Called by `rdma` as a module, by others as the executable `node-subnet`. It never opens CNI_NETNS: a
reservation ends by DEL or GC alone, not because a namespace cannot be seen.
"""

from rdma_cni.cni import __version__, checks, log, validate
from rdma_cni.cni.errors import CHECK_FAILED, INVALID_CONFIG, INVALID_ENVIRONMENT, NOT_AVAILABLE, CniError
from rdma_cni.cni.plugin import Plugin, run, valid_attachments
from rdma_cni.cni.request import Request
from rdma_cni.cni.typecast import cast
from rdma_cni.cni.undo import Undo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from ipam import models
    from ipam.node import Share
    from ipam.store import Owner, Reservation, Store
    from rdma_cni.cni.models import Result


_MAIN_TABLE = 254
"""RT_TABLE_MAIN of linux/rtnetlink.h."""


class NodeSubnetPlugin(Plugin):
    """What only some commands need is imported by those.

    `store` may be open already, for ADD or DEL, which closes it.
    """

    name = "node-subnet"
    about = f"node-subnet {__version__}: a CNI IPAM plugin that gives each node its own part of a pool"

    def __init__(self, store: "Store | None" = None) -> None:
        self._store = store

    def _opened(self) -> "Store":
        if self._store:
            return self._store
        from ipam.store import Store

        return Store()

    def add(self, request: Request, undo: Undo) -> dict[str, object]:
        """Reserve an address in each pool, all or none."""
        if self._store:
            undo.lend(self._store.close)
        from ipam import allocator, node

        conf = configuration(request)
        requested = _requested(request)
        shares = node.shares(conf)
        owner = _owner(request)
        store = self._opened()
        if not self._store:
            undo.lend(store.close)
        with store:
            before = {reservation.address for reservation in store.of_owner(owner)}
            # Beforehand: a signal may come right after the commit.
            undo.push("give the address back", lambda: self._release(store, owner, before))
            given = allocator.allocate(store, owner, shares, requested)
        return _result(request, conf, shares, given)

    def delete(self, request: Request) -> None:
        """Free what the attachment has; nothing of the configuration but its name matters."""
        store = self._opened()
        try:
            self._release(store, _owner(request))
        finally:
            store.close()

    @staticmethod
    def _release(store: "Store", owner: "Owner", keep: "Collection[bytes]" = ()) -> None:
        with store:
            store.release(owner, keep)

    def check(self, request: Request) -> None:
        """The attachment has its reservations, and they are what `prevResult` says."""
        from ipam.pool import parse, pools
        from ipam.store import Store

        conf = configuration(request)
        store = Store()
        try:
            held = store.of_owner(_owner(request))
        finally:
            store.close()
        previous = request.config.get("prevResult")
        checked = validate.check("RESULT", previous if isinstance(previous, dict) else {}, prefix="prevResult.")
        result: Result = cast("Result", checked)
        addresses = [parse(ip.address.partition("/")[0]) for ip in result.ips or []]
        for pool in pools(conf):
            mine = [reservation for reservation in held if reservation.pool == str(pool.subnet)]
            if not mine:
                raise CniError(
                    CHECK_FAILED,
                    f"pool {pool.subnet}: found no reservation of {_owner(request)}, expected the one that ADD made",
                )
            named = [
                address.to_bytes(bits // 8, "big") for address, bits in addresses if pool.subnet.has(address, bits)
            ]
            if named and mine[0].address not in named:
                raise CniError(
                    CHECK_FAILED,
                    f"pool {pool.subnet}: found {_text(mine[0])} reserved for {_owner(request)}, expected what "
                    "prevResult says it has",
                )

    def gc(self, request: Request) -> None:
        """Free what belongs to this network and is not in `cni.dev/valid-attachments`."""
        from ipam.store import Store

        valid = valid_attachments(request)
        store = Store()
        try:
            with store:
                for owner in store.owners(request.network):
                    if (owner.container, owner.ifname) not in valid:
                        log.info(f"freeing the addresses of {owner}")
                        store.release(owner)
        finally:
            store.close()

    def status(self, request: Request) -> None:
        """An ADD would succeed now: it is tried, and taken back before anybody sees it."""
        from ipam import allocator, node
        from ipam.store import Owner, Store

        try:
            shares = node.shares(configuration(request))
            store = Store()
            try:
                with store:
                    allocator.allocate(store, Owner(request.network, "", ""), shares, [])
                    raise _EnoughError
            finally:
                store.close()
        except _EnoughError:
            return
        except CniError as error:
            if error.code == INVALID_CONFIG:
                raise
            raise CniError(NOT_AVAILABLE, error.message, error.details) from None


class _EnoughError(Exception):
    """Ends a transaction that was only a question."""


def _owner(request: Request) -> "Owner":
    from ipam.store import Owner

    return Owner(request.network, request.container, request.ifname, request.pod)


def configuration(request: Request) -> "models.NodeSubnet":
    """The section `ipam`, checked field by field. Raises CniError 7."""
    section = request.config.get("ipam")
    if not isinstance(section, dict):
        found = "nothing" if section is None else type(section).__name__
        raise CniError(INVALID_CONFIG, f"ipam: found {found}, expected an object with `pools`")
    conf = cast("models.NodeSubnet", validate.check("NODE_SUBNET", section, prefix="ipam."))
    for number, route in enumerate(conf.routes or []):
        if route.gw and (":" in route.gw) != (":" in route.dst):
            raise CniError(
                INVALID_CONFIG,
                f"ipam.routes[{number}].gw: found {route.gw}, expected a gateway of the family of {route.dst}",
            )
    return conf


def _requested(request: Request) -> list[str]:
    """The addresses that are asked for: `runtimeConfig.ips`, else `args.cni.ips`, else CNI_ARGS IP."""
    runtime = request.config.get("runtimeConfig")
    args = request.config.get("args")
    cni = args.get("cni") if isinstance(args, dict) else None
    for field, value in (
        ("runtimeConfig.ips", runtime.get("ips") if isinstance(runtime, dict) else None),
        ("args.cni.ips", cni.get("ips") if isinstance(cni, dict) else None),
    ):
        if value is None or value == []:
            continue
        if not isinstance(value, list):
            raise CniError(INVALID_CONFIG, f"{field}: found {type(value).__name__}, expected a list of addresses")
        return [_address(f"{field}[{number}]", entry, INVALID_CONFIG) for number, entry in enumerate(value)]
    entries = request.args.get("IP", "").split(",")
    return [_address("CNI_ARGS: IP", entry, INVALID_ENVIRONMENT) for entry in entries if entry]


def _address(field: str, found: object, code: int) -> str:
    try:
        if not isinstance(found, str):
            raise ValueError("an address")
        return checks.cidr(found).partition("/")[0] if "/" in found else checks.address(found)
    except ValueError as error:
        raise CniError(
            code, f"{field}: found {str(found)[:80]!r}, expected {error}, with or without prefix length"
        ) from None


def _text(reservation: "Reservation") -> str:
    from ipam.pool import unparse

    raw = reservation.address
    return f"{unparse(int.from_bytes(raw, 'big'), len(raw) * 8)}/{reservation.length}"


def _result(
    request: Request, conf: "models.NodeSubnet", shares: "list[Share]", given: "list[Reservation]"
) -> dict[str, object]:
    """The result in the version that was asked for: addresses, routes, DNS."""
    ips: list[dict[str, object]] = []
    routes = [_route(request, route) for route in conf.routes or []]
    for share, reservation in zip(shares, given, strict=True):
        ip: dict[str, object] = {"address": _text(reservation)}
        if reservation.gateway:
            ip["gateway"] = reservation.gateway
        if not request.at_least("1.0.0"):
            ip["version"] = "4" if len(reservation.address) == 4 else "6"
        ips.append(ip)
        pool = share.pool
        if pool.mode == "routed" and pool.pool_route and reservation.gateway and not _covered(request, conf, share):
            routes.append({"dst": str(pool.subnet), "gw": reservation.gateway})
    result: dict[str, object] = {"cniVersion": request.version, "ips": ips}
    if routes:
        result["routes"] = routes
    if conf.dns:
        result["dns"] = conf.dns
    return result


def _route(request: Request, route: "models.OwnRoute") -> dict[str, object]:
    found: dict[str, object] = {"dst": route.dst}
    if route.gw:
        found["gw"] = route.gw
    if request.at_least("1.1.0"):
        for key in ("mtu", "advmss", "priority", "table", "scope"):
            value = getattr(route, key)
            if value is not None:
                found[key] = value
    return found


def _covered(request: Request, conf: "models.NodeSubnet", share: "Share") -> bool:
    """Whether a configured route leads to the whole pool already."""
    from ipam.pool import Subnet, parse

    for route in conf.routes or []:
        # One in a table of its own is for some packets only.
        if route.table not in (None, 0, _MAIN_TABLE) and request.at_least("1.1.0"):
            continue
        head, _, length = route.dst.partition("/")
        address, bits = parse(head)
        shift = bits - int(length)
        if share.pool.subnet in Subnet(address >> shift << shift, int(length), bits):
            return True
    return False


def main() -> int:
    return run(NodeSubnetPlugin())
