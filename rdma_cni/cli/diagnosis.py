"""What would make a pod's RDMA fail: one small function for each fault that a node may have.

Each looks at the situation and yields a finding for each thing that is not as it should be. They change
nothing; what a finding's `repair` does is done when somebody asks for it.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rdma_cni import home
from rdma_cni.cli import dcb, gc, hardware, holdings, inventory
from rdma_cni.cli.command import Failure
from rdma_cni.cli.inventory import HOST, Function, Node
from rdma_cni.cni import __version__
from rdma_cni.cni.errors import CniError
from rdma_cni.device import Function as SysfsFunction
from rdma_cni.host import Host
from rdma_cni.link import Link
from rdma_cni.netlink import NetlinkError
from rdma_cni.state import Attachment, RdmaRecord

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Finding:
    """One fault: of what `check`, about what `subject`, what was `found`, and the `remedy`."""

    check: str
    severity: str
    subject: str
    found: str
    remedy: str
    repair: Callable[[], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Situation:
    """What the checks look at."""

    node: Node
    host: Host
    bin_dir: Path = Path("/opt/cni/bin")
    net_dir: Path = Path("/etc/cni/net.d")

    def functions(self, *kinds: str) -> list[Function]:
        return [function for function in self.node.functions if function.kind in kinds]


Check = Callable[[Situation], Iterator[Finding]]

CHECKS: dict[str, tuple[str, Check]] = {}
"""By its name: what it looks at, and the function."""


def check(name: str, about: str) -> Callable[[Check], Check]:
    """Enter a check into CHECKS."""

    def enter(function: Check) -> Check:
        CHECKS[name] = about, function
        return function

    return enter


def examine(situation: Situation, names: "list[str] | None" = None) -> Iterator[Finding]:
    """The findings of the checks with these names, of all when None."""
    for name in CHECKS if names is None else names:
        try:
            yield from CHECKS[name][1](situation)
        except CniError as error:
            yield Finding(name, WARNING, f"check {name}", f"could not be done: {error.message}", "mend that first")


def count(node: Node) -> Iterator[tuple[str, str, int]]:
    """(check, severity, number of findings), for both severities of every check."""
    host = Host()
    try:
        found = list(examine(Situation(node, host)))
    finally:
        host.close()
    for name in CHECKS:
        for severity in (ERROR, WARNING):
            yield name, severity, sum((finding.check, finding.severity) == (name, severity) for finding in found)


# The kernel


@check("kernel", "the kernel is new enough")
def _kernel(situation: Situation) -> Iterator[Finding]:
    numbers = re.match(r"(\d+)\.(\d+)", situation.node.kernel)
    if numbers and (int(numbers[1]), int(numbers[2])) < (5, 14):
        yield Finding(
            "kernel",
            ERROR,
            f"Linux {situation.node.kernel}",
            "is older than 5.14, which tells a netdev's device inside a pod and gives each namespace a number",
            "upgrade the kernel: without these a VF may be taken for another after its pod is gone",
        )


@check("subsystem", "the kernel has an RDMA subsystem")
def _subsystem(situation: Situation) -> Iterator[Finding]:
    if situation.node.exclusive is None:
        yield Finding(
            "subsystem",
            ERROR,
            "RDMA netlink",
            "the kernel does not answer",
            "run `modprobe ib_core`, and load the RDMA module of the NIC (mlx5_ib, irdma, bnxt_re)",
        )
    elif not any(function.rdma for function in situation.node.functions):
        yield Finding(
            "subsystem",
            ERROR,
            "RDMA devices",
            "there is none in any namespace",
            "load the RDMA module of the NIC (mlx5_ib, irdma, bnxt_re); `dmesg` says why it made none",
        )


@check("mode", "each RDMA device is in one namespace only (exclusive mode)")
def _mode(situation: Situation) -> Iterator[Finding]:
    if situation.node.exclusive is not False:
        return
    value, where = netns_mode_setting()
    set_by = f"{where} sets it" if value == "shared" else f"{where} asks for exclusive" if value else "nothing sets it"
    what = (
        "reboot; if it is shared again, the initramfs loads ib_core: update-initramfs -u, or dracut -f"
        if value == "exclusive"
        else _PERSIST + ", and reboot: the mode changes only while no other network namespace exists"
    )
    yield Finding("mode", ERROR, "ib_core", f"is in shared mode ({set_by}): no RDMA device can be moved", what)


_PERSIST = "write `options ib_core netns_mode=0` to /etc/modprobe.d/rdma-cni.conf"
_MODPROBE = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)


@check("mode-persistent", "exclusive mode is set for the next boot, too")
def _mode_persistent(situation: Situation) -> Iterator[Finding]:
    if not situation.node.exclusive:
        return
    value, where = netns_mode_setting()
    if value == "exclusive":
        return
    found = f"{where} sets shared mode" if value else "no option of ib_core says so"
    yield Finding(
        "mode-persistent", ERROR, "ib_core", f"is in exclusive mode now, but not after a reboot: {found}", _PERSIST
    )


def netns_mode_setting() -> tuple[str, str]:
    """("exclusive", "shared" or "", the file or the command line) of the mode that ib_core is loaded with."""
    found = "", ""
    for path in _modprobe_files():
        for words in _option_lines(inventory.text(path)):
            if words[:1] == ["options"] and words[1:2] == ["ib_core"]:
                found = _netns_mode(words[2:], path) or found
    # For a module that is loaded, too, modprobe reads the command line last.
    words = [
        word.replace("ib_core.", "", 1) for word in inventory.text("/proc/cmdline").split() if word[:8] == "ib_core."
    ]
    return _netns_mode(words, "the kernel's command line") or found


def _modprobe_files() -> list[str]:
    """In the order in which modprobe reads them: by name, one of a name in the first directory that has it."""
    files: dict[str, str] = {}
    for directory in _MODPROBE:
        for name in inventory.listed(directory):
            if name.endswith(".conf"):
                files.setdefault(name, f"{directory}/{name}")
    return [files[name] for name in sorted(files)]


def _option_lines(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        yield [word.replace("-", "_") if number == 1 else word for number, word in enumerate(words)]


def _netns_mode(words: list[str], where: str) -> tuple[str, str] | None:
    """Of a module's options; netns_mode is a boolean: shared is true."""
    found = None
    for word in words:
        name, _, value = word.partition("=")
        if name == "netns_mode":
            found = ("exclusive" if value.lower() in ("0", "n", "no", "off") else "shared"), where
    return found


