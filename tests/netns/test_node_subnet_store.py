"""The frozen `node-subnet`: many at once, killed, without room, with files that are damaged or others'."""

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_subnet import POOL, POOL6, Node, a_node, addresses, conf, finish, kill_soon, one_pool
from record import Tried

NOBODY = 65534


@pytest.fixture
def node() -> Iterator[Node]:
    with a_node() as found:
        yield found


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def bare(cidrs: list[str]) -> list[str]:
    return [cidr.partition("/")[0] for cidr in cidrs]


# Many at once


def test_50_at_once_get_an_address_each_and_none_twice(node: Node) -> None:
    config = conf()
    answers = [finish(process) for process in [node.start("ADD", config, f"c{n}") for n in range(50)]]
    assert [answer.code for answer in answers] == [0] * 50, answers
    given = [address for answer in answers for address in bare(addresses(answer.json))]
    assert sorted(given) == sorted(
        [f"10.56.3.{n}" for n in range(2, 52)] + [f"fd00:56:0:3::{n:x}" for n in range(2, 52)]
    )
    assert sorted(node.reserved()) == sorted(given)
    gone = [finish(process) for process in [node.start("DEL", config, f"c{n}") for n in range(50)]]
    assert [(answer.code, answer.stdout) for answer in gone] == [(0, "")] * 50
    assert node.reserved() == {}


def test_50_at_once_for_13_addresses_leave_37_to_try_again(node: Node) -> None:
    config = one_pool(prefix=28)
    answers = [finish(process) for process in [node.start("ADD", config, f"c{n}") for n in range(50)]]
    given = sorted(bare(addresses(answer.json))[0] for answer in answers if answer.ok)
    assert given == sorted(f"10.56.0.{n}" for n in range(50, 63))
    assert [answer.error for answer in answers if not answer.ok] == [11] * 37


def test_the_same_attachment_20_times_at_once_gets_one_address(node: Node) -> None:
    answers = [finish(process) for process in [node.start("ADD", conf()) for _ in range(20)]]
    assert {tuple(addresses(answer.json)) for answer in answers} == {("10.56.3.2/24", "fd00:56:0:3::2/64")}


def test_adds_dels_and_gcs_at_once_leave_what_was_not_deleted(node: Node) -> None:
    config, other = one_pool(), {**one_pool(), "name": "track"}
    for n in range(20):
        node.add(config, f"old{n}")
    processes = [node.start("ADD", other, f"new{n}") for n in range(20)]
    processes += [node.start("DEL", config, f"old{n}") for n in range(10)]
    processes += [node.start("GC", {**config, "cni.dev/valid-attachments": None}) for _ in range(2)]
    answers = [finish(process) for process in processes]
    assert all(answer.ok for answer in answers), answers
    assert sorted(node.reserved().values()) == sorted(f"new{n}" for n in range(20))


# Killed


def test_killed_at_random_instants_no_address_is_given_twice_and_none_is_lost(node: Node) -> None:
    """Of the 29 addresses of a /27, whoever has one keeps it, and all come back in the end."""
    config = one_pool(prefix=27)
    chance = random.Random(27)  # noqa: S311
    has: dict[str, str] = {}
    serial = 0
    for _ in range(12):
        processes: list[tuple[str, str, Any]] = []
        for _ in range(6):
            if has and chance.random() < 0.4:
                name = chance.choice(sorted(has))
                if any(name == other for _, other, _ in processes):
                    continue
                processes.append(("DEL", name, node.start("DEL", config, name)))
            else:
                serial += 1
                processes.append(("ADD", f"c{serial}", node.start("ADD", config, f"c{serial}")))
        for _, _, process in processes:
            kill_soon(process, chance)
        held = {}
        for command, name, process in processes:
            answer = finish(process)
            if command == "DEL":
                # Done or not: whoever called it does not use the address any more.
                before = has.pop(name)
                held[name] = before
            elif answer.ok:
                has[name] = bare(addresses(answer.json))[0]
        stored = node.reserved()
        # What was answered is reserved, for the one that was answered.
        assert all(stored[address] == name for name, address in has.items())
        # What nobody was told of is of the killed ones, who get it when they ask again, or free it.
        for address, name in stored.items():
            if name not in has:
                if name not in held and chance.random() < 0.5:
                    assert bare(node.add(config, name)) == [address]
                    has[name] = address
                else:
                    node.delete(config, name)
        assert len(set(has.values())) == len(has)
        for name in sorted(has)[: max(0, len(has) - 12)]:
            node.delete(config, name)
            del has[name]
    for name in sorted(has):
        node.delete(config, name)
    given = [bare(node.add(config, f"last{n}"))[0] for n in range(29)]
    assert sorted(given) == sorted(f"10.56.0.{n}" for n in range(98, 127))


