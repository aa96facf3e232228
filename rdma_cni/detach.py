"""DEL and GC: bring home what a pod has of a VF, by the state or by what the kernel still tells."""

import posix

from rdma_cni import allocation, config, device, home, netns
from rdma_cni.cni import jsontext, log
from rdma_cni.cni.errors import IO_FAILURE, IPAM_MISSING, NO_PRIVILEGE, OWN_NAMESPACE, TRY_AGAIN, CniError
from rdma_cni.cni.plugin import VALID_ATTACHMENTS, valid_attachments
from rdma_cni.cni.request import Request
from rdma_cni.device import Function
from rdma_cni.host import Host, links_in
from rdma_cni.link import Links
from rdma_cni.netlink import NetlinkError
from rdma_cni.netns import Namespace
from rdma_cni.rdma import Device, Rdma
from rdma_cni.state import Attachment, NetdevRecord, RdmaRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdma_cni.models import NetConf


def delete(request: Request, own_allowed: bool) -> None:
    """DEL: the mirror image of ADD, for whatever of it is still there."""
    conf = config.load(request)
    ipam = allocation.of(request, conf)
    netns.require_privilege()
    host = Host()
    pod = netns.open_if_there(request.netns) if request.netns else None
    try:
        known = host.state.get(request.network, request.container, request.ifname)
        # With an attachment it is a path that led to the pod once: /proc/PID/ns/net, and PIDs come again.
        if pod and netns.is_own(pod) and not own_allowed and known is None:
            raise CniError(
                OWN_NAMESPACE, f"CNI_NETNS: found {request.netns[:200]!r}, the plugin's own namespace, expected a pod's"
            )
        if ipam:
            host.meanwhile(ipam.prepare)
        for attachment in [known] if known else _lost(host, request, conf, pod):
            if conf.runtimeConfig and conf.runtimeConfig.CNIDeviceInfoFile:
                from rdma_cni import deviceinfo

                # First: a DEL that is killed is called again, and does all of this while the state has it.
                deviceinfo.remove(conf.runtimeConfig.CNIDeviceInfoFile, Function(attachment.function))
            _detach(host, attachment, pod)
        if ipam:
            try:
                ipam.delete()
            except CniError as error:
                # A plugin that is not there gave nothing to an attachment that is not there.
                if error.code != IPAM_MISSING or known:
                    raise
                log.warning(str(error))
    finally:
        if ipam:
            ipam.close()
        if pod:
            pod.close()
        host.close()


def gc(request: Request) -> None:
    """GC: detach what belongs to this network and is not in `cni.dev/valid-attachments`."""
    valid = valid_attachments(request)
    conf = config.load(request)
    ipam = allocation.of(request, conf)
    netns.require_privilege()
    collects = ipam is not None and ipam.collects()
    failures: list[CniError] = []
    kept: list[Attachment] = []
    host = Host()
    try:
        for attachment in host.state.of_network(request.network):
            if (attachment.container, attachment.runtime_ifname) in valid:
                kept.append(attachment)
                continue
            log.info(f"collecting {attachment}")
            try:
                _collect(host, attachment)
                if ipam and not collects:
                    ipam.delete(container=attachment.container, ifname=attachment.ifname)
            except CniError as error:
                failures.append(error)
    finally:
        host.close()
    # Where devices could not be had from a pod it still has its addresses, too.
    if ipam and collects and not failures and _translate(request, conf, valid, kept):
        try:
            ipam.gc()
        except CniError as error:
            failures.append(error)
    if failures:
        for failure in failures[1:]:
            log.error(str(failure))
        raise failures[0]


def _detach(host: Host, attachment: Attachment, pod: Namespace | None) -> None:
    lock = host.state.lock(attachment.function, f"DEL of {attachment.container}/{attachment.ifname}")
    try:
        holder = host.state.of_function(attachment.function)
        if holder and holder.key != attachment.key:
            log.info(f"{attachment.function} went to {holder} meanwhile: nothing to do for {attachment}")
            return
        if pod and attachment.cookie and pod.cookie != attachment.cookie:
            log.warning(f"{pod.path} is another namespace now than the one that {attachment.function} was given to")
            pod = None
        if pod and attachment.netdev is None and attachment.addresses:
            links = links_in(pod)
            try:
                unaddress(attachment, links)
            finally:
                links.close()
        release(host, attachment, pod)
    finally:
        lock.release()


def release(host: Host, attachment: Attachment, pod: Namespace | None) -> None:
    """Bring an attachment's devices home, then forget it; never the other way round."""
    home.bring_home(host, attachment, pod)
    host.state.remove(attachment)


def _collect(host: Host, attachment: Attachment) -> None:
    pod = netns.open_if_there(attachment.netns)
    try:
        _detach(host, attachment, pod)
    finally:
        if pod:
            pod.close()


def _translate(request: Request, conf: "NetConf", valid: set[tuple[str, str]], kept: list[Attachment]) -> bool:
    """Make GC's list of attachments one of interfaces that addresses were reserved for.

    The runtime knows an attachment by CNI_IFNAME; with `ifName` its addresses go by that. False: the
    state does not know all of them, and an address that a pod has must not be taken for a stray.
    """
    if conf.ifName is None:
        return True
    if not valid <= {(attachment.container, attachment.runtime_ifname) for attachment in kept}:
        log.warning("GC: the state does not know every attachment that is valid: no address is freed")
        return False
    names = valid | {(attachment.container, attachment.ifname) for attachment in kept}
    listed = [{"containerID": container, "ifname": ifname} for container, ifname in sorted(names)]
    request.config = {**request.config, VALID_ATTACHMENTS: listed}
    request.stdin = jsontext.dump(request.config)
    return True


