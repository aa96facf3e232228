"""Brings an attachment's devices home, wherever they are: for DEL, for GC, and when an ADD fails.

It looks at where things are and never at how far an ADD came, so that it serves after a kill at
any point, and a second time. RDMA devices come first: on InfiniBand the netdev dies with the move
of its RDMA device, and the one that is born on the host is the one to put right.
"""

import posix
import time
from errno import EACCES, EEXIST, EPERM

from rdma_cni import netns
from rdma_cni.cni import checks, log
from rdma_cni.cni.errors import TRY_AGAIN, CniError
from rdma_cni.device import Function
from rdma_cni.host import Host, links_in
from rdma_cni.link import ARPHRD_INFINIBAND, IFF_ALLMULTI, IFF_PROMISC, Link, Links
from rdma_cni.netlink import NetlinkError
from rdma_cni.netns import Namespace
from rdma_cni.rdma import Device, Rdma
from rdma_cni.state import Attachment, NetdevRecord, RdmaRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 5.0
"""Seconds to wait for what the kernel brings home itself, from a namespace that is dying."""
_AT_ONCE = 1.0
"""Seconds after which what was in a pod that is alive is looked for elsewhere; an IPoIB netdev is born meanwhile."""

_MARK = "rdma-cni "
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789#+-.=@_")
"""What udev leaves in a name as it is."""


def bring_home(host: Host, attachment: Attachment, pod: Namespace | None) -> None:
    """Return every device of `attachment` to the host, as it was there.

    `pod` is the attachment's own namespace, or None when its path leads there no more. Raises
    CniError 11 when a device is still elsewhere and cannot be had now.
    """
    function = Function(attachment.function)
    found: Namespace | None = None
    if attachment.rdma and not host.has_rdma():
        log.warning(f"the kernel has no RDMA subsystem any more, and {function.id} no RDMA device")
        attachment.rdma = []
    try:
        if pod is None and attachment.cookie and not _is_home(host, attachment, function):
            # The path is gone, but a process may keep the namespace alive.
            found = pod = netns.find(attachment.cookie)
        if attachment.netdev is None:
            host.moves()
        _rdma_home(host, attachment, function, pod)
        if attachment.netdev is not None:
            _netdev_home(host, attachment, attachment.netdev, function, pod)
        elif attachment.borrowed is not None and pod and pod is not found:
            _lend_again(host, attachment, attachment.borrowed, function, pod)
    except NetlinkError as error:
        raise CniError(
            TRY_AGAIN, f"the kernel refused to return a device of {function.id} to the host: {error}; try again"
        ) from None
    finally:
        if found:
            found.close()


def _is_home(host: Host, attachment: Attachment, function: Function) -> bool:
    home = {device.index for device in host.rdma.devices()} if attachment.rdma else set()
    away = any(device.index not in home for device in attachment.rdma) and function.rdma_devices(host.rdma) == []
    return not away and (attachment.netdev is None or function.netdev_names() != [])


def await_return(host: Host, function: Function) -> bool:
    """Wait, as long as is sensible, for devices that a dying namespace gives back. Whether they came."""
    return _wait(lambda: function.rdma_devices(host.rdma) != [] and function.netdev_names() != [])


def _wait(condition: "Callable[[], bool]", patience: float = PATIENCE) -> bool:
    """Whether `condition` came true within `patience` seconds."""
    deadline = time.monotonic() + patience
    pause = 0.002
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def _beside(pod: Namespace | None) -> "Iterator[Namespace]":
    """Each live namespace but the host's and the pod's, while the pod is alive; closed when the next is asked for.

    Root in the pod may have given a device to a namespace of its own: out of a pod that is alive nobody else
    takes one. From a pod that is dead the kernel brings them home, where others may have had them since.
    """
    if pod is None:
        return
    for namespace in netns.live():
        try:
            if namespace.cookie != pod.cookie:
                yield namespace
        finally:
            namespace.close()


