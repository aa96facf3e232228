"""What the plugin does: attach a VF to a pod, detach it, check it, collect what was left, be ready.

ADD from top to bottom is the specification of the plugin. Nothing here prints, ends the process
or keeps state of its own: a resident process could call it as the executable does.
"""

import posix
import time
from errno import EEXIST, EOPNOTSUPP

from rdma_cni import addressing, allocation, config, device, home, netns
from rdma_cni.cni import jsontext, log, system, validate
from rdma_cni.cni.database import Lock
from rdma_cni.cni.errors import (
    CHECK_FAILED,
    INTERFACE_NAME_TAKEN,
    IPAM_MISSING,
    IPAM_NO_ADDRESS,
    IPAM_NONSENSE,
    KERNEL_REFUSED,
    NO_NETDEV,
    NO_RDMA_DEVICE,
    NOT_AVAILABLE,
    OWN_NAMESPACE,
    SHARED_MODE,
    TRY_AGAIN,
    CniError,
)
from rdma_cni.cni.plugin import VALID_ATTACHMENTS, valid_attachments
from rdma_cni.cni.request import Request
from rdma_cni.cni.typecast import cast
from rdma_cni.cni.undo import Undo
from rdma_cni.device import Function
from rdma_cni.host import Host, links_in
from rdma_cni.link import ARPHRD_ETHER, ARPHRD_INFINIBAND, Link, Links
from rdma_cni.netlink import NetlinkError
from rdma_cni.netns import Namespace
from rdma_cni.rdma import Device, Rdma
from rdma_cni.state import Attachment, NetdevRecord, RdmaRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdma_cni.cni.models import IP, Result, Route
    from rdma_cni.models import NetConf


_REBIRTH_PATIENCE = 5.0
_UDEV_PATIENCE = 2.0