def unaddress(attachment: Attachment, pod_links: Links) -> None:
    """Remove from an interface that stays in the pod what this plugin set on it.

    What is not there any more is no matter. Raises CniError 11 for what the kernel refuses for now.
    """
    link = pod_links.get(attachment.ifname)
    if link is None:
        return
    refusals = []
    for dst, gw, table in attachment.routes:
        try:
            pod_links.delete_route(link.ifindex, dst, gw, table=table)
        except NetlinkError as error:
            log.debug(f"the route to {dst}: {error}")
            refusals.append(error)
    for address in attachment.addresses:
        try:
            pod_links.delete_address(link.ifindex, address)
        except NetlinkError as error:
            log.debug(f"the address {address}: {error}")
            refusals.append(error)
    for refusal in refusals:
        if refusal.may_pass:
            raise CniError(
                TRY_AGAIN, f"the kernel refused to take an address or route off {attachment.ifname}: {refusal}"
            )


def _lost(host: Host, request: Request, conf: "NetConf", pod: Namespace | None) -> list[Attachment]:
    """What ADD may have attached, when the state does not know: from configuration and kernel.

    The state was lost, another plugin attached it, or there is nothing left to do (an empty list).
    """
    pod_links = links_in(pod) if pod else None
    try:
        function = device.find(request, conf, pod_links)
        if function:
            functions = [function]
        else:
            from rdma_cni import choice

            # Any of them may have been taken. One that is on the host under a mark and has no
            # attachment is in nobody's use: it gets its own name back, too.
            functions = [one for pf in choice.physical_functions(host, conf.pf or []) for one in pf.functions]
        found = [reconstruct(host, request, one, pod, pod_links, wait=one is function) for one in functions]
        return [attachment for attachment in found if attachment]
    except CniError as error:
        if isinstance(error, NetlinkError) and error.may_pass:
            raise CniError(TRY_AGAIN, f"no state of this attachment, and the kernel refused to tell: {error}") from None
        if error.code in (TRY_AGAIN, IO_FAILURE, NO_PRIVILEGE):
            raise
        # A device that is not there any more cannot be given back.
        log.warning(f"no state of this attachment, and its device is not to be found: {error}")
        return []
    finally:
        if pod_links:
            pod_links.close()


def reconstruct(
    host: Host, request: Request, function: Function, pod: Namespace | None, pod_links: Links | None, *, wait: bool
) -> Attachment | None:
    """What the kernel tells of an attachment that has this function; None when there is nothing of it.

    `wait` for what a namespace that is dying gives back.
    """
    holder = host.state.of_function(function.id)
    if holder:
        log.info(f"{function.id} is with {holder} now: nothing to do for this one")
        return None
    attachment = Attachment(
        request.network, request.container, request.ifname, function.id, request.netns, pod.cookie if pod else 0
    )
    marked = _marked_netdev(host, function, pod_links)
    if marked and any(link.mac == marked[0].mac and link.parent != function.id for link in host.links.all()):
        # A pod's root can change its mark, and must not take another VF's address.
        marked[0].mac = ""
    devices: list[Device] = []
    if pod:
        # In shared mode every namespace sees every device, and none was moved.
        devices = devices_in(function, pod) if host.rdma.exclusive() else []
    elif wait and function.rdma_devices(host.rdma) == []:
        if not home.await_return(host, function) and not _is_in_a_pod(function):
            raise CniError(
                TRY_AGAIN,
                f"no state of this attachment, and an RDMA device of {function.id} is neither on the host nor in a "
                "namespace that a path or a process leads to; expected it to come home from one that is dying: try "
                "again; if it never comes, an open socket or descriptor keeps that one alive: end the process that has "
                "it, or bind the function's driver anew",
            )
        marked = marked or _marked_netdev(host, function, None)
    if marked and not devices:
        # They are home, perhaps under the names that a pod's root gave them.
        devices = function.rdma_devices(host.rdma) or []
    names = marked[1] if marked else []
    attachment.rdma = [
        RdmaRecord(found.index, found.guid, names[number] if number < len(names) else "")
        for number, found in enumerate(devices)
    ]
    attachment.netdev = marked[0] if marked else None
    if not attachment.rdma and attachment.netdev is None:
        return None
    log.warning(f"no state of {attachment}: returning {function.id} by what the kernel tells")
    return attachment


def _is_in_a_pod(function: Function) -> bool:
    """Whether a live namespace has the function's RDMA devices: of whichever pod, it is not for this plugin to say."""
    for namespace in netns.live():
        try:
            if devices_in(function, namespace):
                return True
        finally:
            namespace.close()
    return False


def devices_in(function: Function, pod: Namespace) -> list[Device]:
    """The function's RDMA devices that are in the pod."""
    try:
        sysfs = pod.sysfs()
    except OSError as error:
        # For want of memory or descriptors, or of a privilege beyond those that are required.
        code = NO_PRIVILEGE if isinstance(error, PermissionError) else TRY_AGAIN
        raise CniError(
            code,
            f"{pod.path}: the kernel refused to show the devices there in a sysfs ({error.strerror}), expected root of "
            "the host to be allowed that; try again",
        ) from None
    try:
        with pod:
            inside = Rdma()
            try:
                return function.rdma_devices(inside, sysfs) or []
            finally:
                inside.close()
    finally:
        posix.close(sysfs)


def _marked_netdev(host: Host, function: Function, pod_links: Links | None) -> tuple[NetdevRecord, list[str]] | None:
    """The function's netdev that this plugin moved, by the mark it carries, in the pod or on the host."""
    links = [link for link in pod_links.all() if link.parent == function.id] if pod_links else []
    links += [link for link in (host.links.get(name) for name in function.netdev_names() or []) if link]
    return next((found for found in map(home.read_mark, links) if found), None)
