"""Room: what the store's rules say of a node's part of a pool, held against the allocator's own answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from ipam import allocator, room
from ipam.node import Share
from ipam.pool import Pool, Range, subnet


def share(pool: str, *owns: str, **keys: Any) -> Share:
    values: dict[str, Any] = {"nodePrefix": None, "mode": None, "gateway": None, "exclude": None, "poolRoute": None}
    found = Pool(SimpleNamespace(**(values | {"subnet": pool} | keys)), "ipam.pools[0]", pool_route=True)  # type: ignore[arg-type]
    return Share(found, [Range(found, subnet(own, "")) for own in owns])


SHARES = [
    share("10.56.0.0/16", "10.56.3.0/24"),
    share("10.56.0.0/16", "10.56.3.0/24", gateway="last", exclude=["10.56.3.9", "10.56.3.8/29", "10.56.3.64/28"]),
    share("10.56.0.0/16", "10.56.3.0/24", gateway="none", exclude=["10.56.4.0/24"]),
    share("10.56.0.0/16", "10.56.3.0/30", "10.56.3.8/31", "10.56.3.16/32"),
    share("10.56.0.0/16", "10.56.3.8/31", gateway="last"),
    share("10.56.0.0/16", "10.56.0.0/24", "10.56.255.0/24"),
    share("10.56.0.0/16", "10.56.3.0/24", exclude=["10.56.0.0/16"]),
    share("10.56.3.0/24", "10.56.3.0/25", mode="flat", gateway="10.56.3.1"),
    share("10.56.3.0/24", "10.56.3.0/25", mode="flat", gateway="10.56.3.200"),
    share("10.56.3.0/24", "10.56.3.128/25", mode="flat"),
    share("fd00:56::/48", "fd00:56:0:3::/120"),
    share("fd00:56::/48", "fd00:56:0:3::/120", gateway="last", exclude=["fd00:56:0:3::9"]),
    share("fd00:56::/48", "fd00:56:0:3::/127", gateway="last"),
]


@pytest.mark.parametrize("given", SHARES, ids=lambda given: f"{given.pool.subnet} {given} {given.pool.mode}")
def test_the_rules_in_the_store_lead_back_to_the_same_addresses(given: Share) -> None:
    pool, ranges = room._parse(allocator._rules(given))
    assert (str(pool.subnet), pool.mode) == (str(given.pool.subnet), given.pool.mode)
    for own, expected in zip(ranges, given.ranges, strict=True):
        assert own.gateway == expected.gateway
        count = 0
        address = expected.next(expected.subnet.first)
        while address is not None:
            assert not own.why_not(address)
            count += 1
            address = expected.next(address + 1)
        assert room.usable(own) == count


def test_a_large_subnet_is_counted_at_once() -> None:
    (own,) = share("fd00:56::/48", "fd00:56:0:3::/64").ranges
    assert room.usable(own) == 2**64 - 2
