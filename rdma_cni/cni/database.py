"""SQLite files that belong to root alone, shared by the processes of one node.

The module `sqlite3` is a shell around `_sqlite3` that registers converters for dates; only what
is inside is loaded (`sqlite.py`).
"""

import _stat
import fcntl
import posix
import time

from rdma_cni.cni import DIRECTORY as DIRECTORY  # noqa: PLC0414 - re-exported
from rdma_cni.cni import log, system
from rdma_cni.cni.errors import IO_FAILURE, TRY_AGAIN, CniError
from rdma_cni.cni.sqlite import ERRORS, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from sqlite3 import Connection, Cursor

_SQLITE_ERROR, _SQLITE_READONLY, _SQLITE_CORRUPT, _SQLITE_TOOBIG, _SQLITE_NOTADB = 1, 8, 11, 18, 26
_SQLITE_LIMIT_LENGTH = 0
_MAX_VALUE = 1 << 22
"""Bytes of a row. In a damaged file one may claim to have a gigabyte."""
PATIENCE = 10.0
"""Seconds that a process waits for a lock before it tells its caller to try again."""


def open_directory(path: str = DIRECTORY) -> int:
    """A descriptor of the state directory, made 0700 where it was not. Raises CniError 5."""
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        try:
            fd = posix.open(path, flags)
        except FileNotFoundError:
            try:
                posix.mkdir(path, 0o700)
            except FileExistsError:
                pass
            fd = posix.open(path, flags)
    except OSError as error:
        raise CniError(
            IO_FAILURE, f"{path}: expected the directory of the state, private to root: {error.strerror}"
        ) from None
    try:
        _make_private(fd, path, 0o700)
    except BaseException:
        posix.close(fd)
        raise
    return fd


def open_file(directory: int, name: str, *, create: bool = True) -> int:
    """A descriptor of a private file (0600) in the state directory, made when it is not there.

    Raises CniError 5, and FileNotFoundError when it is not to be made.
    """
    flags = posix.O_RDWR | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC | (posix.O_CREAT if create else 0)
    try:
        fd = posix.open(name, flags, 0o600, dir_fd=directory)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not create:
            raise
        raise CniError(IO_FAILURE, f"{DIRECTORY}/{name}: cannot be opened: {error.strerror}") from None
    try:
        _make_private(fd, f"{DIRECTORY}/{name}", 0o600)
    except BaseException:
        posix.close(fd)
        raise
    return fd


def _make_private(fd: int, path: str, mode: int) -> None:
    found = posix.fstat(fd)
    if found.st_uid != posix.geteuid():
        raise CniError(
            IO_FAILURE,
            f"{path}: belongs to user {found.st_uid}, expected {posix.geteuid()}; find out who made it, then remove it",
        )
    if mode == 0o600 and not _stat.S_ISREG(found.st_mode):
        raise CniError(IO_FAILURE, f"{path}: expected a plain file; find out what it is, then remove it")
    if _stat.S_IMODE(found.st_mode) != mode:
        # The umask may have narrowed it, or somebody widened it.
        posix.fchmod(fd, mode)


