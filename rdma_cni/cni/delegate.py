"""Running another plugin (CNI spec 1.1.0, "Plugin Delegation"): an IPAM plugin, in practice."""

import posix
import select
from _signal import SIGKILL, SIGPIPE  # type: ignore[import-not-found]

from rdma_cni.cni import checks, jsontext, log, system
from rdma_cni.cni.errors import (
    INVALID_CONFIG,
    INVALID_ENVIRONMENT,
    IPAM_FAILED,
    IPAM_MISSING,
    IPAM_NONSENSE,
    CniError,
)
from rdma_cni.cni.request import Request

_MAX_ANSWER = 1 << 20


def supports(request: Request, plugin: str, version: str) -> bool:
    """Whether `plugin` speaks `version`: older ones answer commands that they do not know with errors."""
    question = jsontext.dump({"cniVersion": request.version})
    try:
        answer = run(request, plugin, "VERSION", stdin=question)
    except CniError as error:
        log.debug(f"{plugin} VERSION: {error}")
        return False
    versions = answer.get("supportedVersions")
    return isinstance(versions, list) and version in versions


def run(
    request: Request,
    plugin: str,
    command: str = "",
    *,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> dict[str, object]:
    """Run `plugin` (a `type`) for `request` and return the object it answered, {} for nothing.

    It gets the configuration that this plugin got, byte for byte, and the caller's environment
    with `command` and what `environment` changes. Raises CniError: 104 when there is no such
    plugin, its own code when it says one, 105 when it fails without, 106 for an answer that is
    no object.
    """
    path = find(request, plugin)
    command = command or request.command
    env = callers_environment()
    if request.ifname:
        env["CNI_IFNAME"] = request.ifname
    env.update(environment or {})
    env["CNI_COMMAND"] = command
    answer, status = _execute(path, env, request.stdin if stdin is None else stdin)
    what = f'plugin "{plugin}" ({path}) {command}'
    if len(answer) > _MAX_ANSWER:
        raise CniError(IPAM_NONSENSE, f"{what}: answered more than {_MAX_ANSWER} bytes, expected one JSON object")
    if status == 0 and not answer.strip():
        return {}
    try:
        value = jsontext.parse(answer)
    except ValueError as error:
        value = None
        problem = str(error)
    else:
        problem = f"found a {type(value).__name__}"
    if status == 0:
        if not isinstance(value, dict):
            shown = answer[:80].decode(errors="backslashreplace")
            raise CniError(IPAM_NONSENSE, f"{what}: expected one JSON object, {problem}: {shown!r}")
        return value
    if isinstance(value, dict):
        code, message, details = value.get("code"), value.get("msg"), value.get("details")
        if type(code) is int and 0 < code <= 0xFFFFFFFF and isinstance(message, str):
            raise CniError(code, f'plugin "{plugin}": {message}', details if isinstance(details, str) else "")
        problem = f"found code {repr(code)[:40]} and msg {repr(message)[:200]}, expected a number and a text"
    ended = f"with signal {-status}" if status < 0 else f"with exit status {status}"
    raise CniError(
        IPAM_FAILED,
        f"{what}: ended {ended} and no CNI error on its stdout ({problem}); see what it wrote to stderr",
    )


def find(request: Request, plugin: str) -> str:
    """The path of the executable for `plugin` in CNI_PATH. Raises CniError 4, 7 or 104."""
    try:
        checks.plugin_name(plugin)
    except ValueError as error:
        raise CniError(INVALID_CONFIG, f"ipam.type: found {plugin[:80]!r}, expected {error}") from None
    if not request.path:
        raise CniError(INVALID_ENVIRONMENT, f'CNI_PATH: not set, so the plugin "{plugin}" cannot be found')
    for directory in request.path:
        path = f"{directory}/{plugin}"
        if system.is_file(path) and posix.access(path, posix.X_OK):
            return path
    raise CniError(
        IPAM_MISSING,
        f'no executable "{plugin}" in CNI_PATH ({":".join(request.path)}): install that plugin there, '
        "or change the `type` that names it",
    )


def callers_environment() -> dict[str, str]:
    """The environment as the caller gave it, without what the frozen program's start added (frozen/launcher.c)."""
    return {name: value for name, value in system.environ.items() if not name.startswith("_PYI_")}


def _execute(path: str, env: dict[str, str], stdin: bytes) -> tuple[bytes, int]:
    """Run `path`; its stdout (one byte over _MAX_ANSWER at the most) and its exit status."""
    # A file as stdin: with a pipe, a plugin that does not read could block this process.
    given = posix.memfd_create("cni-config", posix.MFD_CLOEXEC)
    reading, writing = posix.pipe2(posix.O_CLOEXEC)
    try:
        posix.write(given, stdin)
        posix.lseek(given, 0, 0)
        pid = posix.posix_spawn(
            path,
            [path],
            env,
            file_actions=[(posix.POSIX_SPAWN_DUP2, given, 0), (posix.POSIX_SPAWN_DUP2, writing, 1)],
            # Python ignores SIGPIPE, and what is ignored stays so across exec.
            setsigdef=[SIGPIPE],
        )
    except OSError as error:
        posix.close(reading)
        raise CniError(IPAM_FAILED, f"{path}: cannot be run: {error.strerror}") from None
    finally:
        posix.close(given)
        posix.close(writing)
    try:
        return _read_answer(reading, pid)
    finally:
        posix.close(reading)


def _read_answer(reading: int, pid: int) -> tuple[bytes, int]:
    answer = b""
    status: int | None = None
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    try:
        while len(answer) <= _MAX_ANSWER:
            if poll.poll(100 if status is None else 0):
                chunk = posix.read(reading, 65536)
                if not chunk:
                    break
                answer += chunk
            elif status is not None:
                # It ended, and something it left running still holds its stdout.
                break
            else:
                ended, raw = posix.waitpid(pid, posix.WNOHANG)
                status = posix.waitstatus_to_exitcode(raw) if ended else None
    except BaseException:
        if status is None:
            posix.kill(pid, SIGKILL)
            posix.waitpid(pid, 0)
        raise
    if status is None:
        if len(answer) > _MAX_ANSWER:
            posix.kill(pid, SIGKILL)
        status = posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])
    return answer, status
