"""What `rdma-cni validate` says of CNI configurations, definitions, pods and node.json.

The plugins' own models and checks judge what is theirs, so that what passes here passes there. What only
Multus, the runtime or a second file makes a mistake is a warning.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, cast

from ipam import plugin as node_subnet
from ipam import pool as ipam_pool
from rdma_cni import allocation, config
from rdma_cni.cli.documents import Document, DocumentError, Path, at, path_of, read, text_of
from rdma_cni.cni import checks, validate
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.request import VERSIONS, Request

ERROR, WARNING = "error", "warning"

RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
DEFAULT_NETWORK = "v1.multus-cni.io/default-network"


@dataclass(frozen=True, order=True)
class Finding:
    """What is wrong, and where. `line` is 0 where it is not known, `nearest` "" where nothing comes near."""

    file: str
    line: int
    severity: str
    field: str
    found: str
    expected: str
    nearest: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{self.field}: found {self.found}" if self.field else f"found {self.found}"
        text += f", expected {self.expected}" if self.expected else ""
        return f"{place}: {self.severity}: {text}" + (f"; did you mean {self.nearest!r}?" if self.nearest else "")


# What others put beside our own keys; libcni and the CNI specification have them.
_OF_EVERY_PLUGIN = ["cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "ipam", "dns", "prevResult"]
_OF_A_LIST = ["cniVersion", "cniVersions", "name", "plugins", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"]
_ARGS_OF_OTHERS = ["ips", "labels", "mac", "guid"]

_CAPABILITIES_OF_RDMA = ["mac", "deviceID", "CNIDeviceInfoFile"]
# CONVENTIONS.md of the CNI specification, and what Multus adds.
_CAPABILITIES = [
    *_CAPABILITIES_OF_RDMA,
    "ips",
    "ipRanges",
    "portMappings",
    "bandwidth",
    "dns",
    "infinibandGUID",
    "aliases",
    "cgroupPath",
    "io.kubernetes.cri.pod-annotations",
]
_MOVES_THE_FUNCTION = ("sriov", "ib-sriov", "host-device")
_NEEDS_A_DEVICE = ("rdma", "sriov", "ib-sriov")


@dataclass
class Pool:
    """A pool as a configuration has it: of node-subnet, or a range of host-local."""

    subnet: ipam_pool.Subnet
    path: Path
    rules: object
    """What decides which addresses of it a node gives; two that agree in it agree on every node."""


@dataclass
class Network:
    """A network configuration: a conflist, a single plugin's, or a definition's `spec.config`.

    `base` is where in its document it is; `definition` is (namespace, name) of the object that has it.
    `parts` are the plugins and their paths where they are not below `base`. A `resource` that begins with
    "/" has a prefix that is not known.
    """

    document: Document
    base: Path
    config: dict[str, Any]
    definition: tuple[str, str] | None = None
    resource: str = ""
    pools: list[Pool] = field(default_factory=list)
    capabilities: set[str] = field(default_factory=set)
    parts: list[tuple[Path, dict[str, Any]]] | None = None
    node_subnets: list[tuple[Any, list[ipam_pool.Pool]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        name = self.config.get("name")
        return name if isinstance(name, str) and name else self.definition[1] if self.definition else ""

    @property
    def shared(self) -> bool:
        """Whether every node has this very configuration, for certain."""
        return self.definition is not None

    def plugins(self) -> list[tuple[Path, dict[str, Any]]]:
        """Each plugin's configuration, with its path."""
        if self.parts is not None:
            return self.parts
        listed = self.config.get("plugins")
        if listed is None:
            return [(self.base, self.config)]
        found = enumerate(listed if isinstance(listed, list) else [])
        return [((*self.base, "plugins", number), each) for number, each in found if isinstance(each, dict)]

    def __str__(self) -> str:
        if self.definition:
            namespace, name = self.definition
            return f"definition {name if namespace == 'default' else f'{namespace}/{name}'} ({self.document.file})"
        return f"network {self.name} ({self.document.file})"


@dataclass
class Pod:
    """What has pods: a Pod, or what makes them. `networks` are (namespace, name, wanted addresses)."""

    document: Document
    base: Path
    spec: dict[str, Any]
    networks: list[tuple[str, str, bool]]


