"""libcni as `cnitool` has it: a list of our plugins through each command, with libcni's cache of results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import lose_state, state_rows
from runtime import CniTool, conflist, pool, said, vf_of

VERSIONS = ["0.4.0", "1.0.0", "1.1.0"]
_RESULTS = Path("/var/lib/cni/results")
# Passes on what it gets as the last of a list, and keeps what it was given.
_RECORDER = """#!/bin/sh
cat > {directory}/$CNI_COMMAND.json
[ "$CNI_COMMAND" != ADD ] || exec python3 -c \
    'import json, sys; print(json.dumps(json.load(sys.stdin)["prevResult"]))' < {directory}/ADD.json
"""


def rail(pf: str, **more: object) -> dict[str, object]:
    return {"type": "rdma", "pf": pf, "ipam": pool(), **more}


def results() -> list[str]:
    """What libcni has in its cache."""
    return sorted(path.name for path in _RESULTS.iterdir()) if _RESULTS.is_dir() else []


@pytest.fixture
def recorded(cnitool: CniTool, tmp_path: Path) -> tuple[CniTool, Path]:
    """cnitool with one more plugin, `recorder`, and where that keeps its configurations."""
    directory = tmp_path / "recorder"
    directory.mkdir()
    path = directory / "recorder"
    path.write_text(_RECORDER.format(directory=directory))
    path.chmod(0o755)
    return CniTool(cnitool.directory, f"{guest.CNI_PATH}:{directory}"), directory


@pytest.mark.parametrize("version", VERSIONS)
def test_add_check_del(version: str, cnitool: CniTool, pf: str, vfs: list[Function], pod: Pod) -> None:
    cnitool.configure(conflist("rails", rail(pf), rail(pf, ifName="rail1"), version=version))
    result: dict[str, Any] = json.loads(said(cnitool("add", "rails", pod)))
    assert result["cniVersion"] == version
    assert [interface["name"] for interface in result["interfaces"]] == ["eth0", "rail1"]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.56.3.2/24", 0), ("10.56.3.3/24", 1)]
    taken = [vf_of(pod.link(name), vfs) for name in ("eth0", "rail1")]
    assert pod.rdma_names() == sorted(device for vf in taken for device in vf.rdma)
    said(cnitool("check", "rails", pod))
    pod.run("ip", "addr", "del", "10.56.3.3/24", "dev", "rail1")
    answer = cnitool("check", "rails", pod)
    assert not answer.ok
    assert "10.56.3.3" in answer.stderr
    said(cnitool("del", "rails", pod))
    assert (pod.links(), pod.rdma_names(), state_rows(), results()) == ([], [], 0, [])
    said(cnitool("del", "rails", pod))


@pytest.mark.parametrize("version", VERSIONS)
def test_del_is_given_the_cached_result(version: str, recorded: tuple[CniTool, Path], pf: str, pod: Pod) -> None:
    cnitool, records = recorded
    cnitool.configure(conflist("kept", rail(pf), {"type": "recorder"}, version=version))
    result = json.loads(said(cnitool("add", "kept", pod)))
    said(cnitool("check", "kept", pod))
    said(cnitool("del", "kept", pod))
    # libcni has read our result, kept it, and gives it back with nothing lost.
    for command in ("ADD", "CHECK", "DEL"):
        assert json.loads((records / f"{command}.json").read_text())["prevResult"] == result
    assert (pod.links(), pod.rdma_names()) == ([], [])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("namespace", ["alive", "removed"])
def test_with_our_state_lost_del_returns_the_vf_of_the_cached_result(
    namespace: str, version: str, cnitool: CniTool, pf: str, vfs: list[Function], pod: Pod
) -> None:
    cnitool.configure(conflist("lost", rail(pf), version=version))
    said(cnitool("add", "lost", pod))
    vf = vf_of(pod.link("eth0"), vfs)
    lose_state()
    if namespace == "removed":
        pod.delete()
        assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    said(cnitool("del", "lost", pod))
    assert set(vf.rdma) <= set(guest.rdma_names())


def test_gc_returns_every_attachment_of_the_network_and_of_no_other(
    cnitool: CniTool, pf: str, make_pod: Callable[[str], Pod]
) -> None:
    # cnitool says of no attachment that it is valid.
    cnitool.configure(conflist("rails", rail(pf), rail(pf, ifName="rail1"), version="1.1.0"))
    cnitool.configure(conflist("other", rail(pf, ipam=pool(4)), version="1.1.0"))
    alive, died, of_other = make_pod("alive"), make_pod("died"), make_pod("other")
    said(cnitool("add", "rails", alive))
    said(cnitool("add", "rails", died))
    said(cnitool("add", "other", of_other))
    died.delete()
    said(cnitool("gc", "rails", alive))
    assert (alive.links(), alive.rdma_names()) == ([], [])
    assert of_other.addresses("eth0") == ["10.56.4.2/24"]
    assert len(of_other.rdma_names()) == 1
    assert state_rows() == 1
    said(cnitool("del", "other", of_other))


def test_gc_returns_what_libcni_no_longer_knows(cnitool: CniTool, pf: str, pod: Pod) -> None:
    cnitool.configure(conflist("rails", rail(pf), version="1.1.0"))
    said(cnitool("add", "rails", pod))
    for path in _RESULTS.iterdir():
        path.unlink()
    said(cnitool("gc", "rails", pod))
    assert (pod.links(), pod.rdma_names(), state_rows()) == ([], [], 0)


def test_status_says_whether_an_add_could_succeed(cnitool: CniTool, pf: str) -> None:
    cnitool.configure(conflist("ready", rail(pf), version="1.1.0"))
    said(cnitool("status", "ready", "/none"))
    absent = pool() | {"nodeName": "elsewhere"}
    cnitool.configure(conflist("unready", rail(pf), rail(pf, ifName="rail1", ipam=absent), version="1.1.0"))
    answer = cnitool("status", "unready", "/none")
    assert not answer.ok
    assert "elsewhere" in answer.stderr
