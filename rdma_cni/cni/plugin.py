"""The edge of a CNI plugin: reads the request, runs the command, prints one JSON object.

Nothing else in the program prints to stdout or ends the process.
"""

import _signal  # type: ignore[import-not-found]
import posix
import sys
import time

from rdma_cni.cni import jsontext, log, system
from rdma_cni.cni.errors import INTERNAL, INVALID_CONFIG, IO_FAILURE, TRY_AGAIN, CniError
from rdma_cni.cni.request import VERSIONS, Request, read
from rdma_cni.cni.undo import Undo


class Plugin:
    """A plugin's commands. Each raises CniError for what the caller must be told.

    `add` pushes onto `undo` what takes its work back, should a later step fail, the printing of
    the result included; its own failures too are undone by the caller.
    """

    name = ""
    about = ""

    def add(self, request: Request, undo: Undo) -> dict[str, object]:
        raise NotImplementedError

    def delete(self, request: Request) -> None:
        raise NotImplementedError

    def check(self, request: Request) -> None:
        raise NotImplementedError

    def gc(self, request: Request) -> None:
        raise NotImplementedError

    def status(self, request: Request) -> None:
        raise NotImplementedError


def run(plugin: Plugin) -> int:
    """Run the command that the environment asks `plugin` for; returns the exit status."""
    command = system.environ.get("CNI_COMMAND", "")
    if not command:
        if sys.stderr:
            sys.stderr.write(f"{plugin.about}\nCNI protocol versions supported: {', '.join(VERSIONS)}\n")
        return 0
    began = time.monotonic()
    request = Request(command)
    undo = Undo()
    counted = False
    try:
        try:
            for signal in _STOPPING:
                _signal.signal(signal, _terminated)
            read(request)
            if command != "VERSION":
                about = f"{plugin.name} {command} {request.network} {request.container} {request.ifname}"
                log.about(f"{about} {request.pod}".rstrip())
            result = _dispatch(plugin, request, undo)
            # It is done: from here on a signal comes too late to undo anything.
            _ignore_signals()
            if _stopped:
                # What it raised was lost on its way: something else was raised while that was cleaned up after.
                raise _stopped
            _count(plugin, command, 0, began)
            counted = True
            if result is not None:
                _print(result)
            undo.forget()
            return 0
        except BaseException as error:
            # Of a signal in the middle of an import little may be left: it can come out as an ImportError, or
            # as the panic of a Rust module, which is no Exception.
            failure = _stopped or (error if isinstance(error, CniError) else _internal(error))
        # A second signal must not cut the rollback short.
        _ignore_signals()
    except BaseException as error:
        # One that came while another failure was on its way.
        failure = _stopped or _internal(error)
    undo.roll_back()
    log.error(str(failure))
    if not counted:
        _count(plugin, command, failure.code, began)
    report: dict[str, object] = {"cniVersion": request.version, "code": failure.code, "msg": failure.message}
    if failure.details:
        report["details"] = failure.details
    try:
        _print(report)
    except CniError as error:
        log.error(str(error))
    return 1


def _count(plugin: Plugin, command: str, code: int, began: float) -> None:
    """Count the call, for `rdma-cni metrics`; VERSION is asked often and needs nothing."""
    if command not in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        return
    try:
        from rdma_cni.cni import calls

        calls.record(plugin.name, command, code, time.monotonic() - began)
    except Exception as error:
        # All is done: nothing of this may fail the call.
        log.debug(f"not counted: {error!r}")


def _dispatch(plugin: Plugin, request: Request, undo: Undo) -> dict[str, object] | None:
    match request.command:
        case "ADD":
            return plugin.add(request, undo)
        case "DEL":
            plugin.delete(request)
        case "CHECK":
            plugin.check(request)
        case "GC":
            plugin.gc(request)
        case "STATUS":
            plugin.status(request)
        case "VERSION":
            # In the version that was asked in, though it be one that is yet to come.
            asked = request.config.get("cniVersion")
            version = asked if isinstance(asked, str) else request.version
            return {"cniVersion": version, "supportedVersions": list(VERSIONS)}
    return None


VALID_ATTACHMENTS = "cni.dev/valid-attachments"


def valid_attachments(request: Request) -> set[tuple[str, str]]:
    """(container, interface) of what GC is to keep: `cni.dev/valid-attachments`.

    libcni sends null for an empty list, and nothing at all is the same.
    """
    key = VALID_ATTACHMENTS
    listed = request.config.get(key)
    if listed is None:
        return set()
    if not isinstance(listed, list):
        raise CniError(INVALID_CONFIG, f"{key}: found {type(listed).__name__}, expected a list")
    valid = set()
    for index, entry in enumerate(listed):
        found = entry if isinstance(entry, dict) else {}
        container, ifname = found.get("containerID"), found.get("ifname")
        # A list that cannot be read says nothing of what may go: nothing does.
        if not isinstance(container, str) or not isinstance(ifname, str):
            raise CniError(
                INVALID_CONFIG,
                f'{key}[{index}]: found {repr(entry)[:80]}, expected {{"containerID": "...", "ifname": "..."}}',
            )
        valid.add((container, ifname))
    return valid


class _StoppedError(BaseException):
    """A signal came. No CniError: what deals with those on the way would take it for an answer and go on."""


_stopped: CniError | None = None
_STOPPING = {_signal.SIGTERM: "SIGTERM", _signal.SIGINT: "SIGINT"}


def _terminated(signal: int, frame: object) -> None:
    # Here, not where it is caught: a second one may come before that.
    _ignore_signals()
    global _stopped
    _stopped = CniError(TRY_AGAIN, f"stopped by {_STOPPING[signal]}; what an ADD did so far is undone; call again")
    raise _StoppedError(_stopped.message)


def _ignore_signals() -> None:
    for signal in _STOPPING:
        _signal.signal(signal, _signal.SIG_IGN)


def _print(value: dict[str, object]) -> None:
    data = jsontext.dump(value) + b"\n"
    try:
        while data:
            data = data[posix.write(1, data) :]
    except OSError as error:
        raise CniError(IO_FAILURE, f"stdout: the result cannot be written: {error.strerror}") from None


def _internal(error: BaseException) -> CniError:
    """A defect of ours, in one line: what was raised, and the lines that led there."""
    places = []
    trace = error.__traceback__
    while trace:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return CniError(
        INTERNAL,
        f"internal error: {type(error).__name__}: {error}; this is a defect of the plugin: please report it",
        f"at {' > '.join(places)}; Python {sys.version.split()[0]}",
    )
