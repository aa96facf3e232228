"""SQLite files that belong to root alone, shared by the processes of one node.

The module `sqlite3` is a shell around `_sqlite3` that registers converters for dates; only what
is inside is loaded.
"""

import fcntl
import os
import stat
import time
from _sqlite3 import DatabaseError, OperationalError, connect

from rdma_cni.cni import log
from rdma_cni.cni.errors import IO_FAILURE, TRY_AGAIN, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from sqlite3 import Connection

DIRECTORY = "/run/rdma-cni"
PATIENCE = 10.0
"""Seconds that a process waits for a lock before it tells its caller to try again."""


def open_directory(path: str = DIRECTORY) -> int:
    """A descriptor of the state directory, made 0700 where it was not. Raises CniError 5."""
    try:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise CniError(
            IO_FAILURE, f"{path}: expected the directory of the state, private to root: {error.strerror}"
        ) from None
    try:
        _make_private(fd, path, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_file(directory: int, name: str) -> int:
    """A descriptor of a private file (0600) in the state directory, made when it is not there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise CniError(IO_FAILURE, f"{DIRECTORY}/{name}: cannot be opened: {error.strerror}") from None
    try:
        _make_private(fd, f"{DIRECTORY}/{name}", 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _make_private(fd: int, path: str, mode: int) -> None:
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        raise CniError(
            IO_FAILURE,
            f"{path}: belongs to user {found.st_uid}, expected {os.geteuid()}; find out who made it, then remove it",
        )
    if mode == 0o600 and not stat.S_ISREG(found.st_mode):
        raise CniError(IO_FAILURE, f"{path}: expected a plain file; find out what it is, then remove it")
    if stat.S_IMODE(found.st_mode) != mode:
        # The umask may have narrowed it, or somebody widened it.
        os.fchmod(fd, mode)


class Database:
    """One SQLite file in the state directory, with a schema and its version.

    Errors of SQLite come out as CniError: 11 when another process holds the lock for longer than
    PATIENCE, 5 for everything else. A file that is no database, or of a version that is not
    known, is moved aside and begun anew, and `recovered` says under which name it lies.
    """

    def __init__(self, name: str, schema: str, version: int) -> None:
        self.path = f"{DIRECTORY}/{name}"
        self.directory = open_directory()
        self.recovered = ""
        self._name, self._schema, self._version = name, schema, version
        try:
            self._connection = self._open()
        except _UnusableError as problem:
            self._move_aside(str(problem))
            try:
                self._connection = self._open()
            except _UnusableError as again:
                raise CniError(IO_FAILURE, f"{self.path}: {again}") from None

    def _open(self) -> "Connection":
        os.close(open_file(self.directory, self._name))
        try:
            connection: Connection = connect(self.path, timeout=PATIENCE, isolation_level=None)
            # The journal makes a transaction survive a killed process. Waiting for a disk adds
            # nothing to that: the state is about this boot's kernel, and /run is gone with it.
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA journal_mode=TRUNCATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                connection.execute("BEGIN IMMEDIATE")
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:
                    for statement in self._schema.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version={self._version}")
                    version = self._version
                connection.execute("COMMIT")
        except OperationalError as error:
            raise self._failure(error) from None
        except DatabaseError as error:
            raise _UnusableError(f"not usable as a database ({error})") from None
        if version != self._version:
            connection.close()
            raise _UnusableError(f"made by another version of the plugin (schema {version}, expected {self._version})")
        return connection

    def _move_aside(self, problem: str) -> None:
        # The directory's lock keeps a second process from moving the new file aside, too.
        fcntl.flock(self.directory, fcntl.LOCK_EX)
        try:
            try:
                self._open().close()
                return
            except _UnusableError:
                pass
            self.recovered = f"{self._name}.bad-{time.time_ns()}"
            for suffix in ("", "-journal"):
                try:
                    os.rename(
                        self._name + suffix,
                        self.recovered + suffix,
                        src_dir_fd=self.directory,
                        dst_dir_fd=self.directory,
                    )
                except FileNotFoundError:
                    pass
            log.warning(f"{self.path}: {problem}; moved aside as {self.recovered}, and begun anew")
        finally:
            fcntl.flock(self.directory, fcntl.LOCK_UN)

    def execute(self, statement: str, values: "Iterable[object]" = ()) -> list[tuple[object, ...]]:
        """The rows that a statement answers; on its own a transaction of its own."""
        try:
            return self._connection.execute(statement, values).fetchall()  # type: ignore[arg-type]
        except DatabaseError as error:
            raise self._failure(error) from None

    def __enter__(self) -> "Database":
        """Begin a transaction that no other process is writing beside."""
        self.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.execute("COMMIT" if kind is None else "ROLLBACK")

    def close(self) -> None:
        """Let go of the files."""
        self._connection.close()
        os.close(self.directory)

    def _failure(self, error: Exception) -> CniError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return CniError(
                TRY_AGAIN, f"{self.path}: locked by another process for {PATIENCE:.0f} s ({text}); try again"
            )
        return CniError(IO_FAILURE, f"{self.path}: cannot be used: {text}; check that it can be written")


class _UnusableError(Exception):
    """What is in the file is no database of ours."""


class Lock:
    """A lock that the kernel takes back when its holder dies, with a note of who holds it."""

    def __init__(self, directory: int, name: str, holder: str) -> None:
        """Wait for it, PATIENCE seconds at the most. Raises CniError 11 naming the holder."""
        self._fd = open_file(directory, name)
        deadline = time.monotonic() + PATIENCE
        pause = 0.002
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    other = os.pread(self._fd, 1024, 0).decode(errors="replace").strip() or "an unnamed process"
                    os.close(self._fd)
                    raise CniError(
                        TRY_AGAIN, f"{DIRECTORY}/{name}: held for {PATIENCE:.0f} s by {other}; try again"
                    ) from None
                time.sleep(pause)
                pause = min(pause * 2, 0.1)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()}, {holder}\n".encode(), 0)

    def release(self) -> None:
        """Let the next one have it."""
        os.close(self._fd)
