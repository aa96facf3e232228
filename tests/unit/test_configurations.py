"""What `rdma-cni validate` finds: in one file, and between files."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdma_cni.cli.configurations import Finding, validate_files
from rdma_cni.cni import validate
from rdma_cni.cni.errors import CniError

ROOT = Path(__file__).parents[2]
POOL = {"subnet": "10.56.0.0/16", "nodePrefix": 24}
IPAM: dict[str, Any] = {"type": "node-subnet", "nodes": {"gpu-07": 7, "gpu-08": 8}, "pools": [POOL]}
RDMA: dict[str, Any] = {"cniVersion": "1.0.0", "name": "rail0", "type": "rdma", "pf": "ens1f0", "ipam": IPAM}


def findings(*values: object, name: str = "file.json") -> list[Finding]:
    """Of files with these values, or texts; the first is called `name`."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    names = [name, *(f"file{number}.json" for number in range(1, len(texts)))]
    return validate_files([(file, text.encode()) for file, text in zip(names, texts, strict=True)])


def texts(*values: object, name: str = "file.json") -> list[str]:
    return [str(finding).partition(": ")[2] for finding in findings(*values, name=name)]


def conflist(*plugins: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": "rail0", "plugins": list(plugins)} | keys


def definition(config: object, name: str = "rail0", resource: str | None = "nvidia.com/rail0") -> dict[str, Any]:
    annotations = {"k8s.v1.cni.cncf.io/resourceName": resource} if resource else {}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"config": config if isinstance(config, str) else json.dumps(config)},
    }


def sriov(subnet: str = "10.56.0.0/16", name: str = "rail0", **ipam: Any) -> dict[str, Any]:
    section = IPAM | {"pools": [POOL | {"subnet": subnet}]} | ipam
    return conflist({"type": "sriov", "ipam": section}, {"type": "rdma"}, name=name)


def pod(networks: str, **limits: int) -> dict[str, Any]:
    resources = {f"nvidia.com/{name}": str(number) for name, number in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trainer", "annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": resources}}]},
    }


