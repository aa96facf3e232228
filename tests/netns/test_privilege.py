"""What the executables need, what they are content with, and what they leave: capabilities, files, modes."""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import guest
import pytest
from conftest import BUNDLE
from node_subnet import POOL, Node, a_node, conf, one_pool
from record import Tried

Rdma = Callable[..., guest.Answer]
CONF = {"cniVersion": "1.1.0", "name": "net", "type": "rdma", "deviceID": "0000:ff:1f.7"}
NOBODY = 65534


@pytest.fixture
def node() -> Iterator[Node]:
    with a_node() as found:
        yield found


# Capabilities


def without(*names: str) -> tuple[str, ...]:
    return ("setpriv", f"--bounding-set={','.join(f'-{name}' for name in names)}", "--inh-caps=-all")


@pytest.mark.fault("privilege", "a capability is missing")
@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL", "GC", "STATUS"])
@pytest.mark.parametrize("missing", [("net_admin",), ("sys_admin",), ("net_admin", "sys_admin")], ids="+".join)
def test_a_capability_that_is_missing_is_named_in_one_line(
    rdma: Rdma, run_dir: Path, command: str, missing: tuple[str, ...]
) -> None:
    answer = rdma(command, CONF, wrapper=without(*missing))
    assert answer.error == (50 if command == "STATUS" else 112)
    names = " and ".join(f"CAP_{name.upper()}" for name in missing)
    assert answer.json["msg"].startswith(f"privilege: found user 0 without {names}, expected ")
    assert answer.stderr.count("\n") == 1
    # Before anything was touched.
    assert not (run_dir / "rdma-cni" / "state.db").exists()


@pytest.mark.fault("privilege", "the caller is not root")
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_a_user_is_told_to_be_root(rdma: Rdma, command: str) -> None:
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    answer = rdma(command, CONF, wrapper=user)
    assert answer.error == 112
    assert f"found user {NOBODY} without CAP_NET_ADMIN and CAP_SYS_ADMIN" in answer.json["msg"]
    assert "run as root" in answer.json["msg"]


@pytest.mark.fault("privilege", "root of another user namespace")
def test_root_of_a_user_namespace_is_not_root_of_the_pod(rdma: Rdma) -> None:
    answer = rdma("ADD", CONF, wrapper=("unshare", "--user", "--map-root-user"))
    assert answer.error == 112
    assert "CAP_SYS_ADMIN" in answer.json["msg"]
    assert "namespace" in answer.json["msg"]


def test_node_subnet_needs_no_capability_at_all(node: Node) -> None:
    none = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    answer = node.cni("ADD", conf(), wrapper=none)
    assert answer.ok, answer
    assert node.cni("DEL", conf(), wrapper=none).ok


# What is left behind

MAKES = re.compile(
    r"(?:openat\(AT_FDCWD|open\(|creat\(|mkdir\(|mknod\(|symlink\()[^\"]*\"([^\"]*)\"(?:.*(O_CREAT|O_TMPFILE))?"
)


def made(trace: str) -> set[str]:
    """The absolute paths that a trace of system calls shows to be made."""
    found = set()
    for line in trace.splitlines():
        match = MAKES.search(line)
        if match and (match.group(2) or not re.search(r"\bopen(at)?\(", line)):
            found.add(match.group(1))
    return found


@pytest.mark.fault("privilege", "what is written outside of /run/rdma-cni: every file that is made")
def test_nothing_is_made_but_below_the_directory_of_the_state(node: Node, tmp_path: Path, tried: Tried) -> None:
    config = one_pool()
    damaged = False
    seen = set()
    for command in ("ADD", "ADD", "CHECK", "GC", "STATUS", "DEL", "VERSION", "ADD"):
        for program in ("node-subnet", "rdma"):
            trace = tmp_path / "trace"
            strace = ("strace", "-f", "-qq", "-s", "300", "-e", "trace=%file", "-o", str(trace))
            answer = guest.cni(
                command,
                config | ({"deviceID": "0000:ff:1f.7"} if program == "rdma" else {}),
                netns="/proc/1/ns/net",
                binary=str(BUNDLE / program),
                wrapper=(*node.inside, *strace),
                env={"TMPDIR": "/tmp", "HOME": "/root"},
            )
            assert answer.code in (0, 1), answer
            seen |= made(trace.read_text())
            tried()
        if not damaged:
            # What replaces a damaged file makes some more.
            node.database.write_bytes(b"no database" * 1000)
            damaged = True
    outside = {path for path in seen if path.startswith("/") and not path.startswith("/run/rdma-cni")}
    assert outside <= {"/dev/null"}, outside
    assert any(path.endswith("reservations.db-journal") for path in seen), seen


@pytest.mark.fault("privilege", "a place for the state that is another's: what is counted")
@pytest.mark.parametrize("kind", ["another's directory", "a link", "another's file", "a second name of a file"])
def test_no_call_is_counted_in_anothers_place(rdma: Rdma, run_dir: Path, kind: str) -> None:
    state, victim = run_dir / "rdma-cni", run_dir / "victim"
    victim.write_text("as it was")
    if kind == "a link":
        (run_dir / "elsewhere").mkdir(mode=0o700)
        state.symlink_to("elsewhere")
    else:
        state.mkdir(mode=0o700)
    counted = state / "calls"
    if kind == "another's directory":
        os.chown(state, NOBODY, NOBODY)
        os.link(victim, counted)
    elif kind == "another's file":
        counted.write_text("as it was")
        os.chown(counted, NOBODY, NOBODY)
    elif kind == "a second name of a file":
        os.link(victim, counted)
    rdma("DEL", CONF)
    assert victim.read_text() == "as it was"
    assert not counted.exists() or counted.read_text() in ("as it was", "")


