"""The device-information file that Multus and KubeVirt read: which RDMA devices an attachment has.

Version 1.1.0 of the Network Plumbing Working Group's device-info specification. Other plugins write
to the same file; what they wrote stays. It is information: a file that cannot be had stops nothing.
"""

import os
from errno import ENOSPC

from rdma_cni.cni import jsontext, log
from rdma_cni.cni.typecast import cast
from rdma_cni.device import Function

_MAX_FILE = 1 << 20
_KEY = "rdma-device"


def write(path: str, function: Function, rdma_names: list[str]) -> None:
    """Say in the file that the function's RDMA devices have these names in the pod."""
    try:
        info = _read(path)
        if info is None:
            info = _new(function)
        pci = info.setdefault("pci", {})
        if not isinstance(pci, dict):
            raise ValueError("`pci` is no object")
        pci[_KEY] = ",".join(rdma_names)
        _replace(path, info)
    except (OSError, ValueError) as error:
        log.warning(f"runtimeConfig.CNIDeviceInfoFile: {path}: {_reason(error)}; it does not tell of {function.id}")


def remove(path: str, function: Function) -> None:
    """Take what `write` wrote out of the file, and the file away when nothing else is in it."""
    try:
        if os.path.lexists(_temporary(path)):
            os.unlink(_temporary(path))
        info = _read(path)
        pci = info.get("pci") if info else None
        if info is None or not isinstance(pci, dict) or _KEY not in pci:
            return
        del pci[_KEY]
        if info == _new(function):
            os.unlink(path)
        else:
            _replace(path, info)
    except (OSError, ValueError) as error:
        log.warning(f"runtimeConfig.CNIDeviceInfoFile: {path}: {_reason(error)}; it may still tell of {function.id}")


def _new(function: Function) -> dict[str, object]:
    pci: dict[str, object] = {"pci-address": function.id} if function.is_pci else {}
    pf = function.physical_function()
    if pf:
        pci["pf-pci-address"] = pf
    return {"type": "pci", "version": "1.1.0", "pci": pci}


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _read(path: str) -> dict[str, object] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        data = os.read(fd, _MAX_FILE + 1)
    finally:
        os.close(fd)
    if len(data) > _MAX_FILE:
        raise ValueError(f"more than {_MAX_FILE} bytes")
    if not data:
        return None
    value = jsontext.parse(data)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return cast("dict[str, object]", value)


def _replace(path: str, info: dict[str, object]) -> None:
    """Write the file whole: its readers do not lock."""
    directory = path.rpartition("/")[0] or "/"
    if not os.path.isdir(directory):
        os.makedirs(directory, 0o755)
    temporary = _temporary(path)
    if os.path.lexists(temporary):
        # Of one that was killed while it wrote.
        os.unlink(temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        data = jsontext.dump(info)
        try:
            # Its readers are others; the caller's umask is not about them.
            os.fchmod(fd, 0o644)
            if os.write(fd, data) < len(data):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        # A signal may have come when it had its name already.
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise


def _temporary(path: str) -> str:
    """The file under its name of while it is written: the plugins of an attachment write one after the other."""
    return f"{path}.rdma-new"