# Functions


@check("vfs", "the PFs have VFs")
def _vfs(situation: Situation) -> Iterator[Finding]:
    parents = {function.pf for function in situation.functions("vf", "sf")}
    for pf in situation.functions("pf"):
        if pf.vfs_possible and not pf.vfs and pf.id not in parents:
            yield Finding(
                "vfs",
                # Where another PF has them, this one may be for the host.
                WARNING if parents else ERROR,
                _name(pf),
                f"has no VFs, {pf.vfs_possible} are possible",
                f"echo {pf.vfs_possible} > {hardware.PCI}/{pf.id}/sriov_numvfs",
            )


@check("driver", "each VF has a driver that pods can use")
def _driver(situation: Situation) -> Iterator[Finding]:
    for function in situation.functions("vf", "sf"):
        if function.state == "no driver":
            yield Finding(
                "driver",
                ERROR,
                _name(function),
                "no driver is bound to it",
                f"echo {function.id} > /sys/bus/pci/drivers_probe (see also sriov_drivers_autoprobe of its PF)",
            )
        elif function.state == "vfio":
            yield Finding(
                "driver",
                WARNING,
                _name(function),
                f"is bound to {function.driver}, for virtual machines: no pod's RDMA can use it",
                f"if it is for pods: echo {function.id} > {hardware.PCI}/{function.id}/driver/unbind, empty its "
                f"driver_override, and echo {function.id} > /sys/bus/pci/drivers_probe",
            )


