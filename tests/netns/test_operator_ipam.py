"""The frozen `rdma-cni ipam`, beside the frozen `node-subnet` that makes the reservations."""

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import BUNDLE
from node_subnet import Node, a_node, conf, one_pool


@pytest.fixture
def node() -> Iterator[Node]:
    with a_node() as found:
        yield found


def rdma_cni(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*node.inside, BUNDLE / "rdma-cni", *arguments],
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def shown(node: Node, *arguments: str) -> Any:
    return json.loads(rdma_cni(node, "ipam", "--json", *arguments).stdout)


def test_a_node_without_state_has_nothing_and_gets_none_by_being_asked(node: Node) -> None:
    done = rdma_cni(node, "ipam")
    assert (done.returncode, done.stdout) == (0, "No reservations.\n")
    assert not node.state.exists()


def test_pools_show_this_nodes_subnet_and_room(node: Node) -> None:
    pool = one_pool(exclude=["10.56.3.64/28"])
    node.add(pool, "c1")
    node.add(pool, "c2", env={"CNI_ARGS": "K8S_POD_NAMESPACE=train;K8S_POD_NAME=worker-1"})
    assert shown(node)["pools"] == [
        {
            "pool": "10.56.0.0/16",
            "mode": "routed",
            "subnets": ["10.56.3.0/24"],
            "gateways": ["10.56.3.1"],
            "exclude": ["10.56.3.64/28"],
            "usable": 237,
            "reserved": 2,
            "networks": ["rail"],
            "current": True,
            "free": 235,
        }
    ]
    found = shown(node)["reservations"]
    assert [(each["address"], each["container"], each["pod"]) for each in found] == [
        ("10.56.3.2/24", "c1", ""),
        ("10.56.3.3/24", "c2", "train/worker-1"),
    ]
    text = rdma_cni(node, "ipam").stdout
    assert "10.56.3.0/24" in text
    assert "train/worker-1" in text
    assert "\x1b" not in text


def test_a_pool_whose_rules_changed_is_there_twice_as_long_as_addresses_of_before_are_reserved(node: Node) -> None:
    node.add(one_pool(), "c1")
    node.add(one_pool(index=4), "c2")
    found = {tuple(each["subnets"]): each["current"] for each in shown(node)["pools"]}
    assert found == {("10.56.3.0/24",): False, ("10.56.4.0/24",): True}
    node.delete(one_pool(), "c1")
    assert [each["subnets"] for each in shown(node)["pools"]] == [["10.56.4.0/24"]]


def test_reservations_are_shown_by_pod_and_network_and_a_name_that_nobody_has_suggests_the_nearest(node: Node) -> None:
    node.add(one_pool(), "c1", env={"CNI_ARGS": "K8S_POD_NAMESPACE=train;K8S_POD_NAME=worker-1"})
    node.add(one_pool(), "c2")
    assert [each["container"] for each in shown(node, "--pod", "worker-1")["reservations"]] == ["c1"]
    done = rdma_cni(node, "ipam", "--network", "rial")
    assert done.returncode == 2
    assert "did you mean 'rail'?" in done.stderr


def test_an_address_that_is_released_is_free_with_the_others_of_its_interface(node: Node) -> None:
    node.add(conf(), "c1")
    node.add(conf(), "c2")
    done = rdma_cni(node, "ipam", "release", "--yes", "10.56.3.2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith(
        "10.56.3.2/24, fd00:56:0:3::2/64: container c1, interface net1, network"
    )
    assert set(node.reserved().values()) == {"c2"}