def validate_files(files: Iterable[tuple[str, bytes]]) -> list[Finding]:
    """The findings of some files (name, content), those of each in the order of its lines.

    A file is CNI configuration, a conflist, node.json, or Kubernetes objects in JSON or YAML, of which
    NetworkAttachmentDefinitions and what has pods are looked at.
    """
    judge = _Judge()
    for name, data in files:
        judge.file(name, data)
    judge.between_files()
    return sorted(set(judge.findings))


class _Judge:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.networks: list[Network] = []
        self.node_files: list[Document] = []
        self.pods: list[Pod] = []

    def _tell(
        self, severity: str, document: Document, path: Path, found: str, expected: str = "", nearest: str = ""
    ) -> None:
        line = document.line(path)
        self.findings.append(Finding(document.file, line, severity, text_of(path), found, expected, nearest))

    def _error(self, document: Document, path: Path, found: str, expected: str = "", nearest: str = "") -> None:
        self._tell(ERROR, document, path, found, expected, nearest)

    def _warn(self, document: Document, path: Path, found: str, expected: str = "", nearest: str = "") -> None:
        self._tell(WARNING, document, path, found, expected, nearest)

    def _plugins_error(self, document: Document, base: Path, value: object, error: str | CniError) -> None:
        """An error in a plugin's own words, `FIELD: found X, expected Y`, about `value`, which is at `base`."""
        text = error.message if isinstance(error, CniError) else error
        where, colon, rest = text.partition(": found ")
        if not colon:
            self._error(document, base, text)
            return
        found, _, expected = rest.partition(", expected ")
        nearest = re.fullmatch(r"(.*); did you mean '(.*)'\?", found)
        if nearest:
            found, expected = nearest[1], ""
        elif "; expected " in found:
            found, _, expected = found.partition("; expected ")
        self._error(document, base + path_of(where, value), found, expected, nearest[2] if nearest else "")

    # Files

    def file(self, name: str, data: bytes) -> None:
        empty = True
        try:
            for document in read(name, data):
                empty = False
                self._document(document)
                for path in document.duplicates:
                    self._warn(document, path, "a key that is there twice", "each key once: the last one counts")
        except DocumentError as error:
            self.findings.append(Finding(name, error.line, ERROR, "", error.found, error.expected))
            return
        if empty:
            self.findings.append(Finding(name, 0, ERROR, "", "nothing at all", "a configuration"))

    def _document(self, document: Document) -> None:
        value = document.value
        if not isinstance(value, dict):
            self._error(document, (), f"a {_kind(value)}", "an object: a CNI configuration, or one of Kubernetes")
        elif "kind" in value or "apiVersion" in value:
            self._object(document, ())
        elif PurePath(document.file).name == "node.json" or (value.keys() & {"nodeName", "subnets"}):
            self._node_file(document)
        elif "plugins" in value or "type" in value or "cniVersion" in value:
            self._network(Network(document, (), value))
        else:
            self._error(
                document,
                (),
                f"an object with the keys {', '.join(map(str, value)) or '(none)'}",
                "a CNI configuration (`type` or `plugins`), an object of Kubernetes (`kind`), or node.json "
                "(`nodeName`, `subnets`)",
                _nearest(next(map(str, value), ""), ["plugins", "type", "kind", "nodeName", "subnets"]),
            )

    # Kubernetes

    def _object(self, document: Document, base: Path) -> None:
        value = at(document.value, base)
        if not isinstance(value, dict):
            self._error(document, base, f"a {_kind(value)}", "an object of Kubernetes")
            return
        kind = value.get("kind")
        if kind == "NetworkAttachmentDefinition":
            self._definition(document, base, value)
        elif kind == "SriovNetwork":
            self._sriov_network(document, base, value)
        elif isinstance(kind, str) and kind.endswith("List") and isinstance(value.get("items"), list):
            for number in range(len(value["items"])):
                self._object(document, (*base, "items", number))
        elif isinstance(kind, str) and _nearest(kind, ["NetworkAttachmentDefinition"]):
            self._error(document, (*base, "kind"), repr(kind), "a kind", "NetworkAttachmentDefinition")
        else:
            self._pods(document, base, value)

    def _definition(self, document: Document, base: Path, value: dict[str, Any]) -> None:
        version = value.get("apiVersion")
        if version != "k8s.cni.cncf.io/v1":
            self._error(document, (*base, "apiVersion"), _shown(version), '"k8s.cni.cncf.io/v1"')
        metadata = _object(value, "metadata")
        name, namespace = metadata.get("name"), _namespace(metadata.get("namespace"))
        if not isinstance(name, str) or not name:
            self._error(document, (*base, "metadata", "name"), _shown(name), "the definition's name")
            name = ""
        annotations = _object(metadata, "annotations")
        resource = annotations.get(RESOURCE)
        if resource is None:
            for key in map(str, annotations):
                if _nearest(key, [RESOURCE]):
                    path = (*base, "metadata", "annotations", key)
                    self._warn(document, path, "a key that Multus does not know", nearest=RESOURCE)
        elif not isinstance(resource, str) or not re.fullmatch(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", resource):
            path = (*base, "metadata", "annotations", RESOURCE)
            self._error(document, path, _shown(resource), 'a resource with its prefix, such as "nvidia.com/rail0"')
        path = (*base, "spec", "config")
        spec = _object(value, "spec")
        text = spec.get("config")
        if text is None:
            for key in map(str, spec):
                nearest = _nearest(key, ["config"])
                if nearest:
                    self._error(document, (*base, "spec", key), "a key that is not known", nearest=nearest)
            # Without one, Multus looks in the node's own files for a network of this name.
            return
        if not isinstance(text, str):
            self._error(document, path, f"an {_kind(text)}", "a string: the configuration as JSON text")
            return
        try:
            parsed = document.parse_string(path)
        except DocumentError as error:
            self.findings.append(Finding(document.file, error.line, ERROR, text_of(path), error.found, error.expected))
            return
        if not isinstance(parsed, dict):
            self._error(document, path, f"a {_kind(parsed)}", "a network configuration: an object")
            return
        self._network(Network(document, path, parsed, (namespace, name), str(resource or "")))

    def _sriov_network(self, document: Document, base: Path, value: dict[str, Any]) -> None:
        """What the SR-IOV network operator makes a definition of: `sriov`, its `ipam`, and the plugins after it."""
        spec, metadata = _object(value, "spec"), _object(value, "metadata")
        where = (*base, "spec")
        found: dict[str, object] = {}
        for key in ("ipam", "metaPlugins"):
            if not spec.get(key):
                continue
            try:
                found[key] = document.parse_string((*where, key), several=key == "metaPlugins")
            except DocumentError as error:
                field = text_of((*where, key))
                self.findings.append(Finding(document.file, error.line, ERROR, field, error.found, error.expected))
                return
        sriov = {"type": "sriov"} | ({"ipam": found["ipam"]} if "ipam" in found else {})
        parts = [(where, sriov)]
        for number, each in enumerate(cast("list[Any]", found.get("metaPlugins", []))):
            if isinstance(each, dict):
                parts.append(((*where, "metaPlugins", number), each))
            else:
                self._error(document, (*where, "metaPlugins", number), _shown(each), "an object: a plugin")
        name = str(metadata.get("name") or "")
        namespace = _namespace(spec.get("networkNamespace") or metadata.get("namespace"))
        config = {"cniVersion": "1.0.0", "name": name, "plugins": [each for _, each in parts]}
        resource = f"/{spec.get('resourceName') or ''}"
        self._network(Network(document, base, config, (namespace, name), resource, parts=parts))

    def _pods(self, document: Document, base: Path, value: dict[str, Any]) -> None:
        for inner in ((), ("spec", "template"), ("spec", "jobTemplate", "spec", "template")):
            template = at(value, inner)
            annotations = _object(_object(template, "metadata"), "annotations")
            namespace = _namespace(_object(value, "metadata").get("namespace"))
            where = (*base, *inner, "metadata", "annotations")
            networks: list[tuple[str, str, bool]] = []
            for key in (DEFAULT_NETWORK, NETWORKS):
                if annotations.get(key):
                    networks += self._selection(document, (*where, key), annotations[key], namespace)
            if networks:
                spec = _object(template, "spec")
                self.pods.append(Pod(document, (*where, NETWORKS), spec, networks))

    def _selection(self, document: Document, path: Path, text: object, namespace: str) -> list[tuple[str, str, bool]]:
        """The networks of an annotation, in either of its two forms."""
        if not isinstance(text, str):
            self._error(document, path, f"an {_kind(text)}", "a string")
            return []
        if not text.lstrip().startswith(("[", "{")):
            found = []
            for entry in text.split(","):
                match = re.fullmatch(r"\s*(?:([^/@\s]+)/)?([^/@\s]+)(?:@([^/@\s]+))?\s*", entry)
                if match:
                    found.append((_namespace(match[1] or namespace), match[2], False))
                else:
                    self._error(document, path, repr(entry), "[NAMESPACE/]NAME[@INTERFACE]")
            return found
        try:
            entries = document.parse_string(path)
        except DocumentError as error:
            self.findings.append(Finding(document.file, error.line, ERROR, text_of(path), error.found, error.expected))
            return []
        found = []
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                self._error(document, (*path, number), _shown(entry), 'an object with the network\'s "name"')
                continue
            known = ["name", "namespace", "ips", "mac", "interface", "deviceID", "default-route", "cni-args"]
            known += ["infiniband-guid", "portMappings", "bandwidth", "ipam-claim-reference"]
            self._unknown(document, (*path, number), entry, known, "Multus")
            there = _namespace(entry.get("namespace") or namespace)
            found.append((there, str(entry["name"]), bool(entry.get("ips"))))
        return found

    # Network configurations

    def _network(self, network: Network) -> None:
        document, base, value = network.document, network.base, network.config
        self.networks.append(network)
        listed = value.get("plugins")
        if listed is not None:
            self._unknown(document, base, value, _OF_A_LIST, "the runtime")
            if not isinstance(listed, list) or not listed:
                self._error(document, (*base, "plugins"), _shown(listed), "a list of one plugin or more")
            for number, each in enumerate(listed if isinstance(listed, list) else []):
                if not isinstance(each, dict):
                    self._error(document, (*base, "plugins", number), _shown(each), "an object: a plugin")
        plugins = network.plugins()
        if any(each.get("type") == "rdma" or _ipam(each) == "node-subnet" for _, each in plugins):
            self._version(network)
        name = value.get("name")
        if name is not None or not network.definition:
            try:
                checks.identifier(_string(name))
            except ValueError as error:
                self._error(document, (*base, "name"), _shown(name), str(error))
        for number, (path, each) in enumerate(plugins):
            self._plugin(network, path, each, number)
        self._order(network, [str(each.get("type")) for _, each in plugins])
        self._device(network)
        self._within(network)

    def _version(self, network: Network) -> None:
        version, several = network.config.get("cniVersion"), network.config.get("cniVersions")
        if isinstance(several, list) and any(each in VERSIONS for each in several):
            return
        if version not in VERSIONS:
            path = (*network.base, "cniVersion")
            self._error(network.document, path, _shown(version), f"one of {', '.join(VERSIONS)}")

    def _plugin(self, network: Network, path: Path, value: dict[str, Any], number: int) -> None:
        document = network.document
        kind = value.get("type")
        try:
            checks.plugin_name(_string(kind))
        except ValueError as error:
            nearest = "" if "type" in value else _nearest_of(value, "type")
            self._error(document, (*path, "type"), _shown(kind), str(error), nearest)
            return
        # As the runtime hands it to the plugin.
        request = Request("ADD")
        request.network = network.name or "network"
        version = network.config.get("cniVersion")
        request.version = version if version in VERSIONS else VERSIONS[-1]
        request.config = value | {"cniVersion": request.version, "name": request.network}
        if number:
            request.config.setdefault("prevResult", {})
        if kind == "rdma":
            self._rdma(network, path, value, request)
        nearest = _nearest(str(kind), ["rdma"])
        if nearest and re.fullmatch(r"rdma.*|RDMA", str(kind)):
            self._warn(document, (*path, "type"), repr(kind), "the name of a plugin", nearest)
        self._capabilities(network, path, value)
        if isinstance(value.get("ipam"), dict):
            self._ipam(network, path, value, request)

    def _rdma(self, network: Network, path: Path, value: dict[str, Any], request: Request) -> None:
        document = network.document
        self._unknown(document, path, value, [*validate.keys("NETCONF"), *_OF_EVERY_PLUGIN], "the plugin")
        args = _object(value, "args")
        self._misspelt(document, (*path, "args"), args, ["cni"])
        known = [*validate.keys("NETCONF", ("args", "cni")), *_ARGS_OF_OTHERS]
        self._misspelt(document, (*path, "args", "cni"), _object(args, "cni"), known)
        problems = validate.problems("NETCONF", request.config)
        for where, text in problems:
            self._plugins_error(document, path, value, text if where else f"{text_of(path)}{text}")
        if problems:
            return
        try:
            conf = cast("Any", validate.check("NETCONF", request.config))
            config.check(request, conf)
            allocation.of(request, conf)
        except CniError as error:
            self._plugins_error(document, path, value, error)

    def _ipam(self, network: Network, path: Path, value: dict[str, Any], request: Request) -> None:
        kind = _ipam(value)
        section, where = value["ipam"], (*path, "ipam")
        document = network.document
        if kind == "host-local":
            found = _host_local(section, where)
            network.pools += found
            if network.shared and found:
                self._warn(
                    document,
                    where,
                    "host-local in a definition that all nodes share: each of them gives the same addresses",
                    "an IPAM plugin that tells nodes apart: node-subnet, whereabouts",
                )
        elif kind == "static" and network.shared and section.get("addresses"):
            self._warn(
                document, where, "static addresses in a definition that all pods share", "an address of each pod's own"
            )
        elif kind == "node-subnet":
            self._node_subnet(network, path, value, request)
        elif _nearest(kind, ["node-subnet"]):
            self._error(document, (*where, "type"), repr(kind), "the name of an IPAM plugin", "node-subnet")

    def _node_subnet(self, network: Network, path: Path, value: dict[str, Any], request: Request) -> None:
        document, section = network.document, value["ipam"]
        if network.shared and section.get("nodeName"):
            where = (*path, "ipam", "nodeName")
            self._warn(
                document,
                where,
                f"{_shown(section['nodeName'])} in a definition that all nodes share: each would take itself for it",
                "no `nodeName`: the name is the hostname, or that of node.json",
            )
        problems = validate.problems("NODE_SUBNET", section)
        for where, text in problems:
            self._plugins_error(document, (*path, "ipam"), section, text if where else f"type{text}")
        if problems:
            return
        try:
            conf = cast("Any", node_subnet.configuration(request))
        except CniError as error:
            self._plugins_error(document, path, value, error)
            return
        found: list[ipam_pool.Pool] = []
        for number, each in enumerate(conf.pools):
            try:
                found.append(ipam_pool.Pool(each, f"ipam.pools[{number}]", pool_route=conf.poolRoute is not False))
            except CniError as error:
                self._plugins_error(document, path, value, error)
        if len(found) < len(conf.pools):
            return
        try:
            found = ipam_pool.pools(conf)
        except CniError as error:
            self._plugins_error(document, path, value, error)
            return
        rules = {key: section.get(key) for key in ("nodes", "nodeName")}
        network.pools += [
            Pool(one.subnet, (*path, "ipam", "pools", number, "subnet"), (one.node_prefix, rules))
            for number, one in enumerate(found)
        ]
        if self._nodes(document, path, value, conf, found):
            network.node_subnets.append((conf, found))

    def _nodes(
        self, document: Document, path: Path, value: dict[str, Any], conf: Any, found: list[ipam_pool.Pool]
    ) -> bool:
        """Tell of what is wrong in `nodes`, node by node; whether it is right."""
        right = True
        for _ in range(len(conf.nodes or {}) + 1):
            try:
                ipam_pool.parts(conf, found, "")
            except CniError as error:
                right = False
                self._plugins_error(document, path, value, error)
                # Without the one that this was about, the next fault shows.
                where = path_of(error.message.partition(": found ")[0], value)
                if where[:2] != ("ipam", "nodes") or len(where) < 3 or where[2] not in conf.nodes:
                    return False
                del conf.nodes[where[2]]
            else:
                return right
        return right

    def _capabilities(self, network: Network, path: Path, value: dict[str, Any]) -> None:
        capabilities = value.get("capabilities")
        if capabilities is None:
            return
        document, where = network.document, (*path, "capabilities")
        if not isinstance(capabilities, dict) or not all(isinstance(on, bool) for on in capabilities.values()):
            self._error(document, where, _shown(capabilities), 'an object such as {"ips": true}')
            return
        network.capabilities |= {name for name, on in capabilities.items() if on}
        kind = value.get("type")
        implemented = _CAPABILITIES
        if kind == "rdma":
            implemented = [*_CAPABILITIES_OF_RDMA, *(["ips"] if _ipam(value) else [])]
        for name in map(str, capabilities):
            if name not in implemented:
                known = f"one of {', '.join(implemented)}"
                what = "ips without `ipam`" if name == "ips" else f"a capability that {kind!r} does not implement"
                self._warn(document, (*where, name), what, known, _nearest(name, implemented))

    def _order(self, network: Network, types: list[str]) -> None:
        for number, (path, each) in enumerate(network.plugins()):
            later = [kind for kind in types[number + 1 :] if kind in _MOVES_THE_FUNCTION]
            if each.get("type") == "rdma" and later and not each.get("ifName"):
                self._warn(
                    network.document,
                    path,
                    f"rdma before {later[0]}",
                    f"it after {later[0]}, which makes the interface: alone, rdma would move the VF's netdev itself",
                )

    def _device(self, network: Network) -> None:
        """Whether somebody names a function."""
        wanting = [
            (path, each)
            for path, each in network.plugins()
            if each.get("type") in _NEEDS_A_DEVICE and not each.get("pf")
        ]
        fixed = next(((path, key) for path, each in wanting for key in ("deviceID", "pciBusID") if each.get(key)), None)
        if fixed:
            self._warn(
                network.document,
                (*fixed[0], fixed[1]),
                "one function for all pods: the second one is refused",
                "`pf`, of which rdma takes a free VF, or Multus, which puts the pod's own device in",
            )
        elif wanting and network.definition and not network.resource:
            self._warn(
                network.document,
                (*network.base[:-2], "metadata", "annotations"),
                f"no {RESOURCE}",
                "the device plugin's resource: without it Multus gives no device to the pod's interface",
            )
        elif wanting and PurePath(network.document.file).parent.name == "net.d" and not network.definition:
            self._warn(
                network.document,
                wanting[0][0],
                "neither `pf` nor `deviceID`, in a directory of the runtime, which names no device",
                "`pf`",
            )
        picking = [(path, each) for path, each in network.plugins() if each.get("type") == "rdma" and each.get("pf")]
        if picking and network.resource:
            self._error(
                network.document,
                (*picking[0][0], "pf"),
                f"`pf` beside {RESOURCE}: Multus names the device",
                "one of the two",
            )

    def _within(self, network: Network) -> None:
        """Two interfaces of one pod on one pool, within one configuration."""
        for number, pool in enumerate(network.pools):
            for other in network.pools[:number]:
                if pool.subnet.overlaps(other.subnet) and pool.path[:-3] != other.path[:-3]:
                    self._warn(
                        network.document,
                        pool.path,
                        f"{pool.subnet}, the pool of another interface of the same pod",
                        "a pool for each rail: see docs/ipam.md",
                    )
                    break

    # node.json

    def _node_file(self, document: Document) -> None:
        value = cast("dict[str, Any]", document.value)
        self.node_files.append(document)
        self._misspelt(document, (), value, validate.keys("NODE_FILE"))
        problems = validate.problems("NODE_FILE", value)
        for _, text in problems:
            self._plugins_error(document, (), value, text)
        if problems:
            self.node_files.remove(document)
            return
        subnets: list[tuple[ipam_pool.Subnet, int]] = []
        for number, text in enumerate(value.get("subnets") or []):
            try:
                one = ipam_pool.subnet(text, f"subnets[{number}]")
            except CniError as error:
                self._plugins_error(document, (), value, error)
                continue
            for other, where in subnets:
                if one.overlaps(other):
                    expected = f"one that does not overlap {other} (subnets[{where}])"
                    self._error(document, ("subnets", number), str(one), expected)
            subnets.append((one, number))

    # Between files

    def between_files(self) -> None:
        for document in self.node_files:
            for network in self.networks:
                for conf, found in network.node_subnets:
                    self._node_in(document, network, conf, found)
        for number, network in enumerate(self.networks):
            self._names(network, self.networks[:number])
            for pool in network.pools:
                self._overlaps(network, pool, [each for each in self.networks[:number] if each.name != network.name])
        for pod in self.pods:
            self._pod(pod)

    def _node_in(self, document: Document, network: Network, conf: Any, found: list[ipam_pool.Pool]) -> None:
        """What the node of a node.json gets in a network."""
        value = cast("dict[str, Any]", document.value)
        name = value.get("nodeName")
        if name and name in (conf.nodes or {}):
            return
        try:
            own = ipam_pool.listed(value.get("subnets") or [], found, "subnets", others=True)
            ipam_pool.require_own(conf, own, "subnets")
        except CniError as error:
            self._plugins_error(document, (), value, error)
            return
        for one in found:
            # Without a name it may be any of those in `nodes`.
            if (name or not conf.nodes) and not any(pool is one for pool, _ in own):
                self._warn(
                    document,
                    ("subnets",),
                    f"no subnet of the pool {one.subnet} of {network}",
                    "one, or the node's name in `ipam.nodes`: this node gets no pods of that network",
                )

    def _names(self, network: Network, others: list[Network]) -> None:
        for other in others:
            if network.name != other.name or not network.definition or not other.definition:
                continue
            # The same file may be named twice, and a definition be in two namespaces.
            if network.definition[1] != other.definition[1]:
                self._warn(
                    network.document,
                    (*network.base, "name"),
                    f"{network.name!r}, the name that the network of {other} has, too",
                    "a name of its own: a runtime's GC for one of them would take the interfaces of the other",
                )
                return

    def _overlaps(self, network: Network, pool: Pool, others: list[Network]) -> None:
        found = [(other, each) for other in others for each in other.pools if each.subnet.overlaps(pool.subnet)]
        if not found:
            return
        other, clash = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        if str(clash.subnet) != str(pool.subnet):
            what = f"which overlaps {clash.subnet} of"
            expected = "pools that do not overlap: the two do not agree on which node has which addresses"
        elif clash.rules != pool.rules:
            what = "the pool of"
            expected = "a pool of its own: the two do not agree on which node has which addresses"
        else:
            what = "the pool of"
            expected = "a pool for each rail: a pod with both would have two interfaces in one subnet"
        self._warn(network.document, pool.path, f"{pool.subnet}, {what} {other}{more}", expected)

    def _pod(self, pod: Pod) -> None:
        found: list[Network] = []
        namespaces = {network.definition[0] for network in self.networks if network.definition}
        names = {network.definition: network for network in self.networks if network.definition}
        for namespace, name, asks in pod.networks:
            network = names.get((namespace, name))
            if network is None:
                there = [known for space, known in names if space == namespace]
                if namespace in namespaces:
                    nearest = _nearest(name, there)
                    self._warn(pod.document, pod.base, f"the network {name!r}, which no file defines", "", nearest)
                continue
            if asks and "ips" not in network.capabilities:
                self._warn(
                    pod.document,
                    pod.base,
                    f"`ips` for the network {name!r}",
                    f'"capabilities": {{"ips": true}} in {network}: without it nobody is told of them',
                )
            found.append(network)
        for number, network in enumerate(found):
            for other in found[:number]:
                clash = next(
                    (one for one in network.pools for each in other.pools if one.subnet.overlaps(each.subnet)), None
                )
                if clash:
                    self._warn(
                        pod.document,
                        pod.base,
                        f"two interfaces of one pod in the pool {clash.subnet}, by {other} and {network}",
                        "a pool for each rail: see docs/ipam.md",
                    )
        self._resources(pod, found)

    def _resources(self, pod: Pod, networks: list[Network]) -> None:
        """The device plugin gives as many devices as the containers ask for."""
        containers = [each for each in _list(pod.spec.get("containers")) if isinstance(each, dict)]
        if not containers:
            return
        for resource in sorted({network.resource for network in networks} - {""}):
            wanted = sum(network.resource == resource for network in networks)
            asked = 0
            for container in containers:
                resources = _object(container, "resources")
                amounts = _object(resources, "requests") | _object(resources, "limits")
                for name, amount in amounts.items():
                    if name == resource or (resource.startswith("/") and str(name).endswith(resource)):
                        asked += int(str(amount)) if str(amount).isdecimal() else 0
            if asked < wanted:
                self._warn(
                    pod.document,
                    (*pod.base[:-3], "spec", "containers"),
                    f"{asked} of {resource.lstrip('/')} in the containers' resources, and {wanted} networks that take "
                    "one",
                    "as many as networks: for each of the others Multus has no device",
                )

    # Keys

    def _unknown(self, document: Document, path: Path, value: dict[str, Any], known: list[str], who: str) -> None:
        """Warn of keys that nobody reads."""
        for key in map(str, value):
            if key not in known and not key.startswith(("_", "//", "#", "cni.dev/")):
                self._warn(
                    document, (*path, key), f"a key that {who} does not know, and ignores", "", _nearest(key, known)
                )

    def _misspelt(self, document: Document, path: Path, value: dict[str, Any], known: list[str]) -> None:
        """Warn of keys that come near one that is known; others may be for somebody else."""
        for key in map(str, value):
            nearest = "" if key in known else _nearest(key, known)
            if nearest and nearest not in value:
                self._warn(document, (*path, key), "a key that nobody reads", "", nearest)


def _host_local(section: dict[str, Any], where: Path) -> list[Pool]:
    """The subnets of host-local's ranges, as far as they can be read: they are not ours to judge."""
    entries = [(where, section)]
    for number, one in enumerate(_list(section.get("ranges"))):
        entries += [((*where, "ranges", number, index), entry) for index, entry in enumerate(_list(one))]
    found = []
    for path, entry in entries:
        text = entry.get("subnet") if isinstance(entry, dict) else None
        try:
            head, _, length = checks.cidr(str(text)).partition("/")
        except ValueError:
            continue
        address, bits = ipam_pool.parse(head)
        shift = bits - int(length)
        subnet = ipam_pool.Subnet(address >> shift << shift, int(length), bits)
        found.append(Pool(subnet, (*path, "subnet"), ("host-local", str(path))))
    return found


def _ipam(plugin: dict[str, Any]) -> str:
    return str(_object(plugin, "ipam").get("type") or "")


def _object(value: object, key: str) -> dict[str, Any]:
    """The object at a key, {} when there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _list(value: object) -> list[Any]:
    """A value that should be a list; without entries where it is none."""
    return value if isinstance(value, list) else []


def _namespace(value: object) -> str:
    """A namespace of Kubernetes; where none is named it is most often this one."""
    return str(value or "default")


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _kind(value: object) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), "null" if value is None else type(value).__name__)


def _shown(value: object) -> str:
    """A value as the plugins' errors have it."""
    if value is None:
        return "nothing"
    text = repr(value) if isinstance(value, str) else f"a {_kind(value)}" if isinstance(value, dict) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(key: str, known: Iterable[str]) -> str:
    """The known key that another was meant to be; "" when none comes near."""
    lower = {each.lower(): each for each in known}
    if key in lower.values():
        return ""
    close = get_close_matches(key.lower(), lower, 1, cutoff=0.75)
    return lower[close[0]] if close else ""


def _nearest_of(value: dict[str, Any], key: str) -> str:
    """`key`, when an object has one that was meant to be it."""
    return key if any(_nearest(str(each), [key]) for each in value) else ""


def summary(findings: list[Finding]) -> Iterator[tuple[str, int]]:
    """How many there are of each severity."""
    for severity in (ERROR, WARNING):
        yield severity, sum(finding.severity == severity for finding in findings)