def add(request: Request, undo: Undo, own_allowed: bool) -> dict[str, object]:
    """ADD: give the VF's RDMA devices, and its netdev when the plugin stands alone, to the pod."""
    conf = config.load(request)
    netns.require_privilege()
    pod = netns.open_pod(request.netns, own_allowed=own_allowed)
    undo.lend(pod.close)
    host = Host()
    undo.lend(host.close)
    pod_links = links_in(pod)
    undo.lend(pod_links.close)

    ipam = allocation.of(request, conf)

    # Look at everything before anything is touched.
    _require_exclusive(host)
    if not pod.cookie:
        raise CniError(KERNEL_REFUSED, "this kernel: found it without SO_NETNS_COOKIE, expected Linux 5.14 or later")
    if ipam:
        ipam.require()
    function, lock = _have(host, request, conf, pod_links)
    undo.lend(lock.release)
    _take_over(host, request, function, ipam)
    devices = _devices_on_host(host, function)
    # With an interface of its own beside that of an earlier plugin, it moves the netdev as it does alone.
    alone = request.config.get("prevResult") is None or conf.ifName is not None
    netdev = _choose_netdev(host, function, devices) if alone else None
    borrowed = None if alone else _infiniband_netdev(request, function, pod_links)
    if alone:
        taken = pod_links.get(request.ifname)
        if taken:
            raise _name_taken(request, taken)
        if netdev is None and ipam:
            raise CniError(
                NO_NETDEV,
                f"{function.id}: found no netdev, expected one for the addresses of `ipam`: remove that section",
            )

    # Write down what DEL needs, then act. Taking it back looks at the kernel, not at how far this came.
    attachment = Attachment(request.network, request.container, request.ifname, function.id, request.netns, pod.cookie)
    attachment.runtime_ifname = request.runtime_ifname
    attachment.pod = request.pod
    attachment.rdma = [RdmaRecord(found.index, found.guid, found.name) for found in devices]
    attachment.netdev = _record(netdev) if netdev else None
    attachment.borrowed = _record(borrowed) if borrowed else None
    its_own = _its_own(conf, pod_links, borrowed) if borrowed else ([], [])
    # Beforehand: a signal may come right after it is written down.
    undo.push(f"take {function.id} back", lambda: _release(host, attachment, pod))
    host.state.put(attachment)
    if ipam:
        ipam.prepare()

    for found in devices:
        _move_rdma(host, found, pod)
    if conf.args and conf.args.cni and conf.args.cni.rdmaDeviceName:
        _rename_rdma(pod, devices, conf.args.cni.rdmaDeviceName)
    if netdev and attachment.netdev:
        if netdev.kind == ARPHRD_INFINIBAND:
            netdev = _reborn(host, function, netdev, netdev.ifindex)
        netdev = _move_netdev(host, request, netdev, pod, pod_links)
        _dress(pod_links, netdev, conf, attachment)
        # Already now: while the link gets its carrier there are addresses to be found.
        _bring_up(pod_links, netdev)
    if borrowed and attachment.borrowed:
        again = _move_netdev(host, request, _reborn(host, function, borrowed), pod, pod_links)
        home.resemble(pod_links, again, attachment.borrowed)
        addressing.configure(pod, pod_links, again, *its_own, unique=True)

    if ipam:
        raw = ipam.add(undo)
        answer = _addresses(raw, ipam.name)
        netdev = pod_links.get(request.ifname)
        if netdev is None:
            raise CniError(
                NO_NETDEV, f"{request.ifname} in the pod: found nothing, expected the interface that `ipam` is for"
            )
        _remember_addresses(host, attachment, answer, pod_links, netdev)
        if not alone:
            undo.push("remove the addresses", lambda: _unaddress(attachment, pod_links))
        ips, routes = answer.ips or [], answer.routes or []
        not_ours = addressing.configure(pod, pod_links, netdev, ips, routes, unique=ipam.unique)
        if not_ours:
            attachment.routes = [route for route in attachment.routes if route not in not_ours]
            host.state.put(attachment)
        addressing.announce(pod, pod_links, netdev, attachment.addresses)
        _tell(conf, function, devices, undo)
        return _result(request, function, pod_links.get(netdev.ifindex) if alone else None, raw)
    _tell(conf, function, devices, undo)
    return _result(request, function, pod_links.get(netdev.ifindex) if netdev else None, {})


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
            ipam.prepare()
        for attachment in [known] if known else _lost(host, request, conf, pod):
            if conf.runtimeConfig and conf.runtimeConfig.CNIDeviceInfoFile:
                from rdma_cni import deviceinfo

                # First: a DEL that is killed is called again, and does all of this while the state has it.
                deviceinfo.remove(conf.runtimeConfig.CNIDeviceInfoFile, Function(attachment.function))
            _detach(host, attachment, pod)
    finally:
        if pod:
            pod.close()
        host.close()
    if ipam:
        try:
            ipam.delete()
        except CniError as error:
            # A plugin that is not there gave nothing to an attachment that is not there.
            if error.code != IPAM_MISSING or known:
                raise
            log.warning(str(error))


def check(request: Request, own_allowed: bool) -> None:
    """CHECK: what ADD made is there still. Raises CniError 111 for what differs."""
    conf = config.load(request)
    netns.require_privilege()
    pod = netns.open_pod(request.netns, own_allowed=own_allowed)
    host = Host()
    pod_links = links_in(pod)
    try:
        _require_exclusive(host)
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


def status(request: Request) -> None:
    """STATUS: raises CniError 50 when an ADD could not succeed."""
    conf = config.load(request)
    host = Host()
    try:
        netns.require_privilege()
        _require_exclusive(host)
        host.state.of_network(request.network)
    except CniError as error:
        raise CniError(NOT_AVAILABLE, error.message, error.details) from None
    finally:
        host.close()
    ipam = allocation.of(request, conf)
    if ipam:
        ipam.status()


# ADD's steps


def _require_exclusive(host: Host) -> None:
    if not host.rdma.exclusive():
        raise CniError(
            SHARED_MODE,
            "RDMA subsystem: found it in shared mode, in which every pod sees every device and none can be moved; "
            "expected exclusive mode: put the line 'options ib_core netns_mode=0' into "
            "/etc/modprobe.d/rdma-cni.conf (and into the initramfs, if that loads ib_core) and reboot: "
            "the mode cannot change while other network namespaces exist",
        )


