"""The files of examples/: the networks that they describe, and one of these attached to a pod as Multus attaches it.

The guest's Python reads no YAML: `test_boots.py` hands the files over with their YAML as JSON, which is YAML, too.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import guest
from guest import Function, Pod

EXAMPLES = Path("/payload/examples")
# The node that the examples speak of.
NODE = "gpu-07"
NETWORKS = "k8s.v1.cni.cncf.io/networks"

# What is not in the lab, and what moves a VF's netdev in its place.
_STAND_INS = {"sriov": "host-device", "ib-sriov": "host-device"}


def documents(name: str) -> list[dict[str, Any]]:
    """What is in a YAML file, in the guest."""
    found: list[dict[str, Any]] = json.loads((EXAMPLES / name).read_text())
    return found


def networks(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The conflist of each NetworkAttachmentDefinition, and those that the SR-IOV operator makes, by name."""
    found = {}
    for document in documents:
        name, spec = document["metadata"]["name"], document.get("spec", {})
        if document["kind"] == "NetworkAttachmentDefinition":
            config = json.loads(spec["config"])
            if "plugins" not in config:
                top = {key: config.pop(key) for key in ("cniVersion", "name")}
                config = {**top, "plugins": [config]}
            found[name] = config
        elif document["kind"] == "SriovNetwork":
            # Its template puts metaPlugins behind the first plugin as they are, so they are JSON objects with commas.
            sriov = {"type": "sriov", "trust": spec["trust"], "ipam": json.loads(spec["ipam"])}
            plugins = [sriov, *json.loads(f"[{spec['metaPlugins']}]")]
            found[name] = {"cniVersion": "1.0.0", "name": name, "plugins": plugins}
    return found


def asked_for(pod: dict[str, Any]) -> list[tuple[str, str]]:
    """The networks of a pod's annotation, each with the name of its interface ("" where Multus chooses)."""
    entries = [entry.strip() for entry in pod["metadata"]["annotations"][NETWORKS].split(",")]
    return [(name, ifname) for name, _, ifname in (entry.partition("@") for entry in entries)]


def be_the_node() -> None:
    """Have the name that the examples give to a node."""
    directory = Path("/run/rdma-cni")
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "node.json").write_text(json.dumps({"nodeName": NODE}))


@dataclass
class Attachment:
    """A network attached to a pod: what libcni does with a conflist, after Multus put in what it knows.

    That is the function's device ID, in each plugin, and the file for device information where a plugin asks for it.
    """

    conflist: dict[str, Any]
    pod: Pod
    ifname: str
    function: Function | None = None
    device_info: str = ""
    result: dict[str, Any] | None = field(default=None, init=False)

    def add(self) -> dict[str, Any]:
        for plugin in self.conflist["plugins"]:
            self.result = self._call("ADD", plugin).json
        assert self.result is not None
        return self.result

    def check(self) -> None:
        for plugin in self.conflist["plugins"]:
            self._call("CHECK", plugin)

    def delete(self) -> None:
        for plugin in reversed(self.conflist["plugins"]):
            self._call("DEL", plugin)

    def _call(self, command: str, plugin: dict[str, Any]) -> guest.Answer:
        config = {"cniVersion": self.conflist["cniVersion"], "name": self.conflist["name"], **plugin}
        if self.function:
            config |= {"deviceID": self.function.device, "pciBusID": self.function.device}
        if plugin["type"] in _STAND_INS:
            assert self.function is not None
            config |= {"type": _STAND_INS[plugin["type"]], "device": self.function.netdev}
        if plugin.get("capabilities", {}).get("CNIDeviceInfoFile"):
            config["runtimeConfig"] = {"CNIDeviceInfoFile": self.device_info}
        if self.result is not None:
            config["prevResult"] = self.result
        binary = f"{guest.CNI_PATH}/{config['type']}"
        answer = guest.cni(command, config, netns=self.pod, ifname=self.ifname, binary=binary)
        assert answer.ok, (config, answer)
        return answer
