"""The image that installs the plugin on a node, run by containerd as the DaemonSet of examples/ has it."""

import json
from pathlib import Path
from typing import Any

import guest
from example_files import documents
from guest import Function
from runtime import IMAGE, PAYLOAD, Containerd, Sandbox, conflist, crictl, pod_config, pool, said

_PLUGINS = Path(guest.CNI_PATH)
_NAMES = {"rdma", "node-subnet", "rdma-cni"}


def container_config(spec: dict[str, Any]) -> dict[str, Any]:
    """What kubelet asks of the runtime for the one container of a pod; the image is the one that the lab has."""
    (container,) = spec["containers"]
    assert container["image"].startswith(IMAGE.removesuffix("lab"))
    assert "command" not in container
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = [
        {"host_path": volumes[mount["name"]], "container_path": mount["mountPath"]}
        for mount in container["volumeMounts"]
    ]
    security = container["securityContext"]
    context = {
        "readonly_rootfs": security["readOnlyRootFilesystem"],
        "no_new_privs": not security["allowPrivilegeEscalation"],
        "capabilities": {f"{what}_capabilities": names for what, names in security["capabilities"].items()},
    }
    megabytes = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
    return {
        "metadata": {"name": container["name"]},
        "image": {"image": IMAGE},
        "mounts": mounts,
        "log_path": "install.log",
        "linux": {"security_context": context, "resources": {"memory_limit_in_bytes": megabytes << 20}},
    }


def test_the_image_installs_the_plugin_that_then_serves_a_sandbox(
    containerd: Containerd, without_our_plugins: None, pf: str, vfs: list[Function], tmp_path: Path
) -> None:
    containerd.load(PAYLOAD / "image.tar")
    (daemonset,) = documents("daemonset.yaml")
    spec = daemonset["spec"]["template"]["spec"]
    assert spec["hostNetwork"]
    host_network = {"linux": {"security_context": {"namespace_options": {"network": 2}}}}
    pod = pod_config(tmp_path, "installer", **host_network)
    installer = Sandbox(said(crictl("runp", pod)))
    container = tmp_path / "container.json"
    container.write_text(json.dumps(container_config(spec)))
    before = {path.name for path in _PLUGINS.iterdir()}
    name = said(crictl("create", installer.id, container, pod))
    said(crictl("start", name))

    def state() -> str:
        return str(json.loads(said(crictl("inspect", "-o", "json", name)))["status"]["state"])

    assert guest.eventually(lambda: (_PLUGINS / "rdma-cni").exists() or state() == "CONTAINER_EXITED", seconds=120)
    assert state() == "CONTAINER_RUNNING", (tmp_path / "install.log").read_text()
    assert {path.name for path in _PLUGINS.iterdir()} - before == _NAMES | {".rdma-cni"}

    # It is ready, and is not when somebody took a plugin away.
    is_ready = spec["containers"][0]["readinessProbe"]["exec"]["command"]
    assert "as it should be" in said(crictl("exec", "--sync", name, *is_ready))
    there = (_PLUGINS / "rdma").rename(_PLUGINS / ".elsewhere")
    assert not crictl("exec", "--sync", name, *is_ready).ok
    there.rename(_PLUGINS / "rdma")

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