def test_without_a_terminal_and_without_yes_nothing_is_released(node: Node) -> None:
    node.add(one_pool(), "c1")
    done = rdma_cni(node, "ipam", "release", "10.56.3.2")
    assert done.returncode == 1
    assert "expected --yes: nothing was freed" in done.stderr
    assert len(node.reserved()) == 1


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_on_a_terminal_it_asks(node: Node, answer: bytes, left: int) -> None:
    node.add(one_pool(), "c1")
    ours, theirs = pty.openpty()
    command: list[str] = [*node.inside, str(BUNDLE / "rdma-cni"), "ipam", "release", "10.56.3.2"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.write(ours, answer)
        output, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert b"Free it? [y/N]" in output
    assert len(node.reserved()) == left
    assert process.returncode == (1 if left else 0)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "found neither ADDRESS nor --container, expected one of them"),
        (("10.56.3.22",), 1, "10.56.3.22: found no reservation of it (did you mean '10.56.3.2'?)"),
        (("--container", "zz"), 1, "--container zz: found no reservation of such a container, expected one"),
        (("--container", "c"), 1, "--container c: found 2 containers that begin so, expected one"),
    ],
)
def test_what_nobody_has_is_told(node: Node, arguments: tuple[str, ...], status: int, message: str) -> None:
    node.add(one_pool(), "c1")
    node.add(one_pool(), "c2")
    done = rdma_cni(node, "ipam", "release", "--yes", *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert len(node.reserved()) == 2


def test_a_reservation_that_the_runtime_does_not_know_is_left_behind(node: Node) -> None:
    node.add(one_pool(), "c1")
    node.add(one_pool(), "c2")
    node.run("mount", "-t", "tmpfs", "tmpfs", "/var/lib")
    assert {each["state"] for each in shown(node)["reservations"]} == {"no attachment"}
    node.run("mkdir", "-p", "/var/lib/cni/results")
    node.run("touch", "/var/lib/cni/results/rail-c1-net1")
    assert [each["state"] for each in shown(node)["reservations"]] == ["no attachment", "left behind"]
    assert rdma_cni(node, "ipam").returncode == 1
    done = rdma_cni(node, "gc", "--dry-run")
    assert done.returncode == 1
    assert done.stdout.startswith("10.56.3.3/24, container c2, net1 of rail: known to no attachment and no runtime")
    # It only says so.
    rdma_cni(node, "gc")
    assert len(node.reserved()) == 2


def test_a_full_pool_shows_no_room(node: Node) -> None:
    small = one_pool("10.56.0.0/24", 30, 1)
    node.add(small, "c1")
    assert [each["free"] for each in shown(node)["pools"]] == [0]


def test_a_database_that_was_damaged_is_told(node: Node) -> None:
    node.add(one_pool(), "c1")
    node.database.write_bytes(b"x" * 8192)
    node.cni("ADD", one_pool(), "c2")
    done = rdma_cni(node, "ipam")
    assert done.returncode == 1
    assert "/run/rdma-cni/reservations.db.bad-" in done.stdout


NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.mark.parametrize("command", [("gc",), ("gc", "--dry-run"), ("ipam", "release", "--yes", "10.56.3.2")])
def test_what_only_root_sees_whole_is_roots_to_take_back(node: Node, command: tuple[str, ...]) -> None:
    node.add(one_pool(), "c1")
    probe = subprocess.run([*NOBODY, BUNDLE / "rdma-cni", "--version"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{BUNDLE} lies where no other user may look")
    done = subprocess.run(
        [*node.inside, *NOBODY, BUNDLE / "rdma-cni", *command], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "rdma-cni: found user 65534, expected root: pods and the plugin's state are seen by root alone\n"
    )


@pytest.mark.parametrize("command", ["ipam", "attachments", "metrics"])
def test_what_another_user_cannot_see_is_said(node: Node, command: str) -> None:
    node.add(one_pool(), "c1")
    probe = subprocess.run([*NOBODY, BUNDLE / "rdma-cni", "--version"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{BUNDLE} lies where no other user may look")
    done = subprocess.run(
        [*node.inside, *NOBODY, BUNDLE / "rdma-cni", command], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    if command == "metrics":
        assert "rdma_cni_problems 0.0" not in done.stdout
    else:
        assert "not root" in done.stderr
