"""CHECK and STATUS: what ADD made is there still, and an ADD could succeed."""

from rdma_cni import addressing, allocation, config, detach, device, netns
from rdma_cni.cni.errors import CHECK_FAILED, NOT_AVAILABLE, CniError
from rdma_cni.cni.request import Request
from rdma_cni.device import Function
from rdma_cni.host import Host, links_in
from rdma_cni.link import Links
from rdma_cni.netns import Namespace
from rdma_cni.state import Attachment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdma_cni.models import NetConf


def check(request: Request, own_allowed: bool) -> None:
    """CHECK: what ADD made is there still. Raises CniError 111 for what differs."""
    conf = config.load(request)
    netns.require_privilege()
    pod = netns.open_pod(request.netns, own_allowed=own_allowed)
    host = Host()
    pod_links = links_in(pod)
    try:
        host.require_exclusive()
        attachment = host.state.get(request.network, request.container, request.ifname)
        if attachment is None:
            attachment = _expected(request, conf, pod, pod_links)
        elif attachment.cookie != pod.cookie:
            raise CniError(
                CHECK_FAILED,
                f"CNI_NETNS: found {request.netns!r} to be another namespace than the one that {attachment.function} "
                "was given to; expected the same: recreate the pod",
            )
        _check_rdma(attachment, pod)
        _check_netdev(attachment, pod_links)
    finally:
        pod_links.close()
        pod.close()
        host.close()
    ipam = allocation.of(request, conf)
    if ipam:
        ipam.check()


def status(request: Request) -> None:
    """STATUS: raises CniError 50 when an ADD could not succeed."""
    conf = config.load(request)
    host = Host()
    try:
        netns.require_privilege()
        host.require_exclusive()
        host.state.of_network(request.network)
    except CniError as error:
        raise CniError(NOT_AVAILABLE, error.message, error.details) from None
    finally:
        host.close()
    ipam = allocation.of(request, conf)
    if ipam:
        ipam.status()


def _expected(request: Request, conf: "NetConf", pod: Namespace, pod_links: Links) -> Attachment:
    """What CHECK expects when the state is lost: what the configuration and `prevResult` say."""
    function = device.find(request, conf, pod_links)
    if function is None:
        raise device.missing(request)
    attachment = Attachment(request.network, request.container, request.ifname, function.id, request.netns, 0)
    if conf.ipam and conf.ipam.type and conf.prevResult:
        interfaces = conf.prevResult.interfaces or []
        mine = {i for i, entry in enumerate(interfaces) if entry.name == request.ifname and entry.sandbox}
        ips = [ip for ip in conf.prevResult.ips or [] if ip.interface is None or ip.interface in mine]
        attachment.addresses = [ip.address for ip in ips]
    return attachment


def _check_rdma(attachment: Attachment, pod: Namespace) -> None:
    function = Function(attachment.function)
    inside = {found.index for found in detach.devices_in(function, pod)}
    missing = [record.name for record in attachment.rdma if record.index not in inside]
    if missing or not inside:
        names = ", ".join(repr(name) for name in missing) or "its RDMA device"
        raise CniError(
            CHECK_FAILED,
            f"{attachment.function}: found {names} not in the pod's namespace, expected it there: it was moved away, "
            "or its driver was bound anew; recreate the pod",
        )


def _check_netdev(attachment: Attachment, pod_links: Links) -> None:
    """The netdev, and the addresses and routes, where this plugin set them."""
    moved = attachment.netdev or attachment.borrowed
    if moved is None and not attachment.addresses and not attachment.routes:
        return
    name = attachment.ifname
    link = pod_links.get(name)
    if link is None:
        raise CniError(CHECK_FAILED, f"{name} in the pod: found no such interface, expected the one that ADD made")
    if moved is not None and link.parent != attachment.function:
        raise CniError(
            CHECK_FAILED,
            f"{name} in the pod: found a netdev on {link.parent or 'no device'}, expected one on {attachment.function}",
        )
    if not link.up:
        raise CniError(CHECK_FAILED, f"{name} in the pod: found it down, expected it up")
    there = pod_links.addresses(link.ifindex)
    for address in attachment.addresses:
        if address not in there:
            found = ", ".join(there) or "none"
            raise CniError(
                CHECK_FAILED, f"{name} in the pod: found the addresses {found}, expected {address} among them"
            )
    # A route that was moved to another table, as the plugin `sbr` does, is not gone.
    routes = {(route.dst, route.gw) for route in pod_links.routes(link.ifindex)}
    for dst, gw, _ in attachment.routes:
        if (addressing.network(dst), gw) not in routes:
            via = f" via {gw}" if gw else ""
            raise CniError(
                CHECK_FAILED, f"{name} in the pod: found no route to {dst}{via}, expected the one that ADD set"
            )
