"""From a device ID to a function in sysfs, its RDMA devices and its netdevs."""

import posix
import time
from errno import EIO

from rdma_cni.cni import checks, log, system
from rdma_cni.cni.errors import INVALID_CONFIG, NO_SUCH_FUNCTION, CniError
from rdma_cni.cni.request import Request
from rdma_cni.link import Links
from rdma_cni.rdma import Device, Rdma

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdma_cni.models import NetConf

_PCI = "bus/pci/devices"
_AUXILIARY = "bus/auxiliary/devices"


class Function:
    """A PCI function or an auxiliary device: what a VF or a scalable function is in sysfs.

    `id` is its name on its bus. Sysfs shows RDMA devices and netdevs of one namespace only: the
    host's through `/sys`, another's through the descriptor that `Namespace.sysfs` gives.
    """

    __slots__ = ("_path", "id")

    def __init__(self, device_id: str) -> None:
        self.id = device_id
        self._path = f"{_PCI if ':' in device_id else _AUXILIARY}/{device_id}"

    @property
    def is_pci(self) -> bool:
        return ":" in self.id

    def exists(self) -> bool:
        return system.is_directory(f"/sys/{self._path}")

    def rdma_devices(self, rdma: Rdma, sysfs: int | None = None) -> list[Device] | None:
        """Its RDMA devices in the namespace that both `rdma` and `sysfs` see; None when it has none in any.

        An empty list means that they exist, but in another namespace.
        """
        found: list[Device] = []
        for _ in range(100):
            names = self._list("infiniband", sysfs)
            if names is None:
                return None
            here = rdma.devices()
            hidden = {device.name for device in here if not _listable(device.name)}
            if hidden:
                names |= self._verbs_names() & {device.name for device in here}
            found = [device for device in here if device.name in names]
            if len(found) == len(names):
                break
            # udev renamed one between the two looks.
            time.sleep(0.01)
        return found

    def netdev_names(self) -> list[str] | None:
        """Its netdevs' names on the host; empty when they exist elsewhere, None when it has none in any namespace."""
        names = self._list("net", None)
        return None if names is None else sorted(names)

    def _list(self, kind: str, sysfs: int | None) -> set[str] | None:
        root = "/sys" if sysfs is None else f"/proc/self/fd/{sysfs}"
        names = set()
        try:
            with posix.scandir(f"{root}/{self._path}/{kind}") as entries:
                for entry in entries:
                    names.add(entry.name)
        except FileNotFoundError:
            return None
        except OSError as error:
            # The kernel stops listing at a name with '/'.
            if error.errno != EIO:
                raise
        return names

    def _verbs_names(self) -> set[str]:
        """Its RDMA devices' names in whichever namespaces, as ib_uverbs tells them: a line in a file of its own."""
        verbs = f"/sys/{self._path}/infiniband_verbs"
        try:
            return {_read_name(f"{verbs}/{entry}/ibdev") for entry in posix.listdir(verbs)}
        except OSError:
            return set()

    def physical_function(self) -> str:
        """The PCI address of a VF's PF; "" for what is no VF."""
        try:
            return system.base_name(posix.readlink(f"/sys/{self._path}/physfn"))
        except OSError:
            return ""

    def link_layers(self, rdma_name: str) -> list[str]:
        """The link layer of each port of an RDMA device that is on the host."""
        if not _listable(rdma_name):
            # No directory has that name, and the path would lead elsewhere.
            return []
        ports = f"/sys/{self._path}/infiniband/{rdma_name}/ports"
        try:
            return [_read(f"{ports}/{port}/link_layer") for port in sorted(posix.listdir(ports), key=len)]
        except OSError:
            return []

    def dev_port(self, netdev_name: str) -> int:
        """Which port of the function a netdev on the host is, from 0."""
        try:
            return int(_read(f"/sys/{self._path}/net/{netdev_name}/dev_port"))
        except (OSError, ValueError):
            return 0


def _listable(rdma_name: str) -> bool:
    """Whether a directory can show a name: a pod's root may give its device one that none can."""
    return "/" not in rdma_name and rdma_name not in (".", "..")


def _read_name(path: str) -> str:
    with open(path, "rb") as file:
        return system.fsdecode(file.read().removesuffix(b"\n"))


def _read(path: str) -> str:
    # As UTF-8: for ASCII the interpreter would import a codec.
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def named(device_id: str, field: str) -> Function:
    """The function with this ID. Raises CniError 102, naming the `field` it stood in."""
    function = Function(device_id)
    if not function.exists():
        kind, where = ("PCI function", _PCI) if function.is_pci else ("auxiliary device", _AUXILIARY)
        raise CniError(
            NO_SUCH_FUNCTION,
            f"{field}: found {device_id!r}, but there is no such {kind} in /sys/{where}: "
            "list them with `ls`, and see whether its driver still has its VFs",
        )
    return function


def find(request: Request, conf: "NetConf", pod_links: Links | None) -> Function | None:
    """The function that the attachment is about, or None when nothing names one.

    The order: `deviceID`, `pciBusID`, `runtimeConfig.deviceID`, the `pciID` of the interface in
    `prevResult`, the parent device of CNI_IFNAME in the pod, the interface's MAC in `prevResult`
    among the VFs that the PFs know. Raises CniError 102 when what is named does not exist.
    """
    for field, value in (
        ("deviceID", conf.deviceID),
        ("pciBusID", conf.pciBusID),
        ("runtimeConfig.deviceID", conf.runtimeConfig.deviceID if conf.runtimeConfig else None),
    ):
        if value:
            return named(value, field)
    mac = ""
    for index, interface in enumerate((conf.prevResult.interfaces if conf.prevResult else None) or []):
        if interface.name != request.ifname or not interface.sandbox:
            continue
        mac = mac or (interface.mac or "").lower()
        if interface.pciID:
            field = f"prevResult.interfaces[{index}].pciID"
            try:
                return named(checks.device_id(interface.pciID), field)
            except ValueError as error:
                raise CniError(INVALID_CONFIG, f"{field}: found {interface.pciID[:80]!r}, expected {error}") from None
    if pod_links:
        link = pod_links.get(request.ifname)
        if link and link.parent:
            function = _of_parent(link.parent)
            if function:
                return function
    return _of_mac(mac) if mac else None


def missing(request: Request) -> CniError:
    """The error for an ADD that nothing names a device for."""
    return CniError(
        INVALID_CONFIG,
        f"deviceID: found nothing, expected the PCI address or auxiliary device of a VF; also looked at pciBusID, "
        f"runtimeConfig.deviceID, pciID and mac of {request.ifname} in prevResult, and the device below "
        f"{request.ifname} in the pod. With Multus, let a device plugin provide it "
        "(annotation k8s.v1.cni.cncf.io/resourceName)",
    )


def _of_parent(parent: str) -> Function | None:
    try:
        function = Function(checks.device_id(parent))
    except ValueError:
        # A bus that we do not know: vmbus, virtio.
        return None
    return function if function.exists() else None


def _of_mac(mac: str) -> Function | None:
    links = Links()
    try:
        found = [(pf, index) for pf, index, vf_mac in links.virtual_function_macs() if vf_mac == mac]
    finally:
        links.close()
    if len(found) > 1:
        log.warning(f"the MAC {mac} in prevResult is that of {len(found)} VFs: it names none of them")
    if len(found) != 1:
        return None
    pf, index = found[0]
    try:
        return _of_parent(system.base_name(posix.readlink(f"/sys/{_PCI}/{pf}/virtfn{index}")))
    except OSError:
        return None