class Database:
    """One SQLite file in the state directory, with a schema and its version.

    Errors of SQLite come out as CniError: 11 when another process holds the lock for longer than
    PATIENCE, 5 for everything else. A file that is no database, damaged, or of an older schema is moved
    aside, logged, and replaced by a new one with what `salvage` gets out of the old one. One of a newer
    schema says what this version cannot know: it is refused.
    """

    def __init__(self, name: str, schema: str, version: int) -> None:
        self.path = f"{DIRECTORY}/{name}"
        self.directory = open_directory()
        self._name, self._schema, self._version = name, schema, version
        self._inode = 0
        try:
            self._connection = self._open_or_make()
        except BaseException:
            posix.close(self.directory)
            raise

    def salvage(self, new: "Connection", old: "Connection", damaged: str) -> str:
        """Put into `new` what can be told from `old`, the file `damaged`; what to add to the log's line.

        No other process writes to either meanwhile.
        """
        return "begun anew"

    def _open_or_make(self) -> "Connection":
        try:
            try:
                return self._open()
            except FileNotFoundError:
                self._create()
            except _UnusableError as problem:
                self._replace(str(problem))
            return self._open()
        except _UnusableError as problem:
            raise CniError(IO_FAILURE, f"{self.path}: {problem}; remove it") from None

    def _open(self) -> "Connection":
        """Raises FileNotFoundError, _UnusableError or CniError."""
        fd = open_file(self.directory, self._name, create=False)
        self._inode = posix.fstat(fd).st_ino
        posix.close(fd)
        self._check_journal()
        try:
            connection = _connect(self.path)
        except CniError:
            if self._is_in_place():
                raise
            raise FileNotFoundError from None
        try:
            version = _patiently(connection, "PRAGMA user_version").fetchone()[0]
            if version == self._version:
                return connection
            newer = version > self._version and connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        except ERRORS as error:
            if not _is_damage(error):
                raise self._failure(error) from None
            raise _UnusableError(f"not usable as a database ({error})") from None
        connection.close()
        if newer:
            raise CniError(
                IO_FAILURE,
                f"{self.path}: found schema {version}, which a newer version of this plugin wrote, expected "
                f"{self._version}: install that version again; or drain the node's pods that this plugin serves, and "
                "remove the file",
            )
        found = f"of schema {version}" if version else "empty"
        raise _UnusableError(f"{found}, expected schema {self._version}")

    def _check_journal(self) -> None:
        """What SQLite would follow or play back is root's own. Raises CniError 5."""
        name = f"{self._name}-journal"
        try:
            found = posix.stat(name, dir_fd=self.directory, follow_symlinks=False)
        except OSError:
            return
        if found.st_uid != posix.geteuid() or not _stat.S_ISREG(found.st_mode):
            raise CniError(
                IO_FAILURE,
                f"{DIRECTORY}/{name}: expected a plain file of user {posix.geteuid()}; find out what it is and who "
                "made it, then remove it",
            )

    def _create(self) -> None:
        """Make the file, whole at once: one that is empty can only be damaged."""
        lock = Lock(self.directory, "recovery.lock", f"making {self._name}")
        try:
            if not system.exists(self.path):
                self._fill().close()
                posix.rename(f"{self.path}.new", self.path)
        except OSError as error:
            raise CniError(IO_FAILURE, f"{self.path}: cannot be made: {error.strerror}") from None
        finally:
            lock.release()

    def _replace(self, problem: str, *, certain: bool = False) -> None:
        """Put a new file in the place of one that is of no use, and keep that beside it.

        `certain`: the damage showed only in use; opening the file again would not tell.
        """
        # The lock keeps a second process from replacing the new one, too.
        lock = Lock(self.directory, "recovery.lock", f"replacing {self._name}")
        try:
            if certain and not self._is_in_place():
                return
            if not certain:
                try:
                    self._open().close()
                    return
                except _UnusableError:
                    pass
            aside = f"{self.path}.bad-{time.time_ns()}"
            old = _connect(self.path)
            try:
                # What others write into it from here on would be lost; see __enter__.
                self._exclude_writers(old)
                posix.link(self.path, aside)
                if system.exists(f"{self.path}-journal") and posix.stat(f"{self.path}-journal").st_size:
                    # What a killed process left half done: it would be played back into the new file.
                    posix.rename(f"{self.path}-journal", f"{aside}-journal")
                try:
                    self._fill(aside, old, f"{self.path}: {problem}; moved aside as {aside}").close()
                    posix.rename(f"{self.path}.new", self.path)
                except BaseException:
                    posix.unlink(aside)
                    raise
            finally:
                old.close()
        except OSError as error:
            raise CniError(IO_FAILURE, f"{self.path}: {problem}, and cannot be moved aside: {error.strerror}") from None
        finally:
            lock.release()

    def _exclude_writers(self, old: "Connection") -> None:
        """Raises CniError 11 when another process is writing for longer than PATIENCE."""
        try:
            # With a journal on disk it would be ours that lies beside the new file.
            _patiently(old, "PRAGMA journal_mode=MEMORY")
            _patiently(old, "BEGIN IMMEDIATE")
        except ERRORS as error:
            # Damaged so badly, it takes nobody's.
            if "locked" in str(error):
                raise self._failure(error) from None

    def _fill(self, damaged: str = "", old: "Connection | None" = None, log_line: str = "") -> "Connection":
        for leftover in (f"{self.path}.new", f"{self.path}.new-journal"):
            if system.lexists(leftover):
                posix.unlink(leftover)
        posix.close(open_file(self.directory, f"{self._name}.new"))
        connection = _connect(f"{self.path}.new")
        try:
            # Nobody sees the file before it is whole.
            connection.execute("PRAGMA journal_mode=MEMORY")
            connection.execute("BEGIN IMMEDIATE")
            for statement in self._schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={self._version}")
            if old:
                outcome = self.salvage(connection, old, damaged)
                log.warning(f"{log_line}; {outcome}")
            connection.execute("COMMIT")
        except ERRORS as error:
            # Nothing is known of the file in use by what befalls the one that is to come.
            raise CniError(
                IO_FAILURE, f"{self.path}: cannot be made: {error}; is there room, and may root write there?"
            ) from None
        return connection

    def execute(self, statement: str, values: "Iterable[object]" = ()) -> list[tuple[object, ...]]:
        """The rows that a statement answers; on its own a transaction of its own."""
        try:
            return _patiently(self._connection, statement, values).fetchall()
        except ERRORS as error:
            raise self._failure(error) from None

    def reclaim(self, statement: str, values: "Iterable[object]" = ()) -> None:
        """A transaction that only takes away: it succeeds where there is no room for a journal, too."""
        try:
            with self:
                self.execute(statement, values)
        except CniError as error:
            if error.code != IO_FAILURE:
                raise
            # In memory; a process that is killed just now leaves a damaged file, which is recovered from.
            self.execute("PRAGMA journal_mode=MEMORY")
            with self:
                self.execute(statement, values)

    def __enter__(self) -> "Database":
        """Begin a transaction that no other process is writing beside.

        The file may have been replaced since it was opened. Whoever replaces it has the lock that
        this waits for, so that nothing is ever written into one that is of no use any more.
        """
        while True:
            if self._is_in_place():
                self.execute("BEGIN IMMEDIATE")
                if self._is_in_place():
                    return self
            self._connection.close()
            self._connection = self._open_or_make()

    def _is_in_place(self) -> bool:
        try:
            return posix.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.execute("COMMIT")
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        """End the transaction if there still is one: a COMMIT may fail, too."""
        try:
            # SQLite itself has rolled back already, when the disk was full for instance.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except ERRORS:
            # The error that led here is the one to tell; closing the file ends the transaction, too.
            pass

    def close(self) -> None:
        """Let go of the files."""
        self._connection.close()
        posix.close(self.directory)

    def _failure(self, error: Exception) -> CniError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return CniError(
                TRY_AGAIN,
                f"{self.path}: locked by {_writer(self._inode)} for {PATIENCE:.0f} s ({text}); try again",
            )
        if _is_damage(error):
            try:
                # Its lock would stand in the way.
                self._connection.close()
                self._replace(f"damaged ({text})", certain=True)
                self._connection = self._open_or_make()
            except CniError as failure:
                return failure
            return CniError(TRY_AGAIN, f"{self.path}: was damaged ({text}), and is moved aside; try again")
        return CniError(IO_FAILURE, f"{self.path}: cannot be used: {text}; is there room, and may root write there?")