def _rdma_home(host: Host, attachment: Attachment, function: Function, pod: Namespace | None) -> None:
    if not attachment.rdma:
        return
    wanted = {record.index: record for record in attachment.rdma}
    if pod:
        _take_rdma(pod, wanted)

    home: list[Device] = []

    def arrived() -> bool:
        nonlocal home
        # A device that is nowhere has gone for good, one with its GUID and another index was
        # born when the driver was bound again.
        of_function = function.rdma_devices(host.rdma)
        home = of_function or []
        if of_function is None or len(of_function) >= len(wanted):
            return True
        here = {device.index for device in host.rdma.devices()}
        missing = [record for record in wanted.values() if record.index not in here]
        # Of this function's alone: a VF that nobody gave a GUID has 0, as all of them do.
        guids = {device.guid for device in of_function if device.index not in wanted}
        return all(record.guid in guids for record in missing)

    if not _wait(arrived, _AT_ONCE):
        for namespace in _beside(pod):
            if _take_rdma(namespace, wanted):
                log.warning(f"an RDMA device of {function.id} was in {namespace.path}, which is not its pod")
        if not _wait(arrived):
            raise CniError(
                TRY_AGAIN,
                f"an RDMA device of {function.id} is neither on the host nor in the pod's namespace; something keeps "
                "a namespace alive that it is in: end the pod's processes, or try again",
            )
    for device in home:
        record = wanted.get(device.index)
        if record and record.name and device.name != record.name:
            try:
                _rename_rdma(host, attachment, device, record.name)
            except NetlinkError as error:
                if error.may_pass:
                    raise
                log.warning(
                    f"RDMA device {device.name!r} of {function.id} was {record.name!r} and cannot be again: {error}"
                )


def _take_rdma(namespace: Namespace, wanted: "dict[int, RdmaRecord]") -> bool:
    """Move those of the `wanted` RDMA devices that are in a namespace to the host. Whether there were any."""
    # A move takes effect for the calling thread's namespace: socket and thread are both inside.
    with namespace:
        inside = Rdma()
        try:
            there = [device.index for device in inside.devices() if device.index in wanted]
            for index in there:
                inside.move(index, netns.host_fd())
        finally:
            inside.close()
    return bool(there)


def _rename_rdma(host: Host, attachment: Attachment, device: Device, name: str) -> None:
    try:
        host.rdma.rename(device.index, name)
    except NetlinkError as error:
        # Names are unique over all namespaces, and root in another pod may have given this one to
        # a device there.
        if error.errno != EEXIST or not _free_name(host, attachment, name):
            raise
        host.rdma.rename(device.index, name)


def _free_name(host: Host, attachment: Attachment, name: str) -> bool:
    """Take a name from a device of whatever attachment; the device's own name comes back with its DEL."""
    attachments = [attachment, *host.state.all()]
    known = {record.index for each in attachments for record in each.rdma}
    if _rename_away(host.rdma, name, known):
        return True
    cookies = {each.cookie for each in attachments if each.cookie}
    for namespace in netns.live():
        try:
            with namespace:
                inside = Rdma()
                try:
                    if _rename_away(inside, name, None if namespace.cookie in cookies else known):
                        log.warning(
                            f"RDMA device {name!r} in {namespace.path}: renamed, that is the name of one of "
                            f"{attachment.function}"
                        )
                        return True
                finally:
                    inside.close()
        finally:
            namespace.close()
    return False


def _rename_away(rdma: Rdma, name: str, known: "set[int] | None") -> bool:
    """Rename the device of this name, when it is one of the `known` indices (None: whichever). Whether it was."""
    for device in rdma.devices():
        if device.name == name and (known is None or device.index in known):
            # One that nobody can have given to another device beforehand.
            rdma.rename(device.index, f"rdma-{device.index}-{posix.urandom(4).hex()}")
            return True
    return False


