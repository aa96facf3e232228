"""The state's directory and files, by a DEL that has nothing to do but look into them."""

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
from record import Tried

Rdma = Callable[..., guest.Answer]
CONF = {"cniVersion": "1.1.0", "name": "net", "type": "rdma", "deviceID": "0000:ff:1f.7"}
NOBODY = 65534


RECORD: dict[str, Any] = {
    "runtime_ifname": "net1",
    "pod": "",
    "netns": "/run/pod",
    "cookie": 5,
    "rdma": [[3, 0, "rocep1s0"]],
    "netdev": ["ens1", "02:00:00:00:00:01", 1500, 1, [], "", False],
    "borrowed": None,
    "addresses": ["10.0.0.1/24"],
    "routes": [["10.0.0.0/8", "10.0.0.2", 0]],
}
"""An attachment as it is written down."""


def sql(database: Path, *statements: str, values: tuple[object, ...] = ()) -> list[Any]:
    """Change the state as another program would; the rows of the last statement."""
    connection = sqlite3.connect(database)
    try:
        rows = [connection.execute(statement, values).fetchall() for statement in statements]
        connection.commit()
    finally:
        connection.close()
    return rows[-1]


def attached(database: Path, container: str, function: str, record: object = None) -> None:
    """Write an attachment down, as an ADD does."""
    text = record if isinstance(record, (str, bytes)) else json.dumps(RECORD if record is None else record)
    # A text that is no UTF-8 cannot be bound as one.
    sql(
        database,
        "INSERT INTO attachment VALUES ('net', ?, 'net1', ?, CAST(? AS TEXT))",
        values=(container, function, text if isinstance(text, bytes) else text.encode()),
    )


def containers(database: Path) -> list[str]:
    return [name for (name,) in sql(database, "SELECT container FROM attachment ORDER BY container")]


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


def of_the_past(database: Path) -> None:
    sql(database, "PRAGMA user_version=0")


def emptied(database: Path) -> None:
    database.write_bytes(b"")


@pytest.mark.parametrize("damage", [damaged, overwritten, of_the_past, emptied])
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


# Damage of any kind: a clear error or a recovery, and a DEL that succeeds in the end.


def delete_in_the_end(rdma: Rdma, container: str = "c0") -> list[guest.Answer]:
    """DEL until it succeeds, as a runtime does: at the second time, where damage showed only in use."""
    answers = []
    for _ in range(3):
        answers.append(rdma("DEL", CONF, container=container))
        if answers[-1].ok:
            break
        assert answers[-1].error in (5, 11), answers
        assert "/run/rdma-cni/state.db" in answers[-1].json["msg"]
    assert answers[-1].ok, answers
    assert len(answers) <= 2, answers
    return answers


def some_attachments(rdma: Rdma, database: Path, count: int = 40) -> None:
    """A state of more than one page."""
    assert rdma("DEL", CONF).ok
    for number in range(count):
        attached(database, f"c{number}", f"0000:ff:{number >> 3:02x}.{number & 7}")


@pytest.mark.fault("state", "state.db cut short at every 512th byte")
def test_a_database_that_is_cut_short_anywhere_is_recovered_from(rdma: Rdma, state: Path, tried: Tried) -> None:
    database = state / "state.db"
    some_attachments(rdma, database)
    whole = database.read_bytes()
    assert len(whole) >= 5 * 4096
    for size in range(0, len(whole), 512):
        database.write_bytes(whole[:size])
        answers = delete_in_the_end(rdma)
        # What it says is that the state was lost, unless it is one that tells of all attachments but that one.
        if not any("moved aside" in answer.stderr for answer in answers):
            assert len(containers(database)) == 39
        assert rdma("DEL", CONF, container="c1").ok
        tried()


@pytest.mark.fault("state", "state.db with random bytes, a few or a page of them")
def test_a_database_with_random_bytes_is_recovered_from(rdma: Rdma, state: Path, tried: Tried) -> None:
    database = state / "state.db"
    some_attachments(rdma, database)
    whole = database.read_bytes()
    chance = random.Random(512)  # noqa: S311 - the same damage each time
    for number in range(80):
        content = bytearray(whole)
        # Every other time in the head, which says what the rest is.
        where = chance.randrange(100 if number % 2 else len(whole))
        size = chance.choice([1, 2, 8, 512, 4096])
        content[where : where + size] = chance.randbytes(size)
        database.write_bytes(content)
        answer = rdma("DEL", CONF, container="c0")
        if not answer.ok and "a newer version" in answer.json["msg"]:
            assert answer.error == 5
        else:
            delete_in_the_end(rdma)
        tried()
        for leftover in state.glob("state.db*"):
            leftover.unlink()


