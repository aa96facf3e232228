"""The frozen `rdma-cni metrics`: calls that the frozen plugin made, printed, written and served."""

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import BUNDLE, ROOT
from node_subnet import Node, a_node, one_pool
from prometheus_client.parser import text_string_to_metric_families

PROMTOOL = ROOT / "build" / "promtool"


@pytest.fixture
def node() -> Iterator[Node]:
    with a_node() as found:
        yield found


def metrics(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*node.inside, BUNDLE / "rdma-cni", "metrics", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric's series, by the values of their labels in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_promtool_has_no_objection(node: Node) -> None:
    assert PROMTOOL.is_file(), f"{PROMTOOL} is missing: run `make build/promtool`"
    node.add(one_pool())
    node.cni("ADD", b"{")
    done = metrics(node)
    assert done.returncode == 0
    # This machine need not have RDMA: what it lacks is said and counted.
    assert values(done.stdout, "rdma_cni_problems") == {(): len(done.stderr.splitlines())}
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=done.stdout, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_calls_are_counted_with_their_outcome_and_duration(node: Node) -> None:
    node.add(one_pool(), "c1")
    node.add(one_pool(), "c2")
    node.delete(one_pool(), "c1")
    node.cni("ADD", one_pool(index=400), "c3")
    node.cni("ADD", b"{", "c3")
    node.cni("STATUS", one_pool())
    # Asked often, and no call that makes anything.
    node.cni("VERSION", {"cniVersion": "1.0.0"})
    node.cni("NONSENSE", one_pool())
    text = metrics(node, "--no-doctor").stdout
    assert values(text, "rdma_cni_call_duration_seconds_count") == {
        ("ADD", "node-subnet"): 4,
        ("DEL", "node-subnet"): 1,
        ("STATUS", "node-subnet"): 1,
    }
    assert values(text, "rdma_cni_call_errors_total") == {
        ("6", "ADD", "node-subnet"): 1,
        ("7", "ADD", "node-subnet"): 1,
    }
    buckets = values(text, "rdma_cni_call_duration_seconds_bucket")
    adds = [value for (command, _, _), value in buckets.items() if command == "ADD"]
    assert adds == sorted(adds)
    assert adds[-1] == 4
    assert values(text, "rdma_cni_call_duration_seconds_sum")["ADD", "node-subnet"] > 0


def test_an_add_that_cannot_be_counted_succeeds(node: Node) -> None:
    node.add(one_pool(), "c1")
    file = node.state / "calls"
    file.unlink()
    file.mkdir()
    node.add(one_pool(), "c2")
    answer = node.cni("ADD", b"{", "c3")
    assert answer.error == 6
    assert metrics(node).returncode == 0


def test_an_add_is_counted_once_although_nobody_reads_its_answer(node: Node) -> None:
    """The count comes before the answer, and the failure to print that is no second call."""
    script = 'exec "$0" > /dev/full'
    answer = node.cni("ADD", one_pool(), wrapper=("sh", "-c", script))
    assert answer.code == 1
    counted = values(metrics(node).stdout, "rdma_cni_call_duration_seconds_count")
    assert counted == {("ADD", "node-subnet"): 1}
    assert node.reserved() == {}


def test_room_and_reservations_are_told_by_pool(node: Node) -> None:
    node.add(one_pool(), "c1")
    text = metrics(node).stdout
    assert values(text, "rdma_cni_reservations") == {("rail", "10.56.0.0/16"): 1}
    assert values(text, "rdma_cni_pool_usable_addresses") == {("10.56.0.0/16",): 253}
    assert values(text, "rdma_cni_pool_free_addresses") == {("10.56.0.0/16",): 252}


def test_a_file_for_node_exporter_is_replaced_whole_and_readable_by_all(node: Node) -> None:
    path = node.run_dir / "rdma_cni.prom"
    path.write_text("before")
    before = path.stat().st_ino
    done = metrics(node, "--textfile", "/run/rdma_cni.prom")
    assert (done.returncode, done.stdout) == (0, "")
    assert path.read_text().startswith("# HELP rdma_cni_")
    assert path.stat().st_ino != before
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in node.run_dir.iterdir() if "prom" in entry.name] == ["rdma_cni.prom"]


def test_a_file_that_cannot_be_written_is_told_and_the_one_before_stays(node: Node) -> None:
    done = metrics(node, "--textfile", "/run/none/rdma_cni.prom")
    assert done.returncode == 1
    assert re.search(
        r"^rdma-cni: /run/none/rdma_cni.prom\.\d+: No such file or directory\n\Z", done.stderr, re.MULTILINE
    )
    path = node.run_dir / "rdma_cni.prom"
    path.write_text("before")
    node.run("mount", "-o", "remount,ro", "/run")
    assert metrics(node, "--textfile", "/run/rdma_cni.prom").returncode == 1
    assert path.read_text() == "before"


@contextmanager
def serving(node: Node, address: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the URL that it names."""
    command = [*node.inside, str(BUNDLE / "rdma-cni"), "metrics", "--no-doctor", "--listen", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, next(line.strip() for line in process.stderr if line.startswith("http"))
        finally:
            process.kill()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_served_it_looks_anew_each_time_and_ends_when_told_to(node: Node, end: signal.Signals) -> None:
    with serving(node, "127.0.0.1:0") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        for number in (1, 2):
            node.add(one_pool(), f"c{number}")
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - it says http
                assert answer.headers["Content-Type"].startswith("text/plain; version=")
                assert values(answer.read().decode(), "rdma_cni_reservations") == {("rail", "10.56.0.0/16"): number}
        process.send_signal(end)
        assert process.wait(60) == 0


def test_an_address_that_is_taken_or_none_is_told(node: Node) -> None:
    with serving(node, "127.0.0.1:0") as (_, url):
        taken = url.removeprefix("http://").removesuffix("/metrics")
        done = metrics(node, "--listen", taken)
        assert done.returncode == 1
        assert done.stderr == f"rdma-cni: --listen {taken}: cannot be listened on: Address already in use\n"
    done = metrics(node, "--listen", "9456")
    assert done.returncode == 2
    assert "expected ADDRESS:PORT such as 127.0.0.1:9456" in done.stderr


def test_prometheus_client_is_imported_by_this_command_alone() -> None:
    importing = re.compile(
        r"^\s*(?:import|from) (?:prometheus_client|rdma_cni\.cli\.(?:metrics|measurements))\b", re.MULTILINE
    )
    found = {
        path.name
        for directory in ("rdma_cni", "ipam", "frozen")
        for path in (Path(ROOT) / directory).rglob("*.py")
        if importing.search(path.read_text())
    }
    assert found == {"metrics.py", "measurements.py"}
