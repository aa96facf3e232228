"""ADD: attach a VF to a pod.

`add` from top to bottom is the specification of the plugin. Nothing here prints, ends the process
or keeps state of its own: a resident process could call it as the executable does.
"""

import time
from errno import EEXIST, EOPNOTSUPP

from rdma_cni import addressing, allocation, config, detach, device, home, netns
from rdma_cni.cni import log, system, validate
from rdma_cni.cni.database import Lock
from rdma_cni.cni.errors import (
    INTERFACE_NAME_TAKEN,
    IPAM_NO_ADDRESS,
    IPAM_NONSENSE,
    KERNEL_REFUSED,
    NO_NETDEV,
    NO_RDMA_DEVICE,
    TRY_AGAIN,
    CniError,
)
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
_UDEV_PATIENCE = 5.0


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
    host.require_exclusive()
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
    undo.push(f"take {function.id} back", lambda: detach.release(host, attachment, pod))
    host.state.put(attachment)
    if ipam:
        undo.lend(ipam.close)
        host.meanwhile(ipam.prepare)

    if netdev is None:
        host.moves()
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
            undo.push("remove the addresses", lambda: detach.unaddress(attachment, pod_links))
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
        left = detach.reconstruct(host, request, function, None, None, wait=False)
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
    detach.release(host, holder, None)
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
        settled = not system.exists("/run/udev/control") or _udev_is_done(link.ifindex)
        link = host.links.get(link.ifindex) or link
        if settled or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return link


def _udev_is_done(ifindex: int) -> bool:
    """Whether udev has dealt with a netdev; it makes its entry, with a note, before it renames one."""
    try:
        with open(f"/run/udev/data/n{ifindex}", "rb") as entry:
            text = entry.read()
    except OSError:
        return False
    return b"E:ID_RENAMING=1" not in text and b"E:ID_PROCESSING=1" not in text


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
        host.moves()
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
