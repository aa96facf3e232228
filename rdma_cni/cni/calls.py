"""Counts the calls of the plugins and how long they took, for `rdma-cni metrics`.

The file has a line of fixed length for each plugin, command and outcome, with a histogram, so that it does
not grow with the calls: counting one is a read and a write in place under a lock. It never fails a call,
and waits for nobody for long: a call that cannot be counted is not.
"""

import posix
import time
from _stat import S_ISDIR, S_ISREG

from rdma_cni.cni import DIRECTORY

FILE = f"{DIRECTORY}/calls"
BOUNDS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
"""Milliseconds: the upper bounds of the histogram's buckets; one more is for what took longer."""

_LINE = 256
"""Bytes: a page of the file's cache has a whole number of them, so that none is ever half written."""
_MAX_LINES = 256
"""Codes of other plugins may be any; beyond that many lines nothing new is counted."""
_PATIENCE = 50


class Count:
    """The calls of one plugin's command with one outcome: `code` is that of the error, 0 for success.

    `buckets` has the number of calls for each of BOUNDS and one more; `microseconds` is their sum.
    """

    __slots__ = ("buckets", "code", "command", "microseconds", "plugin")

    def __init__(self, plugin: str, command: str, code: int, microseconds: int, buckets: list[int]) -> None:
        self.plugin = plugin
        self.command = command
        self.code = code
        self.microseconds = microseconds
        self.buckets = buckets


def record(plugin: str, command: str, code: int, seconds: float) -> None:
    """Count one call. Whatever goes wrong, it returns."""
    try:
        try:
            fd = _open()
        except FileNotFoundError:
            posix.mkdir(DIRECTORY, 0o700)
            fd = _open()
        try:
            if _is_roots(fd) and _lock(fd):
                _add(fd, f"{plugin} {command} {code} ".encode(), round(seconds * 1e6))
        finally:
            # The lock goes with it.
            posix.close(fd)
    except (OSError, ValueError):
        pass


def _open() -> int:
    return posix.open(FILE, posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC, 0o600)


def _is_roots(fd: int) -> bool:
    """Whether file and directory are what `Database` would take, too: in another's place nothing is written."""
    directory, file, user = posix.lstat(DIRECTORY), posix.fstat(fd), posix.geteuid()
    return (
        S_ISDIR(directory.st_mode)
        and directory.st_uid == file.st_uid == user
        and not directory.st_mode & 0o022
        and S_ISREG(file.st_mode)
        and file.st_nlink == 1
    )


def _lock(fd: int) -> bool:
    for _ in range(_PATIENCE):
        try:
            posix.lockf(fd, posix.F_TLOCK, 0)
            return True
        except OSError:
            # Another call is being counted, which takes a twentieth of a millisecond.
            time.sleep(0.0002)
    return False


def _add(fd: int, key: bytes, microseconds: int) -> None:
    data = posix.pread(fd, _LINE * _MAX_LINES, 0)
    if not data:
        # The umask may have narrowed it.
        posix.fchmod(fd, 0o600)
    numbers = [0] * (len(BOUNDS) + 2)
    place = data.find(key)
    while place % _LINE and place > 0:
        place = data.find(key, place + 1)
    if place < 0:
        place = len(data) // _LINE * _LINE
        if place == _LINE * _MAX_LINES:
            return
    else:
        known = data[place + len(key) : place + _LINE].split()
        # Otherwise somebody else has written into it: it begins anew.
        if len(known) == len(numbers) and all(number.isdigit() for number in known):
            numbers = [int(number) for number in known]
    bucket = 1
    for bound in BOUNDS:
        if microseconds <= bound * 1000:
            break
        bucket += 1
    numbers[0] += microseconds
    numbers[bucket] += 1
    line = key + " ".join(map(str, numbers)).encode()
    posix.pwrite(fd, line.ljust(_LINE - 1)[: _LINE - 1] + b"\n", place)


def read() -> list[Count]:
    """What was counted since the boot. Raises OSError. A line that is damaged is left out."""
    try:
        fd = posix.open(FILE, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        # Without the lock, which is for those that change it: what is read twice is no half of a change.
        data, before = posix.pread(fd, _LINE * _MAX_LINES, 0), b""
        while data != before:
            data, before = posix.pread(fd, _LINE * _MAX_LINES, 0), data
    finally:
        posix.close(fd)
    found = []
    for place in range(0, len(data), _LINE):
        try:
            line = data[place : place + _LINE].decode("ascii")
            plugin, command, code, microseconds, *buckets = line.split()
            if len(buckets) == len(BOUNDS) + 1:
                found.append(Count(plugin, command, int(code), int(microseconds), [int(each) for each in buckets]))
        except ValueError:
            continue
    return found
