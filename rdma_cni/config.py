"""The configuration of `rdma`, checked: what `rdma_cni.models` describes, without importing it."""

from rdma_cni.cni import log, validate
from rdma_cni.cni.errors import INVALID_CONFIG, CniError
from rdma_cni.cni.request import Request
from rdma_cni.cni.typecast import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdma_cni.models import NetConf


def load(request: Request) -> "NetConf":
    """The configuration of `request`, and the log as it wants it. Raises CniError 7.

    For a DEL or a GC what is wrong is logged and left out: an ADD that failed for its
    configuration is followed by a DEL with the same one.
    """
    lenient = request.command in ("DEL", "GC")
    if lenient:
        problems: list[str] = []
        conf = cast("NetConf", validate.check_leniently("NETCONF", _identified(request), problems))
    else:
        problems = []
        conf = cast("NetConf", validate.check("NETCONF", request.config))
        check(request, conf)
    debug = conf.args is not None and conf.args.cni is not None and conf.args.cni.debug
    try:
        log.configure(conf.logLevel or ("debug" if debug else "warning"), conf.logFile or "")
    except OSError as error:
        problem = f"logFile: found {conf.logFile!r}, expected a file that can be appended to: {error.strerror}"
        if not lenient:
            raise CniError(INVALID_CONFIG, problem) from None
        problems.append(problem)
    if conf.ifName:
        # From here on the request is about that interface: state and addresses go by it.
        request.ifname = conf.ifName
    for problem in problems:
        log.warning(f"releasing in spite of a bad configuration: {problem}")
    return conf


def check(request: Request, conf: "NetConf") -> None:
    """What takes more than one field to be judged: what `pf` and `ifName` may stand beside. Raises CniError 7."""
    if conf.ipam and conf.ipam.type is None and request.config["ipam"]:
        raise CniError(INVALID_CONFIG, "ipam.type: found nothing, expected the name of an IPAM plugin")
    device = conf.deviceID or conf.pciBusID or (conf.runtimeConfig and conf.runtimeConfig.deviceID)
    if conf.pf and device:
        raise CniError(
            INVALID_CONFIG,
            f"pf: found {', '.join(conf.pf)} beside the device {device}, expected one of the two: `pf` is for "
            "configurations to which nobody adds a device",
        )
    if not conf.ifName or request.command not in ("ADD", "CHECK"):
        return
    problem = ""
    if conf.prevResult is None:
        problem = "no `prevResult`: it makes a further interface beside that of an earlier plugin"
    elif conf.ifName == request.runtime_ifname:
        problem = "CNI_IFNAME being the same: the earlier plugin has made that one"
    elif request.command == "ADD":
        for number, interface in enumerate(conf.prevResult.interfaces or []):
            if interface.name == conf.ifName and interface.sandbox:
                problem = f"prevResult.interfaces[{number}] being the same"
    if problem:
        raise CniError(INVALID_CONFIG, f"ifName: found {conf.ifName!r} with {problem}; expected a new name in the pod")


def _identified(request: Request) -> dict[str, object]:
    """The configuration with what a lenient check cannot do without."""
    return {**request.config, "name": request.network, "cniVersion": request.version}
