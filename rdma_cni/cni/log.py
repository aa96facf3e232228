"""The log of one run: lines on stderr, or appended to a file that only root can read.

`logging` is not used: importing it costs more than all that the plugin does for a VERSION. There
is one log in a process, because there is one request in it.
"""

import posix
import time

LEVELS = {"error": 0, "warning": 1, "info": 2, "debug": 3}

_threshold = LEVELS["warning"]
_fd = 2
_subject = ""


def about(subject: str) -> None:
    """Name what this run is about, for each of its lines: `rdma ADD container/net1`."""
    global _subject
    _subject = printable(subject) + ": "


def configure(level: str, path: str) -> None:
    """Log from `level` (a key of LEVELS) up, to the file at `path`; "" is stderr.

    The file is created with mode 0600, whatever the umask, and is never reached through a symlink. One
    that is there keeps its mode, which may be an operator's choice. Raises OSError.
    """
    global _threshold, _fd
    _threshold = LEVELS[level]
    if path:
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK
        try:
            _fd = posix.open(path, flags)
        except FileNotFoundError:
            _fd = posix.open(path, flags | posix.O_CREAT, 0o600)
            posix.fchmod(_fd, 0o600)


def error(message: str) -> None:
    _write("error", message)


def warning(message: str) -> None:
    _write("warning", message)


def info(message: str) -> None:
    _write("info", message)


def debug(message: str) -> None:
    _write("debug", message)


def printable(text: str) -> str:
    """`text` without what could forge a line or steer a terminal: names come from pods, too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _write(level: str, message: str) -> None:
    if LEVELS[level] > _threshold:
        return
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{stamp} {level} {_subject}{printable(message)}\n".encode(errors="backslashreplace")
    for fd in (_fd, 2):
        try:
            posix.write(fd, line)
            return
        except OSError:
            # A log that cannot be written must not stop a VF from coming home.
            pass
