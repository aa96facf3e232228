"""What root in a pod, or a node in trouble, may do to a DEL."""

import json
import subprocess
from collections.abc import Callable

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach, error, lose_state

POOL6 = {
    "type": "node-subnet",
    "nodeName": "n",
    "nodes": {"n": 3},
    "pools": [{"subnet": "fd00:56::/48", "nodePrefix": 64}],
}


@pytest.mark.parametrize("altname", ["é" * 10, "x" * 100, "enp1s0v1"])
def test_an_alternative_name_from_the_pod_does_not_keep_a_netdev_there(altname: str, vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    pod.run("ip", "link", "property", "add", "dev", "net1", "altname", altname)
    detach(conf(vf), pod)


@pytest.mark.parametrize("name", ["é1", "a$b", "a?b"])
def test_a_name_from_the_pod_that_udev_would_change_is_gone_before_udev_sees_it(
    name: str, vf: Function, pod: Pod
) -> None:
    attach(conf(vf), pod)
    pod.run("ip", "link", "set", "net1", "down")
    pod.run("ip", "link", "set", "net1", "name", name)
    detach(conf(vf), pod)


def test_a_path_that_leads_to_the_host_now_does_not_keep_del_from_succeeding(vf: Function, pod: Pod) -> None:
    """A runtime may name the namespace by a process, and process IDs come again."""
    with subprocess.Popen(["ip", "netns", "exec", pod.name, "sleep", "60"]) as process:
        path = f"/proc/{process.pid}/ns/net"
        assert guest.eventually(lambda: guest.run("ip", "netns", "identify", str(process.pid)).strip() == pod.name)
        attach(conf(vf), path)  # type: ignore[arg-type]
        process.kill()
    pod.delete()
    detach(conf(vf), "/proc/1/ns/net")


def test_a_forged_mark_does_not_give_a_vf_the_address_of_another(vf: Function, other_vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    mark = pod.link("net1")["ifalias"]
    pod.run("ip", "link", "set", "net1", "alias", mark.replace(vf.mac, other_vf.mac))
    lose_state()
    detach(conf(vf), pod)


@pytest.mark.parametrize(
    "mark", ["rdma-cni name=%", "rdma-cni name=all", "rdma-cni", "rdma-cni name= mac= mtu=-1 rdma=/"]
)
@pytest.mark.changes_host
def test_a_mark_that_makes_no_sense_stops_nothing(mark: str, vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    pod.run("ip", "link", "set", "net1", "alias", mark)
    lose_state()
    before = guest.rdma_names()
    detach(conf(vf), pod)
    assert len(guest.rdma_names()) == len(before) + 1
    # Without mark and state it is not known to be this plugin's: the kernel brings it when the pod goes.
    pod.delete()
    assert guest.eventually(lambda: any(link.get("address") == vf.mac for link in guest.links()))
    from network import give_name_back

    give_name_back(vf)
    guest.run("ip", "link", "set", vf.netdev, "alias", "")


def test_an_ipam_plugin_that_never_was_keeps_no_del_from_succeeding(vf: Function, pod: Pod) -> None:
    config = conf(vf, ipam={"type": "nosuch"})
    error(guest.cni("ADD", config, netns=pod), 104, "nosuch")
    detach(config, pod)


def test_an_mtu_too_small_for_ipv6_is_told_as_that(vf: Function, pod: Pod) -> None:
    error(guest.cni("ADD", conf(vf, ipam=POOL6, mtu=1000), netns=pod), 7, "mtu", "1280")


def test_two_adds_of_one_attachment_with_two_vfs_leave_one_or_none(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    for number in range(4):
        pod = make_pod(f"p{number}")
        environment = guest.cni_environment("ADD", "container1", pod)
        processes = []
        for function in (vf, other_vf):
            process = subprocess.Popen(
                [f"{guest.CNI_PATH}/rdma"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(conf(function)).encode())
            process.stdin.close()
            processes.append(process)
        ended = [process.wait(timeout=60) for process in processes]
        assert sorted(ended) in ([0, 1], [1, 1])
        assert len(pod.rdma_names()) == ended.count(0)
        detach(conf(vf), pod)
        assert pod.rdma_names() == []
