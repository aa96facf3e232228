"""The conflists of examples/, in /etc/cni/net.d: pod sandboxes by containerd. CRI-O reads its own by libcni, too."""

import json
from pathlib import Path

import example_files
import guest
import pytest
from example_files import EXAMPLES
from guest import Function
from network import state_rows
from runtime import Containerd, vf_of

CONFLISTS = sorted(EXAMPLES.rglob("*.conflist"))


@pytest.mark.parametrize("path", CONFLISTS, ids=lambda path: path.name)
def test_a_conflist_gives_a_sandbox_its_rails(
    path: Path, containerd: Containerd, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    example_files.be_the_node()
    conflist = json.loads(path.read_text())
    rails = [plugin for plugin in conflist["plugins"] if plugin["type"] == "rdma"]
    for plugin in rails:
        # The lab has one PF, of another name.
        plugin["pf"] = pf
    containerd.use(conflist)
    sandbox = containerd.run(tmp_path)
    pod = sandbox.pod
    names = [plugin.get("ifName", "eth0") for plugin in rails]
    assert {"eth0", *names} == {link["ifname"] for link in pod.links()}
    taken = [vf_of(pod.link(name), vfs) for name in names]
    assert pod.rdma_names() == sorted(device for vf in taken for device in vf.rdma)
    for number, name in enumerate(names):
        assert pod.addresses(name) == [f"10.{56 + number}.7.2/24"]
    # kubelet is told what eth0 has, whoever made it.
    assert [address.partition("/")[0] for address in pod.addresses("eth0")] == sandbox.addresses
    sandbox.remove()
    assert state_rows() == 0
    assert {device for vf in vfs for device in vf.rdma} <= set(guest.rdma_names())