def _netdev_home(
    host: Host, attachment: Attachment, record: NetdevRecord, function: Function, pod: Namespace | None
) -> None:
    brought = bool(pod and _take_netdevs(host, pod, record, function))
    link: Link | None = None

    def arrived() -> bool:
        nonlocal link
        link = _on_host(host, attachment, record, function)
        # No directory at all: the function has no netdev any more, in no namespace.
        return link is not None or function.netdev_names() is None

    if not _wait(arrived, _AT_ONCE):
        # Of a driver that was bound anew it would be another, which may be anybody's.
        for namespace in _beside(pod) if _has_its_rdma(host, attachment) else ():
            if _take_netdevs(host, namespace, record, function):
                brought = True
                log.warning(f"the netdev of {function.id} was in {namespace.path}, which is not its pod")
        if not _wait(arrived):
            raise CniError(
                TRY_AGAIN,
                f"the netdev of {function.id} is neither on the host nor in the pod's namespace; something keeps a "
                "namespace alive that it is in: end the pod's processes, or try again",
            )
    if link is None:
        log.warning(f"{function.id} has no netdev any more; it was {record.name!r}")
        return
    if not brought and _is_new(host, attachment, link):
        log.info(f"{link.name!r} of {function.id} was made since, by a driver that was bound anew: it stays as it is")
        return
    _restore(host, link, record, function)


def _take_netdevs(host: Host, namespace: Namespace, record: NetdevRecord, function: Function) -> bool:
    """Move the function's netdevs that are in a namespace to the host. Whether there were any."""
    inside = links_in(namespace)
    try:
        there = [link for link in inside.all() if link.parent == function.id and link.kind == record.kind]
        for link in there:
            _move_home(host, inside, link, record.name)
    finally:
        inside.close()
    return bool(there)


def _is_new(host: Host, attachment: Attachment, link: Link) -> bool:
    """Whether a netdev is not the one that was in the pod: nothing of it tells so, and the RDMA devices are others."""
    if not attachment.rdma or link.alias.startswith(_MARK) or link.name == attachment.ifname:
        return False
    return not _has_its_rdma(host, attachment)


def _has_its_rdma(host: Host, attachment: Attachment) -> bool:
    """Whether an RDMA device that was in the pod is on the host: it is gone when its driver was bound anew."""
    known = {record.index for record in attachment.rdma}
    return bool(known) and any(device.index in known for device in host.rdma.devices())


def _lend_again(host: Host, attachment: Attachment, record: NetdevRecord, function: Function, pod: Namespace) -> None:
    """Put the netdev that was born on the host into the pod: the plugin that put one there looks for it."""
    inside = links_in(pod)
    try:
        if any(link.parent == function.id and link.kind == record.kind for link in inside.all()):
            return
        link: Link | None = None

        def born() -> bool:
            nonlocal link
            link = _on_host(host, attachment, record, function)
            return link is not None

        if not _wait(born) or link is None:
            log.warning(f"{function.id}: its IPoIB netdev did not come again after the move of its RDMA device")
            return
        host.links.set(link.ifindex, name=attachment.ifname, namespace=pod.fd)
        moved = inside.get(attachment.ifname)
        if moved:
            resemble(inside, moved, record)
    except NetlinkError as error:
        if error.may_pass:
            raise
        log.warning(f"the IPoIB netdev of {function.id} cannot go to {attachment} again: {error}")
    finally:
        inside.close()


def resemble(links: Links, link: Link, record: NetdevRecord) -> None:
    """Make a netdev that was born again in a pod what the one before it was, addresses apart."""
    change = {"mtu": record.mtu, "alias": record.alias, "up": record.up}
    _attempt(f"{link.name!r} cannot be again what it was", links, link, change)
    wanted = set(record.altnames or [])
    try:
        # What udev gave it on the host would block a renaming to just that.
        for altname in set(link.altnames) - wanted:
            links.delete_altname(link.ifindex, altname)
        for altname in wanted - set(link.altnames):
            links.add_altname(link.ifindex, altname)
    except NetlinkError as error:
        if error.may_pass:
            raise
        log.warning(f"{link.name!r} cannot have the names {sorted(wanted)} again: {error}")


