"""The largest stdin that is accepted, in its worst forms: how much memory it takes at the most."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_executables_fuzz import BUNDLE, CONF, HANG, POOL

MIB = 1 << 20
ALLOWED = 64
"""MiB over the idle process."""

# The kernel counts the memory of a process's image before exec, too: this one has to be small.
_MEASURE = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def peak(program: str, command: str, stdin: bytes, directory: Path) -> tuple[float, int, Path]:
    """(MiB at the most, exit status, what it wrote) of a call in a node of its own."""
    (directory / "stdin").write_bytes(stdin)
    output = directory / "output"
    measure = f"/usr/bin/python3 -I -S -c '{_MEASURE}' {BUNDLE / program}"
    script = f"mount -t tmpfs tmpfs /run && exec {measure} < $0 2> {output}.log"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-ec", script, directory / "stdin"],
        env={
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": "c",
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_IFNAME": "net1",
            "CNI_PATH": "/run",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    kib, status = done.stdout.splitlines()[-1].split()
    return int(kib) / 1024, int(status), Path(f"{output}.log")


def filled(config: dict[str, Any], unit: str) -> bytes:
    """A configuration with as many of `unit` in place of its one string "@" as make it 1 MiB."""
    before, after = json.dumps(config).split('"@"')
    count = (MIB - len(before) - len(after) + 1) // (len(unit) + 1)
    text = before + ",".join([unit] * count) + after
    assert MIB - len(unit) - 1 <= len(text) <= MIB
    return text.encode()


def many_keys(before: str, value: str, after: str) -> bytes:
    size = len(f'"{0:05x}":{value},')
    count = (MIB - len(before) - len(after)) // size
    return (before + ",".join(f'"{number:05x}":{value}' for number in range(count)) + after).encode()


def ipam(**keys: object) -> dict[str, Any]:
    return CONF | {"ipam": {"type": "node-subnet", "nodeName": "n", "nodes": {"n": 3}, "pools": [POOL]} | keys}


RDMA = {
    "empty lists": filled(CONF | {"x": ["@"]}, "[]"),
    "nested lists": filled(CONF | {"x": ["@"]}, "[[[[]]]]"),
    "objects of one key": filled(CONF | {"x": ["@"]}, '{"a":0}'),
    "text beyond the Unicode plane 0": filled(CONF | {"x": ["@"]}, '"\\ud83d\\ude00"'),
    "addresses that are none": filled(CONF | {"prevResult": {"ips": ["@"]}}, "0"),
    "addresses that are empty": filled(CONF | {"prevResult": {"ips": ["@"]}}, "{}"),
    "addresses": filled(CONF | {"prevResult": {"ips": ["@"]}}, '{"address":"1.1.1.1/8"}'),
    "interfaces that are none": filled(CONF | {"prevResult": {"interfaces": ["@"]}}, "0"),
    "PFs": filled({"cniVersion": "1.1.0", "name": "net", "type": "rdma", "pf": ["@"]}, '"lo"'),
    "PFs that are none": filled(CONF | {"pf": ["@"]}, "0"),
    "keys that are not known": many_keys('{"cniVersion":"1.1.0","name":"net",', "1", "}"),
    "attachments": filled(CONF | {"cni.dev/valid-attachments": ["@"]}, '{"containerID":"c","ifname":"i"}'),
}
_SECTION = json.dumps(ipam())[:-2]
NODE_SUBNET = {
    "keys that are not known": many_keys(_SECTION + ",", "1", "}}"),
    "nodes that are wrong": many_keys(json.dumps(ipam() | {"ipam": 0})[:-2] + '{"pools":[],"nodes":{', "-1", "}}}"),
    "pools that are none": filled(ipam(pools=["@"]), "0"),
    "pools that are empty": filled(ipam(pools=["@"]), "{}"),
    "routes": filled(ipam(routes=["@"]), '{"dst":"10.0.0.0/8"}'),
    "routes that are empty": filled(ipam(routes=["@"]), "{}"),
    "addresses that are excluded": filled(ipam(pools=[POOL | {"exclude": ["@"]}]), '"10.56.3.1"'),
    "exclusions that are none": filled(ipam(pools=[POOL | {"exclude": ["@"]}]), "0"),
    "addresses that are asked for": filled(ipam() | {"runtimeConfig": {"ips": ["@"]}}, '"10.56.3.9"'),
}
CASES = [("rdma", what) for what in RDMA] + [("node-subnet", what) for what in NODE_SUBNET]


@pytest.mark.fault("input", "a stdin of 1 MiB that takes much memory")
@pytest.mark.parametrize(("program", "what"), CASES, ids=lambda value: value)
def test_a_mebibyte_of_input_takes_64_mib_at_the_most(program: str, what: str, tmp_path: Path) -> None:
    stdin = (RDMA if program == "rdma" else NODE_SUBNET)[what]
    idle, _, _ = peak(program, "VERSION", b"", tmp_path)
    for command in ("ADD", "DEL", "GC"):
        most, status, log = peak(program, command, stdin, tmp_path)
        assert status in (0, 1)
        assert most - idle <= ALLOWED, f"{command}: {most:.0f} MiB, {idle:.0f} idle"
        # Nor does the log have a line for each mistake.
        assert log.stat().st_size < 1 << 16


def test_what_is_measured_is_the_programs_memory(tmp_path: Path) -> None:
    """A measure that never moved would hold any limit."""
    idle, _, _ = peak("rdma", "VERSION", b"", tmp_path)
    most, _, _ = peak("rdma", "DEL", RDMA["nested lists"], tmp_path)
    assert idle < 30
    assert most > idle + 10
