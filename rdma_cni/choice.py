"""Takes a free VF of a PF, for a configuration that names no device: a conflist in /etc/cni/net.d.

Free is what nobody has: RDMA devices and netdev on the host, no attachment of ours, no address and
no master on the netdev, a network driver, and not given to a pod by a device plugin.
"""

import posix

from rdma_cni.cni import checks, jsontext, log, system
from rdma_cni.cni.database import Lock
from rdma_cni.cni.errors import INVALID_CONFIG, IO_FAILURE, TRY_AGAIN, CniError
from rdma_cni.device import Function
from rdma_cni.host import Host
from rdma_cni.link import Link

_PCI = "/sys/bus/pci/devices"
_KUBELET = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_MAX_CHECKPOINT = 16 << 20


class PhysicalFunction:
    """A PF and its VFs. `name` is what the configuration calls it."""

    __slots__ = ("functions", "name")

    def __init__(self, name: str, functions: list[Function]) -> None:
        self.name = name
        self.functions = functions


def physical_functions(host: Host, names: list[str]) -> list[PhysicalFunction]:
    """The PFs that the configuration's `pf` names. Raises CniError 7 for one that is none, or has no VFs."""
    return [_physical_function(host, name) for name in names]


def _physical_function(host: Host, name: str) -> PhysicalFunction:
    expected = "a PF's netdev on the host, or its PCI address"
    try:
        address = checks.device_id(name)
    except ValueError:
        try:
            link = host.links.get(checks.interface_name(name))
        except ValueError:
            link = None
        if link is None:
            raise CniError(INVALID_CONFIG, f"pf: found {name[:80]!r}, which is neither; expected {expected}") from None
        address = link.parent
    path = f"{_PCI}/{address}"
    if not address or not system.exists(f"{path}/sriov_totalvfs"):
        raise CniError(
            INVALID_CONFIG,
            f"pf: found {name!r} ({address or 'no PCI device'}), which has no SR-IOV capability; expected {expected}",
        )
    functions: list[Function] = []
    while True:
        try:
            functions.append(Function(system.base_name(posix.readlink(f"{path}/virtfn{len(functions)}"))))
        except FileNotFoundError:
            break
    if not functions:
        raise CniError(
            INVALID_CONFIG,
            f"pf: found {name!r} without VFs, expected some: `echo 8 > {path}/sriov_numvfs` makes them",
        )
    return PhysicalFunction(name, functions)


def take(host: Host, names: list[str], holder: str) -> tuple[Function, Lock]:
    """A free VF of one of the PFs, from the one with the most, and the lock on it.

    Raises CniError 7, or 11 when none is free.
    """
    pfs = physical_functions(host, names)
    given = given_by_kubelet()
    # Those second that are home although an attachment has them: their pod died, and its DEL never came.
    for left in (False, True):
        free = [[one for one in pf.functions if _is_free(host, one, given, left=left)] for pf in pfs]
        # Pods spread over the rails; which VF of a PF it is does not matter.
        for functions in sorted(free, key=len, reverse=True):
            for function in functions:
                lock = _try_lock(host, function, holder)
                if lock is None:
                    continue
                # Somebody may have taken it, and let go of the lock, since it was looked at.
                if _is_free(host, function, given, left=left):
                    return function, lock
                lock.release()
    counts = ", ".join(f"{pf.name} has {len(pf.functions)} VFs" for pf in pfs)
    raise CniError(
        TRY_AGAIN,
        f"pf: found no free VF ({counts}), expected one: delete a pod, or make more VFs (sriov_numvfs)",
    )


def _try_lock(host: Host, function: Function, holder: str) -> Lock | None:
    try:
        return host.state.lock(function.id, holder, patience=0)
    except CniError as error:
        if error.code != TRY_AGAIN:
            raise
        # Somebody is taking it, or giving it back, at this moment.
        return None


def _is_free(host: Host, function: Function, given: str, *, left: bool) -> bool:
    if bool(host.state.of_function(function.id)) is not left:
        return False
    if f'"{function.id}"' in given or not function.rdma_devices(host.rdma):
        return False
    names = function.netdev_names()
    if not names:
        # None: no network driver has it. An empty list: its netdev is in some pod.
        return False
    for name in names:
        link = host.links.get(name)
        if link is None or link.master or _addressed(host, link):
            return False
    return True


def _addressed(host: Host, link: Link) -> bool:
    # What the kernel gives to every interface that is up says nothing of its use.
    return any(not address.startswith("fe80:") for address in host.links.addresses(link.ifindex))


def given_by_kubelet() -> str:
    """The JSON text of the devices that device plugins gave to pods; "" without a kubelet."""
    try:
        with open(_KUBELET, "rb") as file:
            data = file.read(_MAX_CHECKPOINT)
        checkpoint = jsontext.parse(data)
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("Data"), dict):
            raise ValueError("no checkpoint")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise CniError(
            IO_FAILURE,
            f"{_KUBELET}: found {error}, expected kubelet's record of the devices that pods have: without it a VF "
            "could be given away twice",
        ) from None
    entries = checkpoint["Data"].get("PodDeviceEntries") or []
    log.debug(f"kubelet gave {len(entries)} sets of devices to pods")
    # Device IDs are quoted strings somewhere below; the shape of what is around them has changed before.
    return jsontext.dump(entries).decode().lower()
