"""What the other commands print with --json; it is held against the schema once the guest has ended."""

from pathlib import Path

import guest
from guest import Function, Pod
from network import attach, conf, detach
from operating import NET_D, PODS, POOL, rdma_cni


def test_what_is_attached_and_reserved(vf: Function, pod: Pod) -> None:
    attach(conf(vf, ipam=POOL), pod, env=PODS)
    said = rdma_cni("attachments", "--json")
    (attachment,) = said.json["attachments"]
    assert (said.code, attachment["state"], attachment["pod"]) == (0, "in place", "train/llama-0")
    assert (attachment["function"], attachment["netdev"]) == (vf.device, vf.netdev)
    assert [device["name"] for device in attachment["rdma"]] == list(vf.rdma)
    said = rdma_cni("ipam", "--json")
    (reservation,), (pool,) = said.json["reservations"], said.json["pools"]
    assert (said.code, reservation["address"], reservation["state"]) == (0, "10.56.3.2/24", "in place")
    assert (pool["subnets"], pool["reserved"]) == (["10.56.3.0/24"], 1)
    pod.delete()
    assert guest.eventually(lambda: vf.rdma[0] in guest.rdma_names())
    said = rdma_cni("gc", "--dry-run", "--json")
    assert (said.code, len(said.json["stale"]), said.json["collected"]) == (1, 1, [])
    said = rdma_cni("gc", "--json")
    assert (said.code, len(said.json["collected"]), said.json["failed"]) == (0, 1, [])
    assert rdma_cni("attachments", "--json").json["attachments"] == []
    detach(conf(vf, ipam=POOL), None)


def test_what_is_wrong_with_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "10-rail0.conflist"
    path.write_text((NET_D / "10-rail0.conflist").read_text().replace('"pf"', '"pff"'))
    said = rdma_cni("validate", "--json", str(path))
    assert said.code == 1
    assert any(finding["nearest"] == "pf" for finding in said.json), said.json