@check("rdma-device", "each VF has an RDMA device")
def _rdma_device(situation: Situation) -> Iterator[Finding]:
    for function in situation.functions("pf", "vf", "sf"):
        lacks = function.state == "no RDMA" or (function.kind == "pf" and function.driver in hardware.RDMA_DRIVERS)
        if lacks and not function.rdma and situation.node.exclusive is not None:
            yield Finding(
                "rdma-device",
                # A PF's driver may be able to, and the NIC be for something else.
                WARNING if function.kind == "pf" else ERROR,
                _name(function),
                f"has no RDMA device in any namespace (driver {function.driver or 'unknown'})",
                "load the RDMA module of its driver (mlx5_ib, irdma, bnxt_re); `devlink dev param` shows whether "
                "enable_roce or enable_rdma is off; `dmesg` says why its driver made none",
            )


@check("pf-up", "the PFs are up: with the PF down a VF has no carrier")
def _pf_up(situation: Situation) -> Iterator[Finding]:
    parents = {function.pf for function in situation.functions("vf", "sf")}
    for pf in situation.functions("pf"):
        netdev = pf.netdev
        if pf.id not in parents or netdev is None or pf.where != HOST:
            continue
        if not netdev.up:
            yield Finding("pf-up", ERROR, _name(pf), "is down", f"ip link set {netdev.name} up, and at each boot")
        elif not netdev.carrier:
            yield Finding("pf-up", ERROR, _name(pf), "has no carrier", "see to the cable, the port and the switch")


@check("mtu", "no VF has a larger MTU than its PF")
def _mtu(situation: Situation) -> Iterator[Finding]:
    pfs = {pf.id: pf for pf in situation.functions("pf")}
    for function in situation.functions("vf", "sf"):
        pf = pfs.get(function.pf)
        above, below = function.netdev, pf.netdev if pf else None
        if above and below and above.mtu > below.mtu and above.infiniband == below.infiniband:
            yield Finding(
                "mtu",
                ERROR,
                _name(function),
                f"{above.name} has MTU {above.mtu}, above {below.mtu} of its PF {below.name}: large packets are lost",
                f"ip link set {below.name} mtu {above.mtu}, on the switch, too",
            )


@check("gid", "each RoCE port has a GID for RoCE v2")
def _gid(situation: Situation) -> Iterator[Finding]:
    for function in situation.functions("pf", "vf", "sf"):
        for device in function.rdma:
            for port in device.ports:
                kinds = {gid.type for gid in port.gids}
                if port.link_layer == "Ethernet" and kinds and "RoCE v2" not in kinds:
                    yield Finding(
                        "gid",
                        ERROR,
                        _name(function),
                        f"{device.name} port {port.number} has GIDs for {', '.join(sorted(kinds))} only: what is "
                        "routed, and what NCCL uses, is RoCE v2",
                        "enable RoCE v2 in the NIC's firmware or driver (devlink, mlxconfig), and bind its driver anew",
                    )


@check("lossless", "RoCE has priority flow control and trusts DSCP, where the driver tells")
def _lossless(situation: Situation) -> Iterator[Finding]:
    for function in situation.functions("pf", "sf"):
        if function.where != HOST or function.link_layer != "Ethernet":
            continue
        for netdev in function.netdevs:
            settings = dcb.of(situation.host.links, netdev.name)
            if settings is None:
                continue
            if settings.pfc == ():
                yield Finding(
                    "lossless",
                    WARNING,
                    _name(function),
                    f"{netdev.name} has priority flow control for no priority: on a full fabric RoCE loses packets",
                    f"dcb pfc set dev {netdev.name} prio-pfc 3:on (or the switch's priority); --skip with ECN alone",
                )
            if settings.dscp_trusted is False:
                yield Finding(
                    "lossless",
                    WARNING,
                    _name(function),
                    f"{netdev.name} does not trust DSCP: RoCE v2 without VLAN goes at priority 0",
                    f"dcb apptrust set dev {netdev.name} order dscp (mlnx_qos -i {netdev.name} --trust dscp)",
                )


