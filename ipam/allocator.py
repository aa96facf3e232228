"""Which address an attachment gets. It knows ranges and a store, and no files."""

from ipam.node import Share
from ipam.pool import Range, parse, unparse
from ipam.store import Owner, Reservation, Store
from rdma_cni.cni.errors import REQUEST_REFUSED, TRY_AGAIN, CniError

_REMEMBERED = 4096
"""Freed addresses."""


def allocate(store: Store, owner: Owner, shares: list[Share], requested: list[str]) -> list[Reservation]:
    """One address of each share, for `owner`; within a transaction of the store.

    What the attachment has already it gets again. `requested` are addresses that it wants, at most
    one of each pool. Raises CniError 11 when a pool is full, 120 when a request is refused, 5 when
    reservations were lost.
    """
    store.require_certainty()
    wanted = _by_share(shares, requested)
    had = {reservation.pool: reservation for reservation in store.of_owner(owner)}
    given = []
    for share, request in zip(shares, wanted, strict=True):
        again = had.get(str(share.pool.subnet))
        if again is None:
            given.append(_allocate(store, owner, share, request))
            continue
        if request is not None and request.to_bytes(share.pool.subnet.bits // 8, "big") != again.address:
            bits = share.pool.subnet.bits
            has = unparse(int.from_bytes(again.address, "big"), bits)
            raise CniError(
                REQUEST_REFUSED,
                f"requested address {unparse(request, bits)}: this attachment has {has} of the pool "
                f"{share.pool.subnet} already; expected no other until its DEL",
            )
        given.append(again)
    return given


def _by_share(shares: list[Share], requested: list[str]) -> list[int | None]:
    wanted: list[int | None] = [None] * len(shares)
    for text in requested:
        address, bits = parse(text)
        for number, share in enumerate(shares):
            if not share.pool.subnet.has(address, bits):
                continue
            if wanted[number] not in (None, address):
                raise CniError(
                    REQUEST_REFUSED,
                    f"requested address {text}: a second one of the pool {share.pool.subnet}, expected one at the most",
                )
            wanted[number] = address
            break
        else:
            pools = ", ".join(str(share.pool.subnet) for share in shares)
            raise CniError(REQUEST_REFUSED, f"requested address {text}: in none of the pools ({pools})")
    return wanted


def _allocate(store: Store, owner: Owner, share: Share, request: int | None) -> Reservation:
    size = share.pool.subnet.bits // 8
    scope, subnet, start = store.scope(_rules(share))
    if request is not None:
        own = _requested(store, share, request)
        address = request
    else:
        found = (
            _long_freed(store, share, scope)
            or _never_given(store, share, scope, subnet, start)
            or _freed(store, share, scope)
            or _left_over(store, share)
        )
        if found is None:
            raise _full(share)
        own, address = found
    gateway = "" if own.gateway is None else unparse(own.gateway, share.pool.subnet.bits)
    reservation = Reservation(address.to_bytes(size, "big"), own.length, gateway, str(share.pool.subnet))
    store.reserve(reservation, scope, owner)
    return reservation


def _full(share: Share) -> CniError:
    if all(own.next(own.subnet.first) is None for own in share.ranges):
        return CniError(
            TRY_AGAIN,
            f"pool {share.pool.subnet}: this node's subnet ({share}) has no address for pods: all are network, "
            "broadcast, gateway or excluded; expected at least one: give the node a larger subnet, or another",
        )
    return CniError(
        TRY_AGAIN,
        f"pool {share.pool.subnet}: every address of this node's subnet ({share}) is reserved; expected a free one: "
        "give the node a larger subnet, or see which attachments are stale",
    )


def _rules(share: Share) -> str:
    """What decides which addresses may be given: with other rules, giving begins anew."""
    exclude = " ".join(str(excluded) for excluded in share.pool.exclude)
    ranges = " ".join(f"{own.subnet}>{own.gateway}" for own in share.ranges)
    return f"{share.pool.subnet} {share.pool.mode} {ranges} !{exclude}"


def _never_given(store: Store, share: Share, scope: int, subnet: int, start: bytes) -> tuple[Range, int] | None:
    size = share.pool.subnet.bits // 8
    for number in range(subnet, len(share.ranges)):
        own = share.ranges[number]
        address = own.next(int.from_bytes(start, "big") if number == subnet else own.subnet.first)
        while address is not None:
            following = own.next(address + 1)
            if not store.was_given(scope, address.to_bytes(size, "big")):
                if following is None:
                    store.advance(scope, number + 1, b"")
                else:
                    store.advance(scope, number, following.to_bytes(size, "big"))
                return own, address
            address = following
    store.advance(scope, len(share.ranges), b"")
    return None


def _long_freed(store: Store, share: Share, scope: int) -> tuple[Range, int] | None:
    """An address after which so many were freed that more of them need not be remembered.

    A subnet of IPv6 is never given out once: the store would grow with each pod.
    """
    if sum(own.subnet.last - own.subnet.first + 1 for own in share.ranges) <= _REMEMBERED:
        return None
    return _freed(store, share, scope) if store.freed_since(scope) >= _REMEMBERED else None


def _freed(store: Store, share: Share, scope: int) -> tuple[Range, int] | None:
    raw = store.longest_free(scope)
    if raw is None:
        return None
    address = int.from_bytes(raw, "big")
    return next((own, address) for own in share.ranges if own.subnet.has(address, share.pool.subnet.bits))


def _left_over(store: Store, share: Share) -> tuple[Range, int] | None:
    """The lowest address that nobody has: one that was given under other rules, and freed since."""
    size = share.pool.subnet.bits // 8
    for own in share.ranges:
        taken = store.reserved(own.subnet.first.to_bytes(size, "big"), own.subnet.last.to_bytes(size, "big"))
        address = own.next(own.subnet.first)
        for raw in taken:
            if address is None or int.from_bytes(raw, "big") > address:
                break
            if int.from_bytes(raw, "big") == address:
                address = own.next(address + 1)
        if address is not None:
            return own, address
    return None


def _requested(store: Store, share: Share, address: int) -> Range:
    """The range that a requested address lies in. Raises CniError 120 with the reason against it."""
    text = unparse(address, share.pool.subnet.bits)
    own = next((own for own in share.ranges if own.subnet.has(address, share.pool.subnet.bits)), None)
    if own is None:
        raise CniError(
            REQUEST_REFUSED,
            f"requested address {text}: outside this node's subnet of the pool {share.pool.subnet} ({share}); expected "
            "one in it, or the pod on the node that has that address",
        )
    why = own.why_not(address)
    if why:
        raise CniError(REQUEST_REFUSED, f"requested address {text}: never given, it is {why}; expected another")
    holder = store.holder(address.to_bytes(share.pool.subnet.bits // 8, "big"))
    if holder:
        raise CniError(REQUEST_REFUSED, f"requested address {text}: reserved by {holder}; expected a free one")
    return own