@pytest.mark.parametrize(
    "value",
    [
        RDMA,
        conflist(RDMA),
        sriov(),
        definition(sriov()),
        definition({"type": "rdma", "ipam": IPAM, "cniVersion": "1.1.0"}),
        definition(conflist({"type": "bridge", "isGateway": True}), resource=None),
        conflist({"type": "sriov"}, {"type": "rdma", "capabilities": {"mac": True, "ips": True}, "ipam": IPAM}),
        {"nodeName": "gpu-07", "subnets": ["10.56.3.0/24", "fd00:56:0:3::/64"]},
        {"kind": "ConfigMap", "apiVersion": "v1", "data": {"config.json": "{"}},
        RDMA | {"_comment": "of rail 0", "args": {"cni": {"rdmaDeviceName": "rail0", "other": 1}, "labels": []}},
    ],
)
def test_what_is_right_gives_no_finding(value: object) -> None:
    assert texts(value) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (RDMA | {"mtu": "9000"}, 'error: mtu: found "9000", expected an integer'),
        (RDMA | {"mtu": 9}, "error: mtu: found 9, expected greater than or equal to 68"),
        (RDMA | {"mac": "01:00:00:00:00:01"}, "error: mac: found "),
        (RDMA | {"cniVersion": "2.0.0"}, "error: cniVersion: found '2.0.0', expected one of 0.3.0, "),
        (RDMA | {"name": "a b"}, "error: name: found 'a b', expected a letter or digit, then "),
        (RDMA | {"ipam": {"pools": []}}, "error: ipam.type: found nothing, expected the name of an IPAM plugin"),
        (RDMA | {"ipam": {"type": "rdma"}}, "error: ipam.type: found 'rdma', which is this plugin itself"),
        (RDMA | {"ipam": {"type": "node-subnets"}}, "error: ipam.type: found 'node-subnets', expected the name of an"),
        (RDMA | {"deviceID": "0000:03:00.2"}, "error: pf: found ens1f0 beside the device 0000:03:00.2"),
        (RDMA | {"ifName": "rail0"}, "error: ifName: found 'rail0' with no `prevResult`"),
        (
            RDMA | {"logLevl": "debug"},
            "warning: logLevl: found a key that the plugin does not know, and ignores; did you ",
        ),
        (
            RDMA | {"args": {"cni": {"rdmaDevName": "x"}}},
            "warning: args.cni.rdmaDevName: found a key that nobody reads; did",
        ),
        (
            RDMA | {"ipam": IPAM | {"pool": []}},
            "error: ipam.pool: found a key that is not known; did you mean 'pools'?",
        ),
        (
            RDMA | {"ipam": IPAM | {"nodes": {"a.b": -1}}},
            "error: ipam.nodes.a.b: found -1, expected an index of 0 or more",
        ),
        (
            RDMA | {"ipam": IPAM | {"pools": [POOL | {"subnet": "10.56.1.0/16"}]}},
            "error: ipam.pools[0].subnet: found 10.56.1.0/16, expected a subnet without host bits, which is ",
        ),
        (
            RDMA | {"ipam": IPAM | {"routes": [{"dst": "::/0", "gw": "10.0.0.1"}]}},
            "error: ipam.routes[0].gw: found 10.0.0.1, expected a gateway of the family of ::/0",
        ),
        (
            conflist({"type": "rdma"}, {"type": "sriov"}),
            "warning: plugins[0]: found rdma before sriov, expected it after",
        ),
        (conflist({"typ": "sriov"}), "error: plugins[0].type: found nothing, expected a string; did you mean 'type'?"),
        (conflist({"type": "../rdma"}), "error: plugins[0].type: found '../rdma', expected the file name of a plugin"),
        (conflist(), "error: plugins: found [], expected a list of one plugin or more"),
        (
            conflist({"type": "sriov"}, disablecheck=True),
            "warning: disablecheck: found a key that the runtime does not",
        ),
        (
            conflist({"type": "sriov"}, {"type": "rdma", "capabilities": {"devceID": True}}),
            "warning: plugins[1].capabilities.devceID: found a capability that 'rdma' does not implement, expected one",
        ),
        (
            conflist({"type": "sriov"}, {"type": "rdma", "capabilities": {"ips": True}}),
            "warning: plugins[1].capabilities.ips: found ips without `ipam`",
        ),
        (RDMA | {"pf": ""}, 'error: pf: found "", expected a name such as'),
        (
            {key: value for key, value in RDMA.items() if key != "pf"} | {"deviceID": "0000:03:00.2"},
            "warning: deviceID: found one function for all pods",
        ),
        (
            conflist(RDMA, RDMA | {"ifName": "rail1", "pf": "ens2f0"}),
            "warning: plugins[1].ipam.pools[0].subnet: found 10.56.0.0/16, the pool of another interface of the",
        ),
        (
            definition(sriov(), resource=None),
            "warning: metadata.annotations: found no k8s.v1.cni.cncf.io/resourceName, ",
        ),
        (
            definition(sriov(), resource="rail0"),
            "error: metadata.annotations.k8s.v1.cni.cncf.io/resourceName: found 'rail0'",
        ),
        (definition(RDMA), "error: spec.config.pf: found `pf` beside k8s.v1.cni.cncf.io/resourceName"),
        (definition(sriov()) | {"apiVersion": "v1"}, "error: apiVersion: found 'v1', expected \"k8s.cni.cncf.io/v1\""),
        (
            definition(sriov()) | {"spec": {"conf": "{}"}},
            "error: spec.conf: found a key that is not known; did you mean",
        ),
        (definition("{'a': 1}"), "error: spec.config: found single quotes (\"'a': 1}\")"),
        (definition(sriov(nodeName="gpu-07")), "warning: spec.config.plugins[0].ipam.nodeName: found 'gpu-07' in a "),
        (
            definition(
                {"type": "rdma", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}, "cniVersion": "1.0.0"}
            ),
            "warning: spec.config.ipam: found host-local in a definition that all nodes share",
        ),
        (
            definition(sriov()) | {"kind": "NetworkAttachmentDefintion"},
            "error: kind: found 'NetworkAttachmentDefintion'",
        ),
        (
            {"nodeName": "a", "subnets": ["10.56.3.1/24"]},
            "error: subnets[0]: found 10.56.3.1/24, expected a subnet without",
        ),
        (
            {"nodename": "a", "subnets": ["10.56.3.0/24"]},
            "warning: nodename: found a key that nobody reads; did you mean",
        ),
        (
            {"subnets": ["10.56.0.0/16", "10.56.3.0/24"]},
            "error: subnets[1]: found 10.56.3.0/24, expected one that does not",
        ),
        ({"plugin": []}, "error: found an object with the keys plugin, expected a CNI configuration "),
        ([], "error: found a list, expected an object"),
        (pod("rail0@a@b"), "error: metadata.annotations.k8s.v1.cni.cncf.io/networks: found 'rail0@a@b', expected "),
        (
            pod('[{"name": "rail0", "ip": []}]'),
            "warning: metadata.annotations.k8s.v1.cni.cncf.io/networks[0].ip: found a key",
        ),
    ],
)
def test_a_mistake_is_the_one_finding(value: object, expected: str) -> None:
    found = texts(value)
    assert len(found) == 1, found
    assert found[0].startswith(expected), found


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('{\n "a": 1,\n}', 2, "a comma before '}'"),
        ('{\n "a": 1 // rail\n}', 2, "a comment"),
        ("{\n 'a': 1}", 2, "single quotes"),
        ('{\n "a": [1,\n 2\n', 4, "the end of the line or of the text"),
        ('{\n "a" 1}', 2, "'1}' (Expecting ':' delimiter)"),
        ("\ufeff{}", 1, "a byte order mark"),
        ("", 1, "nothing at all"),
        ("[" * 200 + "]" * 200, 1, "nested deeper than 100"),
    ],
)
def test_text_that_is_no_json_is_told_with_line_and_what_stands_there(text: str, line: int, problem: str) -> None:
    (found,) = findings(text)
    assert found.line == line
    assert problem in found.found


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "while parsing a flow sequence"),
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("kind: Pod\na: !!python/object/apply:os.system [id]\n", 0, ""),
        (
            "a: &a [x]\n"
            + "".join(
                f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
                for p, c in zip("abcdefghi", "bcdefghij", strict=True)
            ),
            1,
            "aliases",
        ),
        ("a: " + "[" * 3000, 0, "too deep"),
        ("---\n---\n", 0, "nothing at all"),
        ("a: \x01\n", 0, "unacceptable character"),
    ],
)
def test_text_that_is_no_yaml_is_told_and_never_executed_or_expanded(text: str, line: int, problem: str) -> None:
    found = findings(text, name="file.yaml")
    assert len(found) == (1 if problem else 0), found
    if problem:
        assert found[0].line == line
        assert problem in found[0].found