def _have(host: Host, request: Request, conf: "NetConf", pod_links: Links) -> tuple[Function, Lock]:
    """The function that the configuration names, or a free one of the PFs that it names, and the lock on it."""
    holder = f"{request.command} of {request.container}/{request.ifname}"
    if conf.pf:
        from rdma_cni import choice

        return choice.take(host, conf.pf, holder)
    function = device.find(request, conf, pod_links)
    if function is None:
        raise device.missing(request)
    return function, host.state.lock(function.id, holder)


def _take_over(host: Host, request: Request, function: Function, ipam: "allocation.Ipam | None") -> None:
    """See that nobody has the function; put right what a DEL that never came has left of it."""
    mine = host.state.get(request.network, request.container, request.ifname)
    if mine and mine.function != function.id:
        raise CniError(
            TRY_AGAIN,
            f"{mine}: already has {mine.function}, and now asks for {function.id}: call DEL for it first",
        )
    holder = host.state.of_function(function.id)
    if holder is None:
        # When the state was lost, a netdev may still tell by its mark that it is not what it was.
        left = _reconstruct(host, request, function, None, None, wait=False)
        if left:
            home.bring_home(host, left, None)
        return
    live = netns.find(holder.cookie)
    if live:
        live.close()
        if function.rdma_devices(host.rdma) == []:
            raise CniError(
                TRY_AGAIN, f"{function.id}: found busy, with {holder}; expected it free: call DEL for that first"
            )
    log.warning(f"{function.id} was left by {holder}, for which no DEL came: taking it back")
    _release(host, holder, None)
    # containerd 1.6 sends none when a later plugin of the list failed: pods that are tried again and again
    # would use up the addresses.
    if ipam and live is None and holder.network == request.network:
        try:
            ipam.delete(container=holder.container, ifname=holder.ifname)
        except CniError as error:
            log.warning(f"the addresses of {holder} stay reserved: {error}")


def _devices_on_host(host: Host, function: Function) -> list[Device]:
    """The function's RDMA devices. Raises CniError 101, or 11 when they are in some namespace."""
    deadline = time.monotonic() + 1
    while True:
        devices = function.rdma_devices(host.rdma)
        if devices is None:
            if not function.exists():
                raise CniError(TRY_AGAIN, f"{function.id}: disappeared while it was looked at; try again")
            raise CniError(
                NO_RDMA_DEVICE,
                f"{function.id}: found no RDMA device on this function, expected at least one: is the driver's RDMA "
                "part loaded (mlx5_ib, irdma, bnxt_re, ...)? `ls /sys/class/infiniband` lists what there is",
            )
        if devices:
            return devices
        # It may be coming home at this moment.
        if time.monotonic() > deadline:
            raise CniError(
                TRY_AGAIN,
                f"{function.id}: found its RDMA device in another network namespace, attached by nobody that this "
                "plugin knows; expected it on the host: another tool or a leftover namespace has it",
            )
        time.sleep(0.01)


def _choose_netdev(host: Host, function: Function, devices: list[Device]) -> Link | None:
    """The function's netdev: of several, the one of the first RDMA device's link layer and port."""
    names = function.netdev_names()
    if names is None:
        return None
    links = [link for link in (host.links.get(name) for name in names) if link]
    if not links:
        raise CniError(
            TRY_AGAIN,
            f"{function.id}: found its netdev in another network namespace, expected it on the host: without a "
            "`prevResult` this plugin moves it itself; after `sriov`, chain it by a conflist",
        )
    if len(links) > 1:
        layers = function.link_layers(devices[0].name)
        kind = ARPHRD_INFINIBAND if layers and layers[0] == "InfiniBand" else ARPHRD_ETHER
        links = [link for link in links if link.kind == kind] or links
        own = host.rdma.netdevs(devices[0].index)
        links = [link for link in links if link.ifindex in own] or links
        guid = devices[0].guid.to_bytes(8, "big").hex(":")
        links = [link for link in links if kind == ARPHRD_INFINIBAND and link.mac.endswith(guid)] or links
    return _named(host, min(links, key=lambda link: (function.dev_port(link.name), link.ifindex)))


