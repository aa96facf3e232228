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
        if conf.ipam and conf.ipam.type is None and request.config["ipam"]:
            raise CniError(INVALID_CONFIG, "ipam.type: found nothing, expected the name of an IPAM plugin")
    debug = conf.args is not None and conf.args.cni is not None and conf.args.cni.debug
    try:
        log.configure(conf.logLevel or ("debug" if debug else "warning"), conf.logFile or "")
    except OSError as error:
        problem = f"logFile: found {conf.logFile!r}, expected a file that can be appended to: {error.strerror}"
        if not lenient:
            raise CniError(INVALID_CONFIG, problem) from None
        problems.append(problem)
    for problem in problems:
        log.warning(f"releasing in spite of a bad configuration: {problem}")
    return conf


def _identified(request: Request) -> dict[str, object]:
    """The configuration with what a lenient check cannot do without."""
    return {**request.config, "name": request.network, "cniVersion": request.version}