def hold(node: Node) -> subprocess.Popen[bytes]:
    """A process that is writing into the store until its stdin is closed."""
    holder = node.python(
        "import sqlite3, sys; c = sqlite3.connect('/run/rdma-cni/reservations.db'); c.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    assert holder.stdout
    assert holder.stdout.readline() == b"held\n"
    return holder


def has_open(pid: int, name: str) -> bool:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(fd).endswith(name):
                return True
        except FileNotFoundError:
            # Closed between the two looks.
            continue
    return False


@pytest.mark.parametrize("signal", ["TERM", "INT"])
def test_a_signal_is_an_error_to_try_again_and_nothing_stays_reserved(node: Node, signal: str) -> None:
    # Another process has the store, so that the signal comes while it waits.
    node.delete(conf())
    holder = hold(node)
    process = node.start("ADD", conf())
    while not has_open(process.pid, "/reservations.db"):
        time.sleep(0.01)
    process.send_signal(2 if signal == "INT" else 15)
    holder.communicate()
    answer = finish(process)
    assert answer.error == 11
    assert f"SIG{signal}" in answer.json["msg"]
    assert node.reserved() == {}


def test_a_store_that_somebody_holds_too_long_is_to_be_tried_again(node: Node) -> None:
    node.delete(conf())
    holder = hold(node)
    answer = node.cni("ADD", conf())
    holder.communicate()
    assert answer.error == 11
    assert f"/run/rdma-cni/reservations.db: locked by process {holder.pid} (python3)" in answer.json["msg"]
    assert node.add(conf())


# Without room


def fill(node: Node) -> Path:
    """Take all of the file system's room."""
    path = node.run_dir / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return path


def test_a_full_file_system_is_told_and_nothing_is_begun() -> None:
    with a_node("256k") as node:
        filler = fill(node)
        answer = node.cni("ADD", conf())
        assert answer.error == 5
        assert "/run/rdma-cni" in answer.json["msg"]
        assert node.cni("STATUS", conf()).error == 50
        filler.unlink()
        assert node.add(conf()) == ["10.56.3.2/24", "fd00:56:0:3::2/64"]


def test_a_file_system_that_fills_up_keeps_what_was_given() -> None:
    with a_node("128k") as node:
        config = conf(nodes={"gpu-07": 3}, pools=[{**POOL, "nodePrefix": 20}, POOL6])
        filler = fill_but(node, 80_000)
        given: dict[str, list[str]] = {}
        for n in range(1000):
            answer = node.cni("ADD", config, f"a-container-with-a-name-of-some-length-{'x' * 100}-{n}")
            if not answer.ok:
                break
            given[f"a-container-with-a-name-of-some-length-{'x' * 100}-{n}"] = bare(addresses(answer.json))
        assert answer.error == 5, answer
        assert "is there room" in answer.json["msg"]
        assert len(given) > 3
        assert sorted(node.reserved()) == sorted(address for both in given.values() for address in both)
        for name in list(given)[:3]:
            assert bare(node.add(config, name)) == given[name]
        filler.unlink()
        for name in given:
            node.delete(config, name)
        assert node.reserved() == {}
        assert node.add(config)


def fill_but(node: Node, left: int) -> Path:
    """Take the file system's room but for so many bytes."""
    path = fill(node)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - left)
    return path


