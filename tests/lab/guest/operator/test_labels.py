"""`rdma-cni labels`: what the node has, in words that Kubernetes takes."""

import re
from pathlib import Path

from guest import Function, Pod
from network import attach, conf, detach
from operating import rdma_cni


def labels(*arguments: str) -> dict[str, str]:
    said = rdma_cni("labels", *arguments)
    assert (said.code, said.stderr) == (0, ""), said
    return dict(line.split("=", 1) for line in said.stdout.splitlines())


def test_what_the_node_has_as_labels() -> None:
    assert labels() == {
        "rdma.capable": "true",
        "rdma.netns-mode": "exclusive",
        "rdma.vendor.8086": "true",
        "rdma.device.8086-10c9": "true",
        "rdma.device.8086-10ca": "true",
        "rdma.driver.igb": "true",
        "rdma.driver.igbvf": "true",
        "rdma.link.ethernet": "true",
        "rdma.firmware.28.42.1000": "true",
        "rdma.roce.v2": "true",
        "rdma.speed": "400",
        "rdma.pfs": "1",
        "rdma.vfs": "7",
        "rdma.vfs-free": "7",
        "rdma.sfs": "1",
        "rdma.sfs-free": "1",
        "rdma.numa-node.1": "true",
        "rdma.gpu-distance": "pcie-switch",
    }


def test_every_label_is_one_that_kubernetes_takes() -> None:
    syntax = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
    for key, value in labels("--prefix", "example.com/").items():
        assert syntax.fullmatch(key), key
        assert key.startswith("example.com/rdma.")
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value), value
    assert rdma_cni("labels", "--prefix", "no slash").code == 2


def test_what_a_pod_has_is_not_free(vf: Function, pod: Pod) -> None:
    attach(conf(vf), pod)
    assert (labels()["rdma.vfs"], labels()["rdma.vfs-free"]) == ("7", "6")
    detach(conf(vf), pod)


def test_a_feature_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "rdma-cni"
    path.write_text("old")
    said = rdma_cni("labels", "--output", str(path))
    assert (said.code, said.stdout) == (0, "")
    assert dict(line.split("=", 1) for line in path.read_text().splitlines()) == labels()
    assert [entry.name for entry in tmp_path.iterdir()] == ["rdma-cni"]
    assert path.stat().st_mode & 0o777 == 0o644
    said = rdma_cni("labels", "--output", str(tmp_path / "nowhere" / "file"))
    assert (said.code, "cannot be written" in said.stderr) == (1, True)
    assert rdma_cni("labels", "--json").json == labels()