def _connect(path: str) -> "Connection":
    """Raises CniError 5."""
    # What is made is made by `open_file`.
    uri = f"file:{path.replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode=rw"
    connection: Connection
    try:
        # One thread may open it for another; they never use it at once.
        connection = connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    except ERRORS as error:
        raise CniError(IO_FAILURE, f"{path}: cannot be opened: {error}; may root write there?") from None
    connection.setlimit(_SQLITE_LIMIT_LENGTH, _MAX_VALUE)
    try:
        # The journal makes a transaction survive a killed process. Waiting for a disk adds nothing
        # to that: the state is about this boot's kernel, and /run is gone with it.
        connection.execute("PRAGMA synchronous=OFF")
        _patiently(connection, "PRAGMA journal_mode=TRUNCATE")
    except ERRORS:
        # Told by whatever is asked of it next.
        pass
    return connection


def _patiently(connection: "Connection", statement: str, values: "Iterable[object]" = ()) -> "Cursor":
    """Run a statement; wait for a lock, PATIENCE seconds at the most.

    SQLite's own waiting sleeps for up to 0.1 s at a time, in which others come first again and again.
    """
    deadline = 0.0
    pause = 0.001
    while True:
        try:
            return connection.execute(statement, values)  # type: ignore[arg-type]
        except ERRORS as error:
            now = time.monotonic()
            deadline = deadline or now + PATIENCE
            if "locked" not in str(error) or now > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 1.5, 0.005)


