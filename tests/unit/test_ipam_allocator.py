"""Which address an attachment gets, with the real store on a /run of the test's own."""

import ctypes
import functools
import itertools
import os
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from netaddr import IPAddress, IPNetwork  # type: ignore[import-untyped]

from ipam import allocator, node
from ipam.node import Share
from ipam.plugin import NodeSubnetPlugin
from ipam.store import Owner, Reservation, Store
from rdma_cni.cni import validate
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.request import Request
from rdma_cni.cni.undo import Undo

# linux/sched.h and linux/mount.h
P = ParamSpec("P")

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
DATABASE = "/run/rdma-cni/reservations.db"


def apart(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test in a process of its own, which sees an empty /run that nobody else does."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                assert libc.unshare(CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
                assert libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
                assert libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None) == 0, os.strerror(ctypes.get_errno())
                test(*args, **kwargs)
            except BaseException:
                os.write(writing, traceback.format_exc().encode()[-60000:])
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with open(reading, encoding="utf-8", errors="replace") as report:
            text = report.read()
        _, status = os.waitpid(child, 0)
        if status:
            pytest.fail(text or f"wait status {status}", pytrace=False)

    return run


RAIL: dict[str, Any] = {"subnet": "10.56.0.0/24", "nodePrefix": 29}
RAIL6: dict[str, Any] = {"subnet": "fd00:56::/120", "nodePrefix": 125}


def section(*pools: dict[str, Any], index: int = 3, **more: object) -> dict[str, Any]:
    return {"type": "node-subnet", "nodeName": "here", "nodes": {"here": index}, "pools": list(pools or [RAIL]), **more}


def shares(conf: dict[str, Any]) -> list[Share]:
    return node.shares(cast("Any", validate.check("NODE_SUBNET", conf, prefix="ipam.")))


@contextmanager
def opened() -> Iterator[Store]:
    """The store as a process of its own would have it."""
    store = Store()
    try:
        yield store
    finally:
        store.close()


def owner(name: str) -> Owner:
    """`network/container/ifname`; the network and the interface may be left out."""
    parts = name.split("/")
    return Owner(*{1: ["rail", name, "net1"], 2: [*parts, "net1"], 3: parts}[len(parts)])


def text(reservation: Reservation) -> str:
    return str(IPAddress(int.from_bytes(reservation.address, "big"), 4 if len(reservation.address) == 4 else 6))


def add(name: str, conf: dict[str, Any] | None = None, *requested: str) -> list[str]:
    with opened() as store, store:
        return [
            text(given) for given in allocator.allocate(store, owner(name), shares(conf or section()), list(requested))
        ]


def delete(name: str) -> None:
    with opened() as store, store:
        store.release(owner(name))


def refused(code: int, name: str, conf: dict[str, Any] | None = None, *requested: str) -> str:
    with pytest.raises(CniError) as caught:
        add(name, conf, *requested)
    assert caught.value.code == code
    return caught.value.message


def reserved() -> dict[str, str]:
    """Address to owner, by another reader of the file."""
    with sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT address, network, container, ifname FROM reservation").fetchall()
    connection.close()
    return {
        str(IPAddress(int.from_bytes(address, "big"), 4 if len(address) == 4 else 6)): "/".join(names)
        for address, *names in rows
    }


# Which address


@apart
def test_addresses_are_given_from_the_lowest_up() -> None:
    assert [add(f"c{n}") for n in range(5)] == [[f"10.56.0.{n}"] for n in range(26, 31)]


@apart
def test_a_freed_address_is_the_last_to_come_again() -> None:
    for n in range(3):
        add(f"c{n}")
    for n in (1, 0, 2):
        delete(f"c{n}")
    assert [add(f"d{n}") for n in range(5)] == [[f"10.56.0.{n}"] for n in (29, 30, 27, 26, 28)]


