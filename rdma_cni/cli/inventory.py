"""What RDMA-capable functions the node has, where they are and who has them, as the kernel tells it.

Sysfs shows the RDMA devices and netdevs of one namespace, so each namespace that lives is asked through
netlink and a sysfs of its own. Nothing here changes anything.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rdma_cni import choice, netns
from rdma_cni.cli import hardware
from rdma_cni.cli.hardware import Gpu
from rdma_cni.cni.errors import CniError
from rdma_cni.link import ARPHRD_INFINIBAND, IFF_RUNNING, Link, Links
from rdma_cni.netlink import NetlinkError
from rdma_cni.rdma import Rdma
from rdma_cni.state import Attachment, State

HOST = "host"
_STATE = "/run/rdma-cni/state.db"
_PHYSICAL_STATE = re.compile(r"\d+: ")


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table. `type` is "RoCE v1", "RoCE v2" or "IB"; `netdev` "" on InfiniBand."""

    index: int
    gid: str
    type: str
    netdev: str


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device: `state` and `physical_state` as the kernel spells them, `gbps` its rate in Gb/s.

    The counters are those of `counters/` and `hw_counters/`; empty unless they were asked for.
    """

    number: int
    link_layer: str
    state: str
    physical_state: str
    rate: str
    gbps: float
    gids: tuple[Gid, ...]
    counters: dict[str, int]
    hw_counters: dict[str, int]


@dataclass(frozen=True)
class RdmaDevice:
    """An RDMA device.

    `index` is nldev's, `guid` the node GUID as 16 hexadecimal digits in groups of four, `where` HOST or the
    path of the namespace that it is in.
    """

    name: str
    where: str
    index: int
    guid: str
    firmware: str
    hca_type: str
    board: str
    verbs: str
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class Netdev:
    """A netdev of a function; `mbps` is None where the driver does not tell a speed, as of one that is down.

    `where` is HOST or the path of the namespace that it is in.
    """

    name: str
    where: str
    ifindex: int
    mac: str
    mtu: int
    up: bool
    carrier: bool
    infiniband: bool
    mbps: int | None
    addresses: tuple[str, ...]
    alternative_names: tuple[str, ...]
    master: int
    alias: str


@dataclass(frozen=True)
class Holder:
    """Who has a function: `netns` is a path to the namespace that it is in, "" when it is on the host.

    `attached`: this plugin gave it there. What is not known is "".
    """

    netns: str
    cookie: int
    pod: str
    container: str
    interface: str
    network: str
    attached: bool
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Function:
    """An RDMA-capable function.

    `id` is its name on its bus: a PCI address, an auxiliary device, or, of a `virtual` one (rxe), its RDMA
    device's name. `kind` is pf, vf, sf or virtual; `index` a VF's number on its PF, or an SF's number, else
    None. `numa` is None where the machine has no such thing. `gpu` is the nearest, `gpu_distance` one of
    hardware.DISTANCES. `state` is one of STATES; `where` HOST or the path of a namespace.
    """

    id: str
    kind: str
    pf: str
    pf_netdev: str
    index: int | None
    vendor: str
    device: str
    vendor_name: str
    device_name: str
    driver: str
    numa: int | None
    gpu: Gpu | None
    gpu_distance: str
    vfs: int
    vfs_possible: int
    state: str
    where: str
    holder: Holder | None
    rdma: tuple[RdmaDevice, ...]
    netdevs: tuple[Netdev, ...]

    @property
    def link_layer(self) -> str:
        """Of its first RDMA device's first port; "" when it has none."""
        return next((port.link_layer for device in self.rdma for port in device.ports), "")

    @property
    def netdev(self) -> Netdev | None:
        """The netdev of its RDMA device's link layer, or its first."""
        wanted = self.link_layer == "InfiniBand"
        return next((n for n in self.netdevs if n.infiniband == wanted), self.netdevs[0] if self.netdevs else None)