@pytest.mark.fault("state", "state.db of which tables or columns are missing")
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE attachment",
        "ALTER TABLE attachment DROP COLUMN record",
        "ALTER TABLE attachment RENAME TO others",
        "ALTER TABLE attachment RENAME COLUMN record TO others",
    ],
)
def test_a_database_without_what_belongs_in_it_is_begun_anew(rdma: Rdma, state: Path, statement: str) -> None:
    assert rdma("DEL", CONF).ok
    sql(state / "state.db", statement)
    assert any("moved aside" in answer.stderr for answer in delete_in_the_end(rdma))


@pytest.mark.fault("state", "state.db of an older schema")
def test_the_attachments_of_an_older_schema_are_taken_over(rdma: Rdma, state: Path) -> None:
    database = state / "state.db"
    some_attachments(rdma, database, 3)
    attached(database, "spoiled", "0000:ff:05.0", "{")
    of_the_past(database)
    answer = rdma("DEL", CONF, container="c1")
    assert answer.ok, answer
    assert "3 attachments could be read and are kept, 1 could not" in answer.stderr
    assert containers(database) == ["c0", "c2"]


@pytest.mark.fault("state", "state.db of a newer schema")
@pytest.mark.parametrize("command", ["DEL", "GC", "STATUS"])
def test_a_newer_schema_is_refused_and_left_as_it_is(rdma: Rdma, state: Path, command: str) -> None:
    """What it says cannot be known: the version that wrote it is the one to read it."""
    assert rdma("DEL", CONF).ok
    sql(state / "state.db", "PRAGMA user_version=2")
    before = (state / "state.db").read_bytes()
    answer = rdma(command, CONF)
    # STATUS finds first that this machine's kernel has no RDMA.
    assert answer.error in ((5,) if command != "STATUS" else (50,))
    if command != "STATUS":
        assert answer.json["msg"].startswith("/run/rdma-cni/state.db: found schema 2, ")
        assert "install that version again" in answer.json["msg"]
    assert (state / "state.db").read_bytes() == before
    assert [path.name for path in state.glob("state.db*bad*")] == []


def changed(**keys: object) -> dict[str, object]:
    return {**RECORD, **keys}


NETDEV: list[object] = RECORD["netdev"]

UNREADABLE: list[object] = [
    b"{",
    b"",
    b"\xff\xfe",
    b'"x"',
    b"[]",
    b"{}",
    b"null",
    b"[" * 100_000,
    changed(rdma=5),
    changed(rdma=[5]),
    changed(rdma=[[1]]),
    changed(rdma=[[[1], 2, "x"]]),
    changed(rdma=[["1", 2, "x"]]),
    changed(rdma=[[1, 2, 3]]),
    changed(rdma=[[1, 2, "\ud800"]]),
    changed(rdma=[[1, 2, "x" * 70_000]]),
    changed(netdev="x"),
    changed(netdev=[]),
    changed(netdev=[5, *NETDEV[1:]]),
    changed(netdev=[None, *NETDEV[1:]]),
    changed(netdev=["\ud800", *NETDEV[1:]]),
    changed(netdev=["x" * 70_000, *NETDEV[1:]]),
    changed(netdev=[NETDEV[0], "no MAC", *NETDEV[2:]]),
    changed(netdev=[*NETDEV[:2], "1500", *NETDEV[3:]]),
    changed(netdev=[*NETDEV[:2], 10**30, *NETDEV[3:]]),
    changed(netdev=[*NETDEV[:2], -1, *NETDEV[3:]]),
    changed(netdev=[*NETDEV[:4], [5], *NETDEV[5:]]),
    changed(netdev=[*NETDEV[:4], {}, *NETDEV[5:]]),
    changed(netdev=[*NETDEV[:6], 1]),
    changed(borrowed=[1, 2, 3]),
    changed(addresses=5),
    changed(addresses=[5]),
    changed(addresses=["10.0.0.1"]),
    changed(addresses=["x"]),
    changed(routes={}) | {"routes": None},
    changed(routes=[5]),
    changed(routes=[["x", "", 0]]),
    changed(routes=[["10.0.0.0/8", "x", 0]]),
    changed(routes=[["10.0.0.0/8", "", "0"]]),
    changed(cookie="5"),
    changed(cookie=None),
    changed(netns=5),
    changed(pod=None),
    changed(runtime_ifname=[]),
    {key: value for key, value in RECORD.items() if key != "pod"},
]


