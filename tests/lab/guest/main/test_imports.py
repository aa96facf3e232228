"""What each command imports, as a list that is part of the source: an import costs every pod's start.

A module that is new there is a decision. The test says what to write into frozen/imports.json.
"""

import json
import sys
from pathlib import Path

import guest
import pytest
from guest import Function, Pod
from network import conf, detach, earlier_plugin, earlier_plugin_deletes, host_local

_FROZEN = Path("/payload/frozen")
_WRAPPER = (
    "/usr/bin/python3",
    "-I",
    "-S",
    "-X",
    "importtime",
    "/payload/guest/imported.py",
    "/opt/cni/rdma-cni/_internal",
    str(_FROZEN / "start.py"),
)
_IN_THE_PROGRAM = {"_syscalls", "_ctypes", "rdma_cni.syscalls"}
"""A module that only the frozen program has (frozen/syscalls.c), and what stands in for it here."""
_SUBNET = {
    "type": "node-subnet",
    "nodeName": "n",
    "nodes": {"n": 3},
    "pools": [{"subnet": "10.56.0.0/16", "nodePrefix": 24}],
}


def imported(name: str, command: str, config: dict[str, object], pod: Pod | None) -> list[str]:
    """The modules that a command imports, each after those that it imports itself."""
    answer = guest.cni(command, config, netns=pod, binary=name, wrapper=_WRAPPER)
    assert answer.ok, answer
    _, _, own = answer.stderr.partition("import time: begin\n")
    found = [line.rpartition("|")[2].strip() for line in own.splitlines() if line.startswith("import time:")]
    return ["rdma_cni", "rdma_cni.main"] + [module for module in found if module not in _IN_THE_PROGRAM]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the list is that of Python 3.11")
def test_each_command_imports_what_the_list_says(vf: Function, pod: Pod) -> None:
    found = {}
    below = earlier_plugin(vf, pod)
    config = conf(vf, prevResult=below)
    for command in ("ADD", "CHECK", "DEL"):
        found[f"rdma {command}"] = imported("rdma", command, config, pod)
    found["rdma VERSION"] = imported("rdma", "VERSION", {"cniVersion": "1.0.0"}, None)
    earlier_plugin_deletes(vf, pod)
    config = conf(None, ipam=_SUBNET)
    for command in ("ADD", "CHECK", "DEL"):
        found[f"node-subnet {command}"] = imported("node-subnet", command, config, pod)
    Path("/out/imports.json").write_text(json.dumps(found, indent=1) + "\n")
    listed = json.loads((_FROZEN / "imports.json").read_text())
    assert {command: sorted(names) for command, names in found.items()} == {
        command: sorted(names) for command, names in listed.items()
    }, f"frozen/imports.json should be:\n{json.dumps(found, indent=1)}"


@pytest.mark.parametrize("ipam", [None, host_local(), _SUBNET], ids=["no ipam", "host-local", "node-subnet"])
def test_alone_it_imports_nothing_beside_what_is_needed_for_addresses(
    ipam: dict[str, object] | None, vf: Function, pod: Pod
) -> None:
    config = conf(vf, ipam=ipam) if ipam else conf(vf)
    listed = set(json.loads((_FROZEN / "imports.json").read_text())["rdma ADD"])
    found = set(imported("rdma", "ADD", config, pod)) - listed
    detach(config, pod)
    # itertools is part of the interpreter.
    rest = {"itertools", "rdma_cni.cni.delegate"} if ipam == host_local() else {"itertools"}
    assert all(name.startswith("ipam") or name in rest for name in found), found
