"""The state, as several processes have it open at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rdma_cni.cni import database
from rdma_cni.state import Attachment, State


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[State, State]]:
    """Two that have the same file open, as two processes do."""
    monkeypatch.setattr(database, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(database.open_directory, "__defaults__", (str(tmp_path),))
    pair = State(), State()
    yield pair
    for state in pair:
        state.close()


def attachment(container: str, function: str) -> Attachment:
    return Attachment("net", container, "net1", function, "/run/netns/pod", 7)


def test_what_is_written_while_another_process_replaces_the_file_is_in_the_new_one(
    states: tuple[State, State], tmp_path: Path
) -> None:
    one, other = states
    kept, gone = attachment("kept", "0000:03:00.2"), attachment("gone", "0000:03:00.3")
    one.put(gone)
    # Another process found the file damaged and put what it could read into a new one.
    (tmp_path / "copy.db").write_bytes((tmp_path / "state.db").read_bytes())
    (tmp_path / "copy.db").chmod(0o600)
    (tmp_path / "copy.db").rename(tmp_path / "state.db")
    one.remove(gone)
    other.put(kept)
    fresh = State()
    try:
        assert [found.container for found in fresh.all()] == ["kept"]
    finally:
        fresh.close()
