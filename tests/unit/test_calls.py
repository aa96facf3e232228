"""The count of the plugins' calls: what is counted, by many at once, in a file that does not grow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdma_cni.cni import calls


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "calls"
    monkeypatch.setattr(calls, "DIRECTORY", str(path.parent))
    monkeypatch.setattr(calls, "FILE", str(path))
    return path


def counted() -> dict[tuple[str, str, int], list[int]]:
    return {(each.plugin, each.command, each.code): each.buckets for each in calls.read()}


def test_each_plugin_command_and_outcome_is_counted_in_the_bucket_of_its_duration(file: Path) -> None:
    for plugin, command, code, seconds in (
        ("rdma", "ADD", 0, 0.0005),
        ("rdma", "ADD", 0, 0.002),
        ("rdma", "ADD", 0, 0.0021),
        ("rdma", "ADD", 0, 60),
        ("rdma", "ADD", 1, 0.003),
        ("rdma", "ADD", 11, 0.003),
        ("node-subnet", "ADD", 0, 0.003),
    ):
        calls.record(plugin, command, code, seconds)
    found = counted()
    assert list(found) == [("rdma", "ADD", 0), ("rdma", "ADD", 1), ("rdma", "ADD", 11), ("node-subnet", "ADD", 0)]
    assert found["rdma", "ADD", 0] == [2, 1, *[0] * (len(calls.BOUNDS) - 2), 1]
    assert next(iter(calls.read())).microseconds == 60_004_600


def test_the_file_and_its_directory_are_roots_alone(file: Path) -> None:
    calls.record("rdma", "ADD", 0, 1)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_it_does_not_grow_with_calls_and_not_beyond_a_bound_with_codes(file: Path) -> None:
    for _ in range(50):
        calls.record("rdma", "ADD", 0, 1)
    assert file.stat().st_size == 256
    for code in range(1000):
        calls.record("rdma", "DEL", code, 1e9)
    assert file.stat().st_size == 256 * 256
    calls.record("rdma", "ADD", 0, 1)
    assert sum(counted()["rdma", "ADD", 0]) == 51


def test_what_many_processes_count_at_once_is_all_counted(file: Path) -> None:
    script = (
        f"from rdma_cni.cni import calls; calls.FILE = {str(file)!r}; calls.DIRECTORY = {str(file.parent)!r}\n"
        "calls._PATIENCE = 100_000  # this machine may do other things, too\n"
        "for number in range(200): calls.record('rdma', 'ADD', number % 3, 0.01)"
    )
    running = [subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2]) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    assert sum(sum(buckets) for buckets in counted().values()) == 1600


@pytest.mark.parametrize("damage", [b"x" * 300, b"rdma ADD 0 1 2 x".ljust(256), b"\0" * 100, b"rdma ADD 0 "])
def test_damage_is_no_obstacle(file: Path, damage: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(damage)
    calls.record("rdma", "ADD", 0, 0.01)
    calls.record("rdma", "ADD", 0, 0.01)
    assert sum(counted()["rdma", "ADD", 0]) == 2


def test_a_file_that_cannot_be_had_is_no_failure(file: Path) -> None:
    file.parent.mkdir()
    elsewhere = file.parent / "elsewhere"
    elsewhere.write_bytes(b"")
    file.symlink_to(elsewhere)
    calls.record("rdma", "ADD", 0, 1)
    assert elsewhere.read_bytes() == b""
    file.unlink()
    os.mkfifo(file)
    calls.record("rdma", "ADD", 0, 1)
    file.unlink()
    file.mkdir()
    calls.record("rdma", "ADD", 0, 1)


def test_one_that_holds_the_lock_and_stands_still_is_not_waited_for(file: Path) -> None:
    calls.record("rdma", "ADD", 0, 1)
    holding = (
        f"import os, time; fd = os.open({str(file)!r}, os.O_RDWR); os.lockf(fd, os.F_LOCK, 0); print(); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-u", "-c", holding], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        calls.record("rdma", "ADD", 0, 1)
        assert sum(counted()["rdma", "ADD", 0]) == 1
        holder.kill()
    calls.record("rdma", "ADD", 0, 1)
    assert sum(counted()["rdma", "ADD", 0]) == 2
