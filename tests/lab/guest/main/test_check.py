"""CHECK looks at what this plugin made, and fails with what differs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import guest
import pytest
from guest import Answer, Function, Pod
from network import (
    ScriptedIpam,
    attach,
    conf,
    detach,
    earlier_plugin,
    earlier_plugin_deletes,
    error,
    host_local,
    lose_state,
)

ROUTES: list[dict[str, object]] = [{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.9/16", "gw": "10.56.3.9"}]


@dataclass
class Attached:
    """A pod with an attachment."""

    pod: Pod
    config: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)

    def check(self, netns: Pod | str | None = None, **more: Any) -> Answer:
        return guest.cni("CHECK", {**self.config, "prevResult": self.result}, netns=netns or self.pod, **more)


@pytest.fixture
def attached(vf: Function, pod: Pod) -> Iterator[Attached]:
    config = conf(vf, ipam=host_local("10.56.3.0/24", "fd00:9::/64", routes=ROUTES))
    yield Attached(pod, config, attach(config, pod))
    detach(config, pod)


def test_nothing_differs_after_add(attached: Attached) -> None:
    for _ in range(2):
        answer = attached.check()
        assert (answer.code, answer.stdout) == (0, ""), answer


def test_nothing_differs_after_a_chained_add(vf: Function, pod: Pod) -> None:
    config = conf(vf, prevResult=earlier_plugin(vf, pod, address="10.8.0.2/24"))
    result = attach(config, pod)
    assert Attached(pod, config, result).check().ok
    detach(config, pod)
    earlier_plugin_deletes(vf, pod)


# What is done in the pod, and what CHECK says of it.
DIFFERENCES = {
    "down": (["ip link set net1 down"], "down"),
    "renamed": (["ip link set net1 down", "ip link set net1 name mine"], "net1"),
    "IPv4 address gone": (["ip addr del 10.56.3.2/24 dev net1"], "10.56.3.2/24"),
    "IPv6 address gone": (["ip addr del fd00:9::2/64 dev net1"], "fd00:9::2/64"),
    "other prefix length": (
        ["ip addr del 10.56.3.2/24 dev net1", "ip addr add 10.56.3.2/25 dev net1"],
        "10.56.3.2/24",
    ),
    "route gone": (["ip route del 10.1.0.0/16"], "10.1.0.0/16"),
    "route by another gateway": (["ip route replace 10.2.0.0/16 via 10.56.3.8 dev net1"], "10.56.3.9"),
    "another netdev": (
        [
            "ip link set net1 down",
            "ip link set net1 name mine",
            "ip link add net1 type veth peer name eth9",
            "ip link set net1 up",
        ],
        "found a netdev on no device",
    ),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_it_fails_with_what_differs_in_the_pod(attached: Attached, what: str) -> None:
    commands, word = DIFFERENCES[what]
    for command in commands:
        attached.pod.run(*command.split())
    error(attached.check(), 111, word)


def test_an_rdma_device_that_left_the_pod_is_missed(attached: Attached, vf: Function) -> None:
    move_home(attached.pod, vf.rdma[0])
    error(attached.check(), 111, vf.device, vf.rdma[0])


def move_home(pod: Pod, rdma: str) -> None:
    """Move an RDMA device out of a pod, to the namespace of process 1."""
    guest.run("ip", "netns", "attach", "host", "1")
    try:
        pod.run("rdma", "dev", "set", rdma, "netns", "host")
    finally:
        guest.run("ip", "netns", "del", "host")


def test_an_rdma_device_that_was_renamed_in_the_pod_is_there_all_the_same(attached: Attached, vf: Function) -> None:
    attached.pod.run("rdma", "dev", "set", vf.rdma[0], "name", "mine")
    assert attached.check().ok


def test_the_netdev_that_left_the_pod_is_missed(
    attached: Attached, vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    attached.pod.run("ip", "link", "set", "net1", "netns", "1", "name", vf.netdev)
    error(attached.check(), 111, "net1")


def test_a_route_in_another_table_is_not_gone(attached: Attached) -> None:
    """The plugin `sbr` moves routes there."""
    for command in (
        "ip route del 10.1.0.0/16",
        "ip route add 10.1.0.0/16 via 10.56.3.1 dev net1 table 100",
        "ip route del 10.2.0.0/16",
        "ip route add 10.2.0.0/16 via 10.56.3.9 dev net1 table 1000",
    ):
        attached.pod.run(*command.split())
    assert attached.check().ok


def test_what_is_more_than_add_made_is_no_difference(attached: Attached) -> None:
    attached.pod.run("ip", "addr", "add", "10.99.0.1/24", "dev", "net1")
    attached.pod.run("ip", "route", "add", "10.98.0.0/16", "via", "10.56.3.7")
    assert attached.check().ok


def test_another_namespace_is_told_of(attached: Attached, make_pod: Callable[[str], Pod]) -> None:
    error(attached.check(make_pod("other")), 111, "another namespace")


def test_an_attachment_that_never_was_is_told_of(attached: Attached, other_vf: Function, pod: Pod) -> None:
    config = conf(other_vf)
    error(guest.cni("CHECK", config, netns=pod, container="never"), 111, other_vf.device)


def test_without_state_it_checks_what_prev_result_tells(attached: Attached) -> None:
    lose_state()
    assert attached.check().ok
    attached.pod.run("ip", "addr", "del", "10.56.3.2/24", "dev", "net1")
    error(attached.check(), 111, "10.56.3.2/24")


def test_without_state_a_device_that_left_the_pod_is_missed(attached: Attached, vf: Function) -> None:
    lose_state()
    move_home(attached.pod, vf.rdma[0])
    error(attached.check(), 111, vf.device)


def test_addresses_that_another_plugin_set_are_not_its_to_check(vf: Function, pod: Pod) -> None:
    config = conf(vf, prevResult=earlier_plugin(vf, pod, address="10.8.0.2/24"), ipam=host_local())
    result = attach(config, pod)
    pod.run("ip", "addr", "del", "10.8.0.2/24", "dev", "net1")
    attached = Attached(pod, config, result)
    assert attached.check().ok
    pod.run("ip", "addr", "flush", "dev", "net1")
    error(attached.check(), 111, "10.56.3.2/24")
    detach(config, pod)
    earlier_plugin_deletes(vf, pod)


def test_the_ipam_plugins_check_is_run_and_its_error_passed_on(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    config = conf(vf, ipam=ipam.config)
    attached = Attached(pod, config, attach(config, pod, env=ipam.env))
    assert attached.check(env=ipam.env).ok
    assert ipam.commands == ["ADD", "CHECK"]
    assert ipam.stdin("CHECK")["prevResult"] == attached.result
    ipam.fail("CHECK", 119, "the reservation is gone")
    error(attached.check(env=ipam.env), 119, "the reservation is gone")
    ipam.on("CHECK", "exit 9")
    error(attached.check(env=ipam.env), 105, "scripted", "exit status 9")
    error(attached.check(), 104, "scripted")
    detach(config, pod, env=ipam.env)


def test_the_debian_plugins_reservation_is_checked(attached: Attached) -> None:
    import shutil

    shutil.rmtree("/var/lib/cni/networks")
    assert attached.check().code == 1


@pytest.mark.changes_host
def test_a_driver_that_was_bound_anew_is_told_of(vfs: list[Function], pod: Pod) -> None:
    vf = vfs[-1]
    config = conf(vf)
    attached = Attached(pod, config, attach(config, pod))
    guest.rebind(vf.device, "igbvf")
    error(attached.check(), 111, vf.device)
    detach(config, pod)