def test_a_file_system_without_inodes_is_told(node: Node) -> None:
    node.run("mount", "-o", "remount,nr_inodes=5", "/run")
    for n in range(8):
        try:
            (node.run_dir / f"taken{n}").touch()
        except OSError:
            break
    answer = node.cni("ADD", conf())
    assert answer.error == 5
    assert "/run/rdma-cni" in answer.json["msg"]


def test_a_read_only_file_system_is_told(node: Node) -> None:
    node.delete(conf())
    node.run("mount", "-o", "remount,ro", "/run")
    for command in ("ADD", "DEL"):
        answer = node.cni(command, conf())
        assert answer.error == 5
        assert "/run/rdma-cni" in answer.json["msg"]


# Whose the files are


@pytest.mark.parametrize("umask", ["000", "077", "777"])
def test_directory_and_files_are_roots_alone_whatever_the_umask(node: Node, umask: str) -> None:
    node.add(conf(), wrapper=("sh", "-c", f'umask {umask}; exec "$0"'))
    assert mode(node.state) == 0o700
    assert {mode(path) for path in node.state.iterdir()} == {0o600}


def test_a_wider_mode_is_narrowed(node: Node) -> None:
    node.add(conf())
    node.state.chmod(0o777)
    node.database.chmod(0o666)
    node.add(conf(), "c2")
    assert (mode(node.state), mode(node.database)) == (0o700, 0o600)


def directory_given_away(node: Node) -> None:
    os.chown(node.state, NOBODY, NOBODY)


def database_given_away(node: Node) -> None:
    os.chown(node.database, NOBODY, NOBODY)


def directory_a_link(node: Node) -> None:
    node.state.rename(node.run_dir / "elsewhere")
    node.state.symlink_to("elsewhere")


def database_a_link(node: Node) -> None:
    node.database.rename(node.run_dir / "elsewhere")
    node.database.symlink_to("../elsewhere")


def database_a_directory(node: Node) -> None:
    node.database.unlink()
    node.database.mkdir()


def database_a_pipe(node: Node) -> None:
    node.database.unlink()
    os.mkfifo(node.database)


def lock_a_link(node: Node) -> None:
    node.database.unlink()
    (node.state / "recovery.lock").unlink()
    (node.state / "recovery.lock").symlink_to("../elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        directory_given_away,
        database_given_away,
        directory_a_link,
        database_a_link,
        database_a_directory,
        database_a_pipe,
        lock_a_link,
    ],
)
def test_what_is_anothers_or_no_plain_file_is_refused_by_name(node: Node, change: Callable[[Node], None]) -> None:
    node.add(conf())
    change(node)
    for command in ("ADD", "DEL", "GC"):
        answer = node.cni(command, conf())
        assert answer.error == 5
        assert answer.json["msg"].startswith("/run/rdma-cni")
    assert node.cni("STATUS", conf()).error == 50


# Damage


def rewrite(node: Node, start: int, end: int | None = None) -> None:
    content = bytearray(node.database.read_bytes())
    stop = len(content) if end is None else end
    content[start:stop] = b"\xff" * (stop - start)
    node.database.write_bytes(content)


def sql(node: Node, *statements: str) -> list[Any]:
    """Change the store as another program would; the rows of the last statement."""
    script = (
        "import json, sqlite3, sys; c = sqlite3.connect('/run/rdma-cni/reservations.db', isolation_level=None)\n"
        "for statement in json.load(sys.stdin): rows = c.execute(statement).fetchall()\n"
        "print(json.dumps(rows))"
    )
    process = node.python(script)
    stdout, _ = process.communicate(json.dumps(statements).encode())
    rows: list[Any] = json.loads(stdout)
    return rows


def page_of(node: Node, name: str) -> tuple[int, int]:
    """From where to where a table or an index of one page lies in the file."""
    ((page, size),) = sql(node, f"SELECT rootpage, page_size FROM sqlite_master, pragma_page_size WHERE name='{name}'")
    return (page - 1) * size, page * size


def no_database(node: Node) -> None:
    node.database.write_bytes(b"no database" * 1000)


def emptied(node: Node) -> None:
    node.database.write_bytes(b"")


def cut_short(node: Node) -> None:
    node.database.write_bytes(node.database.read_bytes()[:5000])