def _on_host(host: Host, attachment: Attachment, record: NetdevRecord, function: Function) -> Link | None:
    """The function's netdev on the host: of several, the one that looks most like the recorded one."""
    links = [host.links.get(name) for name in function.netdev_names() or []]
    candidates = [link for link in links if link and link.kind == record.kind]
    guid = record.mac[-23:]

    def likeness(link: Link) -> tuple[bool, bool]:
        # The last eight bytes of an InfiniBand address are the port's GUID; the rest may change.
        same = link.mac[-23:] == guid if record.kind == ARPHRD_INFINIBAND else link.mac == record.mac
        return same, link.name in (record.name, attachment.ifname)

    return max(candidates, key=likeness, default=None)


def _move_home(host: Host, inside: Links, link: Link, name: str) -> None:
    """Move a netdev from a pod to the host, under a name that is free there: `name` if it can be.

    Moved with a name that is taken, it would arrive under its old one, or not at all when that is
    taken, too; alternative names that are taken refuse the move as well, and one of its own that
    equals the name refuses the renaming.
    """
    for altname in link.altnames:
        if altname == name or host.links.get(altname):
            inside.delete_altname(link.ifindex, altname)
    if not _PLAIN.issuperset(link.name):
        # udev gives what appears on the host under such a name another one, after all that is done here.
        inside.set(link.ifindex, up=False)
        # One that root in the pod cannot have given to another netdev beforehand.
        link.name = f"vf{posix.urandom(5).hex()}"
        inside.set(link.ifindex, name=link.name)
    target = name or link.name
    if host.links.get(target):
        target = _unused(host.links)
    host.moves()
    try:
        inside.set(link.ifindex, name=target, namespace=netns.host_fd())
    except NetlinkError as error:
        if error.errno != EEXIST:
            raise
        # Somebody was quicker with that name. The kernel knows how to choose one.
        if inside.get(link.ifindex):
            inside.set(link.ifindex, name="dev%d", namespace=netns.host_fd())


def _unused(links: Links) -> str:
    """A name that no netdev of the namespace has, of the kind that the kernel itself falls back on."""
    number = 0
    while links.get(f"dev{number}"):
        number += 1
    return f"dev{number}"


def _restore(host: Host, link: Link, record: NetdevRecord, function: Function) -> None:
    """Make a netdev on the host what it was. What the kernel will never let be is logged.

    Raises NetlinkError for what it refuses for now.
    """
    links = host.links
    # An InfiniBand address is the hardware's: its first bytes change with each birth.
    mac = record.mac if record.kind != ARPHRD_INFINIBAND and record.mac not in ("", link.mac) else None
    mtu = record.mtu if record.mtu not in (0, link.mtu) else None
    alias = record.alias if record.alias != link.alias else None
    # Many drivers change the address of a netdev that is down only.
    up = link.up and record.up and mac is None
    changes: tuple[tuple[str, dict[str, object]], ...] = (
        ("its state", {"up": False} if link.up and not up else {}),
        ("its MAC", {"mac": mac} if mac else {}),
        ("its MTU", {"mtu": mtu} if mtu else {}),
        ("its alias", {"alias": alias} if alias is not None else {}),
        ("its own packets alone", {"own_traffic": True} if link.flags & (IFF_PROMISC | IFF_ALLMULTI) else {}),
    )
    for what, change in changes:
        if change:
            _attempt(f"{link.name!r} of {function.id} cannot have {what} again", links, link, change)
    # udev works on the same netdev at the same time, as it does on each that appears.
    for attempt in range(3):
        refusal = _restore_names(host, link, record, function)
        if refusal is None:
            break
        if attempt == 2:
            if refusal.may_pass:
                raise refusal
            log.warning(f"{link.name!r} of {function.id} cannot have its names again: {refusal}")
        again = links.get(link.ifindex)
        if again is None:
            return
        link = again
    if record.up and not up:
        _attempt(f"{link.name!r} of {function.id} cannot be up again", links, link, {"up": True})