def _named(host: Host, link: Link) -> Link:
    """A netdev under the name that udev gives it, which it does a moment after the driver made it.

    In a pod it could not, and DEL would bring it home under the kernel's.
    """
    deadline = time.monotonic() + _UDEV_PATIENCE
    while link.name.rstrip("0123456789") in ("eth", "ib"):
        # Udev has an entry for each netdev that it is done with, where it runs.
        if system.exists(f"/run/udev/data/n{link.ifindex}") or not system.exists("/run/udev/control"):
            break
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
        link = host.links.get(link.ifindex) or link
    return link


def _infiniband_netdev(request: Request, function: Function, pod_links: Links) -> Link | None:
    """The function's IPoIB netdev that an earlier plugin put into the pod: it dies when the RDMA device moves."""
    link = pod_links.get(request.ifname)
    return link if link and link.kind == ARPHRD_INFINIBAND and link.parent == function.id else None


def _its_own(conf: "NetConf", pod_links: Links, link: Link) -> "tuple[list[IP], list[Route]]":
    """The addresses and routes in `prevResult` that an interface has."""
    ips = (conf.prevResult.ips if conf.prevResult else None) or []
    routes = (conf.prevResult.routes if conf.prevResult else None) or []
    addresses = pod_links.addresses(link.ifindex)
    through = {(route.dst, route.gw) for route in pod_links.routes(link.ifindex)}
    return (
        [ip for ip in ips if ip.address in addresses],
        [route for route in routes if (addressing.network(route.dst), addressing.gateway(route, ips)) in through],
    )


def _record(link: Link) -> NetdevRecord:
    return NetdevRecord(link.name, link.mac, link.mtu, link.kind, link.altnames, link.alias, link.up)


def _move_rdma(host: Host, found: Device, pod: Namespace) -> None:
    try:
        host.rdma.move(found.index, pod.fd)
    except NetlinkError as error:
        if error.errno == EOPNOTSUPP:
            raise CniError(
                KERNEL_REFUSED,
                f"RDMA device {found.name!r}: its driver cannot change its namespace ({error}); expected one that "
                "can: update the driver or the kernel",
            ) from None
        raise error.report(f"move RDMA device {found.name!r} into {pod.path}") from None


def _rename_rdma(pod: Namespace, devices: list[Device], name: str) -> None:
    with pod:
        inside = Rdma()
        try:
            for number, found in enumerate(devices):
                wanted = _name_in_pod(name, number)
                try:
                    inside.rename(found.index, wanted)
                except NetlinkError as error:
                    if error.errno == EEXIST:
                        raise CniError(
                            INTERFACE_NAME_TAKEN,
                            f"args.cni.rdmaDeviceName: found {wanted!r} taken by another RDMA device of the node, "
                            "expected a name that is unique on it, in all namespaces: choose another",
                        ) from None
                    raise error.report(f"rename RDMA device {found.name!r} to {wanted!r}") from None
        finally:
            inside.close()


def _reborn(host: Host, function: Function, before: Link, old: int = 0) -> Link:
    """The InfiniBand netdev that the kernel made when the RDMA device had changed its namespace.

    `old` is the index of `before`, where that was on the host.
    """
    deadline = time.monotonic() + _REBIRTH_PATIENCE
    guid = before.mac[-23:]
    while True:
        for name in function.netdev_names() or []:
            link = host.links.get(name)
            if link and link.kind == ARPHRD_INFINIBAND and link.ifindex != old and link.mac[-23:] == guid:
                return link
        if time.monotonic() > deadline:
            raise CniError(
                NO_NETDEV,
                f"{function.id}: its IPoIB netdev {before.name!r} went with the move of the RDMA device, and none "
                f"came in its place within {_REBIRTH_PATIENCE:.0f} s; expected one: is ib_ipoib loaded?",
            )
        time.sleep(0.01)