@apart
def test_the_same_attachment_gets_the_same_address_again() -> None:
    assert add("c") == add("c") == ["10.56.0.26"]
    assert len(reserved()) == 1


@pytest.mark.parametrize("other", ["rail/c/net2", "rail/d/net1", "track/c/net1"])
def test_another_interface_container_or_network_is_another_attachment(other: str) -> None:
    @apart
    def test() -> None:
        assert add("rail/c/net1") != add(other)

    test()


@apart
def test_two_networks_on_one_pool_never_share_an_address() -> None:
    given = [add(f"{network}/c{n}")[0] for n in range(2) for network in ("rail", "track")]
    assert given == [f"10.56.0.{n}" for n in range(26, 30)]
    add("rail/last")
    assert "10.56.0.24/29" in refused(11, "track/none")
    delete("rail/c0")
    assert add("track/again") == ["10.56.0.26"]


@apart
def test_two_networks_with_other_rules_on_one_pool_never_share_an_address_either() -> None:
    narrow = section({**RAIL, "exclude": ["10.56.0.27"]})
    assert [add("rail/a"), add("track/b", narrow), add("rail/c"), add("track/d", narrow), add("rail/e")] == [
        [f"10.56.0.{n}"] for n in (26, 28, 27, 29, 30)
    ]
    refused(11, "rail/f")
    refused(11, "track/f", narrow)
    delete("rail/c")
    refused(11, "track/f", narrow)
    assert add("rail/g") == ["10.56.0.27"]
    delete("rail/a")
    assert add("track/h", narrow) == ["10.56.0.26"]


@apart
def test_several_subnets_of_one_pool_are_used_in_order() -> None:
    conf = section(nodes={"here": ["10.56.0.200/30", "10.56.0.8/30", "10.56.0.100/31"]}, nodeName="here")
    assert [add(f"c{n}", conf) for n in range(3)] == [["10.56.0.202"], ["10.56.0.10"], ["10.56.0.101"]]
    assert "10.56.0.200/30, 10.56.0.8/30, 10.56.0.100/31" in refused(11, "c3", conf)
    delete("c1")
    assert add("c4", conf) == ["10.56.0.10"]


@apart
def test_two_pools_are_dual_stack_and_each_has_its_own_turn() -> None:
    conf = section(RAIL, RAIL6)
    assert add("c0", conf) == ["10.56.0.26", "fd00:56::1a"]
    assert add("only4") == ["10.56.0.27"]
    assert add("c1", conf) == ["10.56.0.28", "fd00:56::1b"]


@apart
def test_a_full_pool_gives_back_what_the_other_pools_gave() -> None:
    both = section(RAIL6, RAIL)
    for n in range(5):
        add(f"c{n}")
    assert "10.56.0.24/29" in refused(11, "d", both)
    assert len(reserved()) == 5
    delete("c0")
    assert add("d", both) == ["fd00:56::1a", "10.56.0.26"]


@apart
def test_a_pool_added_later_gives_an_attachment_its_second_address() -> None:
    assert add("c") == ["10.56.0.26"]
    assert add("c", section(RAIL, RAIL6)) == ["10.56.0.26", "fd00:56::1a"]
    delete("c")
    assert reserved() == {}


@apart
def test_a_changed_index_leaves_what_is_reserved_and_gives_from_the_new_subnet() -> None:
    add("c0")
    moved = section(index=7)
    assert add("c0", moved) == ["10.56.0.26"]
    assert add("c1", moved) == ["10.56.0.58"]
    delete("c0")
    assert add("c2", moved) == ["10.56.0.59"]
    assert add("c3") == ["10.56.0.27"]


@apart
def test_an_address_that_is_excluded_later_stays_until_it_is_freed() -> None:
    add("c0")
    narrow = section({**RAIL, "exclude": ["10.56.0.26/31"]})
    assert add("c0", narrow) == ["10.56.0.26"]
    assert add("c1", narrow) == ["10.56.0.28"]
    delete("c0")
    assert [add(f"d{n}", narrow) for n in range(2)] == [["10.56.0.29"], ["10.56.0.30"]]
    refused(11, "e", narrow)