STATES = {
    "free": "a VF or SF that a pod can have",
    "attached": "this plugin gave it to a pod",
    "in a pod": "in a namespace that this plugin did not put it into",
    "left": "on the host, and an attachment still has it: its pod died without a DEL",
    "allocated": "kubelet gave it to a pod",
    "in use": "its netdev has an address or a master on the host",
    "no RDMA": "it has no RDMA device",
    "no driver": "no driver is bound to it",
    "vfio": "bound to vfio-pci: for virtual machines",
    "host": "a PF, or a device of the host alone",
}


@dataclass(frozen=True)
class Node:
    """The node: `exclusive` is the namespace mode, None when the kernel does not tell it.

    `problems` are what could not be looked at, a sentence each.
    """

    name: str
    kernel: str
    exclusive: bool | None
    functions: tuple[Function, ...]
    gpus: tuple[Gpu, ...]
    problems: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)

    def free(self, pf: str) -> int:
        """How many of a PF's VFs and SFs a pod can have."""
        return sum(function.pf == pf and function.state == "free" for function in self.functions)


def read(*, gids: bool = True, counters: bool = False, models: bool = False) -> Node:
    """Look at the whole node. GIDs and counters are hundreds of files for each device: only when asked for.

    `models`: names of vendors and devices, from a database of megabytes; else they are "".
    """
    problems = _circumstances()
    attachments = _attachments(problems)
    names = hardware.Names(models=models)
    host = _View("", None, problems)
    views = [host]
    try:
        exclusive = host.exclusive()
        views += _pods(host, exclusive, problems)
        seen = _Seen(views, exclusive=exclusive is not False, gids=gids, counters=counters)
        functions = _functions(seen, attachments, names, problems)
    finally:
        for view in views:
            view.close()
    release = os.uname()
    return Node(
        release.nodename, release.release, exclusive, functions, names.gpus(), tuple(problems), tuple(attachments)
    )