def _is_damage(error: Exception) -> bool:
    """Whether an error of SQLite's tells of what is in the file, and not of the system around it."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # A text that is no UTF-8 is found after SQLite has handed it over.
        return "UTF-8" in str(error)
    if code == _SQLITE_ERROR:
        # Tables, columns, an encoding that are not what they were. What "cannot" be done is about transactions.
        return not str(error).startswith("cannot ")
    # The file could be opened for writing: it is its own head that says it is read-only.
    return code & 0xFF in (_SQLITE_CORRUPT, _SQLITE_TOOBIG, _SQLITE_NOTADB) or code == _SQLITE_READONLY


def _writer(inode: int) -> str:
    """The process that has a file locked for writing, as /proc/locks tells it."""
    own = str(posix.getpid())
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                # 1: POSIX  ADVISORY  WRITE 1234 00:1a:5678 1073741825 1073741825
                fields = line.split()
                if "WRITE" in fields[3:4] and fields[5].endswith(f":{inode}") and fields[4] not in (own, "0", "-1"):
                    with open(f"/proc/{fields[4]}/comm", encoding="utf-8", errors="replace") as comm:
                        return f"process {fields[4]} ({comm.read().strip()})"
    except OSError:
        pass
    return "another process"


class _UnusableError(Exception):
    """What is in the file is no database of ours."""


class Lock:
    """A lock that the kernel takes back when its holder dies, with a note of who holds it."""

    def __init__(self, directory: int, name: str, holder: str, patience: float = PATIENCE) -> None:
        """Wait for it, `patience` seconds at the most. Raises CniError 11 naming the holder."""
        self._fd = open_file(directory, name)
        deadline = time.monotonic() + patience
        pause = 0.002
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    other = posix.pread(self._fd, 1024, 0).decode(errors="replace").strip() or "an unnamed process"
                    posix.close(self._fd)
                    raise CniError(
                        TRY_AGAIN, f"{DIRECTORY}/{name}: held for {patience:.0f} s by {other}; try again"
                    ) from None
                time.sleep(pause)
                pause = min(pause * 2, 0.1)
        try:
            posix.ftruncate(self._fd, 0)
            posix.pwrite(self._fd, f"process {posix.getpid()}, {holder}\n".encode(), 0)
        except OSError as error:
            # The lock is had all the same: only the note is for want of room.
            log.debug(f"{DIRECTORY}/{name}: {error.strerror}")

    def release(self) -> None:
        """Let the next one have it."""
        posix.close(self._fd)
