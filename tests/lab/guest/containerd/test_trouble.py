"""Sandboxes that do not end, or do not begin, as they should."""

import ipaddress
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import guest
import pytest
from guest import Function
from network import state_rows
from runtime import Containerd, conflist, pool, vf_of

_FAILS = """#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion": "1.0.0", "code": 100, "msg": "not this one"}'
exit 1
"""


def reserved() -> list[str]:
    """The addresses that node-subnet has given and not got back."""
    connection = sqlite3.connect("/run/rdma-cni/reservations.db")
    try:
        rows = connection.execute("SELECT address FROM reservation").fetchall()
    finally:
        connection.close()
    return [str(ipaddress.ip_address(bytes(address)[-4:])) for (address,) in rows]


@pytest.fixture
def failing_plugin() -> Iterator[str]:
    """The name of a plugin whose ADD fails."""
    path = Path(guest.CNI_PATH, "fails")
    path.write_text(_FAILS)
    path.chmod(0o755)
    yield path.name
    path.unlink()


@pytest.mark.parametrize("process", ["lives", "died"])
def test_a_sandbox_whose_namespace_was_removed_by_hand(
    process: str, containerd: Containerd, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    containerd.use(conflist("alone", {"type": "rdma", "pf": pf, "ipam": pool()}))
    sandbox = containerd.run(tmp_path)
    pod = sandbox.pod
    vf = vf_of(pod.link("eth0"), vfs)
    main_process = sandbox.process
    guest.run("ip", "netns", "del", pod.name)
    if process == "died":
        os.kill(main_process, signal.SIGKILL)
        assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    sandbox.remove()
    assert state_rows() == 0
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())


def test_containerd_that_was_killed_knows_the_sandbox_when_it_is_back(
    containerd: Containerd, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    containerd.use(conflist("alone", {"type": "rdma", "pf": pf, "ipam": pool()}))
    before = containerd.run(tmp_path, "before")
    containerd.kill()
    containerd.start()
    after = containerd.run(tmp_path, "after")
    devices = [sandbox.pod.link("eth0")["parentdev"] for sandbox in (before, after)]
    assert len(set(devices)) == 2
    assert (before.addresses, after.addresses) == (["10.56.3.2"], ["10.56.3.3"])
    before.remove()
    after.remove()
    assert state_rows() == 0


@pytest.mark.parametrize("why", ["impossible mtu", "a later plugin"])
def test_a_vf_is_free_for_the_next_sandbox_when_one_did_not_come_to_be(
    why: str, containerd: Containerd, vf: Function, tmp_path: Path, failing_plugin: str
) -> None:
    works = {"type": "rdma", "deviceID": vf.device, "ipam": pool()}
    if why == "impossible mtu":
        containerd.use(conflist("rail", works | {"mtu": 60000}))
        said = ["mtu", "60000"]
    else:
        containerd.use(conflist("rail", works, {"type": failing_plugin}))
        said = ["not this one"]
    answer = containerd.try_run(tmp_path, "first")
    assert not answer.ok
    assert all(word in answer.stderr for word in said), answer.stderr
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    containerd.use(conflist("rail", works))
    sandbox = containerd.run(tmp_path, "next")
    assert sandbox.pod.link("eth0")["parentdev"] == vf.device
    assert sandbox.pod.rdma_names() == list(vf.rdma)
    # So is the address, although it is not given again at once.
    assert reserved() == sandbox.addresses
    sandbox.remove()
    assert state_rows() == 0