def _circumstances() -> list[str]:
    """What limits the sight of this process, a sentence each."""
    found = []
    if os.geteuid():
        found.append("not root: what is inside pods and the state of the plugin cannot be seen; run it as root")
    try:
        if os.stat("/proc/1/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino:
            found.append(
                "this process is in a network namespace of its own, so what is on the host is not seen as such; "
                "run it on the host (nsenter -t 1 -n, or hostNetwork in a pod)"
            )
    except OSError:
        pass
    if any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv")):
        found.append("this process is in a container: pods are seen only with the host's PID namespace and /run")
    for path, what in (("/sys/bus/pci/devices", "PCI functions"), ("/sys/class/infiniband", "RDMA devices")):
        if not os.path.isdir(path):
            missing = "is /sys mounted?" if not os.path.isdir("/sys/bus") else "run `modprobe ib_core`"
            if path.endswith("pci/devices") and os.path.isdir("/sys/bus"):
                missing = "this machine has no PCI bus"
            found.append(f"{path}: not there, so no {what} are seen; {missing}")
    return found


def _attachments(problems: list[str]) -> list[Attachment]:
    try:
        if not os.path.exists(_STATE):
            return []
        state = State()
        try:
            return state.all()
        finally:
            state.close()
    except (CniError, OSError) as error:
        problems.append(f"attachments cannot be read: {error}")
        return []


class _View:
    """A namespace and what it shows: sockets inside it, and its sysfs. `path` is "" for the host's."""

    def __init__(self, path: str, namespace: netns.Namespace | None, problems: list[str]) -> None:
        self.path = path
        self.cookie = namespace.cookie if namespace else 0
        self.inode = os.fstat(namespace.fd).st_ino if namespace else 0
        self._sysfs = -1
        self._namespace = namespace
        self._rdma: Rdma | None = None
        with namespace or contextlib.nullcontext():
            self.links = Links()
            try:
                self._rdma = Rdma()
            except CniError as error:
                if namespace is None:
                    problems.append(error.message)

    @property
    def root(self) -> str:
        """The path of its sysfs. Raises OSError."""
        if self._namespace is None:
            return "/sys"
        if self._sysfs < 0:
            self._sysfs = self._namespace.sysfs()
        return f"/proc/self/fd/{self._sysfs}"

    def exclusive(self) -> bool | None:
        try:
            return self._rdma.exclusive() if self._rdma else None
        except CniError:
            return None

    def rdma_devices(self) -> list[tuple[int, str, int]]:
        """(index, name, node GUID) of each."""
        if self._rdma is None:
            return []
        try:
            return [(device.index, device.name, device.guid) for device in self._rdma.devices()]
        except NetlinkError:
            # ib_core is there, its netlink is not: no module has registered a device yet.
            return []

    def close(self) -> None:
        self.links.close()
        if self._rdma:
            self._rdma.close()
        if self._sysfs >= 0:
            os.close(self._sysfs)
        if self._namespace:
            self._namespace.close()


def _pods(host: _View, exclusive: bool | None, problems: list[str]) -> Iterator[_View]:
    """The other namespaces that have an RDMA device or a netdev with a device below it."""
    try:
        for namespace in netns.live():
            view = _View(namespace.path, namespace, problems)
            if (exclusive is not False and view.rdma_devices()) or any(link.parent for link in view.links.all()):
                yield view
            else:
                view.close()
    except (CniError, OSError) as error:
        if not os.geteuid():
            problems.append(f"not every network namespace could be looked into: {error}")


class _Seen:
    """What the namespaces show, by function."""

    def __init__(self, views: list[_View], *, exclusive: bool, gids: bool, counters: bool) -> None:
        self.rdma: dict[str, list[tuple[_View, RdmaDevice]]] = {}
        self.netdevs: dict[str, list[tuple[_View, Netdev]]] = {}
        verbs = _verbs()
        for view in views:
            for index, name, guid in view.rdma_devices() if exclusive or not view.path else ():
                device = _rdma_device(view, index, name, guid, verbs, gids=gids, counters=counters)
                self.rdma.setdefault(_of_rdma_device(view, name, verbs), []).append((view, device))
            for link in view.links.all():
                if link.parent:
                    self.netdevs.setdefault(link.parent, []).append((view, _netdev(view, link)))


def _verbs() -> dict[str, tuple[str, str]]:
    """By an RDMA device's name, in whichever namespace: (its uverbs device, its function)."""
    base = "/sys/class/infiniband_verbs"
    found = {}
    for entry in listed(base):
        name = text(f"{base}/{entry}/ibdev")
        if name:
            found[name] = entry, os.path.basename(target(f"{base}/{entry}/device"))
    return found


def _of_rdma_device(view: _View, name: str, verbs: dict[str, tuple[str, str]]) -> str:
    """The function of an RDMA device; its own name when it hangs below none."""
    if plain(name):
        with contextlib.suppress(OSError):
            path = os.readlink(f"{view.root}/class/infiniband/{name}/device")
            return os.path.basename(path)
    return verbs.get(name, ("", ""))[1] or name


def plain(name: str) -> bool:
    """Whether a path may be made of a name: a pod's root may give its device any."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _rdma_device(
    view: _View,
    index: int,
    name: str,
    guid: int,
    verbs: dict[str, tuple[str, str]],
    *,
    gids: bool,
    counters: bool,
) -> RdmaDevice:
    base = ""
    if plain(name):
        with contextlib.suppress(OSError):
            base = f"{view.root}/class/infiniband/{name}"
    digits = guid.to_bytes(8, "big").hex()
    return RdmaDevice(
        name,
        view.path or HOST,
        index,
        ":".join(digits[n : n + 4] for n in range(0, 16, 4)),
        text(f"{base}/fw_ver") if base else "",
        text(f"{base}/hca_type") if base else "",
        text(f"{base}/board_id") if base else "",
        verbs.get(name, ("", ""))[0],
        tuple(
            _port(f"{base}/ports/{number}", int(number), gids=gids, counters=counters)
            for number in sorted(listed(f"{base}/ports") if base else [], key=len)
            if number.isdecimal()
        ),
    )


def _port(path: str, number: int, *, gids: bool, counters: bool) -> Port:
    rate = text(f"{path}/rate")
    speed = rate.split(" ")[0]
    return Port(
        number,
        text(f"{path}/link_layer"),
        _PHYSICAL_STATE.sub("", text(f"{path}/state")),
        _PHYSICAL_STATE.sub("", text(f"{path}/phys_state")),
        rate,
        float(speed) if re.fullmatch(r"\d+(\.\d+)?", speed) else 0.0,
        tuple(_gids(path)) if gids else (),
        _numbers(f"{path}/counters") if counters else {},
        _numbers(f"{path}/hw_counters") if counters else {},
    )


def _gids(path: str) -> Iterator[Gid]:
    for entry in sorted(listed(f"{path}/gids"), key=lambda name: int(name) if name.isdecimal() else 0):
        gid = text(f"{path}/gids/{entry}")
        # An entry that is not in use reads as zeros.
        if entry.isdecimal() and gid.strip("0:"):
            kind = text(f"{path}/gid_attrs/types/{entry}")
            layer = {"IB/RoCE v1": "RoCE v1", "RoCE v2": "RoCE v2"}.get(kind, kind)
            if text(f"{path}/link_layer") == "InfiniBand":
                layer = "IB"
            yield Gid(int(entry), gid, layer, text(f"{path}/gid_attrs/ndevs/{entry}"))


def _numbers(path: str) -> dict[str, int]:
    found = {}
    for name in sorted(listed(path)):
        value = text(f"{path}/{name}")
        # How long the driver keeps a reading is no counter.
        if value.isdecimal() and name != "lifespan":
            found[name] = int(value)
    return found


def _netdev(view: _View, link: Link) -> Netdev:
    speed = ""
    if plain(link.name):
        with contextlib.suppress(OSError):
            speed = text(f"{view.root}/class/net/{link.name}/speed")
    try:
        addresses = tuple(view.links.addresses(link.ifindex))
    except NetlinkError:
        addresses = ()
    return Netdev(
        link.name,
        view.path or HOST,
        link.ifindex,
        link.mac,
        link.mtu,
        link.up,
        bool(link.flags & IFF_RUNNING),
        link.kind == ARPHRD_INFINIBAND,
        int(speed) if speed.isdecimal() else None,
        addresses,
        tuple(link.altnames),
        link.master,
        link.alias,
    )


def _functions(
    seen: _Seen, attachments: list[Attachment], names: hardware.Names, problems: list[str]
) -> tuple[Function, ...]:
    attached = {attachment.function: attachment for attachment in attachments}
    ids = hardware.rdma_capable() | set(seen.rdma) | {one for one in attached if hardware.exists(one)}
    ids = hardware.with_relatives(ids)
    given = _given(problems)
    processes = _Processes()
    found = []
    for one in sorted(ids, key=hardware.order):
        rdma = seen.rdma.get(one, [])
        netdevs = seen.netdevs.get(one, [])
        attachment = attached.get(one)
        away = next((view for view, _ in [*rdma, *netdevs] if view.path), None)
        holder = _holder(away, attachment, processes)
        known = names.of(one)
        kind, pf, index = hardware.role(one)
        pf_netdevs = [netdev.name for view, netdev in seen.netdevs.get(pf, []) if not view.path]
        gpu, distance = names.nearest_gpu(one)
        netdevs_there = tuple(netdev for _, netdev in netdevs)
        found.append(
            Function(
                id=one,
                kind=kind,
                pf=pf,
                pf_netdev=pf_netdevs[0] if pf_netdevs else "",
                index=index,
                vendor=known.vendor,
                device=known.device,
                vendor_name=known.vendor_name,
                device_name=known.device_name,
                driver=known.driver,
                numa=known.numa,
                gpu=gpu,
                gpu_distance=distance,
                vfs=hardware.number(one, "sriov_numvfs"),
                vfs_possible=hardware.number(one, "sriov_totalvfs"),
                state=_state(kind, known.driver, [d for _, d in rdma], netdevs_there, away, attachment, given(one)),
                where=away.path if away else HOST,
                holder=holder,
                rdma=tuple(device for _, device in rdma),
                netdevs=netdevs_there,
            )
        )
    return tuple(found)


def _state(
    kind: str,
    driver: str,
    rdma: list[RdmaDevice],
    netdevs: tuple[Netdev, ...],
    away: _View | None,
    attachment: Attachment | None,
    given: bool,
) -> str:
    if away:
        return "attached" if attachment and away.cookie == attachment.cookie else "in a pod"
    if attachment:
        return "left"
    if driver in ("vfio-pci", "mlx5_vfio_pci"):
        return "vfio"
    if kind not in ("vf", "sf"):
        return "host" if rdma or kind == "pf" else "no RDMA"
    if not driver and kind == "vf":
        return "no driver"
    if not rdma:
        return "no RDMA"
    if given:
        return "allocated"
    # What the kernel gives to every interface that is up says nothing of its use.
    used = any(n.master or any(not a.startswith("fe80:") for a in n.addresses) for n in netdevs)
    return "in use" if used else "free"


def _given(problems: list[str]) -> Callable[[str], bool]:
    """Whether kubelet gave a function to a pod."""
    try:
        entries = choice.given_by_kubelet()
    except CniError as error:
        problems.append(error.message)
        entries = ""
    return lambda one: f'"{one}"' in entries


def _holder(away: _View | None, attachment: Attachment | None, processes: "_Processes") -> Holder | None:
    if away is None and attachment is None:
        return None
    path = away.path if away else ""
    cookie = away.cookie if away else 0
    if attachment and (away is None or attachment.cookie == cookie):
        a = attachment
        pids = processes.inside(away.inode) if away else ()
        return Holder(path, a.cookie, a.pod, a.container, a.ifname, a.network, attached=True, pids=pids)
    pids = processes.inside(away.inode) if away else ()
    pod, container = processes.pod_of(pids)
    return Holder(path, cookie, pod, container, "", "", attached=False, pids=pids)


_CONTAINER = re.compile(r"([0-9a-f]{64})(?:\.scope)?$")
_POD_UID = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_POD_LOGS = "/var/log/pods"


class _Processes:
    """Which processes are in which network namespace, and of which pod; looked at when first asked."""

    def __init__(self) -> None:
        self._by_inode: dict[int, list[int]] | None = None

    def inside(self, inode: int) -> tuple[int, ...]:
        if self._by_inode is None:
            self._by_inode = {}
            for entry in listed("/proc"):
                if entry.isdecimal():
                    with contextlib.suppress(OSError):
                        found = os.stat(f"/proc/{entry}/ns/net").st_ino
                        self._by_inode.setdefault(found, []).append(int(entry))
        return tuple(sorted(self._by_inode.get(inode, [])))

    def pod_of(self, pids: tuple[int, ...]) -> tuple[str, str]:
        """(pod, container) by the cgroup of its processes and the names of kubelet's directories of logs."""
        for pid in pids:
            for line in text(f"/proc/{pid}/cgroup").splitlines():
                container = _CONTAINER.search(line)
                uid = _POD_UID.search(line)
                if container or uid:
                    pod = _pod_name(uid.group(1).replace("_", "-")) if uid else ""
                    return pod, container.group(1) if container else ""
        return "", ""


def _pod_name(uid: str) -> str:
    """namespace/name of a pod: kubelet names its directory of logs namespace_name_uid."""
    for entry in listed(_POD_LOGS):
        parts = entry.split("_")
        if len(parts) == 3 and parts[2] == uid:
            return f"{parts[0]}/{parts[1]}"
    return uid


def listed(path: str) -> list[str]:
    """The names in a directory; none when there is no such directory."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def text(path: str) -> str:
    """A file's text without its last newline; "" when it cannot be read, as of an entry that has no value."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.fsdecode(os.read(fd, 65536)).strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def target(path: str) -> str:
    """Where a symlink leads; "" when it is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