@check("gpu-numa", "the NICs and the GPUs are on the same NUMA nodes")
def _gpu_numa(situation: Situation) -> Iterator[Finding]:
    for function in situation.functions("pf", "vf"):
        if function.gpu is None or function.gpu_distance != "system":
            continue
        if None in (function.numa, function.gpu.numa) or function.numa == function.gpu.numa:
            continue
        yield Finding(
            "gpu-numa",
            WARNING,
            _name(function),
            f"is on NUMA node {function.numa}, the nearest GPU ({function.gpu.address}) on {function.gpu.numa}: "
            "GPUDirect RDMA goes through the link between the processors",
            "put NIC and GPU below one processor, and let kubelet align them (topologyManagerPolicy)",
        )


@check("names", "udev gives names that stay the same")
def _names(situation: Situation) -> Iterator[Finding]:
    stable = re.compile(r"(ib|roce|iw|rdma)(p\d|x[0-9a-f]{16}|o\d|s\d)")
    devices = [device.name for f in situation.functions("pf", "vf", "sf") if f.where == HOST for device in f.rdma]
    renamed = [name for name in devices if stable.match(name)]
    rules = _renaming_rules()
    if rules and renamed and len(renamed) < len(devices):
        yield Finding(
            "names",
            WARNING,
            rules[0],
            f"renames RDMA devices ({', '.join(renamed[:3])}) and leaves others as they were "
            f"({', '.join([name for name in devices if name not in renamed][:3])}): which, depends on the order in "
            "which they appear, and NCCL_IB_HCA=mlx5 matches some",
            "copy it to /etc/udev/rules.d with NAME_KERNEL in it, or name devices in pods by args.cni.rdmaDeviceName",
        )
    for function in situation.functions("vf", "sf"):
        for netdev in function.netdevs:
            rule = next((path for path, macs in _rules_by_mac() if netdev.mac in macs), None)
            if rule:
                yield Finding(
                    "names",
                    WARNING,
                    rule,
                    f"names {netdev.name} of {function.id} by its MAC, which changes with each pod that asks for one",
                    "remove the rule; name VFs by their path (ID_NET_NAME_PATH) if by anything",
                )
    for function in situation.functions("vf", "sf"):
        for netdev in function.netdevs:
            if function.where == HOST and re.fullmatch(r"(net|dev)\d+", netdev.name) and not _marked(netdev.alias):
                own = next(iter(netdev.alternative_names), "")
                yield Finding(
                    "names",
                    WARNING,
                    _name(function),
                    f"its netdev is {netdev.name!r} on the host, a name from a pod: the next pod's may collide with it",
                    f"ip link property del dev {netdev.name} altname {own}; ip link set {netdev.name} name {own}"
                    if own
                    else f"ip link set {netdev.name} name what it was before",
                )


def _rule_files() -> list[str]:
    files: dict[str, str] = {}
    for directory in ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"):
        for name in inventory.listed(directory):
            if name.endswith(".rules"):
                files.setdefault(name, f"{directory}/{name}")
    return [files[name] for name in sorted(files)]


def _rule_lines(path: str) -> list[str]:
    return [line for line in inventory.text(path).splitlines() if not line.lstrip().startswith("#")]


def _renaming_rules() -> list[str]:
    return [
        path
        for path in _rule_files()
        if any("rdma_rename" in line and "NAME_KERNEL" not in line for line in _rule_lines(path))
    ]


