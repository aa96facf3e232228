"""The IPAM plugin: how it is run, what it may answer, and that it gets back what it gave."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import (
    ScriptedIpam,
    attach,
    conf,
    detach,
    earlier_plugin,
    earlier_plugin_deletes,
    error,
    host_local,
    state_rows,
)

LIBRARIES = "/nowhere/lib"


def untouched(vf: Function, pod: Pod) -> bool:
    """Whether a failed ADD has left nothing: not in the pod, not in the state."""
    return not pod.links() and not pod.rdma_names() and vf.rdma[0] in guest.rdma_names() and state_rows() == 0


def test_it_gets_the_callers_environment_and_the_configuration_as_it_came(
    vf: Function, pod: Pod, ipam: ScriptedIpam
) -> None:
    config = conf(vf, ipam={**ipam.config, "own": [1, {"a": "ü"}]}, unknown=True)
    env = {**ipam.env, "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=a", "SOMETHING": "else"}
    attach(config, pod, env=env)
    detach(config, pod, env=env)
    assert ipam.calls == ["ADD container1 net1", "DEL container1 net1"]
    for command in ("ADD", "DEL"):
        assert ipam.stdin(command) == config
        assert ipam.environment(command) == guest.cni_environment(command, netns=pod, env=env)


@pytest.mark.parametrize("value", [None, LIBRARIES])
def test_its_ld_library_path_is_the_callers_or_absent(
    vf: Function, pod: Pod, ipam: ScriptedIpam, value: str | None
) -> None:
    config = conf(vf, ipam=ipam.config)
    env = {**ipam.env, "LD_LIBRARY_PATH": value}
    attach(config, pod, env=env)
    found = ipam.environment("ADD")
    assert found.get("LD_LIBRARY_PATH") == value
    assert not [name for name in found if name.startswith("_PYI") or name == "LD_LIBRARY_PATH_ORIG"]
    detach(config, pod, env=env)


def test_it_is_found_in_the_first_directory_of_cni_path_that_has_it(
    vf: Function, pod: Pod, ipam: ScriptedIpam, tmp_path: Path
) -> None:
    second = ScriptedIpam(tmp_path / "second")
    (tmp_path / "not-executable").mkdir()
    (tmp_path / "not-executable" / "scripted").write_text("#!/bin/sh\nexit 7\n")
    env: dict[str, str | None] = {"CNI_PATH": f"{tmp_path}/not-executable::{ipam.directory}:{second.directory}"}
    config = conf(vf, ipam=ipam.config)
    attach(config, pod, env=env)
    detach(config, pod, env=env)
    assert (ipam.commands, second.commands) == (["ADD", "DEL"], [])


def test_one_that_is_missing_is_told_of_with_the_path_that_was_searched_before_anything_is_touched(
    vf: Function, pod: Pod
) -> None:
    config = conf(vf, ipam={"type": "no-such"})
    answer = guest.cni("ADD", config, netns=pod, env={"CNI_PATH": "/opt/cni/bin:/nowhere"})
    error(answer, 104, '"no-such"', "/opt/cni/bin:/nowhere")
    assert answer.stderr.count("\n") == 1, "nothing was to be rolled back"
    assert not pod.rdma_names()


# Each line is what its ADD does, the code that comes of it, and words of the message.
FAILURES = {
    "a CNI error of its own": (
        'echo \'{"cniVersion": "1.0.0", "code": 117, "msg": "no more", "details": "at all"}\'; exit 1',
        117, ("scripted", "no more"),
    ),
    "an exit status and nothing else": ("exit 3", 105, ("scripted", "exit status 3")),
    "an exit status and no JSON": ("echo oops; exit 3", 105, ("scripted", "exit status 3")),
    "an exit status and JSON that is no error": ("echo '{\"ips\": []}'; exit 1", 105, ("scripted", "exit status 1")),
    "an error without a code": ("echo '{\"msg\": \"x\"}'; exit 1", 105, ("scripted",)),
    "an error whose code is 0": ("echo '{\"code\": 0, \"msg\": \"x\"}'; exit 1", 105, ("scripted",)),
    "a signal": ("kill -9 $$", 105, ("scripted", "signal 9")),
    "nothing": ("exit 0", 107, ("scripted",)),
    "no JSON": ("echo hello", 106, ("scripted", "hello")),
    "two objects": ("echo '{}{}'", 106, ("scripted",)),
    "a list": ("echo '[]'", 106, ("scripted",)),
    "bytes": ("printf '\\377\\376'", 106, ("scripted",)),
    "too much": ("head -c 2000000 /dev/zero", 106, ("scripted", "1048576")),
    "no addresses": ("echo '{\"ips\": []}'", 107, ("scripted",)),
    "no key for addresses": ("echo '{\"dns\": {}}'", 107, ("scripted",)),
    "an address that is none": ("echo '{\"ips\": [{\"address\": \"10.0.0.x/24\"}]}'", 106, ("ips[0].address",)),
    "an address without a length": ("echo '{\"ips\": [{\"address\": \"10.0.0.1\"}]}'", 106, ("ips[0].address",)),
    "addresses that are no list": ("echo '{\"ips\": {\"a\": 1}}'", 106, ("scripted", "ips")),
    "a gateway that is none": (
        'echo \'{"ips": [{"address": "10.0.0.1/24", "gateway": "x"}]}\'', 106, ("ips[0].gateway",),
    ),
    "a route that is none": (
        'echo \'{"ips": [{"address": "10.0.0.1/24"}], "routes": [{"dst": "x"}]}\'', 106, ("routes[0].dst",),
    ),
    "a route that the kernel refuses": (
        'echo \'{"ips": [{"address": "10.0.0.1/24"}], "routes": [{"dst": "10.1.0.0/16", "gw": "10.9.9.9"}]}\'',
        108, ("10.1.0.0/16", "10.9.9.9", "ENETUNREACH"),
    ),
    "an address that the kernel refuses": (
        "echo '{\"ips\": [{\"address\": \"::1/128\"}]}'", 108, ("::1/128", "EADDRNOTAVAIL"),
    ),
    "a multicast address": ("echo '{\"ips\": [{\"address\": \"ff02::1/64\"}]}'", 106, ("ips[0].address", "ff02::1/64")),
    "no host's address": ("echo '{\"ips\": [{\"address\": \"0.0.0.0/0\"}]}'", 106, ("ips[0].address", "0.0.0.0/0")),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILURES)
def test_an_add_that_answers_badly_is_undone_and_the_plugin_called_to_take_back(
    vf: Function, pod: Pod, ipam: ScriptedIpam, what: str
) -> None:
    script, code, words = FAILURES[what]
    ipam.on("ADD", script)
    config = conf(vf, ipam=ipam.config)
    answer = guest.cni("ADD", config, netns=pod, env=ipam.env)
    error(answer, code, *words)
    assert ipam.commands == ["ADD", "DEL"]
    assert untouched(vf, pod)


def test_the_details_of_its_error_are_passed_on(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    ipam.fail("ADD", 111, "no more")
    answer = guest.cni("ADD", conf(vf, ipam=ipam.config), netns=pod, env=ipam.env)
    assert answer.error == 111
    assert answer.json["details"] == "some"


def test_the_first_error_is_reported_though_taking_back_fails_too(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    ipam.fail("ADD", 117, "the first")
    ipam.fail("DEL", 118, "the second")
    answer = guest.cni("ADD", conf(vf, ipam=ipam.config), netns=pod, env=ipam.env)
    error(answer, 117, "the first")
    assert "the second" in answer.stderr
    assert untouched(vf, pod)


def test_chained_a_failing_ipam_plugin_leaves_the_earlier_plugins_interface_alone(
    vf: Function, pod: Pod, ipam: ScriptedIpam
) -> None:
    previous = earlier_plugin(vf, pod, address="10.8.0.2/24")
    before = pod.run("ip", "addr"), pod.run("ip", "route")
    ipam.on("ADD", FAILURES["a route that the kernel refuses"][0])
    answer = guest.cni("ADD", conf(vf, prevResult=previous, ipam=ipam.config), netns=pod, env=ipam.env)
    error(answer, 108)
    assert ipam.commands == ["ADD", "DEL"]
    assert (pod.run("ip", "addr"), pod.run("ip", "route")) == before
    assert (pod.rdma_names(), state_rows()) == ([], 0)
    earlier_plugin_deletes(vf, pod)


def test_chained_ipam_needs_the_interface_in_the_pod(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    config = conf(vf, prevResult={}, ipam=ipam.config)
    error(guest.cni("ADD", config, netns=pod, env=ipam.env), 113, "net1")
    assert untouched(vf, pod)


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_an_add_whose_result_cannot_be_written_is_undone(
    vf: Function, pod: Pod, ipam: ScriptedIpam, redirection: str
) -> None:
    answer = guest.cni(
        "ADD", conf(vf, ipam=ipam.config), netns=pod, env=ipam.env, wrapper=("sh", "-c", f'exec "$0" {redirection}')
    )
    assert (answer.code, answer.stdout) == (1, "")
    assert "stdout" in answer.stderr
    assert ipam.commands == ["ADD", "DEL"]
    assert untouched(vf, pod)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_add_that_is_stopped_by_a_signal_is_undone(
    vf: Function, pod: Pod, ipam: ScriptedIpam, number: signal.Signals
) -> None:
    ipam.on("ADD", "touch waiting; exec sleep 60")
    plugin = subprocess.Popen(
        [f"{guest.CNI_PATH}/rdma"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=guest.cni_environment("ADD", netns=pod, env=ipam.env),
    )
    assert plugin.stdin
    plugin.stdin.write(json.dumps(conf(vf, ipam=ipam.config)))
    plugin.stdin.close()
    plugin.stdin = None
    assert guest.eventually((ipam.directory / "waiting").exists)
    assert pod.rdma_names()
    plugin.send_signal(number)
    stdout, stderr = plugin.communicate(timeout=30)
    error(guest.Answer(plugin.returncode, stdout, stderr), 11, number.name)
    assert ipam.commands == ["ADD", "DEL"]
    assert untouched(vf, pod)


def test_one_that_leaves_a_process_behind_which_holds_its_stdout_is_not_waited_for(
    vf: Function, pod: Pod, ipam: ScriptedIpam
) -> None:
    ipam.on("ADD", "sleep 100 2>/dev/null & echo $! > left; cat answer.ADD")
    config = conf(vf, ipam=ipam.config)
    attach(config, pod, env=ipam.env, timeout=50)
    pid = (ipam.directory / "left").read_text().strip()
    guest.run("kill", pid)
    detach(config, pod, env=ipam.env)


def test_one_that_does_not_read_its_stdin_is_served_all_the_same(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    plugin = ipam.directory / "scripted"
    plugin.write_text("#!/bin/sh\nexec <&-\n" + "[ $CNI_COMMAND = DEL ] || cat " + f"{ipam.directory}/answer.ADD\n")
    config = conf(vf, ipam=ipam.config, padding="x" * 900_000)
    attach(config, pod, env=ipam.env)
    detach(config, pod, env=ipam.env)


@pytest.mark.parametrize("chained", [False, True])
def test_when_its_del_fails_the_devices_are_home_and_the_error_is_reported(
    vf: Function, pod: Pod, ipam: ScriptedIpam, chained: bool
) -> None:
    more: dict[str, Any] = {"prevResult": earlier_plugin(vf, pod)} if chained else {}
    config = conf(vf, ipam=ipam.config, **more)
    attach(config, pod, env=ipam.env)
    ipam.fail("DEL", 117, "not now")
    for _ in range(2):
        error(guest.cni("DEL", config, netns=pod, env=ipam.env), 117, "not now")
        assert pod.rdma_names() == []
        assert vf.rdma[0] in guest.rdma_names()
    ipam.on("DEL", "exit 0")
    detach(config, pod, env=ipam.env)
    if chained:
        earlier_plugin_deletes(vf, pod)


def test_at_del_one_that_is_missing_is_told_of_after_the_devices_went_home(vf: Function, pod: Pod) -> None:
    config = conf(vf, ipam=host_local())
    attach(config, pod)
    error(guest.cni("DEL", config, netns=pod, env={"CNI_PATH": "/nowhere"}), 104, "host-local", "/nowhere")
    assert vf.rdma[0] in guest.rdma_names()
    error(guest.cni("DEL", config, netns=pod, env={"CNI_PATH": None}), 4, "CNI_PATH")
    detach(config, pod)


def test_del_runs_it_although_there_is_nothing_else_left_to_do(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    detach(conf(vf, ipam=ipam.config), pod, env=ipam.env)
    detach(conf(vf, ipam=ipam.config), None, env=ipam.env)
    assert ipam.commands == ["DEL", "DEL"]


def test_routes_have_what_the_spec_lets_them_have(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    routes = [
        {"dst": "10.1.0.0/16", "gw": "10.77.0.1", "mtu": 1300, "advmss": 1200, "priority": 77},
        {"dst": "10.2.0.0/16", "table": 1234},
        {"dst": "10.3.1.2/16", "scope": 253},
        {"dst": "fd00:8::/64", "gw": "fd00:7::1"},
    ]
    ips = [{"address": "10.77.0.5/24"}, {"address": "fd00:7::5/64"}]
    ipam.answer("ADD", {"cniVersion": "1.1.0", "ips": ips, "routes": routes})
    config = conf(vf, "1.1.0", ipam=ipam.config)
    result = attach(config, pod, env=ipam.env)
    shown = pod.run("ip", "route", "show", "table", "all") + pod.run("ip", "-6", "route")
    for words in (
        ("10.1.0.0/16 via 10.77.0.1", "metric 77", "mtu 1300", "advmss 1200"),
        ("10.2.0.0/16", "table 1234"),
        ("10.3.0.0/16", "scope link"),
        ("fd00:8::/64 via fd00:7::1",),
    ):
        assert [line for line in shown.splitlines() if all(word in line for word in words)], (words, shown)
    answer = guest.cni("CHECK", {**config, "prevResult": result}, netns=pod, env=ipam.env)
    assert answer.ok, answer
    detach(config, pod, env=ipam.env)


def test_one_that_does_not_speak_the_version_says_so_itself(vf: Function, pod: Pod) -> None:
    config = conf(vf, "1.1.0", ipam=host_local())
    error(guest.cni("ADD", config, netns=pod), 1, "host-local", "incompatible CNI versions")
    assert untouched(vf, pod)


def test_the_address_of_a_pod_for_which_no_del_came_is_given_back_when_its_vf_is_taken(
    vf: Function, make_pod: Callable[[str], Pod], ipam: ScriptedIpam
) -> None:
    first, second = make_pod("first"), make_pod("second")
    config = conf(vf, ipam=ipam.config)
    attach(config, first, env=ipam.env, container="first")
    first.delete()
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    # An IPAM plugin that cannot give it back stops no pod.
    ipam.fail("DEL", 100, "not now")
    attach(config, second, env=ipam.env, container="second")
    assert ipam.calls == ["ADD first net1", "DEL first net1", "ADD second net1"]
    ipam.answer("DEL", {})
    detach(config, second, env=ipam.env, container="second")
