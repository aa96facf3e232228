"""`rdma-cni attachments`, `ipam` and `gc`: what was written down, held against the kernel."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach
from operating import NET_D, PODS, POOL, rdma_cni

CONF: dict[str, Any] = {"ipam": POOL, "name": "rail0"}


def attachments(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    said = rdma_cni("attachments", "--json", *arguments)
    assert (said.code, said.stderr) == (code, ""), said
    found: list[dict[str, Any]] = said.json["attachments"]
    return found


def the_attachment(code: int = 0) -> dict[str, Any]:
    (found,) = attachments(code=code)
    return found


def states() -> list[str]:
    return [each["state"] for each in rdma_cni("attachments", "--json").json["attachments"]]


def gone() -> bool:
    return states() == ["pod gone"]


def test_without_state_there_is_nothing() -> None:
    assert attachments() == []
    assert rdma_cni("attachments").stdout == "No attachments.\n"
    assert rdma_cni("gc").stdout == "Nothing was left behind.\n"


def test_an_attachment_has_what_the_kernel_has_in_the_pod(vf: Function, pod: Pod) -> None:
    config = conf(vf, args={"cni": {"rdmaDeviceName": "rail0"}}, **CONF)
    (index,) = [each["ifindex"] for each in guest.rdma_devices() if each["ifname"] == vf.rdma[0]]
    attach(config, pod, env=PODS)
    found = the_attachment()
    assert (found["pod"], found["network"], found["container"]) == ("train/llama-0", "rail0", "container1")
    assert (found["interface"], found["function"], found["netns"]) == ("net1", vf.device, pod.netns)
    assert found["rdma"] == [{"index": index, "name": vf.rdma[0], "name_now": pod.rdma_names()[0]}]
    assert found["netdev"] == vf.netdev
    assert found["addresses"] == pod.addresses("net1")
    assert (found["state"], found["problems"]) == ("in place", [])
    text = rdma_cni("attachments").stdout
    assert f"{vf.rdma[0]} -> rail0" in text
    assert f"{vf.netdev} -> net1" in text
    detach(config, pod)
    assert attachments() == []


def test_attachments_are_shown_by_pod_and_network(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    one, other = make_pod("one"), make_pod("other")
    attach(conf(vf, **CONF), one, env=PODS)
    attach(conf(other_vf, **CONF), other, container="container2")
    assert [each["container"] for each in attachments("--pod", "llama-0")] == ["container1"]
    assert [each["container"] for each in attachments("--pod", "train/llama-0")] == ["container1"]
    assert len(attachments("--network", "rail0")) == 2
    said = rdma_cni("attachments", "--network", "rial0")
    assert said.code == 2
    assert "did you mean 'rail0'?" in said.stderr
    detach(conf(vf, **CONF), one)
    detach(conf(other_vf, **CONF), other, container="container2")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ip link set net1 down", "net1: is down"),
        ("ip addr flush dev net1", "net1: has no address 10.56.3.2/24"),
        ("ip link set net1 name mine", "net1: not there, the function's netdevs are mine"),
    ],
)
def test_what_differs_in_the_pod_is_said(vf: Function, pod: Pod, change: str, problem: str) -> None:
    attach(conf(vf, **CONF), pod)
    pod.run(*change.split())
    found = the_attachment(code=1)
    assert found["state"] == "differs"
    assert problem in found["problems"]
    assert problem in rdma_cni("attachments").stdout
    # What lives is not collected.
    assert rdma_cni("gc").code == 0
    assert the_attachment(code=1) == found
    detach(conf(vf, **CONF), pod)


def test_a_name_that_the_pods_root_gave_is_shown_as_what_it_is_now(vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod)
    pod.run("rdma", "dev", "set", vf.rdma[0], "name", "x\x1b[31m")
    assert the_attachment()["rdma"][0]["name_now"] == "x\x1b[31m"
    text = rdma_cni("attachments").stdout
    assert "\x1b" not in text
    assert f"{vf.rdma[0]} -> x\\x1b[31m" in text
    detach(conf(vf, **CONF), pod)


@pytest.mark.changes_host
def test_a_driver_that_is_bound_anew_takes_the_function_out_of_the_pod(vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod)
    guest.rebind(vf.device, "igbvf")
    found = the_attachment(code=1)
    assert found["state"] == "differs"
    assert found["problems"] == [f"{vf.device}: found on the host, expected in the pod: something took it out"]
    detach(conf(vf, **CONF), pod)


def test_a_pod_that_is_gone_without_a_del_is_collected_and_no_other(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    dead, living = make_pod("dead"), make_pod("living")
    attach(conf(vf, mtu=1400, **CONF), dead, env=PODS)
    result = attach(conf(other_vf, **CONF), living, container="container2")
    before = guest.host()
    dead.delete()
    assert guest.eventually(
        lambda: any(each["state"] == "pod gone" for each in rdma_cni("attachments", "--json").json["attachments"])
    )
    reserved = rdma_cni("ipam", "--json").json["reservations"]
    assert [(each["address"], each["state"]) for each in reserved] == [
        ("10.56.3.2/24", "pod gone"),
        ("10.56.3.3/24", "in place"),
    ]

    said = rdma_cni("gc", "--dry-run", "--json")
    assert (said.code, len(said.json["stale"]), said.json["collected"]) == (1, 1, [])
    said = rdma_cni("gc", "--dry-run")
    assert said.code == 1
    assert said.stdout == (
        f"pod train/llama-0, net1 of rail0: {vf.device}, {vf.rdma[0]}, {vf.netdev}, 10.56.3.2/24: would be taken back\n"
    )
    assert len(attachments(code=1)) == 2

    said = rdma_cni("gc", "--json")
    assert said.code == 0, said
    assert [each["function"] for each in said.json["collected"]] == [vf.device]
    assert guest.differences(before, guest.host())  # the VF has come home since
    assert vf.netdev in [link["ifname"] for link in guest.links()]
    assert [each["function"] for each in attachments()] == [other_vf.device]
    assert [each["address"] for each in rdma_cni("ipam", "--json").json["reservations"]] == ["10.56.3.3/24"]
    assert rdma_cni("gc").stdout == "Nothing was left behind.\n"
    # The DEL that comes late has nothing left to do; the pod that lives never noticed.
    detach(conf(vf, mtu=1400, **CONF), dead)
    answer = guest.cni("CHECK", conf(other_vf, prevResult=result, **CONF), container="container2", netns=living)
    assert answer.ok, answer
    detach(conf(other_vf, **CONF), living, container="container2")


def test_a_namespace_that_a_process_keeps_is_no_pod_that_is_gone(vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod)
    with subprocess.Popen(["ip", "netns", "exec", pod.name, "sleep", "600"]) as keeper:
        guest.eventually(lambda: len(pod.run("ip", "netns", "pids", pod.name).split()) > 0)
        pod.delete()
        assert the_attachment()["state"] == "in place"
        assert rdma_cni("gc").stdout == "Nothing was left behind.\n"
        assert the_attachment()["state"] == "in place"
        keeper.kill()
    assert guest.eventually(gone)
    assert rdma_cni("gc").code == 0
    assert attachments() == []


def test_a_function_that_another_process_works_on_is_told_and_left(vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod)
    pod.delete()
    assert guest.eventually(gone)
    lock = f"/run/rdma-cni/{vf.device}.lock"
    script = f"exec 9<>{lock}; flock 9; echo held by another >&9; echo; exec sleep 600"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        said = rdma_cni("gc")
        assert said.code == 1
        assert "try again" in said.stdout
        holder.kill()
    assert rdma_cni("gc").code == 0


def test_an_address_of_a_living_pod_is_not_released_unless_forced(vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod, env=PODS)
    said = rdma_cni("ipam", "release", "--yes", "10.56.3.2")
    assert said.code == 1
    assert "10.56.3.2/24: found it in use by pod train/llama-0, " in said.stderr
    assert len(rdma_cni("ipam", "--json").json["reservations"]) == 1
    assert rdma_cni("ipam", "release", "--yes", "--force", "10.56.3.2").code == 0
    assert rdma_cni("ipam", "--json").json["reservations"] == []
    detach(conf(vf, **CONF), pod)


def test_what_the_runtimes_directory_has_is_valid_and_what_is_broken_there_is_told(tmp_path: Path) -> None:
    path = NET_D / "10-rail0.conflist"
    said = rdma_cni("validate", "--json", str(path))
    assert (said.code, said.json["findings"]) == (0, [])
    broken = tmp_path / "10-rail0.conflist"
    broken.write_text(path.read_text().replace('"pf"', '"pff"'))
    said = rdma_cni("validate", "--json", str(broken))
    assert (said.code, [each["nearest"] for each in said.json["findings"]]) == (1, ["pf"])
