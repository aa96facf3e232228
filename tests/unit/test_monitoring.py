"""examples/monitoring: the dashboard and the alert rules ask for metrics that there are, and the alerts fire."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ipam.room import Room
from rdma_cni.cli import holdings, inventory, measurements
from rdma_cni.cni import calls
from rdma_cni.cni.errors import CniError

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "examples" / "monitoring"
PROMTOOL = ROOT / "build" / "promtool"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
DOCUMENTATION = (ROOT / "docs" / "monitoring.md").read_text()
RULES = yaml.safe_load((MONITORING / "alerts.yaml").read_text())


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    assert PROMTOOL.is_file(), f"{PROMTOOL} is missing: run `make build/promtool`"
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def exposed() -> bytes:
    """What there is to tell on a node with one of everything."""
    port = inventory.Port(1, "Ethernet", "ACTIVE", "LinkUp", "400 Gb/sec", 400.0, (), {"port_rcv_data": 1}, {"cnp": 2})
    port_and_more = inventory.Port(
        1, "Ethernet", "DOWN", "Disabled", "", 0.0, (), dict.fromkeys((*measurements._NAMED, "symbol_error"), 3), {}
    )
    functions = (_function("0000:03:00.0", "pf", port), _function("0000:03:00.2", "vf", port_and_more, "train/llama-0"))
    node = inventory.Node("gpu-07", "6.12", True, functions, ())
    attachment = holdings.Attachment("rail0", "", "c", "net1", "net1", "", "", (), "", (), holdings.IN_PLACE, ())
    reservation = holdings.Reservation("10.56.7.2/24", "", "10.56.0.0/16", "rail0", "", "c", "net1", holdings.LEFT)
    room = Room("10.56.0.0/16", "routed", (), (), (), 253, 1, (), current=True)
    held = holdings.Holdings((attachment,), (reservation,), (room,), (), ())
    counts = [calls.Count("rdma", "ADD", code, 1000, [1] * (len(calls.BOUNDS) + 1)) for code in (0, 11)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "read", lambda **_: node)
        patch.setattr(holdings, "read", lambda _: held)
        patch.setattr(calls, "read", lambda: counts)
        registry = CollectorRegistry()
        registry.register(measurements.Collector(lambda _: iter([("mtu", "error", 1)])))
        return generate_latest(registry)


def _device(name: str, port: inventory.Port) -> inventory.RdmaDevice:
    values: dict[str, Any] = dict.fromkeys(inventory.RdmaDevice.__dataclass_fields__, "")
    return inventory.RdmaDevice(**(values | {"name": name, "ports": (port,)}))


def _function(one: str, kind: str, port: inventory.Port, pod: str = "") -> inventory.Function:
    values: dict[str, Any] = dict.fromkeys(inventory.Function.__dataclass_fields__, "")
    holder = inventory.Holder("/run/netns/x", 1, pod, "c", "net1", "rail0", attached=True) if pod else None
    device = _device(f"mlx5\x1b\udcff{one[-1]}", port)
    values |= {"id": one, "kind": kind, "state": "free", "vfs": 8, "vfs_possible": 16, "holder": holder}
    return inventory.Function(
        **(values | {"rdma": (device,), "netdevs": (), "pf": "" if kind == "pf" else "0000:03:00.0"})
    )


@pytest.fixture(scope="module")
def series(exposed: bytes) -> dict[str, set[str]]:
    """The labels of each series, by its name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposed.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {"instance"}).update(sample.labels)
    return found


def test_promtool_finds_nothing_to_object_to_in_the_metrics(exposed: bytes) -> None:
    assert promtool("check", "metrics", stdin=exposed) == ""


def test_promtool_finds_the_rules_right() -> None:
    assert "SUCCESS" in promtool("check", "rules", MONITORING / "alerts.yaml")


