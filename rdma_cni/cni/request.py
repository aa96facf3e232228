"""From the environment and stdin to a request (CNI spec 1.1.0, "Parameters")."""

import posix

from rdma_cni.cni import checks, jsontext, log, system
from rdma_cni.cni.errors import (
    DECODING_FAILURE,
    INCOMPATIBLE_VERSION,
    INVALID_CONFIG,
    INVALID_ENVIRONMENT,
    IO_FAILURE,
    CniError,
)

VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
MAX_STDIN = 1 << 20
"""Bytes. A configuration is a few hundred, with a prevResult some thousand."""

_SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
_NEEDS = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": (),
    "STATUS": (),
    "VERSION": (),
}
"""DEL asks for what identifies the attachment and no more; CNI_PATH where a plugin is to be run."""


class Request:
    """One call of a plugin.

    `config` is the network configuration as it was parsed, `stdin` its bytes, for plugins that
    this one delegates to. `container`, `netns` and `ifname` are "" where the command has none.
    `runtime_ifname` is CNI_IFNAME; `ifname` is the same, unless the configuration is about a further
    interface of the pod.
    """

    __slots__ = (
        "args",
        "command",
        "config",
        "container",
        "ifname",
        "netns",
        "network",
        "path",
        "runtime_ifname",
        "stdin",
        "version",
    )

    def __init__(self, command: str) -> None:
        self.command = command
        self.version = VERSIONS[-1]
        self.network = self.container = self.netns = self.ifname = self.runtime_ifname = ""
        self.path: list[str] = []
        self.args: dict[str, str] = {}
        self.config: dict[str, object] = {}
        self.stdin = b""

    @property
    def pod(self) -> str:
        """The pod that Kubernetes' runtimes name in CNI_ARGS, as namespace/name; "" when they do not."""
        name = self.args.get("K8S_POD_NAME", "")
        pod = f"{self.args.get('K8S_POD_NAMESPACE', '')}/{name}" if name else ""
        # What is no UTF-8 in the environment has no place in a database.
        return pod if pod.isascii() else pod.encode(errors="backslashreplace").decode()

    def at_least(self, version: str) -> bool:
        """Whether the caller speaks `version` (one of VERSIONS) or a newer one."""
        return VERSIONS.index(self.version) >= VERSIONS.index(version)


def read(request: Request) -> None:
    """Fill in the request of this process. Raises CniError: 1, 4, 5, 6 or 7.

    A DEL is read leniently: what does not say which attachment is meant cannot stop it.
    """
    command = request.command
    if command not in _NEEDS:
        expected = ", ".join(_NEEDS)
        raise CniError(INVALID_ENVIRONMENT, f"CNI_COMMAND: found {command[:40]!r}, expected one of {expected}")
    lenient = command == "DEL"
    _read_environment(request, lenient)
    request.stdin = _read_stdin()
    if command == "VERSION" and not request.stdin.strip():
        return
    _read_config(request, lenient)


def _read_environment(request: Request, lenient: bool) -> None:
    environ = system.environ
    missing = [name for name in _NEEDS[request.command] if not environ.get(name)]
    if missing:
        raise CniError(
            INVALID_ENVIRONMENT,
            f"{', '.join(missing)}: not set; {request.command} needs {', '.join(_NEEDS[request.command])}",
        )
    if "CNI_CONTAINERID" in _NEEDS[request.command]:
        request.container = _variable("CNI_CONTAINERID", checks.identifier)
        request.ifname = request.runtime_ifname = _variable("CNI_IFNAME", checks.interface_name)
        request.netns = environ.get("CNI_NETNS", "")
    request.path = [entry for entry in environ.get("CNI_PATH", "").split(":") if entry]
    for pair in environ.get("CNI_ARGS", "").split(";"):
        key, equals, value = pair.partition("=")
        if equals:
            request.args[key] = value
        elif pair and not lenient and request.command in ("ADD", "CHECK"):
            raise CniError(
                INVALID_ENVIRONMENT, f"CNI_ARGS: found {pair[:80]!r}, expected KEY=VALUE pairs separated by ';'"
            )


def _variable(name: str, check: "object") -> str:
    value = system.environ[name]
    try:
        return check(value)  # type: ignore[operator,no-any-return]
    except ValueError as error:
        raise CniError(INVALID_ENVIRONMENT, f"{name}: found {value[:80]!r}, expected {error}") from None


def _read_stdin() -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        while size <= MAX_STDIN:
            chunk = posix.read(0, MAX_STDIN + 1 - size)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
    except OSError as error:
        raise CniError(IO_FAILURE, f"stdin cannot be read: {error.strerror}; expected the configuration") from None
    raise CniError(DECODING_FAILURE, f"stdin: more than {MAX_STDIN} bytes, expected a network configuration")


def _read_config(request: Request, lenient: bool) -> None:
    try:
        config = jsontext.parse(request.stdin)
    except ValueError as error:
        raise CniError(DECODING_FAILURE, f"stdin: {error}; expected a network configuration in JSON") from None
    if not isinstance(config, dict):
        found = type(config).__name__
        raise CniError(DECODING_FAILURE, f"stdin: found a JSON {found}, expected an object: a network configuration")
    request.config = config
    if request.command == "VERSION":
        # Asked to find out which versions there are: any is a good one to ask in.
        return
    version = config.get("cniVersion")
    if version in VERSIONS:
        request.version = str(version)
        needed = _SINCE.get(request.command)
        if needed and not request.at_least(needed):
            raise CniError(
                INCOMPATIBLE_VERSION,
                f"cniVersion: found {version}, but {request.command} exists from {needed} on",
            )
    elif lenient:
        log.warning(f"cniVersion: found {str(version)[:40]!r}, none of {', '.join(VERSIONS)}; deleting all the same")
    else:
        found = "nothing" if version is None else repr(version)[:40]
        raise CniError(
            INCOMPATIBLE_VERSION,
            f"cniVersion: found {found}, expected one of {', '.join(VERSIONS)}",
            "unsupported version",
        )
    network = config.get("name")
    try:
        if not isinstance(network, str):
            raise ValueError("a string")
        request.network = checks.identifier(network)
    except ValueError as error:
        found = repr(network)[:80] if "name" in config else "nothing"
        raise CniError(INVALID_CONFIG, f"name: found {found}, expected {error}") from None