@apart
def test_what_was_given_under_other_rules_is_found_again_when_all_else_is_taken() -> None:
    for n in range(5):
        add(f"c{n}")
    other = section({**RAIL, "gateway": "last"})
    # The former gateway is free now, and the new one was somebody's.
    assert add("d0", other) == ["10.56.0.25"]
    refused(11, "d1", other)
    delete("c3")
    delete("c4")
    assert add("d1", other) == ["10.56.0.29"]
    refused(11, "d2", other)


@pytest.mark.parametrize(
    ("pool", "index", "given"),
    [
        ({"subnet": "10.0.0.0/24", "nodePrefix": 31}, 2, ["10.0.0.5"]),
        ({"subnet": "10.0.0.0/24", "nodePrefix": 31, "gateway": "none"}, 2, ["10.0.0.4", "10.0.0.5"]),
        ({"subnet": "10.0.0.0/24", "nodePrefix": 32}, 7, ["10.0.0.7"]),
        ({"subnet": "fd00::/120", "nodePrefix": 127}, 2, ["fd00::5"]),
        ({"subnet": "fd00::/120", "nodePrefix": 128}, 7, ["fd00::7"]),
        ({"subnet": "10.0.0.0/30", "nodePrefix": 30, "mode": "flat"}, 0, ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_a_small_subnet_gives_all_it_has(pool: dict[str, Any], index: int, given: list[str]) -> None:
    @apart
    def test() -> None:
        conf = section(pool, index=index)
        assert [add(f"c{n}", conf)[0] for n in range(len(given))] == given
        assert "is reserved" in refused(11, "more", conf)
        delete("c0")
        assert add("again", conf) == [given[0]]

    test()


@apart
def test_a_subnet_without_any_address_for_pods_is_told_from_a_full_one() -> None:
    conf = section({"subnet": "10.0.0.0/24", "nodePrefix": 32}, index=0)
    assert "10.0.0.0/32) has no address for pods" in refused(11, "c", conf)
    assert "has no address for pods" in refused(11, "c", section({**RAIL, "exclude": ["10.56.0.0/24"]}))


@apart
def test_a_huge_ipv6_subnet_gives_its_lowest_addresses() -> None:
    conf = section({"subnet": "fd00:56::/48", "nodePrefix": 64})
    assert [add(f"c{n}", conf)[0] for n in range(3)] == [f"fd00:56:0:3::{n}" for n in (2, 3, 4)]


# Requested addresses


@apart
def test_of_a_huge_subnet_no_more_freed_addresses_are_remembered_than_of_a_large_one() -> None:
    conf = section({"subnet": "fd00:56::/48", "nodePrefix": 64}, {"subnet": "10.64.0.0/10", "nodePrefix": 20})
    own = shares(conf)
    rounds = allocator._REMEMBERED + 100
    given: dict[str, list[int]] = {}
    with opened() as store:
        for number in range(rounds):
            with store:
                for each in allocator.allocate(store, owner("c"), own, []):
                    given.setdefault(text(each), []).append(number)
            with store:
                store.release(owner("c"))
        (count,) = store.execute("SELECT count(*) FROM freed GROUP BY scope ORDER BY count(*) DESC LIMIT 1")
    assert cast("int", count[0]) <= allocator._REMEMBERED
    # Two are freed each time, one of each pool.
    again = [later - earlier for turns in given.values() for earlier, later in itertools.pairwise(turns)]
    assert min(again) >= allocator._REMEMBERED // 2


@apart
def test_a_requested_address_is_given() -> None:
    assert add("c", None, "10.56.0.29") == ["10.56.0.29"]
    assert add("c", None, "10.56.0.29") == ["10.56.0.29"]
    assert add("d", section(RAIL, RAIL6), "fd00:56::1d") == ["10.56.0.26", "fd00:56::1d"]


@apart
def test_a_requested_address_is_passed_over_when_its_turn_comes_and_comes_again_last() -> None:
    add("c", None, "10.56.0.27")
    delete("c")
    assert [add(f"d{n}") for n in range(5)] == [[f"10.56.0.{n}"] for n in (26, 28, 29, 30, 27)]


@pytest.mark.parametrize(
    ("requested", "reason"),
    [
        (["10.57.0.1"], "in none of the pools (10.56.0.0/24, fd00:56::/120)"),
        (["fd00::1"], "in none of the pools"),
        (["10.56.0.40"], "outside this node's subnet of the pool 10.56.0.0/24 (10.56.0.24/29)"),
        (["10.56.0.24"], "never given, it is the network address of the node's subnet"),
        (["10.56.0.31"], "never given, it is the broadcast address of the node's subnet"),
        (["10.56.0.25"], "never given, it is the gateway"),
        (["10.56.0.28"], "never given, it is excluded"),
        (["10.56.0.26"], "reserved by container other, interface net9, network track"),
        (["10.56.0.27", "10.56.0.29"], "a second one of the pool 10.56.0.0/24"),
        (["fd00:56::1d", "fd00:56::19"], "a second one of the pool fd00:56::/120"),
        (["10.56.0.27", "fd00:56::19"], "never given, it is the gateway"),
    ],
)
def test_a_requested_address_is_refused_with_the_reason(requested: list[str], reason: str) -> None:
    @apart
    def test() -> None:
        add("track/other/net9")
        message = refused(120, "c", section({**RAIL, "exclude": ["10.56.0.28"]}, RAIL6), *requested)
        assert message.startswith(f"requested address {requested[-1]}: ")
        assert reason in message
        assert len(reserved()) == 1

    test()


@apart
def test_an_attachment_that_has_an_address_is_refused_another() -> None:
    add("c")
    assert "this attachment has 10.56.0.26 of the pool 10.56.0.0/24 already" in refused(120, "c", None, "10.56.0.27")


@apart
def test_one_address_named_twice_is_one_request() -> None:
    assert add("c", None, "10.56.0.29", "10.56.0.29") == ["10.56.0.29"]


# Undoing


@apart
def test_an_add_that_is_undone_frees_what_it_gave_and_no_more() -> None:
    def request(*pools: dict[str, Any]) -> Request:
        asked = Request("ADD")
        asked.network, asked.container, asked.ifname = "rail", "c", "net1"
        asked.config = {"ipam": section(*pools)}
        return asked

    def undone(asked: Request) -> None:
        undo = Undo()
        NodeSubnetPlugin().add(asked, undo)
        undo.roll_back()

    undone(request(RAIL))
    assert reserved() == {}
    add("c")
    before = reserved()
    undone(request(RAIL))
    undone(request(RAIL, RAIL6))
    assert reserved() == before


# A store that is replaced while it is in use


@apart
def test_nothing_is_written_into_a_store_that_was_replaced_meanwhile() -> None:
    with opened() as store:
        with sqlite3.connect(DATABASE) as connection:
            connection.execute("PRAGMA user_version=0")
        connection.close()
        with opened():  # this one moves it aside
            pass
        with store:
            allocator.allocate(store, owner("c"), shares(section()), [])
    assert reserved() == {"10.56.0.26": "rail/c/net1"}


@apart
def test_two_that_find_the_same_damage_replace_the_store_once_and_both_refuse() -> None:
    for n in range(5):
        add(f"c{n}")
    with opened() as one, opened() as other:
        content = bytearray(open(DATABASE, "rb").read())  # noqa: SIM115
        content[4096:] = b"\xff" * (len(content) - 4096)
        with open(DATABASE, "r+b") as file:
            file.write(content)
        for store in (one, other):
            with pytest.raises(CniError):
                store.of_owner(owner("c0"))
    assert len([name for name in os.listdir("/run/rdma-cni") if ".bad-" in name]) == 1
    assert "/run/rdma-cni/reservations.db.bad-" in refused(5, "d")


# Against a model

NETWORKS, CONTAINERS, INTERFACES = ["rail", "track"], ["a", "b", "c", "d", "e"], ["net1", "net2"]
EXCLUDES: list[list[str]] = [[], ["10.9.8.2"], ["10.9.8.4/30", "10.9.8.18"], ["10.9.8.0/28", "10.9.8.20"]]


class Attachments(RuleBasedStateMachine):
    """The allocator beside a model of lists and dictionaries.

    `steady`: the rules stay as they are.
    `pure`: all that was given was given under the present rules, so that the order is known, too:
    what was never given from the lowest up, then what has been free for longest.
    """

    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree("/run/rdma-cni", ignore_errors=True)
        self.index, self.exclude = 0, EXCLUDES[0]
        self.held: dict[tuple[str, str], str] = {}  # (owner, pool) -> address
        self.order: dict[str, list[str]] = {}  # pool -> addresses in the order in which they will come
        self.pure = True

    @initialize(
        dual=st.booleans(),
        mode=st.sampled_from(["routed", "flat"]),
        prefix=st.sampled_from([28, 29, 30, 31]),
        steady=st.booleans(),
    )
    def choose_pools(self, *, dual: bool, mode: str, prefix: int, steady: bool) -> None:
        self.steady = steady
        self.pools: list[dict[str, Any]] = [{"subnet": "10.9.8.0/26", "nodePrefix": prefix, "mode": mode}]
        if dual:
            self.pools.append({"subnet": "fd00::/122", "nodePrefix": 125, "mode": mode})
        self.begin_anew()

    def section(self) -> dict[str, Any]:
        return section({**self.pools[0], "exclude": self.exclude}, *self.pools[1:], index=self.index)

    def usable(self, pool: dict[str, Any]) -> list[str]:
        """By netaddr."""
        whole = IPNetwork(pool["subnet"])
        own = list(whole.subnet(pool["nodePrefix"]))[self.index]
        never = {whole.first}
        if whole.version == 4:
            never |= {whole.last} | {int(ip) for one in self.exclude for ip in IPNetwork(one)}
        addresses = list(own)
        if pool["mode"] == "routed":
            addresses = list(own.iter_hosts())
            never.add(int(addresses[0]))
        return [str(address) for address in addresses if int(address) not in never]

    def begin_anew(self) -> None:
        self.order = {pool["subnet"]: self.usable(pool) for pool in self.pools}
        self.pure = not self.held

    def taken(self) -> set[str]:
        return set(self.held.values())

    def expect(self, name: str, requested: str | None) -> list[set[str]] | int:
        """The addresses that each pool may give, or the error's code."""
        answer: list[set[str]] = []
        if requested and not any(IPAddress(requested) in IPNetwork(pool["subnet"]) for pool in self.pools):
            return 120
        for pool in self.pools:
            subnet = pool["subnet"]
            request = requested if requested and IPAddress(requested) in IPNetwork(subnet) else None
            had = self.held.get((name, subnet))
            if had:
                if request not in (None, had):
                    return 120
                answer.append({had})
                continue
            free = [address for address in self.order[subnet] if address not in self.taken()]
            if request:
                if request not in free:
                    return 120
                answer.append({request})
            elif not free:
                return 11
            else:
                answer.append({free[0]} if self.pure else set(free))
        return answer

    def attach(self, name: str, requested: str | None) -> None:
        expected = self.expect(name, requested)
        try:
            given = add(name, self.section(), *([requested] if requested else []))
        except CniError as error:
            assert error.code == expected, (str(error), expected)  # noqa: PT017
            return
        assert not isinstance(expected, int), (given, expected)
        assert all(one in those for one, those in zip(given, expected, strict=True)), (given, expected)
        for pool, address in zip(self.pools, given, strict=True):
            self.held[name, pool["subnet"]] = address

    def detach(self, names: list[str]) -> None:
        for (name, subnet), address in list(self.held.items()):
            if name in names:
                del self.held[name, subnet]
                if address in self.order[subnet]:
                    self.order[subnet].remove(address)
                    self.order[subnet].append(address)

    @rule(network=st.sampled_from(NETWORKS), container=st.sampled_from(CONTAINERS), ifname=st.sampled_from(INTERFACES))
    def add(self, network: str, container: str, ifname: str) -> None:
        self.attach(f"{network}/{container}/{ifname}", None)

    @rule(
        network=st.sampled_from(NETWORKS),
        container=st.sampled_from(CONTAINERS),
        last=st.integers(0, 70),
        six=st.booleans(),
    )
    def request(self, network: str, container: str, last: int, *, six: bool) -> None:
        self.attach(f"{network}/{container}/net1", f"fd00::{last:x}" if six else f"10.9.8.{last}")

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({name for name, _ in self.held})))
        delete(name)
        self.detach([name])

    @rule(network=st.sampled_from(NETWORKS), container=st.sampled_from(CONTAINERS))
    def delete_perhaps(self, network: str, container: str) -> None:
        delete(f"{network}/{container}")
        self.detach([f"{network}/{container}/net1"])

    @precondition(lambda self: not self.steady)
    @rule(network=st.sampled_from(NETWORKS), valid=st.sets(st.sampled_from(CONTAINERS), min_size=2))
    def collect(self, network: str, valid: set[str]) -> None:
        # The order in which one GC frees is nobody's concern; what it frees is.
        gone = {
            name
            for name, _ in self.held
            if name.startswith(f"{network}/")
            and (name.split("/")[1] not in valid or name.split("/")[2] not in INTERFACES)
        }
        request = Request("GC")
        request.network = network
        listed = [{"containerID": container, "ifname": ifname} for container in valid for ifname in INTERFACES]
        request.config = {"cni.dev/valid-attachments": listed}
        NodeSubnetPlugin().gc(request)
        self.detach(sorted(gone))
        self.pure = self.pure and len(gone) < 2

    @rule()
    def ask_for_status(self) -> None:
        expected = self.expect("", None)
        request = Request("STATUS")
        request.network = "rail"
        request.config = {"ipam": self.section()}
        try:
            NodeSubnetPlugin().status(request)
        except CniError as error:
            assert (error.code, expected) == (50, 11)  # noqa: PT017
        else:
            assert not isinstance(expected, int)

    @precondition(lambda self: not self.steady)
    @rule(index=st.integers(0, 3))
    def change_index(self, index: int) -> None:
        if index != self.index:
            self.index = index
            self.begin_anew()
            # Some of these may have been given before, when the index was the same once.
            self.pure = False

    @precondition(lambda self: not self.steady)
    @rule(exclude=st.sampled_from(EXCLUDES))
    def change_exclude(self, exclude: list[str]) -> None:
        if exclude != self.exclude:
            self.exclude = exclude
            self.begin_anew()
            self.pure = False

    @rule(network=st.sampled_from(NETWORKS))
    def exhaust(self, network: str) -> None:
        for n in range(20):
            name = f"{network}/{CONTAINERS[n % 5]}/x{n}"
            if isinstance(self.expect(name, None), int):
                break
            self.attach(name, None)

    @invariant()
    def the_store_has_what_the_model_has(self) -> None:
        if os.path.exists(DATABASE):
            assert reserved() == {address: name for (name, _), address in self.held.items()}
        else:
            assert not self.held


@apart
def test_the_allocator_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        Attachments,
        settings=settings(
            max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