def all_but_its_head(node: Node) -> None:
    rewrite(node, 100)


def reservations_overwritten(node: Node) -> None:
    rewrite(node, *page_of(node, "reservation"))


def foreign(node: Node) -> None:
    node.database.unlink()
    sql(node, "CREATE TABLE unknown (a)", "PRAGMA user_version=1")


def without_its_table(node: Node) -> None:
    sql(node, "DROP TABLE reservation")


LOSING = [no_database, emptied, cut_short, all_but_its_head, reservations_overwritten, foreign, without_its_table]


@pytest.mark.parametrize("damage", LOSING)
def test_reservations_that_are_lost_stop_every_add_until_somebody_has_seen_to_it(
    node: Node, damage: Callable[[Node], None]
) -> None:
    given = node.add(conf())
    damage(node)
    before = node.database.read_bytes()
    answers = [node.cni("ADD", conf(), "c2") for _ in range(3)]
    # Damage inside shows only in use: that one is told to try again.
    assert [answer.error for answer in answers] in ([5, 5, 5], [11, 5, 5])
    (aside,) = node.state.glob("reservations.db.bad-*")
    assert aside.read_bytes() == before
    assert mode(aside) == 0o600
    moved = [answer for answer in answers if f"moved aside as /run/rdma-cni/{aside.name}" in answer.stderr]
    assert len(moved) == 1
    for answer in answers[1:]:
        assert answer.json["msg"].startswith(f"/run/rdma-cni/{aside.name}: ")
        assert "then remove that file" in answer.json["msg"]
    status = node.cni("STATUS", conf())
    assert (status.error, aside.name in status.json["msg"]) == (50, True)
    # A pod can go all the same.
    node.delete(conf())
    assert node.cni("GC", conf()).ok
    aside.unlink()
    assert node.add(conf(), "c2") == given


def of_the_past(node: Node) -> None:
    sql(node, "PRAGMA user_version=0")


def without_an_index(node: Node) -> None:
    sql(node, "DROP TABLE freed")


def turns_overwritten(node: Node) -> None:
    rewrite(node, *page_of(node, "turns"))


def scopes_overwritten(node: Node) -> None:
    rewrite(node, *page_of(node, "scope"))


@pytest.mark.parametrize("damage", [of_the_past, without_an_index, turns_overwritten, scopes_overwritten])
def test_reservations_that_can_be_read_are_taken_over(node: Node, damage: Callable[[Node], None]) -> None:
    config = one_pool(prefix=29)
    for n in range(3):
        node.add(config, f"c{n}")
    node.delete(config, "c0")
    damage(node)
    answers = []
    for n in range(3):
        answers.append(node.cni("ADD", config, f"d{n}"))
        if not answers[-1].ok:
            # Damage inside shows only in use: the caller is told to try again.
            assert answers.pop().error == 11
            answers.append(node.cni("ADD", config, f"d{n}"))
    assert len(list(node.state.glob("reservations.db.bad-*"))) == 1
    assert node.add(config, "c1") == ["10.56.0.27/29"]
    assert sorted(addresses(answer.json)[0] for answer in answers) == [f"10.56.0.{n}/29" for n in (26, 29, 30)]
    assert node.cni("ADD", config, "more").error == 11


@pytest.mark.fault("reservations", "reservations.db of a newer schema")
def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(node: Node) -> None:
    node.add(conf())
    sql(node, "PRAGMA user_version=2")
    before = node.database.read_bytes()
    for command in ("ADD", "DEL", "GC"):
        answer = node.cni(command, conf())
        assert answer.error == 5
        assert answer.json["msg"].startswith("/run/rdma-cni/reservations.db: found schema 2, ")
    assert node.cni("STATUS", conf()).error == 50
    assert node.database.read_bytes() == before


