"""The node's hardware in sysfs: functions and their kinship, names, drivers, NUMA nodes, GPUs and their distance."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from rdma_cni.cni import checks

PCI = "/sys/bus/pci/devices"
AUXILIARY = "/sys/bus/auxiliary/devices"

# Drivers of NICs all of which can do RDMA: such a function without an RDMA device lacks a module.
RDMA_DRIVERS = frozenset({"mlx5_core", "mlx4_core", "ice", "efa", "mana", "erdma", "ionic"})

DISTANCES = ("PCIe switch", "host bridge", "NUMA node", "system")
"""From near to far: what GPUDirect RDMA's speed depends on.

"PCIe switch": below a common bridge; "host bridge": through the host bridge that both are below;
"NUMA node": through the processor; "system": through the link between processors.
"""

_PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids", "/var/lib/pciutils/pci.ids")
_HWDB = ("/usr/lib/udev/hwdb.d/20-pci-vendor-model.hwdb", "/lib/udev/hwdb.d/20-pci-vendor-model.hwdb")


@dataclass(frozen=True)
class Gpu:
    """A GPU or another accelerator."""

    address: str
    vendor: str
    device: str
    name: str
    numa: int | None


@dataclass(frozen=True)
class Identity:
    """What a function is. `vendor` and `device` are four hexadecimal digits, "" for what is no PCI function."""

    vendor: str
    device: str
    vendor_name: str
    device_name: str
    driver: str
    numa: int | None


def path_of(one: str) -> str:
    """The directory of a function in sysfs; "" for an ID that is none."""
    try:
        checks.device_id(one)
    except ValueError:
        return ""
    return f"{PCI if ':' in one else AUXILIARY}/{one}"


def exists(one: str) -> bool:
    path = path_of(one)
    return bool(path) and os.path.isdir(path)


def value(one: str, name: str) -> str:
    """A file of a function's directory; "" when there is none."""
    if not path_of(one):
        return ""
    try:
        with open(f"{path_of(one)}/{name}", encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def number(one: str, name: str) -> int:
    """A decimal number in a function's directory; 0 when there is none."""
    found = value(one, name)
    return int(found) if found.isdecimal() else 0


def _link(one: str, name: str) -> str:
    if not path_of(one):
        return ""
    try:
        return os.path.basename(os.readlink(f"{path_of(one)}/{name}"))
    except OSError:
        return ""


def driver(one: str) -> str:
    return _link(one, "driver")


def _all(bus: str) -> list[str]:
    try:
        return os.listdir(bus)
    except OSError:
        return []


def rdma_capable() -> set[str]:
    """The functions that have an RDMA device in some namespace, and those whose driver's should."""
    found = set()
    for bus in (PCI, AUXILIARY):
        for one in _all(bus):
            if any(os.path.isdir(f"{bus}/{one}/{kind}") for kind in ("infiniband", "infiniband_verbs")) or (
                bus == PCI and driver(one) in RDMA_DRIVERS
            ):
                found.add(one)
    return found


def virtual_functions(pf: str) -> list[str]:
    """A PF's VFs, by their number."""
    found: list[str] = []
    while True:
        one = _link(pf, f"virtfn{len(found)}")
        if not one:
            return found
        found.append(one)


def physical_function(one: str) -> str:
    """The PF of a VF or of an SF; "" for what is neither."""
    if ":" in one:
        return _link(one, "physfn")
    parent = os.path.basename(os.path.dirname(os.path.realpath(path_of(one))))
    return parent if ":" in parent and exists(parent) else ""


def with_relatives(ids: Iterable[str]) -> set[str]:
    """Those, their PFs, and all VFs of these."""
    found = set(ids)
    for one in list(found):
        pf = physical_function(one) if exists(one) else ""
        for each in (pf or one,):
            if exists(each):
                found.add(each)
                found.update(virtual_functions(each))
    return found


def role(one: str) -> tuple[str, str, int | None]:
    """(kind, PF, index) of a function: see inventory.Function."""
    if not exists(one):
        return "virtual", "", None
    pf = physical_function(one)
    if ":" not in one:
        found = value(one, "sfnum") or one.rpartition(".")[2]
        return "sf", pf, int(found) if found.isdecimal() else None
    if not pf:
        return "pf", "", None
    functions = virtual_functions(pf)
    return "vf", pf, functions.index(one) if one in functions else None


def order(one: str) -> tuple[object, ...]:
    """A sorting key: each PF, its VFs by number, its SFs by number; then what is virtual."""
    kind, pf, index = role(one)
    return kind == "virtual", pf or one, ("pf", "vf", "sf", "virtual").index(kind), index or 0, one


def numa_node(one: str) -> int | None:
    found = value(one, "numa_node") or value(physical_function(one), "numa_node")
    return int(found) if found.isdecimal() else None


def is_gpu(vendor: str, class_code: int) -> bool:
    """Whether a PCI function computes: a 3D controller, a GPU's VGA controller, a processing accelerator."""
    base, sub = class_code >> 16, class_code >> 8
    return (
        sub in (0x0302, 0x1200) or (base == 0x03 and vendor in ("10de", "1002")) or (sub == 0x0380 and vendor == "8086")
    )


def distance(one: list[str], other: list[str], numa: int | None, other_numa: int | None) -> tuple[str, int]:
    """(one of DISTANCES, hops) between two functions, by their paths below /sys/devices, root first."""
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    hops = len(one) + len(other) - 2 * common
    if common >= 2:
        return DISTANCES[0], hops
    if common == 1:
        return DISTANCES[1], hops
    return (DISTANCES[2] if numa is not None and numa == other_numa else DISTANCES[3]), hops


def topology(one: str) -> list[str]:
    """A PCI function's way from its host bridge: ["pci0000:00", "0000:00:01.0", ..., the function]."""
    parts = os.path.realpath(f"{PCI}/{one}").split("/")
    start = next((n for n, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]+:[0-9a-f]+", part)), len(parts))
    return parts[start:]


class Names:
    """Names of vendors and devices, and the node's GPUs, looked up once."""

    def __init__(self, *, models: bool) -> None:
        self._gpus: tuple[Gpu, ...] | None = None
        self._names = pci_names if models else lambda vendor, device: ("", "")

    def of(self, one: str) -> Identity:
        of_pci = one if ":" in one else physical_function(one)
        vendor, device = value(of_pci, "vendor")[2:], value(of_pci, "device")[2:]
        vendor_name, device_name = self._names(vendor, device)
        return Identity(vendor, device, vendor_name, device_name, driver(one), numa_node(one))

    def gpus(self) -> tuple[Gpu, ...]:
        """In the order of their addresses."""
        if self._gpus is None:
            found = []
            for one in sorted(_all(PCI)):
                vendor = value(one, "vendor")[2:]
                if is_gpu(vendor, int(value(one, "class") or "0", 16)):
                    device = value(one, "device")[2:]
                    vendor_name, device_name = self._names(vendor, device)
                    found.append(Gpu(one, vendor, device, device_name or vendor_name, numa_node(one)))
            self._gpus = tuple(found)
        return self._gpus

    def nearest_gpu(self, one: str) -> tuple[Gpu | None, str]:
        """(GPU, one of DISTANCES); (None, "") on a node without GPUs."""
        of_pci = one if ":" in one else physical_function(one)
        if not of_pci or not self.gpus():
            return None, ""
        here, numa = topology(of_pci), numa_node(of_pci)

        def far(gpu: Gpu) -> tuple[int, int, str]:
            which, hops = distance(here, topology(gpu.address), numa, gpu.numa)
            return DISTANCES.index(which), hops, gpu.address

        gpu = min(self.gpus(), key=far)
        return gpu, DISTANCES[far(gpu)[0]]


@cache
def pci_names(vendor: str, device: str) -> tuple[str, str]:
    """(vendor's name, device's name) from the system's pci.ids, or from udev's database; "" where neither knows."""
    if not vendor:
        return "", ""
    for paths, look_up in ((_PCI_IDS, _in_pci_ids), (_HWDB, _in_hwdb)):
        for path in paths:
            names = _look_up(path, look_up, vendor, device)
            if names[0]:
                return names
    return "", ""


def _look_up(
    path: str, look_up: Callable[[str, str, str], tuple[str, str]], vendor: str, device: str
) -> tuple[str, str]:
    text = _database(path)
    return look_up(text, vendor, device) if text else ("", "")


@cache
def _database(path: str) -> str:
    """A megabyte or three, in which `find` is quicker than a loop over its lines."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "\n" + file.read()
    except OSError:
        return ""


def _in_pci_ids(text: str, vendor: str, device: str) -> tuple[str, str]:
    """pci.ids: "15b3  Mellanox Technologies", below it, after a tab, "101d  MT2892 Family"."""
    start = text.find(f"\n{vendor}  ")
    if start < 0:
        return "", ""
    vendor_name, *below = text[start + 1 : start + (1 << 20)].split("\n")
    device_name = ""
    for line in below:
        if line[:1] not in ("\t", "#", ""):
            break
        if line.startswith(f"\t{device}  "):
            device_name = line[7:]
            break
    return vendor_name[6:].strip(), device_name.strip()


def _in_hwdb(text: str, vendor: str, device: str) -> tuple[str, str]:
    """udev's: a line "pci:v000015B3d0000101D*", then " ID_MODEL_FROM_DATABASE=MT2892 Family"."""
    of_vendor = f"pci:v0000{vendor.upper()}"

    def value(key: str, name: str) -> str:
        start = text.find(f"\n{key}*\n")
        if start < 0:
            return ""
        for line in text[start + 1 : start + 4096].split("\n")[1:]:
            if not line.startswith(" "):
                break
            if line.startswith(f" {name}="):
                return line.partition("=")[2].strip()
        return ""

    return (
        value(of_vendor, "ID_VENDOR_FROM_DATABASE"),
        value(f"{of_vendor}d0000{device.upper()}", "ID_MODEL_FROM_DATABASE"),
    )