YAML = """\
# Rails
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: rail0
  annotations:
    k8s.v1.cni.cncf.io/resourceName: nvidia.com/rail0
spec:
  config: |
    {
      "cniVersion": "1.0.0",
      "plugins": [
        {
          "type": "sriov"
        },
        {
          "type": "rdma",
          "mtu": "9000",
          "mtu": 10
        }
      ]
    }
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: rail1
  annotations: {k8s.v1.cni.cncf.io/resourceName: nvidia.com/rail1}
spec:
  config: '{
      "cniVersion": "1.0.0",
      "type": "rdma", "mac": 3
    }'
"""


def test_findings_have_the_lines_of_the_file_also_within_a_definitions_text() -> None:
    found = [(each.line, each.severity, each.field) for each in findings(YAML, name="rails.yaml")]
    assert found == [
        (19, "error", "spec.config.plugins[1].mtu"),
        (19, "warning", "spec.config.plugins[1].mtu"),
        # Folded, it has no lines of its own.
        (30, "error", "spec.config.mac"),
    ]


def test_the_lines_of_json_are_those_of_the_keys() -> None:
    text = json.dumps(conflist({"type": "sriov"}, RDMA | {"mtu": 1, "ipam": IPAM | {"nodes": {"a": 900}}}), indent=1)
    found = {each.field: each.line for each in findings(text)}
    lines = text.split("\n")
    assert '"mtu"' in lines[found["plugins[1].mtu"] - 1]
    assert '"a": 900' in lines[found["plugins[1].ipam.nodes.a"] - 1]


def test_every_node_that_is_wrong_is_told() -> None:
    nodes = {"a": 1, "b": 1, "c": 900, "d": ["10.56.1.0/25"], "e": 5}
    found = [each.field for each in findings(RDMA | {"ipam": IPAM | {"nodes": nodes}})]
    assert found == ["ipam.nodes.b", "ipam.nodes.c", "ipam.nodes.d"]


def test_pools_that_overlap_between_files_are_told_once() -> None:
    found = texts(definition(sriov()), definition(sriov("10.56.128.0/17", name="rail1"), "rail1"))
    assert len(found) == 1
    assert "10.56.128.0/17, which overlaps 10.56.0.0/16 of definition rail0 (file.json)" in found[0]