def _move_netdev(host: Host, request: Request, link: Link, pod: Namespace, pod_links: Links) -> Link:
    """Move a netdev into the pod as CNI_IFNAME, in one request; the netdev as it is there.

    The kernel moves first and renames then: a name that is taken in the pod would leave the netdev
    there under its old one, so that is asked before. An alternative name that equals CNI_IFNAME or
    anything in the pod refuses the move: it goes now and comes back with the netdev.
    """
    try:
        for altname in link.altnames:
            if altname == request.ifname or pod_links.get(altname):
                host.links.delete_altname(link.ifindex, altname)
        host.links.set(link.ifindex, name=request.ifname, namespace=pod.fd)
    except NetlinkError as error:
        if error.errno == EEXIST:
            raise _name_taken(request, pod_links.get(request.ifname)) from None
        raise error.report(f"move {link.name!r} into {pod.path} as {request.ifname!r}") from None
    moved = pod_links.get(request.ifname)
    if moved is None:
        raise CniError(NO_NETDEV, f"{request.ifname} in the pod: found nothing right after it was moved there")
    return moved


def _name_taken(request: Request, taken: Link | None) -> CniError:
    who = f"by a netdev there ({taken.name!r}, index {taken.ifindex})" if taken else "there"
    return CniError(
        INTERFACE_NAME_TAKEN,
        f"CNI_IFNAME: found {request.ifname!r} taken {who} in the pod, expected it free: "
        "has this pod been attached already? To add RDMA to an interface that another plugin made, chain after it",
    )


def _dress(pod_links: Links, link: Link, conf: "NetConf", attachment: Attachment) -> None:
    """Give the netdev in the pod the MAC and MTU that were asked for, and the mark of where it is from."""
    runtime_mac = conf.runtimeConfig.mac if conf.runtimeConfig else None
    mac = runtime_mac or conf.mac or None
    if attachment.netdev is None:
        return
    alias = home.mark(attachment.netdev, attachment.rdma)
    try:
        pod_links.set(link.ifindex, alias=alias, mtu=conf.mtu, mac=mac)
    except NetlinkError as error:
        asked = [f"MTU {conf.mtu}"] if conf.mtu else []
        asked += [f"MAC {mac}"] if mac else []
        raise error.report(f"give {link.name!r} {' and '.join(asked) or 'its mark'} (mtu, mac)") from None


def _bring_up(pod_links: Links, link: Link) -> None:
    try:
        pod_links.set(link.ifindex, up=True)
    except NetlinkError as error:
        raise error.report(f"bring {link.name!r} up in the pod") from None


def _addresses(raw: dict[str, object], plugin: str) -> "Result":
    """An IPAM plugin's answer, checked. Raises CniError 106 or 107."""
    answer = cast("Result", validate.check("RESULT", raw, prefix=f'answer of plugin "{plugin}": ', code=IPAM_NONSENSE))
    if not answer.ips:
        raise CniError(
            IPAM_NO_ADDRESS, f'plugin "{plugin}": found no address in its answer (ips), expected at least one'
        )
    for number, ip in enumerate(answer.ips):
        if not addressing.is_hosts(ip.address):
            raise CniError(
                IPAM_NONSENSE,
                f'answer of plugin "{plugin}": ips[{number}].address: found {ip.address}, expected a host\'s address',
            )
    return answer


def _remember_addresses(host: Host, attachment: Attachment, answer: "Result", links: Links, link: Link) -> None:
    """Write down what this plugin is about to set itself: what others set is not its to check or remove."""
    ips = answer.ips or []
    there = links.addresses(link.ifindex)
    attachment.addresses = [ip.address for ip in ips if ip.address not in there]
    attachment.routes = [(route.dst, addressing.gateway(route, ips), route.table or 0) for route in answer.routes or []]
    host.state.put(attachment)


def _unaddress(attachment: Attachment, pod_links: Links) -> None:
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