@pytest.mark.fault("reservations", "reservations.db cut short at every 512th byte")
def test_cut_short_anywhere_it_gives_no_address_that_a_pod_has(node: Node, tried: Tried) -> None:
    config = one_pool()
    has = {container: node.add(config, container) for container in ("c1", "c2", "c3")}
    whole = node.database.read_bytes()
    for size in range(0, len(whole), 512):
        node.database.write_bytes(whole[:size])
        answers = [node.cni("ADD", config, "new")]
        while answers[-1].code and answers[-1].error == 11 and len(answers) < 3:
            answers.append(node.cni("ADD", config, "new"))
        if answers[-1].ok:
            assert addresses(answers[-1].json)[0] not in [address for (address,) in has.values()]
        else:
            assert answers[-1].error == 5, answers
            assert ".bad-" in answers[-1].json["msg"], answers
        # A pod can go, whatever became of the store.
        assert node.cni("DEL", config, "c1").ok
        for path in node.state.glob("reservations.db*"):
            path.unlink()
        tried()


@pytest.mark.fault("reservations", "reservations.db with random bytes, a few or a page of them")
def test_with_random_bytes_it_gives_no_address_that_a_pod_has(node: Node, tried: Tried) -> None:
    config = one_pool()
    has = {container: node.add(config, container) for container in ("c1", "c2", "c3")}
    whole = node.database.read_bytes()
    chance = random.Random(512)  # noqa: S311 - the same damage each time
    given = [address for (address,) in has.values()]
    for number in range(80):
        content = bytearray(whole)
        where = chance.randrange(100 if number % 2 else len(whole))
        size = chance.choice([1, 2, 8, 512, 4096])
        content[where : where + size] = chance.randbytes(size)
        node.database.write_bytes(content)
        for command in ("ADD", "ADD", "DEL", "DEL"):
            answer = node.cni(command, config, "new")
            if command == "ADD" and answer.ok and content[:4096] == whole[:4096] and size < 512:
                # One that is changed cannot be told from one that is not; no other is given twice.
                assert len(set(given) & set(addresses(answer.json))) <= 1
            assert answer.ok or answer.error in (5, 11), (number, answer)
        if "a newer version" not in answer.stdout:
            assert answer.ok, (number, answer)
        for path in node.state.glob("reservations.db*"):
            path.unlink()
        tried()


@pytest.mark.parametrize("damage", [no_database, all_but_its_head, reservations_overwritten])
def test_20_that_find_the_damage_at_once_move_it_aside_once_and_give_nothing(
    node: Node, damage: Callable[[Node], None]
) -> None:
    node.add(conf())
    damage(node)
    answers = [finish(process) for process in [node.start("ADD", conf(), f"d{n}") for n in range(20)]]
    assert {answer.error for answer in answers} <= {5, 11}
    assert len(list(node.state.glob("reservations.db.bad-*"))) == 1
    assert node.cni("ADD", conf(), "c2").error == 5


def test_20_that_find_a_readable_store_of_an_older_version_all_get_an_address_of_their_own(node: Node) -> None:
    node.add(one_pool())
    of_the_past(node)
    answers = [finish(process) for process in [node.start("ADD", one_pool(), f"d{n}") for n in range(20)]]
    assert all(answer.ok for answer in answers), answers
    assert len(node.reserved()) == 21
    assert len(list(node.state.glob("reservations.db.bad-*"))) == 1


def test_a_leftover_of_a_killed_first_call_is_no_hindrance(node: Node) -> None:
    node.state.mkdir(mode=0o700)
    (node.state / "reservations.db.new").write_bytes(b"half" * 100)
    (node.state / "reservations.db.new-journal").write_bytes(b"half" * 100)
    assert node.add(conf()) == ["10.56.3.2/24", "fd00:56:0:3::2/64"]


def test_a_store_that_is_removed_while_in_use_is_made_anew(node: Node) -> None:
    """By an operator, say: it is as after a boot."""
    stop = threading.Event()

    def remover() -> None:
        while not stop.is_set():
            node.database.unlink(missing_ok=True)
            time.sleep(0.01)

    thread = threading.Thread(target=remover)
    node.add(conf())
    thread.start()
    try:
        answers = [finish(process) for process in [node.start("ADD", conf(), f"c{n}") for n in range(10)]]
    finally:
        stop.set()
        thread.join()
    assert all(answer.ok or answer.error in (5, 11) for answer in answers), answers
    assert node.add(conf())