# The log's file


@pytest.mark.fault("privilege", "the caller's umask")
@pytest.mark.parametrize("umask", ["000", "022", "077", "777"])
def test_a_log_file_is_made_for_root_alone_whatever_the_umask(rdma: Rdma, run_dir: Path, umask: str) -> None:
    answer = rdma("DEL", CONF | {"logFile": "/run/log", "mtu": "x"}, wrapper=("sh", "-c", f'umask {umask}; exec "$0"'))
    assert answer.ok, answer
    assert (run_dir / "log").stat().st_mode & 0o7777 == 0o600
    assert "mtu" in (run_dir / "log").read_text()


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_what_multus_is_told_can_be_read_by_all_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """As a module: on this machine no VF with an RDMA device can be attached."""
    from rdma_cni import deviceinfo
    from rdma_cni.device import Function

    path = tmp_path / "info.json"
    before = os.umask(umask)
    try:
        deviceinfo.write(str(path), Function("0000:ff:1f.7"), ["rocep1s0"])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o644
    assert "rocep1s0" in path.read_text()


def test_a_log_file_that_is_there_keeps_its_mode(rdma: Rdma, run_dir: Path) -> None:
    (run_dir / "log").touch()
    (run_dir / "log").chmod(0o640)
    assert rdma("DEL", CONF | {"logFile": "/run/log", "mtu": "x"}).ok
    assert (run_dir / "log").stat().st_mode & 0o7777 == 0o640


@pytest.mark.fault("privilege", "a log file that is a link, a pipe, a directory or a socket")
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory", "socket"])
def test_a_log_file_that_is_no_file_is_refused_and_stops_no_del(rdma: Rdma, run_dir: Path, kind: str) -> None:
    log, elsewhere = run_dir / "log", run_dir / "elsewhere"
    if kind.endswith("link"):
        log.symlink_to("elsewhere")
        if kind == "link":
            elsewhere.touch()
    elif kind == "pipe":
        os.mkfifo(log)
    elif kind == "directory":
        log.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            # The path of a socket is short.
            before = Path.cwd()
            os.chdir(run_dir)
            try:
                listening.bind("log")
            finally:
                os.chdir(before)
    config = CONF | {"logFile": "/run/log"}
    answer = rdma("ADD", config)
    assert answer.error == 7
    assert answer.json["msg"].startswith("logFile: found '/run/log', expected a file that can be appended to")
    answer = rdma("DEL", config)
    assert answer.ok, answer
    assert "logFile" in answer.stderr
    assert not elsewhere.exists() or elsewhere.read_text() == ""


# node.json


def given_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def for_its_group(path: Path) -> None:
    path.chmod(0o660)


def for_all(path: Path) -> None:
    path.chmod(0o606)


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.fault("privilege", "node.json that others can write, or that is no plain file")
@pytest.mark.parametrize("change", [given_away, for_its_group, for_all, linked, a_pipe])
def test_a_node_file_that_others_can_write_is_not_believed(node: Node, change: Callable[[Path], None]) -> None:
    config = conf(nodes=None, nodeName=None, pools=[POOL])
    node.write_node_file({"nodeName": "gpu-07", "subnets": ["10.56.3.0/24"]})
    node.node_file.chmod(0o644)
    assert node.add(config) == ["10.56.3.2/24"]
    change(node.node_file)
    answer = node.cni("ADD", config, "c2")
    assert answer.error == 7
    assert answer.json["msg"].startswith("/run/rdma-cni/node.json: ")
    # What an attachment has is given back all the same.
    node.delete(config)


# Without room

FULL = """
saved=$1 after=$2 size=$3; shift 3
mount -t tmpfs -o size=$size tmpfs /run
cp -a "$saved" /run/rdma-cni
dd if=/dev/zero of=/run/filler bs=4096 status=none || true
set +e
"$@"
status=$?
cp -a /run/rdma-cni "$after"
exit $status
"""


@pytest.mark.fault("state", "/run is full when a DEL comes")
def test_a_del_succeeds_where_there_is_no_room_for_a_journal(rdma: Rdma, run_dir: Path, tmp_path: Path) -> None:
    from test_state import attached, containers

    assert rdma("DEL", CONF).ok
    state = run_dir / "rdma-cni"
    attached(state / "state.db", "c0", "0000:ff:05.0")
    attached(state / "state.db", "c1", "0000:ff:05.1")
    # The lock's file is there since the ADD.
    (state / "0000:ff:05.0.lock").touch(mode=0o600)
    saved, after = tmp_path / "saved", tmp_path / "after"
    subprocess.run(["cp", "-a", state, saved], check=True)
    answer = rdma("DEL", CONF, container="c0", wrapper=("sh", "-ec", FULL, "full", str(saved), str(after), "128k"))
    assert answer.ok, answer
    assert containers(after / "state.db") == ["c1"]
