"""The few things of `os` and `os.path` that are not in `posix`, the module in C behind them.

Importing `os`, with what that imports, takes a tenth of what the interpreter takes to start.
"""

import posix
import sys
from _stat import S_ISDIR, S_ISREG

_ENCODING = sys.getfilesystemencoding()


def fsencode(text: str) -> bytes:
    """As the kernel has it: what was no UTF-8 is again what it was."""
    return text.encode(_ENCODING, "surrogateescape")


def fsdecode(data: bytes) -> str:
    """The inverse of `fsencode`."""
    return data.decode(_ENCODING, "surrogateescape")


environ = {fsdecode(name): fsdecode(value) for name, value in posix.environ.items()}
"""The caller's environment."""


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


def exists(path: str) -> bool:
    """Whether something is at `path`, a symlink followed."""
    try:
        posix.stat(path)
    except (OSError, ValueError):
        return False
    return True


def lexists(path: str) -> bool:
    """The same of a symlink itself, wherever it leads."""
    try:
        posix.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def is_directory(path: str) -> bool:
    try:
        return S_ISDIR(posix.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def is_file(path: str) -> bool:
    try:
        return S_ISREG(posix.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def same_file(one: int, other: int) -> bool:
    """Whether two descriptors are of one file."""
    first, second = posix.fstat(one), posix.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
