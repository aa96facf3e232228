"""`rdma-cni verify`: what a pod lacks for RDMA is taken from it, and told."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, detach
from operating import PODS, POOL, rdma_cni

SIM = Path("/sys/module/rdmasim/parameters")


@pytest.fixture(scope="module", autouse=True)
def rdma_cm() -> None:
    """The character device of RDMA CM."""
    guest.run("modprobe", "rdma_ucm")
    guest.settle()


def verified(*arguments: str) -> list[dict[str, Any]]:
    said = rdma_cni("verify", *arguments, "--json")
    answer = said.json
    steps: list[dict[str, Any]] = answer["steps"]
    missing = [step for step in steps if step["result"] == "missing"]
    assert answer["ready"] is (not missing)
    assert said.code == (1 if missing else 0)
    assert all(step["remedy"] for step in missing)
    return steps


def missing(*arguments: str) -> dict[str, Any]:
    """The one thing that is missing."""
    (step,) = [step for step in verified(*arguments) if step["result"] == "missing"]
    return step


@contextmanager
def process(pod: Pod) -> Iterator[int]:
    """A process in the pod."""
    with subprocess.Popen(["ip", "netns", "exec", pod.name, "sleep", "infinity"]) as sleeping:
        try:
            yield sleeping.pid
        finally:
            sleeping.kill()


def test_a_pod_that_has_everything_and_reaches_its_peer(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    here, there = make_pod("here"), make_pod("there")
    attach(conf(vf, ipam=POOL), here, container="c1", env=PODS)
    result = attach(conf(other_vf, ipam=POOL), there, container="c2")
    peer = result["ips"][0]["address"].split("/")[0]
    assert guest.eventually(lambda: "LOWER_UP" in there.link("net1")["flags"])
    with process(here) as pid:
        for pod in ("train/llama-0", "c1", here.netns, "here", str(pid)):
            steps = verified(pod)
            assert {step["result"] for step in steps} <= {"ok", "unknown"}, steps
        steps = verified("train/llama-0", "--peer", peer, "--wait", "20")
    assert {step["needed_by"] for step in steps} == {"verbs", "RDMA CM"}
    told = "\n".join(f"{step['subject']}: {step['found']}" for step in steps)
    assert f"{vf.rdma[0]} port 1: Ethernet, ACTIVE, 400 Gb/sec" in told
    assert "net1 10.56.3.2: GID 1 of" in told
    assert f"{peer}: the route leaves by net1, of {vf.rdma[0]}" in told
    assert f"{peer}: the neighbour is " in told
    said = rdma_cni("verify", "train/llama-0")
    assert (said.code, "missing" in said.stdout) == (0, False)
    detach(conf(vf, ipam=POOL), here, container="c1")
    detach(conf(other_vf, ipam=POOL), there, container="c2")


def test_a_pod_without_an_rdma_device(pod: Pod) -> None:
    step = missing(pod.name)
    assert (step["needed_by"], "no RDMA device" in step["found"]) == ("verbs", True)


def test_a_pod_whose_interface_has_no_address_or_is_down(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    assert guest.eventually(lambda: "LOWER_UP" in pod.link("net1")["flags"])
    step = missing(pod.name)
    assert (step["needed_by"], step["subject"]) == ("RDMA CM", "net1")
    assert "no address" in step["found"]
    pod.run("ip", "link", "set", "net1", "down")
    found = [step["found"] for step in verified(pod.name) if step["result"] == "missing"]
    assert "is down" in found
    detach(conf(vf), pod)


def test_a_pod_whose_netdev_went_elsewhere(vf: Function, pod: Pod) -> None:
    guest.run("rdma", "dev", "set", vf.rdma[0], "netns", pod.name)
    assert "netdev is not in the pod" in missing(pod.name)["found"]


@pytest.mark.changes_host
def test_an_address_without_a_gid_for_roce_v2(vfs: list[Function], pod: Pod) -> None:
    vf = vfs[-1]
    (SIM / "roce").write_text("v1")
    guest.rebind(vf.device, "igbvf")
    config = conf(vf, ipam=POOL)
    attach(config, pod)
    assert guest.eventually(lambda: "LOWER_UP" in pod.link("net1")["flags"])
    assert "no RoCE v2 GID for this address" in missing(pod.name)["found"]
    detach(config, pod)
    (SIM / "roce").write_text("v2")
    guest.rebind(vf.device, "igbvf")


def test_character_devices_that_are_not_there(vf: Function, pod: Pod) -> None:
    """The process of the pod has a /dev of its own, as a container has."""
    config = conf(vf, ipam=POOL)
    attach(config, pod)
    assert guest.eventually(lambda: "LOWER_UP" in pod.link("net1")["flags"])
    script = "mount -t tmpfs tmpfs /dev/infiniband; exec sleep 600"
    command = ["ip", "netns", "exec", pod.name, "unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(command) as sleeping:
        assert guest.eventually(lambda: Path(f"/proc/{sleeping.pid}/comm").read_text() == "sleep\n")
        steps = [step for step in verified(str(sleeping.pid)) if step["result"] == "missing"]
        sleeping.kill()
    assert [step["needed_by"] for step in steps] == ["verbs", "RDMA CM"]
    assert "/dev/infiniband/uverbs" in steps[0]["found"]
    assert "/dev/infiniband/rdma_cm: no such file" in steps[1]["found"]
    detach(config, pod)


def test_a_peer_that_is_not_reached(vf: Function, pod: Pod) -> None:
    config = conf(vf, ipam={**POOL, "poolRoute": False})
    attach(config, pod)
    assert guest.eventually(lambda: "LOWER_UP" in pod.link("net1")["flags"])
    assert "no route" in missing(pod.name, "--peer", "192.0.2.1")["found"]
    step = missing(pod.name, "--peer", "10.56.3.99", "--wait", "0.5")
    assert (step["subject"], "the neighbour is" in step["found"]) == ("10.56.3.99", True)
    guest.run("modprobe", "dummy", "numdummies=0")
    pod.run("ip", "link", "add", "eth0", "type", "dummy")
    pod.run("ip", "addr", "add", "10.1.0.2/24", "dev", "eth0")
    pod.run("ip", "link", "set", "eth0", "up")
    assert "of no RDMA device" in missing(pod.name, "--peer", "10.1.0.9")["found"]
    detach(config, pod)


def test_a_pod_that_it_does_not_know(vf: Function, make_pod: Callable[[str], Pod]) -> None:
    pod = make_pod("gone")
    attach(conf(vf), pod, env=PODS)
    said = rdma_cni("verify", "train/lama-0")
    assert (said.code, "did you mean 'train/llama-0'" in said.stderr) == (1, True)
    assert rdma_cni("verify", "train/llama-0", "--peer", "nonsense").code == 2
    pod.delete()
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    said = rdma_cni("verify", "train/llama-0")
    assert (said.code, "is gone" in said.stderr) == (1, True)
    detach(conf(vf), None)
