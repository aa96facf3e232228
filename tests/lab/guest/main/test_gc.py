"""GC returns each attachment of its network that is not in `cni.dev/valid-attachments`."""

from collections.abc import Callable
from typing import Any

import guest
import pytest
from guest import Answer, Function, Pod
from network import ScriptedIpam, attach, conf, detach, error, kept_by, state_rows

KEY = "cni.dev/valid-attachments"


def collect(config: dict[str, Any], valid: object = "absent", **more: Any) -> Answer:
    """GC as libcni calls it: with neither container nor namespace; 1.1.0 is the version that has it."""
    keys = {} if valid == "absent" else {KEY: valid, "cni.dev/attachments": valid}
    given = {**config, "cniVersion": "1.1.0", **keys}
    return guest.cni("GC", given, container=None, ifname=None, netns=None, **more)


def entry(container: str, ifname: str = "net1") -> dict[str, str]:
    return {"containerID": container, "ifname": ifname}


@pytest.mark.parametrize("valid", ["absent", None, []], ids=["absent", "null", "empty"])
@pytest.mark.parametrize("ended", ["alive", "died"])
def test_with_no_valid_attachments_everything_of_the_network_is_returned(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod], valid: object, ended: str
) -> None:
    pods = make_pod("a"), make_pod("b")
    attach(conf(vf), pods[0], container="a")
    attach(conf(other_vf), pods[1], container="b")
    if ended == "died":
        for pod in pods:
            pod.delete()
    answer = collect(conf(None), valid)
    assert (answer.code, answer.stdout) == (0, ""), answer
    assert state_rows() == 0
    assert {*vf.rdma, *other_vf.rdma} <= set(guest.rdma_names())
    if ended == "alive":
        assert [pod.links() for pod in pods] == [[], []]


def test_what_is_valid_stays(vf: Function, other_vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod, container="a")
    attach(conf(other_vf), pod, container="a", ifname="net2")
    assert collect(conf(None), [entry("a", "net2"), entry("b", "net1")]).ok
    assert pod.rdma_names() == list(other_vf.rdma)
    assert [link["ifname"] for link in pod.links()] == ["net2"]
    assert collect(conf(None), [entry("a", "net2")]).ok
    assert pod.rdma_names() == list(other_vf.rdma)
    detach(conf(other_vf), pod, container="a", ifname="net2")


def test_another_network_is_not_touched(vf: Function, pod: Pod) -> None:
    attach(conf(vf, name="other"), pod)
    assert collect(conf(None), []).ok
    assert pod.rdma_names() == list(vf.rdma)
    detach(conf(vf, name="other"), pod)


def test_a_list_that_cannot_be_read_collects_nothing(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    error(collect(conf(None), [{"containerID": 5}]), 7, KEY)
    assert pod.rdma_names() == list(vf.rdma)
    detach(conf(vf), pod)


def test_an_ipam_plugin_that_speaks_1_1_0_gets_the_gc(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    ipam.speaks("1.0.0", "1.1.0")
    config = conf(vf, ipam=ipam.config)
    attach(config, pod, env=ipam.env)
    assert collect(config, [], env=ipam.env).ok
    assert ipam.calls == ["ADD container1 net1", "GC  "]
    assert ipam.stdin("GC")[KEY] == []


def test_an_older_ipam_plugin_gets_a_del_for_each_attachment(
    vf: Function, other_vf: Function, pod: Pod, ipam: ScriptedIpam
) -> None:
    ipam.speaks("0.4.0", "1.0.0")
    config = conf(vf, ipam=ipam.config)
    attach(config, pod, env=ipam.env)
    ipam.answer("ADD", {"ips": [{"address": "10.77.0.6/24"}]})
    attach(conf(other_vf, ipam=ipam.config), pod, env=ipam.env, container="container2", ifname="net2")
    assert collect(config, [entry("container2", "net2")], env=ipam.env).ok
    assert ipam.calls[2:] == ["DEL container1 net1"]
    assert collect(config, [], env=ipam.env).ok
    assert ipam.calls[3:] == ["DEL container2 net2"]


def test_a_failing_ipam_plugin_stops_nothing_and_is_told_of(vf: Function, pod: Pod, ipam: ScriptedIpam) -> None:
    ipam.speaks("1.1.0")
    ipam.fail("GC", 121, "not now")
    config = conf(vf, ipam=ipam.config)
    attach(config, pod, env=ipam.env)
    error(collect(config, [], env=ipam.env), 121, "not now")
    assert (pod.rdma_names(), state_rows()) == ([], 0)


def test_one_attachment_that_cannot_be_returned_does_not_stop_the_others(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pods = make_pod("a"), make_pod("b")
    nested = make_pod("nested")
    attach(conf(vf), pods[0], container="a")
    attach(conf(other_vf), pods[1], container="b")
    pods[0].run("rdma", "dev", "set", vf.rdma[0], "netns", "nested")
    with kept_by(nested, "socket"):
        error(collect(conf(None), []), 11, vf.device)
        assert (pods[1].rdma_names(), state_rows()) == ([], 1)
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    assert collect(conf(None), []).ok
    assert state_rows() == 0


def test_a_bad_configuration_stops_no_gc(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    answer = collect(conf(None, mtu="x"), [])
    assert answer.ok
    assert "mtu" in answer.stderr
    assert state_rows() == 0
