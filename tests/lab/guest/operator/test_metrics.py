"""`rdma-cni metrics`, held against what the kernel's own files say."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import guest
from guest import Function, Pod
from network import attach, conf, detach
from operating import PODS, POOL, rdma_cni

CONF: dict[str, Any] = {"ipam": POOL, "name": "rail0"}
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def metrics(*arguments: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Each metric's series: labels and value."""
    said = rdma_cni("metrics", *arguments)
    assert (said.code, said.stderr) == (0, ""), said
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in said.stdout.splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match, line
            found.setdefault(match[1], []).append((dict(_LABEL.findall(match[2] or "")), float(match[3])))
    return found


def value(found: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    (one,) = [number for have, number in found[name] if labels.items() <= have.items()]
    return one


def test_functions_are_counted_as_devices_shows_them(pf_address: str, vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod)
    functions = rdma_cni("devices", "--json").json["functions"]
    found = metrics("--no-doctor")
    counted = {(labels["kind"], labels["state"]): number for labels, number in found["rdma_cni_functions"]}
    assert counted == Counter((each["kind"], each["state"]) for each in functions)
    assert counted["vf", "attached"] == 1
    assert value(found, "rdma_cni_pf_vfs", pf=pf_address) == 7
    assert value(found, "rdma_cni_pf_vfs_free", pf=pf_address) == counted["vf", "free"]
    assert value(found, "rdma_cni_exclusive_mode") == 1
    assert value(found, "rdma_cni_attachments", network="rail0", state="in place") == 1
    detach(conf(vf, **CONF), pod)
    assert "rdma_cni_attachments" not in metrics("--no-doctor")


def test_a_ports_counters_are_the_kernels_own_labelled_with_the_pod(
    vf: Function, other_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    pods = [make_pod("one"), make_pod("other")]
    attach(conf(vf, **CONF), pods[0], env=PODS)
    (ip,) = attach(conf(other_vf, **CONF), pods[1], container="container2")["ips"]
    pods[0].run("ping", "-c", "5", "-i", "0.2", "-W", "5", ip["address"].partition("/")[0])
    port = f"/sys/class/infiniband/{vf.rdma[0]}/ports/1"

    def kernel(name: str) -> int:
        return int(pods[0].run("cat", f"{port}/{name}"))

    labels = {
        "device": vf.rdma[0],
        "port": "1",
        "function": vf.device,
        "pod_namespace": "train",
        "pod_name": "llama-0",
        "network": "rail0",
        "interface": "net1",
    }
    before = {name: kernel(f"counters/{name}") for name in ("port_rcv_data", "port_rcv_packets", "port_xmit_packets")}
    found = metrics("--no-doctor")
    after = {name: kernel(f"counters/{name}") for name in before}
    for name, metric, factor in (
        ("port_rcv_data", "rdma_cni_port_received_bytes_total", 4),
        ("port_rcv_packets", "rdma_cni_port_received_packets_total", 1),
        ("port_xmit_packets", "rdma_cni_port_transmitted_packets_total", 1),
    ):
        # A neighbour may speak in between.
        assert 0 < before[name] * factor <= value(found, metric, **labels) <= after[name] * factor
    assert value(found, "rdma_cni_port_up", **labels) == 1
    assert value(found, "rdma_cni_port_rate_bytes_per_second", **labels) == 400e9 / 8
    shown = {
        labels["counter"] for labels, _ in found["rdma_cni_port_hw_events_total"] if labels["device"] == vf.rdma[0]
    }
    assert shown == set(pods[0].run("ls", f"{port}/hw_counters").split()) - {"lifespan"}
    # Those on the host have no pod.
    assert {have["pod_name"] for have, _ in found["rdma_cni_port_up"]} == {"", "llama-0"}
    detach(conf(vf, **CONF), pods[0])
    detach(conf(other_vf, **CONF), pods[1], container="container2")


def test_calls_are_counted_with_their_errors(vf: Function, other_vf: Function, pod: Pod) -> None:
    attach(conf(vf, **CONF), pod)
    # The name is taken.
    assert guest.cni("ADD", conf(other_vf, **CONF), container="container2", netns=pod).error == 103
    detach(conf(vf, **CONF), pod)
    found = metrics("--no-doctor")
    assert value(found, "rdma_cni_call_duration_seconds_count", plugin="rdma", command="ADD") == 2
    assert value(found, "rdma_cni_call_duration_seconds_count", plugin="rdma", command="DEL") == 1
    assert value(found, "rdma_cni_call_errors_total", plugin="rdma", command="ADD", code="103") == 1
    # node-subnet was called as a module: it is no call of its own.
    assert {labels["plugin"] for labels, _ in found["rdma_cni_call_duration_seconds_count"]} == {"rdma"}


def test_the_doctors_findings_are_told_by_check_and_none_on_a_healthy_node(pf: str) -> None:
    found = metrics()
    assert {number for _, number in found["rdma_cni_doctor_findings"]} == {0}
    checks = {labels["check"] for labels, _ in found["rdma_cni_doctor_findings"]}
    assert checks == set(rdma_cni("doctor", "--json").json["checks"])
    assert value(found, "rdma_cni_problems") == 0
    guest.run("ip", "link", "set", pf, "down")
    try:
        wrong = rdma_cni("doctor", "--json").json["findings"]
        assert wrong
        told = {
            (labels["check"], labels["severity"]): number for labels, number in metrics()["rdma_cni_doctor_findings"]
        }
        assert {key: number for key, number in told.items() if number} == Counter(
            (each["check"], each["severity"]) for each in wrong
        )
    finally:
        guest.run("ip", "link", "set", pf, "up")
        guest.settle()
