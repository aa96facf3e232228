"""Real callers in the guest: containerd, driven through CRI by crictl, and libcni by cnitool."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guest
from guest import Answer, Function, Pod

PAYLOAD = Path("/payload")
NET_D = Path("/etc/cni/net.d")
IMAGE = "localhost/rdma-cni:lab"
_SOCKET = "unix:///run/containerd/containerd.sock"
# The guest's root is an initramfs: no pivot_root in it, no overlay on it.
_CONFIG = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        NoPivotRoot = true
"""


def pool(node: int = 3) -> dict[str, object]:
    """An `ipam` section for node-subnet: 10.56.NODE.0/24, from .2 on."""
    pools = [{"subnet": "10.56.0.0/16", "nodePrefix": 24}]
    return {"type": "node-subnet", "nodeName": "gpu", "nodes": {"gpu": node}, "pools": pools}


def conflist(name: str, *plugins: Mapping[str, object], version: str = "1.0.0") -> dict[str, Any]:
    return {"cniVersion": version, "name": name, "plugins": list(plugins)}


def vf_of(interface: Mapping[str, Any], vfs: Iterable[Function]) -> Function:
    """The VF that an interface is."""
    (vf,) = [vf for vf in vfs if vf.device == interface["parentdev"]]
    return vf


def _execute(*command: str | Path, env: Mapping[str, str] | None = None) -> Answer:
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=400, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def crictl(*arguments: str | Path) -> Answer:
    return _execute(PAYLOAD / "crictl", "--runtime-endpoint", _SOCKET, "--timeout", "300s", *arguments)


def said(answer: Answer) -> str:
    """What a command that succeeded wrote to stdout."""
    assert answer.ok, answer
    return answer.stdout.strip()


@dataclass(frozen=True)
class Sandbox:
    """A pod sandbox of containerd's."""

    id: str

    def inspect(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(said(crictl("inspectp", "-o", "json", self.id)))
        return value

    @property
    def pod(self) -> Pod:
        """Its network namespace."""
        (path,) = [
            namespace["path"]
            for namespace in self.inspect()["info"]["runtimeSpec"]["linux"]["namespaces"]
            if namespace["type"] == "network"
        ]
        return Pod(Path(path).name)

    @property
    def process(self) -> int:
        """The process that keeps the sandbox's namespaces."""
        return int(self.inspect()["info"]["pid"])

    @property
    def addresses(self) -> list[str]:
        """What kubelet is told: the pod's addresses."""
        network = self.inspect()["status"]["network"]
        return [network["ip"], *(more["ip"] for more in network.get("additionalIps") or [])]

    def remove(self) -> None:
        """Stop and remove it, as kubelet does."""
        said(crictl("stopp", self.id))
        said(crictl("rmp", self.id))


def pod_config(directory: Path, name: str, **more: object) -> Path:
    """A pod's configuration, in a file."""
    path = directory / f"{name}.json"
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "attempt": 1}
    path.write_text(json.dumps({"metadata": metadata, "log_directory": str(directory), "linux": {}, **more}))
    return path


class Containerd:
    """containerd, as a process of the test's own."""

    def __init__(self) -> None:
        Path("/etc/containerd").mkdir(parents=True, exist_ok=True)
        Path("/etc/containerd/config.toml").write_text(_CONFIG)
        Path("/etc/crictl.yaml").touch()
        NET_D.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        with Path("/out/containerd.log").open("ab") as log:
            self._process = subprocess.Popen(["containerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert guest.eventually(lambda: crictl("info").ok, seconds=120), "containerd does not answer"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def load(self, image: Path) -> str:
        """Import an image's tar where CRI looks for images."""
        return said(_execute("ctr", "-n", "k8s.io", "images", "import", image))

    def use(self, config: Mapping[str, Any]) -> None:
        """Have a conflist be the only one in /etc/cni/net.d, and wait until containerd has read it."""
        self.use_text(json.dumps(config), "10-lab.conflist")

    def use_text(self, text: str, name: str) -> None:
        """The same with a conflist as it is, in a file of that name."""
        # Not moved there: containerd 1.6 looks when a file is written, not when one appears.
        (NET_D / name).write_text(text)

        def read() -> bool:
            networks = json.loads(said(crictl("info", "-o", "json")))["cniconfig"]["Networks"]
            return any(network["Config"]["Source"] == text for network in networks)

        assert guest.eventually(read, seconds=60), f"containerd has not read {text}"

    def try_run(self, directory: Path, name: str) -> Answer:
        return crictl("runp", pod_config(directory, name))

    def run(self, directory: Path, name: str = "pod") -> Sandbox:
        return Sandbox(said(self.try_run(directory, name)))

    def run_at_once(self, directory: Path, count: int) -> list[Sandbox]:
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda number: self.run(directory, f"pod{number}"), range(count)))

    def remove_all(self) -> None:
        """What a test that failed left."""
        for sandbox in crictl("pods", "-q").stdout.split():
            crictl("stopp", sandbox)
            crictl("rmp", "--force", sandbox)


def remove_at_once(sandboxes: list[Sandbox]) -> None:
    with ThreadPoolExecutor(len(sandboxes)) as threads:
        list(threads.map(Sandbox.remove, sandboxes))


@dataclass(frozen=True)
class CniTool:
    """cnitool, and the directory in which it looks for conflists; plugins are found in `cni_path`."""

    directory: Path
    cni_path: str = guest.CNI_PATH

    def __call__(self, command: str, network: str, netns: Pod | str = "", ifname: str = "eth0") -> Answer:
        path = netns.netns if isinstance(netns, Pod) else netns
        env = {
            "PATH": os.environ["PATH"],
            "NETCONFPATH": str(self.directory),
            "CNI_PATH": self.cni_path,
            "CNI_IFNAME": ifname,
        }
        return _execute(PAYLOAD / "cnitool", command, network, path, env=env)

    def configure(self, config: Mapping[str, Any]) -> None:
        (self.directory / f"{config['name']}.conflist").write_text(json.dumps(config))