def _attempt(what: str, links: Links, link: Link, change: dict[str, object]) -> None:
    try:
        links.set(link.ifindex, **change)  # type: ignore[arg-type]
    except NetlinkError as error:
        # Drivers answer EPERM where a VF may not choose its address, however often it is asked.
        if error.may_pass and not (error.errno in (EPERM, EACCES) and "mac" in change):
            raise
        log.warning(f"{what}: {error}")


def _restore_names(host: Host, link: Link, record: NetdevRecord, function: Function) -> NetlinkError | None:
    """Give a netdev on the host its names. What the kernel refused: something changed meanwhile, look again."""
    links = host.links
    name = record.name or link.name
    try:
        for altname in link.altnames:
            if altname == name or (record.altnames is not None and altname not in record.altnames):
                links.delete_altname(link.ifindex, altname)
        if link.name != name:
            other = links.get(name)
            if other and other.ifindex != link.ifindex and not _gives_way(host, other, name):
                log.warning(
                    f"the netdev of {function.id} was {name!r}, but that is a name of {other.name!r} now; "
                    f"it stays {link.name!r}"
                )
            else:
                links.set(link.ifindex, name=name)
        for altname in record.altnames or []:
            other = links.get(altname)
            if other is None:
                links.add_altname(link.ifindex, altname)
            elif other.ifindex != link.ifindex:
                log.warning(f"{name!r} of {function.id} had the name {altname!r}, too; {other.name!r} has it now")
    except NetlinkError as error:
        log.info(f"the names of {link.name!r} of {function.id}: {error}")
        return error
    return None


def _gives_way(host: Host, other: Link, name: str) -> bool:
    """Take a name from a netdev on the host that has it from its pod, and will have its own with its DEL."""
    holder = host.state.of_function(other.parent) if other.parent else None
    marked = read_mark(other)
    record = holder.netdev if holder else marked[0] if marked else None
    if record is None or name in (record.name, *(record.altnames or [])):
        return False
    if other.name == name:
        host.links.set(other.ifindex, name=_unused(host.links))
    else:
        host.links.delete_altname(other.ifindex, name)
    return True


def mark(record: NetdevRecord, rdma: list[RdmaRecord]) -> str:
    """What a netdev in a pod carries as its alias, so that the kernel knows it when the state is lost.

    It is what the netdev and the RDMA devices were on the host. A pod's root can change it: it is
    believed only when there is no state, and no further than for a name that is free.
    """
    text = f"{_MARK}name={record.name} mac={record.mac} mtu={record.mtu} up={int(record.up)}"
    names = ",".join(device.name for device in rdma)
    # IFALIASZ is 256 bytes.
    return f"{text} rdma={names}" if len(text) + len(names) < 240 else text


def read_mark(link: Link) -> tuple[NetdevRecord, list[str]] | None:
    """(netdev, RDMA devices' names) from a netdev's alias, or None when it carries no mark."""
    if not link.alias.startswith(_MARK):
        return None
    fields = dict(field.partition("=")[::2] for field in link.alias[len(_MARK) :].split(" "))
    mtu = fields.get("mtu", "")
    # Rather the address that the hardware has of old than one that a pod made up.
    mac = _checked(checks.mac, fields.get("mac", "")) or link.permanent_mac
    name = _checked(checks.interface_name, fields.get("name", ""))
    names = [_checked(checks.rdma_name, entry) for entry in fields.get("rdma", "").split(",")]
    number = int(mtu) if mtu.isdecimal() and len(mtu) <= 5 else 0
    return NetdevRecord(name, mac, number, link.kind, None, "", fields.get("up") == "1"), names


def _checked(check: "Callable[[str], str]", text: str) -> str:
    try:
        return check(text)
    except ValueError:
        return ""