@pytest.mark.fault("state", "a row of state.db that cannot be read")
def test_a_row_that_cannot_be_read_is_dropped_and_no_other(rdma: Rdma, state: Path, tried: Tried) -> None:
    database = state / "state.db"
    for record in UNREADABLE:
        some_attachments(rdma, database, 1)
        attached(database, "spoiled", "0000:ff:05.0", record)
        answers = delete_in_the_end(rdma, "spoiled")
        told = "".join(answer.stderr for answer in answers)
        assert "cannot be read" in told or "1 could not" in told, (record, answers)
        assert containers(database) == ["c0"], record
        # Those of a network are read together by GC.
        attached(database, "spoiled", "0000:ff:05.0", record)
        answer = rdma("GC", CONF)
        assert answer.ok or answer.error == 11, (record, answer)
        assert rdma("GC", CONF).ok
        assert containers(database) == []
        tried()


@pytest.mark.fault("state", "a row of state.db names no function")
@pytest.mark.parametrize("function", ["", "../../etc", "0000:ff:00", "x/y", "eth0"])
def test_a_row_whose_function_is_none_reaches_no_path(rdma: Rdma, state: Path, function: str) -> None:
    assert rdma("DEL", CONF).ok
    attached(state / "state.db", "spoiled", function)
    answer = rdma("DEL", CONF, container="spoiled")
    assert answer.ok, answer
    assert "cannot be read" in answer.stderr
    assert containers(state / "state.db") == []


@pytest.mark.fault("state", "a journal that is not root's plain file")
@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "another's"])
def test_a_journal_that_is_anothers_is_neither_followed_nor_played_back(rdma: Rdma, state: Path, kind: str) -> None:
    assert rdma("DEL", CONF).ok
    journal = state / "state.db-journal"
    journal.unlink(missing_ok=True)
    elsewhere = state.parent / "elsewhere"
    if kind == "link":
        journal.symlink_to("../elsewhere")
    elif kind == "pipe":
        os.mkfifo(journal)
    elif kind == "directory":
        journal.mkdir()
    else:
        journal.touch()
        os.chown(journal, NOBODY, NOBODY)
    answer = rdma("DEL", CONF)
    assert answer.error == 5
    assert answer.json["msg"].startswith("/run/rdma-cni/state.db-journal: expected a plain file")
    assert not elsewhere.exists()


@pytest.mark.fault("state", "a function's lock that is not root's plain file")
@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "another's"])
def test_a_lock_that_is_anothers_is_not_taken(rdma: Rdma, state: Path, kind: str) -> None:
    assert rdma("DEL", CONF).ok
    attached(state / "state.db", "c0", "0000:ff:05.0")
    lock = state / "0000:ff:05.0.lock"
    if kind == "link":
        lock.symlink_to("../elsewhere")
    elif kind == "pipe":
        os.mkfifo(lock)
    elif kind == "directory":
        lock.mkdir()
    else:
        lock.touch()
        os.chown(lock, NOBODY, NOBODY)
    answer = rdma("DEL", CONF, container="c0")
    assert answer.error == 5
    assert answer.json["msg"].startswith("/run/rdma-cni/0000:ff:05.0.lock: ")
    assert not (state.parent / "elsewhere").exists()


HOLD = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
c.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("state", "state.db locked by another process for too long")
def test_who_has_the_state_locked_is_told(rdma: Rdma, state: Path) -> None:
    assert rdma("DEL", CONF).ok
    attached(state / "state.db", "c0", "0000:ff:05.0")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, state / "state.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        answer = rdma("DEL", CONF, container="c0")
        assert answer.error == 11
        assert re.search(rf"state.db: locked by process {holder.pid} \(\S+\) for 10 s", answer.json["msg"])
        holder.communicate("")
    assert rdma("DEL", CONF, container="c0").ok