def _rules_by_mac() -> Iterator[tuple[str, set[str]]]:
    """The rules that name a netdev by its MAC: (file, MACs)."""
    for path in _rule_files():
        named = [line for line in _rule_lines(path) if re.search(r"\bNAME\s*:?=", line) and "address" in line]
        macs = {mac.lower() for line in named for mac in re.findall(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}", line)}
        if macs:
            yield path, macs


# What the plugin holds


@check("attachments", "each attachment's devices are in its pod")
def _attachments(situation: Situation) -> Iterator[Finding]:
    for held in holdings.read(situation.node).attachments:
        if held.state == holdings.IN_PLACE or _is_busy(situation.host, held):
            continue
        whose = f"pod {held.pod}" if held.pod else f"container {held.container}"
        gone = held.state == holdings.GONE
        yield Finding(
            "attachments",
            WARNING if gone else ERROR,
            f"{whose}, {held.interface} of {held.network}",
            "; ".join(held.problems),
            "repair, or rdma-cni gc: the VF gets back what it was, its addresses are free again"
            if gone
            else "delete the pod; its DEL puts right what can be",
            _Collect(held) if gone else None,
        )


def _is_busy(host: Host, held: holdings.Attachment) -> bool:
    """Whether an ADD or a DEL works on it at this moment, or has ended since it was looked at."""
    try:
        lock = host.state.lock(held.function, "doctor", patience=0)
    except CniError:
        return True
    lock.release()
    return host.state.get(held.network, held.container, held.interface) is None


@dataclass(frozen=True)
class _Collect:
    """Takes back what an attachment has whose pod is gone. Raises Failure."""

    held: holdings.Attachment

    def __call__(self) -> None:
        problem = gc.collect(self.held)
        if problem:
            raise Failure(problem)


def _marked(alias: str) -> bool:
    return alias.startswith("rdma-cni ")


@check("stranded", "no VF on the host is what a pod left of it")
def _stranded(situation: Situation) -> Iterator[Finding]:
    """Of those that no attachment has: the state was lost, or a pod's end went wrong."""
    known = {attachment.function for attachment in situation.node.attachments}
    for function in situation.functions("vf", "sf"):
        if function.where != HOST or function.id in known:
            continue
        for netdev in function.netdevs:
            if _marked(netdev.alias):
                yield Finding(
                    "stranded",
                    ERROR,
                    _name(function),
                    f"is on the host as {netdev.name!r} with the mark of a pod, and no attachment has it",
                    "repair: it gets back its name, MAC and MTU by the mark, and loses the mark",
                    _Unmark(situation.host, function.id, netdev.ifindex),
                )


@dataclass(frozen=True)
class _Unmark:
    """Makes a netdev on the host what its mark says that it was, and its RDMA devices."""

    host: Host
    function: str
    ifindex: int

    def __call__(self) -> None:
        lock = self.host.state.lock(self.function, "doctor --repair")
        try:
            link = self.host.links.get(self.ifindex)
            attachment = self._attachment(link) if link else None
            if attachment and self.host.state.of_function(self.function) is None:
                home.bring_home(self.host, attachment, None)
        finally:
            lock.release()

    def _attachment(self, link: Link) -> Attachment | None:
        marked = home.read_mark(link)
        if marked is None:
            return None
        record, names = marked
        if any(other.mac == record.mac and other.ifindex != link.ifindex for other in self.host.links.all()):
            # A pod's root can change the mark, and must not take another VF's address.
            record.mac = ""
        attachment = Attachment("", "doctor", link.name, self.function, "", 0)
        attachment.netdev = record
        devices = SysfsFunction(self.function).rdma_devices(self.host.rdma) or []
        attachment.rdma = [
            RdmaRecord(device.index, device.guid, names[number] if number < len(names) else "")
            for number, device in enumerate(devices)
        ]
        return attachment


@check("reservations", "each reserved address belongs to an attachment or to a container that runs")
def _reservations(situation: Situation) -> Iterator[Finding]:
    unknown = [
        each for each in holdings.read(situation.node).reservations if each.state in (holdings.NONE, holdings.LEFT)
    ]
    running = _cgroups() if unknown else ""
    for each in unknown:
        if each.container not in running:
            yield Finding(
                "reservations",
                WARNING,
                each.address,
                f"is reserved for {each.interface} of {each.network}, pod {each.pod or 'unknown'}, container "
                f"{each.container}, and there is neither an attachment nor a process of that",
                "the runtime's next GC frees it; rdma-cni ipam release does it now",
            )


def _cgroups() -> str:
    """The cgroups of all processes: a container's ID is part of its cgroup's path."""
    return "\n".join(
        {inventory.text(f"/proc/{entry}/cgroup") for entry in inventory.listed("/proc") if entry.isdecimal()}
    )


# Around the plugin


def _processes(*names: str) -> Iterator[tuple[int, str]]:
    """(PID, name) of the processes whose program has one of these names."""
    for entry in sorted(inventory.listed("/proc")):
        if entry.isdecimal():
            program = os.path.basename(inventory.text(f"/proc/{entry}/cmdline").split("\0")[0])
            if program in names:
                yield int(entry), program


@check("memlock", "the runtime lets containers lock memory, which RDMA registers")
def _memlock(situation: Situation) -> Iterator[Finding]:
    for pid, program in _processes("containerd", "crio", "dockerd"):
        for line in inventory.text(f"/proc/{pid}/limits").splitlines():
            # "Max locked memory  8388608  8388608  bytes"
            soft = line.removeprefix("Max locked memory").split()[:1] if line.startswith("Max locked memory") else []
            if soft and soft[0] != "unlimited":
                yield Finding(
                    "memlock",
                    WARNING,
                    f"{program} (process {pid})",
                    f"may lock {int(soft[0]) >> 10} KiB of memory, and so may a container without CAP_IPC_LOCK",
                    f"LimitMEMLOCK=infinity in a drop-in of {program}.service, then restart it",
                )


@check("shared-device-plugin", "no k8s-rdma-shared-dev-plugin beside exclusive mode")
def _shared_device_plugin(situation: Situation) -> Iterator[Finding]:
    if situation.node.exclusive:
        for pid, program in _processes("k8s-rdma-shared-dp", "k8s-rdma-shared-dev-plugin"):
            yield Finding(
                "shared-device-plugin",
                ERROR,
                f"{program} (process {pid})",
                "shares RDMA devices among pods, which exclusive mode does not let them see",
                "take this node out of its DaemonSet; sriov-network-device-plugin gives VFs to pods",
            )


@check("bundle", "the CNI plugins are installed")
def _bundle(situation: Situation) -> Iterator[Finding]:
    remedy = f"rdma-cni install --bin-dir {situation.bin_dir}"
    for name in ("rdma", "node-subnet"):
        path = situation.bin_dir / name
        if not path.exists():
            yield Finding("bundle", ERROR, str(path), "is missing", remedy)
            continue
        try:
            # Without CNI_COMMAND a plugin says what it is.
            done = subprocess.run([path], env={}, input=b"", capture_output=True, timeout=20, check=False)
            said = done.stderr.decode(errors="replace").split("\n")[0][:120]
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        if not said.startswith(f"{name} "):
            yield Finding("bundle", ERROR, str(path), f"is another program, or does not start: {said!r}", remedy)
        elif not said.startswith(f"{name} {__version__}:"):
            yield Finding("bundle", WARNING, str(path), f"is of another version than this: {said!r}", remedy)


@check("configuration", "a configuration names the plugin, and each that does is valid")
def _configuration(situation: Situation) -> Iterator[Finding]:
    from rdma_cni.cli import configurations

    ours = multus = False
    for path in sorted(situation.net_dir.glob("*")) if situation.net_dir.is_dir() else []:
        if path.suffix not in (".conf", ".conflist", ".json") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        multus = multus or "multus" in text
        if not re.search(r'"type"\s*:\s*"(rdma|node-subnet)"', text):
            continue
        ours = True
        for problem in configurations.validate_files([(str(path), text.encode())]):
            if problem.severity == configurations.ERROR:
                place = f"{path}:{problem.line}" if problem.line else str(path)
                found = f"{problem.field}: found {problem.found}, expected {problem.expected}"
                yield Finding("configuration", ERROR, place, found, f"mend it; see rdma-cni validate {path}")
    if not ours and not multus:
        yield Finding(
            "configuration",
            WARNING,
            str(situation.net_dir),
            "found no configuration with the plugin `rdma`, and none of Multus, which would have its own",
            "write one: `rdma-cni generate` makes it from the devices of this node",
        )


def _name(function: Function) -> str:
    """A function as a person knows it."""
    netdev = function.netdev
    own = f" ({netdev.name})" if netdev and function.where == HOST else ""
    if function.kind in ("vf", "sf"):
        index = "" if function.index is None else f" {function.index}"
        return f"{function.kind.upper()}{index} of {function.pf_netdev or function.pf}, {function.id}{own}"
    return f"{function.kind.upper()} {function.id}{own}"


REFUSED = (CniError, Failure, NetlinkError, OSError)
"""What a repair may raise."""
