"""The image that installs the plugin on a node, run by containerd as a DaemonSet's pod is."""

import json
from pathlib import Path

import guest
from guest import Function
from runtime import IMAGE, PAYLOAD, Containerd, Sandbox, conflist, crictl, pod_config, pool, said

_PLUGINS = Path(guest.CNI_PATH)
_NAMES = {"rdma", "node-subnet", "rdma-cni"}


def test_the_image_installs_the_plugin_that_then_serves_a_sandbox(
    containerd: Containerd, without_our_plugins: None, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    containerd.load(PAYLOAD / "image.tar")
    host_network = {"linux": {"security_context": {"namespace_options": {"network": 2}}}}
    pod = pod_config(tmp_path, "installer", **host_network)
    installer = Sandbox(said(crictl("runp", pod)))
    mounts = [{"host_path": str(_PLUGINS), "container_path": "/host/opt/cni/bin"}]
    container = tmp_path / "container.json"
    container.write_text(
        json.dumps(
            {"metadata": {"name": "install"}, "image": {"image": IMAGE}, "mounts": mounts, "log_path": "install.log"}
        )
    )
    before = {path.name for path in _PLUGINS.iterdir()}
    name = said(crictl("create", installer.id, container, pod))
    said(crictl("start", name))

    def state() -> str:
        return str(json.loads(said(crictl("inspect", "-o", "json", name)))["status"]["state"])

    assert guest.eventually(lambda: (_PLUGINS / "rdma-cni").exists() or state() == "CONTAINER_EXITED", seconds=120)
    assert state() == "CONTAINER_RUNNING", (tmp_path / "install.log").read_text()
    assert {path.name for path in _PLUGINS.iterdir()} - before == _NAMES | {".rdma-cni"}

    containerd.use(conflist("installed", {"type": "rdma", "pf": pf, "ipam": pool()}))
    sandbox = containerd.run(tmp_path, "user")
    assert sandbox.pod.addresses("eth0") == ["10.56.3.2/24"]
    assert len(sandbox.pod.rdma_names()) == 1
    sandbox.remove()
    assert "as it should be" in guest.run(str(_PLUGINS / "rdma-cni"), "install", "--check")

    # It ends when it is told to, without being killed.
    said(crictl("stop", "--timeout", "60", name))
    status = json.loads(said(crictl("inspect", "-o", "json", name)))["status"]
    assert (status["state"], status["exitCode"]) == ("CONTAINER_EXITED", 0)
    installer.remove()
    assert (_PLUGINS / "rdma").resolve().is_file()