def test_one_pool_of_two_networks_is_told() -> None:
    (found,) = texts(definition(sriov()), definition(sriov(name="rail1"), "rail1"))
    assert "the pool of definition rail0 (file.json), expected a pool for each rail" in found


def test_one_pool_whose_networks_do_not_agree_on_the_nodes_is_told() -> None:
    (found,) = texts(definition(sriov()), definition(sriov(name="rail1", nodes={"gpu-07": 8}), "rail1"))
    assert "do not agree on which node has which addresses" in found


def test_two_definitions_of_one_network_name_are_told() -> None:
    (found,) = texts(definition(sriov()), definition(sriov(), "rail1"))
    assert "'rail0', the name that the network of definition rail0 (file.json) has, too" in found


RAILS = [definition(sriov(f"10.{56 + n}.0.0/16", f"rail{n}"), f"rail{n}", f"nvidia.com/rail{n}") for n in range(2)]


def test_a_pod_with_a_network_of_each_rail_is_right() -> None:
    assert texts(pod("rail0, rail1@net2", rail0=1, rail1=1), *RAILS) == []


def test_a_pod_with_two_interfaces_in_one_pool_is_told() -> None:
    found = texts(pod("rail0, rail0", rail0=2), *RAILS)
    assert len(found) == 1
    assert "two interfaces of one pod in the pool 10.56.0.0/16" in found[0]


def test_a_pod_that_asks_for_fewer_devices_than_networks_is_told() -> None:
    (found,) = texts(pod("rail0, rail1", rail0=1), *RAILS)
    assert "spec.containers: found 0 of nvidia.com/rail1 in the containers' resources, and 1 networks" in found


def test_a_pod_whose_network_nobody_defines_is_told_the_nearest() -> None:
    (found,) = texts(pod("rial0, elsewhere/rail9"), *RAILS)
    assert "found the network 'rial0', which no file defines; did you mean 'rail0'?" in found


def test_a_pod_that_asks_for_addresses_of_a_network_without_that_capability_is_told() -> None:
    (found,) = texts(pod('[{"name": "rail0", "ips": ["10.56.7.9"]}]', rail0=1), *RAILS)
    assert '"capabilities": {"ips": true}' in found


def test_a_job_and_a_list_of_objects_are_looked_into() -> None:
    template = {key: value for key, value in pod("rail0").items() if key in ("metadata", "spec")}
    job = {"kind": "Job", "apiVersion": "batch/v1", "spec": {"template": template}}
    (found,) = findings({"kind": "List", "apiVersion": "v1", "items": [*RAILS, job]})
    assert found.field == "items[2].spec.template.spec.containers"


SRIOV_NETWORK = """\
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetwork
metadata: {name: rail0, namespace: sriov-network-operator}
spec:
  resourceName: rail0
  networkNamespace: default
  ipam: |
    {
      "type": "node-subnet",
      "nodes": {"gpu-07": 900},
      "pools": [{"subnet": "10.56.0.0/16", "nodePrefix": 24}]
    }
  metaPlugins: |
    {"type": "tuning"},
    {"type": "rdma", "logLevl": "debug"}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {k8s.v1.cni.cncf.io/networks: rail0}}
spec: {containers: [{name: c, resources: {limits: {acme.com/rail1: 1}}}]}
"""


def test_a_network_of_the_sriov_operator_is_what_it_makes_a_definition_of() -> None:
    found = [(each.line, each.severity, each.field) for each in findings(SRIOV_NETWORK, name="network.yaml")]
    assert found == [
        (10, "error", "spec.ipam.nodes.gpu-07"),
        (15, "warning", "spec.metaPlugins[1].logLevl"),
        (20, "warning", "spec.containers"),
    ]
    right = SRIOV_NETWORK.replace("900", "9").replace("logLevl", "logLevel").replace("rail1", "rail0")
    assert findings(right, name="network.yaml") == []
    (wrong,) = findings(right.replace('{"type": "tuning"},', '{"type": "tuning"}'), name="network.yaml")
    assert (wrong.line, wrong.field) == (15, "spec.metaPlugins")


