"""The state's directory and files, by a DEL that has nothing to do but look into them."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import guest
import pytest

Rdma = Callable[..., guest.Answer]
CONF = {"cniVersion": "1.1.0", "name": "net", "type": "rdma", "deviceID": "0000:ff:1f.7"}
NOBODY = 65534


@pytest.fixture
def state(run_dir: Path) -> Path:
    """The state's directory, which is not there yet."""
    return run_dir / "rdma-cni"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_the_directory_is_roots_alone(rdma: Rdma, state: Path) -> None:
    assert rdma("DEL", CONF).ok
    assert (mode(state), mode(state / "state.db")) == (0o700, 0o600)


@pytest.mark.parametrize("umask", ["000", "077", "777"])
def test_the_umask_makes_no_difference(rdma: Rdma, state: Path, umask: str) -> None:
    assert rdma("DEL", CONF, wrapper=("sh", "-c", f'umask {umask}; exec "$0"')).ok
    assert (mode(state), mode(state / "state.db")) == (0o700, 0o600)


def test_what_others_may_read_is_closed_to_them(rdma: Rdma, state: Path) -> None:
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    (state / "state.db").touch()
    (state / "state.db").chmod(0o666)
    assert rdma("DEL", CONF).ok
    assert (mode(state), mode(state / "state.db")) == (0o700, 0o600)


def make_link(state: Path) -> None:
    (state.parent / "elsewhere").mkdir()
    state.symlink_to("elsewhere")


def make_file(state: Path) -> None:
    state.touch()


def give_away(state: Path) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)


def link_database(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state.parent / "elsewhere").touch()
    (state / "state.db").symlink_to("../elsewhere")


def make_database_a_directory(state: Path) -> None:
    (state / "state.db").mkdir(parents=True)


def make_database_a_pipe(state: Path) -> None:
    state.mkdir(mode=0o700)
    os.mkfifo(state / "state.db")


def give_database_away(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "state.db").touch()
    os.chown(state / "state.db", NOBODY, NOBODY)


@pytest.mark.parametrize(
    "prepare",
    [
        make_link,
        make_file,
        give_away,
        link_database,
        make_database_a_directory,
        make_database_a_pipe,
        give_database_away,
    ],
)
def test_a_place_that_is_not_roots_own_is_an_io_failure(
    rdma: Rdma, state: Path, prepare: Callable[[Path], None]
) -> None:
    prepare(state)
    answer = rdma("DEL", CONF)
    assert answer.error == 5
    assert "/run/rdma-cni" in answer.json["msg"]


def test_state_that_cannot_be_written_is_an_io_failure(rdma: Rdma, run_dir: Path) -> None:
    read_only = ("sh", "-c", 'mount -o remount,ro,bind /run && exec "$0"')
    answer = rdma("DEL", CONF, wrapper=read_only)
    assert answer.error == 5
    assert "/run/rdma-cni" in answer.json["msg"]


def test_status_tells_of_state_that_cannot_be_written(rdma: Rdma, state: Path) -> None:
    give_away(state)
    assert rdma("STATUS", CONF, container=None, netns=None, ifname=None).error == 50


def damaged(database: Path) -> None:
    database.write_bytes(b"no database" * 1000)


def overwritten(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    database.write_bytes(content)


def of_the_future(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version=1000")
    connection.close()


def emptied(database: Path) -> None:
    database.write_bytes(b"")


@pytest.mark.parametrize("damage", [damaged, overwritten, of_the_future, emptied])
def test_a_database_that_is_not_usable_is_moved_aside_and_begun_anew(
    rdma: Rdma, state: Path, damage: Callable[[Path], None]
) -> None:
    assert rdma("DEL", CONF).ok
    damage(state / "state.db")
    before = (state / "state.db").read_bytes()
    answer = rdma("DEL", CONF)
    # Damage inside shows only in use: the caller is told to try again.
    assert answer.ok if damage is not overwritten else answer.error == 11
    assert "moved aside" in answer.stderr
    (aside,) = state.glob("state.db.bad-*")
    assert aside.read_bytes() == before
    assert mode(aside) == 0o600
    again = rdma("DEL", CONF)
    assert again.ok
    assert "moved aside" not in again.stderr
