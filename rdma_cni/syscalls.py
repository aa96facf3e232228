"""System calls that `posix` lacks, through `_ctypes`, the half of `ctypes` that is written in C.

The frozen program has the same in C (frozen/syscalls.c); this is for an interpreter that is any other.
"""

import posix
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, dlsym, get_errno

_CLONE_NEWNET = 0x40000000

# linux/mount.h; the three calls have these numbers on every architecture but Alpha.
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC, _FSCONFIG_CMD_CREATE, _FSMOUNT_CLOEXEC, _MOUNT_ATTR_RDONLY = 1, 6, 1, 1


class _Int(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _String(_SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Int


def _call(name: str, *arguments: object) -> int:
    """Call a function of libc that answers -1 and sets errno. Raises OSError."""
    result: int = _Function(dlsym(dlopen(None, 0), name))(*arguments)  # type: ignore[arg-type]
    if result == -1:
        errno = get_errno()
        raise OSError(errno, posix.strerror(errno))
    return result


def setns(fd: int) -> None:
    """Put the calling thread into a network namespace. Raises OSError."""
    _call("setns", fd, _CLONE_NEWNET)


def sysfs() -> int:
    """A descriptor of the root of a sysfs of the calling thread's network namespace, read-only. Raises OSError.

    It is mounted nowhere, and gone when the descriptor is closed.
    """
    context = _call("syscall", _SYS_FSOPEN, _String(b"sysfs"), _FSOPEN_CLOEXEC)
    try:
        _call("syscall", _SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _call("syscall", _SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, _MOUNT_ATTR_RDONLY)
    finally:
        posix.close(context)
