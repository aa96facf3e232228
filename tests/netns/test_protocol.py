"""The protocol, as far as it needs no RDMA: environment, stdin, versions, configuration, stdout."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from conftest import BUNDLE

Rdma = Callable[..., guest.Answer]
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
CONF: dict[str, Any] = {"cniVersion": "1.1.0", "name": "net", "type": "rdma", "deviceID": "0000:ff:1f.7"}


def has_rdma() -> bool:
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20).close()
    except OSError:
        return False
    return True


# Without a command, and VERSION


def test_with_no_command_it_says_on_stderr_what_it_is_and_which_versions_it_speaks(rdma: Rdma) -> None:
    answer = rdma(None)
    assert (answer.code, answer.stdout) == (0, "")
    assert "CNI plugin" in answer.stderr
    assert ", ".join(VERSIONS) in answer.stderr


@pytest.mark.parametrize("stdin", [b"", b"{}", b'{"cniVersion": "0.4.0"}', b'{"cniVersion": "1.1.0", "name": 5}'])
def test_version_tells_the_versions(rdma: Rdma, stdin: bytes) -> None:
    answer = rdma("VERSION", stdin, container=None, ifname=None, netns=None)
    assert answer.ok
    assert answer.json["supportedVersions"] == VERSIONS


def test_version_answers_in_the_version_it_was_asked_in_even_one_that_is_yet_to_come(rdma: Rdma) -> None:
    answer = rdma("VERSION", {"cniVersion": "1.9.0"})
    assert answer.ok
    assert answer.json == {"cniVersion": "1.9.0", "supportedVersions": VERSIONS}


def test_version_fails_for_what_is_no_json(rdma: Rdma) -> None:
    assert rdma("VERSION", b"{").error == 6


# Environment: code 4


@pytest.mark.parametrize("command", ["add", "FOO", " ADD", "ADD,DEL", "VERSION\n"])
def test_an_unknown_command_is_an_error_of_the_environment(rdma: Rdma, command: str) -> None:
    answer = rdma(command, CONF)
    assert answer.error == 4
    assert "CNI_COMMAND" in answer.json["msg"]


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        *[(c, v) for c in ("ADD", "CHECK") for v in ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")],
        ("DEL", "CNI_CONTAINERID"),
        ("DEL", "CNI_IFNAME"),
    ],
)
@pytest.mark.parametrize("value", [None, ""], ids=["missing", "empty"])
def test_a_missing_variable_is_named(rdma: Rdma, command: str, variable: str, value: str | None) -> None:
    answer = rdma(command, CONF, env={variable: value})
    assert answer.error == 4
    assert answer.json["msg"].startswith(variable)


def test_all_missing_variables_are_named(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF, container=None, netns=None, ifname=None, env={"CNI_PATH": None})
    assert answer.json["msg"].startswith("CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_PATH: not set")


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize(
    "container",
    ["-a", ".a", "_a", "a/b", "a b", "a\n", "ä", "a:b", "../a", "x" * 256],
    ids=lambda value: repr(value)[:12],
)
def test_a_container_id_outside_the_specs_alphabet_is_refused(rdma: Rdma, command: str, container: str) -> None:
    answer = rdma(command, CONF, container=container)
    assert answer.error == 4
    assert answer.json["msg"].startswith("CNI_CONTAINERID")


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize(
    "ifname",
    ["x" * 16, "ä" * 8, "a/b", "a:b", "a b", "a\tb", "a\n", ".", ".."],
)
def test_an_interface_name_that_is_none_is_refused(rdma: Rdma, command: str, ifname: str) -> None:
    answer = rdma(command, CONF, ifname=ifname)
    assert answer.error == 4
    assert answer.json["msg"].startswith("CNI_IFNAME")


@pytest.mark.parametrize(("container", "ifname"), [("x" * 255, "x" * 15), ("0a_.-Z", "net1.100"), ("a", "a")])
def test_ids_and_names_that_are_just_allowed_are_taken(rdma: Rdma, container: str, ifname: str) -> None:
    assert rdma("DEL", CONF, container=container, ifname=ifname).ok


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
@pytest.mark.parametrize("args", ["K8S_POD_NAME", "A=1;B", ";x;"])
def test_cni_args_that_are_no_pairs_are_refused(rdma: Rdma, command: str, args: str) -> None:
    answer = rdma(command, CONF, env={"CNI_ARGS": args})
    assert answer.error == 4
    assert answer.json["msg"].startswith("CNI_ARGS")


@pytest.mark.parametrize("args", ["", "IgnoreUnknown=1;K8S_POD_NAME=a;K8S_POD_UID=", "A=b=c;"])
def test_cni_args_that_are_pairs_are_taken(rdma: Rdma, args: str) -> None:
    assert rdma("ADD", CONF, netns="/run/none", env={"CNI_ARGS": args}).error == 3


# CNI_NETNS: codes 3 and 8


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
@pytest.mark.parametrize(
    "netns", ["/run/none", "/etc/hostname", "/run", "/dev/null", "/proc/self/ns/mnt", "pod", "/run/fifo", "x" * 5000]
)
def test_a_cni_netns_that_is_no_network_namespace_is_an_unknown_container(
    rdma: Rdma, run_dir: Path, command: str, netns: str
) -> None:
    os.mkfifo(run_dir / "fifo")
    answer = rdma(command, CONF, netns=netns)
    assert answer.error == 3
    assert answer.json["msg"].startswith("CNI_NETNS")


@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL"])
def test_the_plugins_own_namespace_is_refused(rdma: Rdma, command: str) -> None:
    assert rdma(command, CONF, netns="/proc/self/ns/net").error == 8


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_an_override_that_is_off_allows_nothing(rdma: Rdma, value: str) -> None:
    assert rdma("ADD", CONF, netns="/proc/self/ns/net", env={"CNI_NETNS_OVERRIDE": value}).error == 8


def test_cni_netns_override_allows_the_plugins_own_namespace(rdma: Rdma) -> None:
    assert rdma("DEL", CONF, netns="/proc/self/ns/net", env={"CNI_NETNS_OVERRIDE": "1"}).ok
    # In whatever state the machine's RDMA subsystem is, there is no such VF.
    assert rdma("ADD", CONF, netns="/proc/self/ns/net", env={"CNI_NETNS_OVERRIDE": "true"}).error in (100, 102, 109)


# stdin: codes 5 and 6


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize(
    "stdin",
    [
        b"",
        b" \n",
        b"{",
        b"nonsense",
        b'{"name": "net",}',
        b"{'name': 'net'}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": 01}',
        b'{"a": "\n"}',
        b"\xff{}",
        b'{"a": "\xc3"}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"{} {}",
        b"{}x",
        b"[]",
        b"null",
        b"true",
        b"17",
        b'"net"',
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else None,
)
def test_stdin_that_is_no_json_object_is_a_decoding_failure(rdma: Rdma, command: str, stdin: bytes) -> None:
    answer = rdma(command, stdin)
    assert answer.error == 6
    assert answer.json["msg"].startswith("stdin")


def padded(size: int) -> bytes:
    text = json.dumps({**CONF, "unknown": ""}).encode()
    return text[:-2] + b"x" * (size - len(text)) + text[-2:]


def test_stdin_may_have_1_mib_and_no_more(rdma: Rdma) -> None:
    assert rdma("DEL", padded(1 << 20)).ok
    answer = rdma("DEL", padded((1 << 20) + 1))
    assert answer.error == 6
    assert "1048576 bytes" in answer.json["msg"]


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
@pytest.mark.parametrize("redirection", ["<&-", "0>/dev/null"])
def test_stdin_that_cannot_be_read_is_an_io_failure(rdma: Rdma, command: str, redirection: str) -> None:
    assert rdma(command, wrapper=("sh", "-c", f'exec "$0" {redirection}')).error == 5


# Versions: code 1


@pytest.mark.parametrize("command", ["ADD", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("version", ["", "0.2.0", "0.1.0", "0.3", "1.2.0", "2.0.0", "v1.0.0", None, 1, 1.1, [], {}])
def test_a_version_that_is_not_spoken_is_refused(rdma: Rdma, command: str, version: object) -> None:
    answer = rdma(command, {**CONF, "cniVersion": version})
    assert answer.error == 1
    assert "cniVersion" in answer.json["msg"]
    assert all(spoken in answer.json["msg"] for spoken in VERSIONS)


def test_a_configuration_without_a_version_is_refused(rdma: Rdma) -> None:
    assert rdma("ADD", {"name": "net", "type": "rdma"}).error == 1


@pytest.mark.parametrize(
    ("command", "version"),
    [("CHECK", v) for v in VERSIONS[:2]] + [(c, v) for c in ("GC", "STATUS") for v in VERSIONS[:4]],
)
def test_an_older_version_asking_for_a_newer_command_is_refused(rdma: Rdma, command: str, version: str) -> None:
    answer = rdma(command, {**CONF, "cniVersion": version})
    assert answer.error == 1
    assert command in answer.json["msg"]
    assert answer.json["cniVersion"] == version


@pytest.mark.parametrize(("command", "version"), [("CHECK", v) for v in VERSIONS[2:]] + [("ADD", v) for v in VERSIONS])
def test_a_version_that_has_the_command_may_ask_for_it(rdma: Rdma, command: str, version: str) -> None:
    answer = rdma(command, {**CONF, "cniVersion": version}, netns="/run/none")
    assert answer.error == 3
    assert answer.json["cniVersion"] == version


# Configuration: code 7

PREVIOUS = {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "/run/pod"}], "ips": [], "routes": []}

# What is put into a good configuration, and the field that the message starts with.
BAD: list[tuple[str, object, str]] = [
    ("deviceID", 5, "deviceID"),
    ("deviceID", [], "deviceID"),
    ("deviceID", {}, "deviceID"),
    ("deviceID", True, "deviceID"),
    *[
        ("deviceID", value, "deviceID")
        for value in (
            "0000:03:00.2/..",
            "../../etc",
            "..",
            "/sys",
            "0000:03:00.8",
            "0000:03:00",
            "03:00.2",
            "000:03:00.2",
            "0000:3:00.2",
            "0000:03:00.2 ",
            "0000:03:0g.2",
            "mlx5_core.sf",
            "mlx5_core..4",
            "mlx5_core.sf.x",
            "mlx5_core.sf.4/..",
            "mlx5 core.sf.4",
            "a" * 70 + ".sf.1",
            "eth0",
        )
    ],
    ("pciBusID", "../x", "pciBusID"),
    ("pciBusID", 5, "pciBusID"),
    ("runtimeConfig", "x", "runtimeConfig"),
    ("runtimeConfig", {"deviceID": "../x"}, "runtimeConfig.deviceID"),
    ("runtimeConfig", {"deviceID": 5}, "runtimeConfig.deviceID"),
    ("runtimeConfig", {"mac": "x"}, "runtimeConfig.mac"),
    ("type", 5, "type"),
    ("mtu", "1500", "mtu"),
    ("mtu", 67, "mtu"),
    ("mtu", 65536, "mtu"),
    ("mtu", -1, "mtu"),
    ("mtu", 1500.5, "mtu"),
    ("mtu", True, "mtu"),
    ("mtu", 10**30, "mtu"),
    *[
        ("mac", value, "mac")
        for value in (
            "02:00:00:00:00",
            "02:00:00:00:00:00:01",
            "02-00-00-00-00-01",
            "01:00:5e:00:00:01",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "0g:00:00:00:00:01",
            5,
        )
    ],
    ("args", [], "args"),
    ("args", {"cni": "x"}, "args.cni"),
    ("args", {"cni": {"debug": "true"}}, "args.cni.debug"),
    *[
        ("args", {"cni": {"rdmaDeviceName": value}}, "args.cni.rdmaDeviceName")
        for value in ("", "a/b", "a b", "..", "x" * 64, "%d", 5)
    ],
    ("ipam", "host-local", "ipam"),
    ("ipam", [], "ipam"),
    ("ipam", {"subnet": "10.0.0.0/24"}, "ipam.type"),
    *[("ipam", {"type": value}, "ipam.type") for value in (5, "../host-local", "/bin/sh", ".", "..", "a\0b")],
    ("logLevel", "loud", "logLevel"),
    ("logLevel", 5, "logLevel"),
    ("logFile", "relative", "logFile"),
    ("logFile", 5, "logFile"),
    ("logFile", "/nowhere/at/all", "logFile"),
    ("logFile", "/run", "logFile"),
    ("prevResult", "x", "prevResult"),
    ("prevResult", [], "prevResult"),
    ("prevResult", {**PREVIOUS, "interfaces": {}}, "prevResult.interfaces"),
    ("prevResult", {**PREVIOUS, "interfaces": [5]}, "prevResult.interfaces[0]"),
    ("prevResult", {**PREVIOUS, "interfaces": [{}]}, "prevResult.interfaces[0].name"),
    ("prevResult", {**PREVIOUS, "interfaces": [{"name": 5}]}, "prevResult.interfaces[0].name"),
    ("prevResult", {**PREVIOUS, "ips": "10.0.0.1/24"}, "prevResult.ips"),
    ("prevResult", {**PREVIOUS, "ips": [{}]}, "prevResult.ips[0].address"),
    *[
        ("prevResult", {**PREVIOUS, "ips": [{"address": value}]}, "prevResult.ips[0].address")
        for value in ("10.0.0.1", "10.0.0.1/33", "10.0.0/24", "10.0.0.256/24", "::1/129", "fe80::1%eth0/64", "x/24", 5)
    ],
    ("prevResult", {**PREVIOUS, "ips": [{"address": "10.0.0.1/24", "gateway": "x"}]}, "prevResult.ips[0].gateway"),
    ("prevResult", {**PREVIOUS, "ips": [{"address": "10.0.0.1/24", "interface": "0"}]}, "prevResult.ips[0].interface"),
    ("prevResult", {**PREVIOUS, "routes": [{"dst": "default"}]}, "prevResult.routes[0].dst"),
    ("prevResult", {**PREVIOUS, "routes": [{"gw": "10.0.0.1"}]}, "prevResult.routes[0].dst"),
    ("prevResult", {**PREVIOUS, "routes": [{"dst": "10.0.0.0/8", "gw": "x"}]}, "prevResult.routes[0].gw"),
    ("prevResult", {**PREVIOUS, "routes": [{"dst": "10.0.0.0/8", "mtu": -1}]}, "prevResult.routes[0].mtu"),
]
bad = pytest.mark.parametrize(
    ("key", "value", "field"), BAD, ids=[f"{n}-{field}" for n, (_, _, field) in enumerate(BAD)]
)


@bad
def test_a_key_with_a_bad_value_is_named(rdma: Rdma, key: str, value: object, field: str) -> None:
    answer = rdma("ADD", {**CONF, key: value}, netns="/run/none")
    assert answer.error == 7
    assert answer.json["msg"].startswith(f"{field}: found")


@bad
def test_del_succeeds_with_a_bad_value_and_logs_it(rdma: Rdma, key: str, value: object, field: str) -> None:
    answer = rdma("DEL", {**CONF, key: value})
    assert (answer.code, answer.stdout) == (0, ""), answer
    if field != "ipam.type" or not isinstance(value, dict) or "type" in value:
        assert field.partition(".")[0].partition("[")[0] in answer.stderr


@pytest.mark.parametrize("command", ["CHECK", "STATUS"])
def test_check_and_status_name_a_bad_value_too(rdma: Rdma, command: str) -> None:
    answer = rdma(command, {**CONF, "mtu": "x"})
    assert answer.error == 7
    assert answer.json["msg"].startswith("mtu: found")


def test_further_bad_values_are_in_the_details(rdma: Rdma) -> None:
    answer = rdma("ADD", {**CONF, "mtu": "x", "mac": "y"})
    assert {answer.json["msg"][:3], answer.json["details"][:3]} == {"mtu", "mac"}


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize("name", [None, 5, "", "a b", "-a", "a/b", "..", "ä", "x" * 256], ids=repr)
def test_a_network_name_outside_the_specs_alphabet_is_refused(rdma: Rdma, command: str, name: object) -> None:
    answer = rdma(command, {**CONF, "name": name})
    assert answer.error == 7
    assert answer.json["msg"].startswith("name: found")


def test_a_missing_network_name_is_refused(rdma: Rdma) -> None:
    answer = rdma("ADD", {"cniVersion": "1.0.0", "type": "rdma"})
    assert answer.error == 7
    assert answer.json["msg"].startswith("name: found nothing")


@pytest.mark.parametrize(
    "more",
    [
        {"unknown": [1, {"a": None}]},
        {"deviceID": "10000:01:1F.7"},
        {"deviceID": "0002:03:00.2"},
        {"deviceID": "mlx5_core.sf.4"},
        {"deviceID": "", "pciBusID": ""},
        {"deviceID": None, "mac": None, "mtu": None, "ipam": None, "args": None, "runtimeConfig": None},
        {"ipam": {}},
        {"args": {"cni": {"debug": True}, "other": {"a": 1}}},
        {"args": {"cni": {"debug": False, "rdmaDeviceName": "x" * 63}}},
        {
            "capabilities": {"deviceID": True, "mac": True},
            "runtimeConfig": {"mac": "", "deviceID": "", "portMappings": []},
        },
        {"mac": "02:AB:00:00:00:01", "mtu": 68, "logLevel": "debug", "logFile": ""},
        {"prevResult": {"cniVersion": "1.1.0", "interfaces": None, "ips": None, "routes": None, "dns": {}}},
        {"prevResult": {"ips": [{"version": "4", "address": "10.0.0.1/24", "gateway": "10.0.0.254"}], "dns": {}}},
        {"dns": {"nameservers": ["10.0.0.1"]}},
    ],
    ids=str,
)
def test_what_the_field_has_in_its_configurations_is_taken(rdma: Rdma, more: dict[str, object]) -> None:
    answer = rdma("ADD", {**CONF, **more}, netns="/run/none")
    assert answer.error == 3


# DEL and GC


@pytest.mark.parametrize("version", ["9.9.9", None, 5])
def test_del_goes_on_with_a_version_that_is_not_spoken(rdma: Rdma, version: object) -> None:
    answer = rdma("DEL", {**CONF, "cniVersion": version})
    assert (answer.code, answer.stdout) == (0, "")
    assert "cniVersion" in answer.stderr


@pytest.mark.parametrize("netns", [None, "", "/run/none", "/etc/hostname", "/run", "/proc/self/ns/mnt", "/run/pod"])
def test_del_succeeds_when_there_is_nothing_left_to_do(rdma: Rdma, netns: str | None) -> None:
    for _ in range(2):
        answer = rdma("DEL", CONF, netns=netns, env={"CNI_PATH": None})
        assert (answer.code, answer.stdout) == (0, "")


KEY = "cni.dev/valid-attachments"


@pytest.mark.parametrize("value", ["x", {}, 5, [5], [{}], [{"containerID": "a"}], [{"containerID": "a", "ifname": 5}]])
def test_gc_with_a_list_that_cannot_be_read_collects_nothing(rdma: Rdma, value: object) -> None:
    answer = rdma("GC", {**CONF, KEY: value}, container=None, netns=None, ifname=None)
    assert answer.error == 7
    assert answer.json["msg"].startswith(KEY)


@pytest.mark.parametrize("more", [{}, {KEY: None}, {KEY: []}, {KEY: [{"containerID": "a", "ifname": "net1"}]}], ids=str)
def test_gc_needs_nothing_but_a_network(rdma: Rdma, more: dict[str, object]) -> None:
    answer = rdma("GC", {**CONF, **more}, container=None, netns=None, ifname=None, env={"CNI_PATH": None})
    assert (answer.code, answer.stdout) == (0, "")


# A kernel without RDMA, and a caller without privileges


@pytest.mark.skipif(has_rdma(), reason="this machine's kernel has RDMA netlink")
def test_a_kernel_without_rdma_is_told_of(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF)
    assert answer.error == 109
    assert "modprobe ib_core" in answer.json["msg"]
    answer = rdma("STATUS", CONF)
    assert answer.error == 50
    assert "modprobe ib_core" in answer.json["msg"]


def test_a_caller_that_may_not_enter_namespaces_is_told_so(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF, wrapper=("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"))
    assert answer.error == 112
    assert "CAP_SYS_ADMIN" in answer.json["msg"]


# stdout and the log


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_a_result_that_cannot_be_written_is_a_failure(rdma: Rdma, redirection: str) -> None:
    answer = rdma("VERSION", wrapper=("sh", "-c", f'exec "$0" {redirection}'))
    assert (answer.code, answer.stdout) == (1, "")
    assert "stdout" in answer.stderr


def test_a_closed_stderr_does_not_get_into_the_way(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF, netns="/run/none", wrapper=("sh", "-c", 'exec "$0" 2>&-'))
    assert answer.error == 3
    assert answer.stderr == ""


def test_with_all_streams_closed_it_fails_and_writes_nowhere(rdma: Rdma, run_dir: Path) -> None:
    assert rdma("ADD", CONF, wrapper=("sh", "-c", 'exec "$0" <&- >&- 2>&-')).code == 1


def test_the_error_object_is_one_line_and_the_log_tells_the_same(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF, netns="/run/none")
    assert answer.stdout.count("\n") == 1
    assert set(answer.json) == {"cniVersion", "code", "msg"}
    assert "error rdma ADD net container1 net1: CNI_NETNS" in answer.stderr


def test_a_log_file_is_appended_to_and_is_for_root_alone(rdma: Rdma, run_dir: Path) -> None:
    for _ in range(2):
        answer = rdma("ADD", {**CONF, "logFile": "/run/log"}, netns="/run/none")
        assert (answer.error, answer.stderr) == (3, "")
    log = run_dir / "log"
    assert log.read_text().count("CNI_NETNS") == 2
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_file_is_never_reached_through_a_link(rdma: Rdma, run_dir: Path) -> None:
    (run_dir / "log").symlink_to("elsewhere")
    assert rdma("ADD", {**CONF, "logFile": "/run/log"}).error == 7
    assert not (run_dir / "elsewhere").exists()


def test_what_a_caller_sends_cannot_forge_a_line_of_the_log(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF, netns="/run/none\nfake \x1b[31mline")
    assert answer.error == 3
    assert answer.stderr.count("\n") == 1
    assert "\x1b" not in answer.stderr


@pytest.mark.parametrize("more", [{"logLevel": "debug"}, {"args": {"cni": {"debug": True}}}], ids=str)
def test_warnings_are_logged_unless_asked_otherwise(rdma: Rdma, more: dict[str, object]) -> None:
    quiet = rdma("DEL", {**CONF, "cniVersion": "9", "logLevel": "error", "mtu": "x"})
    assert "mtu" not in quiet.stderr
    assert "mtu" in rdma("DEL", {**CONF, "mtu": "x"}).stderr
    assert "mtu" in rdma("DEL", {**CONF, "mtu": "x", **more}).stderr


def test_the_configuration_of_the_go_plugin_is_taken(rdma: Rdma) -> None:
    conf = {
        "cniVersion": "0.4.0",
        "name": "net",
        "type": "rdma",
        "args": {"cni": {"debug": True}},
        "deviceID": "0000:ff:1f.7",
    }
    assert rdma("DEL", conf).ok
    assert rdma("ADD", conf, netns="/run/none").error == 3


def test_the_bundle_has_its_three_names() -> None:
    for name in ("rdma", "node-subnet"):
        done = subprocess.run([BUNDLE / name], capture_output=True, text=True, check=True, timeout=30, env={})
        assert done.stderr.startswith(f"{name} ")