def _tell(conf: "NetConf", function: Function, devices: list[Device], undo: Undo) -> None:
    """Write the names that the RDMA devices have in the pod to where Multus wants to know them."""
    path = conf.runtimeConfig.CNIDeviceInfoFile if conf.runtimeConfig else None
    if not path:
        return
    from rdma_cni import deviceinfo

    name = conf.args.cni.rdmaDeviceName if conf.args and conf.args.cni else None
    names = [_name_in_pod(name, number) if name else found.name for number, found in enumerate(devices)]
    undo.push(f"take {function.id} out of {path}", lambda: deviceinfo.remove(path, function))
    deviceinfo.write(path, function, names)


def _name_in_pod(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


# Results


def _result(request: Request, function: Function, link: Link | None, addresses: dict[str, object]) -> dict[str, object]:
    """The result in the version that was asked for.

    Alone: the interface and what the IPAM plugin answered. Chained: `prevResult`, to which is added
    what this plugin knows of CNI_IFNAME and what the IPAM plugin answered.
    """
    previous = request.config.get("prevResult")
    result: dict[str, object] = dict(previous) if isinstance(previous, dict) else {}
    result["cniVersion"] = request.version
    interfaces: list[dict[str, object]] = [
        dict(entry) for entry in cast("list[dict[str, object]]", result.get("interfaces") or [])
    ]
    if link:
        interfaces.append({"name": link.name, "mac": link.mac, "sandbox": request.netns})
        if request.at_least("1.1.0"):
            interfaces[-1]["mtu"] = link.mtu
    number = next(
        (i for i, entry in enumerate(interfaces) if entry.get("name") == request.ifname and entry.get("sandbox")), None
    )
    if number is not None and request.at_least("1.1.0") and function.is_pci:
        interfaces[number].setdefault("pciID", function.id)
    for entry in interfaces:
        if not request.at_least("1.1.0"):
            for key in ("mtu", "socketPath", "pciID"):
                entry.pop(key, None)
    if interfaces:
        result["interfaces"] = interfaces
    ips = cast("list[dict[str, object]]", result.get("ips") or [])
    for given in cast("list[dict[str, object]]", addresses.get("ips") or []):
        ip = {key: value for key, value in given.items() if key not in ("version", "interface")}
        if number is not None:
            ip["interface"] = number
        ips = [*ips, ip]
    if ips:
        result["ips"] = [_ip(request, ip) for ip in ips]
    routes = [*cast("list[object]", result.get("routes") or []), *cast("list[object]", addresses.get("routes") or [])]
    if routes:
        result["routes"] = routes
    dns = addresses.get("dns")
    if dns and not result.get("dns"):
        result["dns"] = dns
    return result


def _ip(request: Request, ip: dict[str, object]) -> dict[str, object]:
    """An address as the version has it: up to 0.4.0 it says which IP version it is."""
    ip = dict(ip)
    if request.at_least("1.0.0"):
        ip.pop("version", None)
    else:
        ip["version"] = "6" if ":" in str(ip.get("address")) else "4"
    return ip


# DEL's and GC's steps


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
                _unaddress(attachment, links)
            finally:
                links.close()
        _release(host, attachment, pod)
    finally:
        lock.release()


def _release(host: Host, attachment: Attachment, pod: Namespace | None) -> None:
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
        found = [_reconstruct(host, request, one, pod, pod_links, wait=one is function) for one in functions]
        return [attachment for attachment in found if attachment]
    except CniError as error:
        # A device that is not there any more cannot be given back.
        log.warning(f"no state of this attachment, and its device is not to be found: {error}")
        return []
    finally:
        if pod_links:
            pod_links.close()


def _reconstruct(
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
        devices = _devices_in(function, pod) if host.rdma.exclusive() else []
    elif wait and function.rdma_devices(host.rdma) == []:
        home.await_return(host, function)
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


def _devices_in(function: Function, pod: Namespace) -> list[Device]:
    """The function's RDMA devices that are in the pod."""
    sysfs = pod.sysfs()
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


# CHECK's steps


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
    inside = {found.index for found in _devices_in(function, pod)}
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