def dashboard_queries(node: object = DASHBOARD) -> Iterator[str]:
    """Every query of the dashboard, with what Grafana puts into it put in."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expr" or (key == "query" and isinstance(value, str) and value.startswith("label_values")):
                yield re.sub(r"\$__rate_interval", "5m", value)
            else:
                yield from dashboard_queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from dashboard_queries(value)


RULE_QUERIES = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("query", [*dict.fromkeys(dashboard_queries()), *RULE_QUERIES])
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: str, series: dict[str, set[str]]) -> None:
    names = set(re.findall(r"\brdma_cni_\w+", query))
    assert names or "node_textfile" in query
    assert names <= set(series)
    if names:
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
        for listed in re.findall(r"\bby \(([^)]*)\)", query):
            asked |= set(re.split(r",\s*", listed))
        labels = set().union(*(series[name] for name in names))
        assert asked <= labels, asked - labels


def test_a_panels_legend_and_an_alerts_text_name_labels_that_the_query_keeps(series: dict[str, set[str]]) -> None:
    panels = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    texts = [(target["expr"], target["legendFormat"]) for target in panels]
    for group in RULES["groups"]:
        for rule in group["rules"]:
            texts += [(rule["expr"], text) for text in rule["annotations"].values()]
    for query, text in texts:
        kept = [set(re.split(r",\s*", listed)) for listed in re.findall(r"\bby \(([^)]*)\)", query)]
        names = set(re.findall(r"\brdma_cni_\w+", query))
        labels = set.intersection(*kept) if kept else set().union({"instance"}, *(series[name] for name in names))
        asked = set(re.findall(r"{{ ?(?:\$labels\.)?(\w+) ?}}", text))
        assert asked <= labels, (query, text)


def test_every_panel_has_a_place_of_its_own_and_every_metric_is_on_one(series: dict[str, set[str]]) -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & places, panel["title"]
        assert all(x < 24 for x, _ in mine)
        places |= mine
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"rdma_cni_\w+", str(DASHBOARD))}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series}
    # Those that are for alerts, or to divide by.
    assert families - asked == {
        "rdma_cni_damaged_databases",
        "rdma_cni_pf_vfs",
        "rdma_cni_pf_vfs_possible",
        "rdma_cni_problems",
    }


def test_the_documentation_has_each_metric_with_its_type_and_labels_and_no_other(exposed: bytes) -> None:
    table = re.findall(r"^\| (`rdma_cni.*?) \| (\w+) \| (.*?) ?\| ", DOCUMENTATION, re.MULTILINE)
    told: dict[str, tuple[str, set[str]]] = {}
    for names, kind, labels in table:
        listed = set(re.findall(r"`(\w+)`", labels))
        if labels.startswith("port"):
            listed |= set(re.findall(r"`(\w+)`", DOCUMENTATION.split("\nPort stands for ")[1].split(";")[0]))
        for name in re.findall(r"`(\w+)`", names):
            told[name.removesuffix("_total")] = kind, listed
    found = {
        family.name: (family.type, set().union(*(sample.labels for sample in family.samples)) - {"le"})
        for family in text_string_to_metric_families(exposed.decode())
    }
    assert told == found


# What makes each alert fire: series as promtool has them, a value for each minute.
FIRES: dict[str, dict[str, str]] = {
    "RdmaCniSharedMode": {"rdma_cni_exclusive_mode": "0x120"},
    "RdmaCniAddsFail": {
        'rdma_cni_call_errors_total{plugin="rdma",command="ADD",code="7"}': "0+6x120",
        'rdma_cni_call_duration_seconds_count{plugin="rdma",command="ADD"}': "0+10x120",
    },
    "RdmaCniDelsFail": {'rdma_cni_call_errors_total{plugin="rdma",command="DEL",code="11"}': "0+1x120"},
    "RdmaCniAddsSlow": {
        'rdma_cni_call_duration_seconds_bucket{plugin="rdma",command="ADD",le="2.0"}': "0+1x120",
        'rdma_cni_call_duration_seconds_bucket{plugin="rdma",command="ADD",le="5.0"}': "0+10x120",
        'rdma_cni_call_duration_seconds_bucket{plugin="rdma",command="ADD",le="+Inf"}': "0+10x120",
    },
    "RdmaCniFewAddresses": {
        'rdma_cni_pool_free_addresses{pool="10.56.0.0/16"}': "25x120",
        'rdma_cni_pool_usable_addresses{pool="10.56.0.0/16"}': "253x120",
    },
    "RdmaCniPodsLeftBehind": {'rdma_cni_attachments{network="rail0",state="pod gone"}': "1x120"},
    "RdmaCniPodsDiffer": {'rdma_cni_attachments{network="rail0",state="differs"}': "1x120"},
    "RdmaCniAddressesLeftBehind": {"rdma_cni_reservations_left_behind": "1x120"},
    "RdmaCniVfsWithoutRdma": {'rdma_cni_functions{kind="vf",state="no RDMA"}': "1x120"},
    "RdmaCniPortDown": {'rdma_cni_port_up{device="mlx5_3",pf="0000:03:00.0",pod_namespace="t",pod_name="a"}': "0x120"},
    "RdmaCniPortErrors": {'rdma_cni_port_events_total{device="mlx5_3",counter="symbol_error"}': "0+1x120"},
    "RdmaCniRetransmissions": {
        'rdma_cni_port_hw_events_total{device="mlx5_3",counter="packet_seq_err"}': "0+7000x120",
    },
    "RdmaCniDoctor": {'rdma_cni_doctor_findings{check="mtu",severity="error"}': "1x120"},
    "RdmaCniDamagedState": {"rdma_cni_damaged_databases": "1x120"},
    "RdmaCniMetricsOld": {'node_textfile_mtime_seconds{file="/var/lib/node/rdma_cni.prom"}': "0x120"},
}
# The same node when all is well.
QUIET = {
    "rdma_cni_exclusive_mode": "1x120",
    'rdma_cni_call_errors_total{plugin="rdma",command="ADD",code="11"}': "0+1x120",
    'rdma_cni_call_duration_seconds_count{plugin="rdma",command="ADD"}': "0+10x120",
    'rdma_cni_call_duration_seconds_bucket{plugin="rdma",command="ADD",le="0.1"}': "0+10x120",
    'rdma_cni_call_duration_seconds_bucket{plugin="rdma",command="ADD",le="+Inf"}': "0+10x120",
    'rdma_cni_pool_free_addresses{pool="10.56.0.0/16"}': "200x120",
    'rdma_cni_pool_usable_addresses{pool="10.56.0.0/16"}': "253x120",
    'rdma_cni_attachments{network="rail0",state="in place"}': "8x120",
    "rdma_cni_reservations_left_behind": "0x120",
    "rdma_cni_damaged_databases": "0x120",
    'rdma_cni_functions{kind="vf",state="free"}': "8x120",
    'rdma_cni_port_up{device="mlx5_3",pod_namespace="t",pod_name="a"}': "1x120",
    'rdma_cni_port_up{device="mlx5_4",pod_namespace="",pod_name=""}': "0x120",
    'rdma_cni_port_events_total{device="mlx5_3",counter="symbol_error"}': "7x120",
    'rdma_cni_port_hw_events_total{device="mlx5_3",counter="packet_seq_err"}': "0+10x120",
    'rdma_cni_doctor_findings{check="mtu",severity="error"}': "0x120",
    'rdma_cni_doctor_findings{check="lossless",severity="warning"}': "1x120",
    'node_textfile_mtime_seconds{file="/var/lib/node/rdma_cni.prom"}': "0+60x120",
}


def test_each_alert_fires_for_its_fault_and_none_on_a_healthy_node(tmp_path: Path) -> None:
    names = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
    assert sorted(FIRES) == sorted(names)

    def inputs(given: dict[str, str]) -> list[dict[str, str]]:
        return [{"series": name, "values": values} for name, values in given.items()]

    def firing(metric: str) -> list[dict[str, Any]]:
        expression = f"sum by (alertname) ({metric})"
        return [{"expr": expression, "eval_time": "110m", "exp_samples": []}]

    tests: list[dict[str, Any]] = [
        {"interval": "1m", "input_series": inputs(QUIET), "promql_expr_test": firing('ALERTS{alertstate="firing"}')}
    ]
    for name, given in FIRES.items():
        expected = firing(f'ALERTS{{alertname="{name}",alertstate="firing"}}')
        expected[0]["exp_samples"] = [{"labels": f'{{alertname="{name}"}}', "value": 1}]
        tests.append({"interval": "1m", "input_series": inputs(given), "promql_expr_test": expected})
    path = tmp_path / "alerts.test.yaml"
    file = {"rule_files": [str(MONITORING / "alerts.yaml")], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(file))
    assert "SUCCESS" in promtool("test", "rules", path)


def test_a_name_that_a_pods_root_gave_is_no_hindrance(exposed: bytes) -> None:
    assert b'device="mlx5\\\\x1b\\\\udcff2"' in exposed


def test_what_cannot_be_looked_at_is_counted_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    node = inventory.Node("gpu-07", "6.12", True, (), (), ("not root",))
    monkeypatch.setattr(inventory, "read", lambda **_: node)
    monkeypatch.setattr(holdings, "read", lambda _: holdings.Holdings((), (), (), (), node.problems))

    def broken() -> list[calls.Count]:
        raise CniError(5, "the kernel refused")

    monkeypatch.setattr(calls, "read", broken)
    registry = CollectorRegistry()
    registry.register(measurements.Collector(None))
    text = generate_latest(registry)
    assert b"rdma_cni_problems 2.0" in text
    assert b"rdma_cni_exclusive_mode 1.0" in text