def test_a_node_file_is_held_against_the_networks() -> None:
    without = sriov(nodes={})
    assert texts({"nodeName": "a", "subnets": ["10.56.3.0/24"]}, without) == []
    (found,) = texts({"nodeName": "a", "subnets": ["10.57.3.0/24"]}, without)
    assert "no subnet of the pool 10.56.0.0/16 of network rail0 (file1.json)" in found
    (found,) = texts({"nodeName": "a", "subnets": ["10.56.7.0/24"]}, sriov())
    assert (
        "error: subnets: found 10.56.7.0/24, expected a subnet that does not overlap 10.56.7.0/24 of node gpu-07"
        in found
    )


def test_what_passes_here_passes_the_plugins_own_check() -> None:
    """The same models judge: a value of any kind in any field is refused by both or by none."""
    for key in validate.keys("NETCONF"):
        for value in (None, True, 3, -1, 1.5, "", "x", "0000:03:00.2", [], ["x"], {}, {"type": "x"}):
            conf = {"cniVersion": "1.0.0", "name": "rail0", "type": "rdma"} | {key: value}
            try:
                validate.check("NETCONF", conf)
            except CniError:
                refused = True
            else:
                refused = False
            errors = [each for each in findings(conf) if each.severity == "error"]
            if refused:
                assert errors, conf


EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").rglob("*"))
    if path.suffix in (".yaml", ".json", ".conflist") and path.parent.name != "monitoring"
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_silent(path: Path) -> None:
    assert [str(each) for each in validate_files([(str(path), path.read_bytes())])] == []


def test_examples_that_belong_together_are_silent_together() -> None:
    files = [path for path in EXAMPLES if path.parent.name == "multus" and "eight" in path.name]
    assert len(files) == 2
    assert [str(each) for each in validate_files([(str(path), path.read_bytes()) for path in files])] == []


# Whatever a file has in whichever place: findings, never an exception.
_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 0, -1, 2**70, 1.5, "", "x", "a/b", "10.0.0.0/8", "fd00::/8", "rdma", "node-subnet", "{}", "[1]"),
        *([], [[]], [1], {}, {"": 1}, {"type": 1}, {"type": "rdma"}, [{"type": "rdma"}], {"a": {"b": [None]}}),
        *("\ud800", "\u00e9"),
    ]
)
_WHOLE: list[dict[str, Any]] = [
    conflist({"type": "sriov", "ipam": IPAM}, RDMA | {"capabilities": {"mac": True}, "args": {"cni": {"debug": True}}}),
    definition(sriov()),
    {"type": "x", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}]], "subnet": "10.0.0.0/24"}},
    pod('[{"name": "rail0", "namespace": "default", "ips": ["10.0.0.1"]}]', rail0=1),
    {"kind": "List", "items": [{"kind": "Job", "spec": {"template": pod("rail0")}}]},
    {
        "kind": "SriovNetwork",
        "metadata": {"name": "rail0", "namespace": "x"},
        "spec": {"resourceName": "rail0", "ipam": json.dumps(IPAM), "metaPlugins": '{"type": "rdma"}'},
    },
    {"nodeName": "gpu-07", "subnets": ["10.56.7.0/24"]},
]


def _paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in _paths(each, (*path, key)))]


def _with(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(copy[path[0]], path[1:], new)
    return copy


@settings(derandomize=True, deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_in_any_place_gives_findings_and_never_an_exception(data: st.DataObject) -> None:
    whole: Any = data.draw(st.sampled_from(_WHOLE))
    for _ in range(data.draw(st.integers(1, 2))):
        whole = _with(whole, data.draw(st.sampled_from(_paths(whole))), data.draw(_ODD))
    inner = data.draw(st.none() | _ODD)
    if inner is not None and isinstance(whole, dict) and isinstance(whole.get("spec"), dict):
        whole = whole | {
            "spec": whole["spec"] | {data.draw(st.sampled_from(["config", "ipam", "metaPlugins"])): json.dumps(inner)}
        }
    for name, text in (("file.json", json.dumps(whole)), ("file.yaml", yaml.safe_dump(json.loads(json.dumps(whole))))):
        if "\ud800" in text:
            continue
        for each in validate_files([(name, text.encode()), ("rails.json", json.dumps(RAILS[0]).encode())]):
            assert each.severity in ("error", "warning")
            assert str(each)
            assert each.line <= text.count("\n") + 1


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:\\abc0 \n\t-&*|>!#', max_size=60).map(str.encode))
def test_any_bytes_give_findings_and_never_an_exception(data: bytes) -> None:
    for name in ("file.json", "file.yaml", "-"):
        validate_files([(name, data)])
