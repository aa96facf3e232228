"""What `rdma-cni metrics` tells, as families of Prometheus metrics."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rdma_cni.cli import holdings, inventory
from rdma_cni.cli.inventory import Function, Node, Port, RdmaDevice
from rdma_cni.cni import __version__, calls
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.log import printable
from rdma_cni.netlink import NetlinkError

_PORT = ("device", "port", "function", "pf", "pod_namespace", "pod_name", "network", "interface")
_NAMED = {
    # Octets are counted in fours, one for each lane of a link (Documentation/ABI/stable/sysfs-class-infiniband).
    "port_xmit_data": ("transmitted_bytes", "Bytes that the port has sent.", 4),
    "port_rcv_data": ("received_bytes", "Bytes that the port has received.", 4),
    "port_xmit_packets": ("transmitted_packets", "Packets that the port has sent.", 1),
    "port_rcv_packets": ("received_packets", "Packets that the port has received.", 1),
}

Diagnosis = Callable[[Node], Iterator[tuple[str, str, int]]]
"""(check, severity, number of findings) for every check of `rdma-cni doctor`."""


class Collector:
    """Looks at the node each time it is asked."""

    def __init__(self, diagnosis: Diagnosis | None) -> None:
        self._diagnosis = diagnosis
        self._told: list[str] = []

    def collect(self) -> Iterator[Metric]:
        problems: list[str] = []
        try:
            yield from self._look(problems)
        except (CniError, NetlinkError, OSError) as error:
            # Served, there is nobody to fail for: what was seen until then is told.
            problems.append(str(error))
        for problem in problems:
            # Once, and not at each scrape.
            if problem not in self._told:
                click.echo(f"rdma-cni: {printable(problem)}", err=True)
        self._told = problems
        unseen = _gauge("problems", "Things that this exporter could not look at; it names them on stderr.")
        unseen.add_metric([], len(problems))
        yield unseen

    def _look(self, problems: list[str]) -> Iterator[Metric]:
        node = inventory.read(gids=self._diagnosis is not None, counters=True)
        held = holdings.read(node)
        problems += held.problems
        yield from _node(node)
        yield from _functions(node)
        yield from _held(held)
        yield from _calls(problems)
        yield from _ports(node)
        if self._diagnosis is not None:
            found = _gauge("doctor_findings", "What rdma-cni doctor finds, by check.", "check", "severity")
            for check, severity, number in self._diagnosis(node):
                found.add_metric([check, severity], number)
            yield found


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rdma_cni_{name}", about, labels=labels)


def _counter(name: str, about: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"rdma_cni_{name}", about, labels=labels)


def _node(node: Node) -> Iterator[Metric]:
    info = _gauge("node_info", "1, with the version of the bundle and of the kernel.", "version", "kernel")
    info.add_metric([__version__, node.kernel], 1)
    yield info
    mode = _gauge("exclusive_mode", "1 where each RDMA device is in one network namespace, 0 in shared mode.")
    if node.exclusive is not None:
        mode.add_metric([], node.exclusive)
    yield mode


def _functions(node: Node) -> Iterator[Metric]:
    states = _gauge("functions", "RDMA-capable functions, by kind and state as of rdma-cni devices.", "kind", "state")
    for (kind, state), number in sorted(Counter((each.kind, each.state) for each in node.functions).items()):
        states.add_metric([kind, state], number)
    yield states
    vfs = _gauge("pf_vfs", "VFs that a PF has.", "pf", "netdev")
    free = _gauge("pf_vfs_free", "VFs of a PF that a pod can have.", "pf", "netdev")
    possible = _gauge("pf_vfs_possible", "VFs that a PF can have.", "pf", "netdev")
    for each in node.functions:
        if each.kind != "pf":
            continue
        names = [each.id, printable(each.netdev.name) if each.netdev else ""]
        vfs.add_metric(names, each.vfs)
        possible.add_metric(names, each.vfs_possible)
        ours = [vf for vf in node.functions if vf.pf == each.id and vf.kind == "vf"]
        free.add_metric(names, sum(vf.state == "free" for vf in ours))
    yield from (vfs, free, possible)


def _held(held: holdings.Holdings) -> Iterator[Metric]:
    attachments = _gauge("attachments", "Attachments, by network and state.", "network", "state")
    counted = Counter((each.network, each.state) for each in held.attachments)
    for (network, state), number in sorted(counted.items()):
        attachments.add_metric([network, state], number)
    yield attachments
    reservations = _gauge("reservations", "Addresses that node-subnet has given.", "pool", "network")
    users = Counter((each.pool, each.network) for each in held.reservations)
    for (pool, network), number in sorted(users.items()):
        reservations.add_metric([pool, network], number)
    yield reservations
    left = _gauge("reservations_left_behind", "Reserved addresses that neither an attachment nor a runtime knows of.")
    left.add_metric([], sum(each.state == holdings.LEFT for each in held.reservations))
    yield left
    usable = _gauge("pool_usable_addresses", "Addresses of a pool that this node may give.", "pool")
    free = _gauge("pool_free_addresses", "Addresses of a pool that this node can still give.", "pool")
    for room in held.rooms:
        if room.current:
            usable.add_metric([room.pool], room.usable)
            free.add_metric([room.pool], room.free)
    yield from (usable, free)
    damaged = _gauge("damaged_databases", "Databases that were moved aside and not removed.")
    damaged.add_metric([], len(held.damaged))
    yield damaged


def _calls(problems: list[str]) -> Iterator[Metric]:
    try:
        counts = calls.read()
    except OSError as error:
        problems.append(f"{calls.FILE}: {error.strerror}")
        counts = []
    seconds = HistogramMetricFamily(
        "rdma_cni_call_duration_seconds",
        "Calls of the plugins since the boot, from reading the request to the answer; the interpreter's start is "
        "not in it.",
        labels=["plugin", "command"],
    )
    errors = _counter("call_errors", "Calls that ended with an error, by its code.", "plugin", "command", "code")
    sums: dict[tuple[str, str], tuple[list[int], int]] = {}
    for each in counts:
        buckets, microseconds = sums.get((each.plugin, each.command), ([0] * len(each.buckets), 0))
        added = [before + more for before, more in zip(buckets, each.buckets, strict=True)]
        sums[each.plugin, each.command] = added, microseconds + each.microseconds
        if each.code:
            errors.add_metric([each.plugin, each.command, str(each.code)], sum(each.buckets))
    bounds = [*(str(bound / 1000) for bound in calls.BOUNDS), "+Inf"]
    for (plugin, command), (buckets, microseconds) in sorted(sums.items()):
        total = [sum(buckets[: number + 1]) for number in range(len(buckets))]
        seconds.add_metric([plugin, command], list(zip(bounds, total, strict=True)), microseconds / 1e6)
    yield from (seconds, errors)


def _ports(node: Node) -> Iterator[Metric]:
    up = _gauge("port_up", "1 where the RDMA device's port is active.", *_PORT)
    rate = _gauge("port_rate_bytes_per_second", "The rate of the RDMA device's port.", *_PORT)
    named = {key: _counter(f"port_{name}", about, *_PORT) for key, (name, about, _) in _NAMED.items()}
    counters = _counter("port_events", "A port's counters of the InfiniBand specification.", *_PORT, "counter")
    hw_counters = _counter("port_hw_events", "The counters that the driver keeps of a port.", *_PORT, "counter")
    for function in node.functions:
        for device in function.rdma:
            for port in device.ports:
                labels = _labels(function, device, port)
                up.add_metric(labels, port.state == "ACTIVE")
                rate.add_metric(labels, port.gbps * 1e9 / 8)
                for key, value in port.counters.items():
                    if key in _NAMED:
                        named[key].add_metric(labels, value * _NAMED[key][2])
                    else:
                        counters.add_metric([*labels, printable(key)], value)
                for key, value in port.hw_counters.items():
                    hw_counters.add_metric([*labels, printable(key)], value)
    yield from (up, rate, *named.values(), counters, hw_counters)


def _labels(function: Function, device: RdmaDevice, port: Port) -> list[str]:
    holder = function.holder
    namespace, _, name = (holder.pod if holder else "").rpartition("/")
    texts = (
        device.name,
        str(port.number),
        function.id,
        function.pf,
        namespace,
        name,
        holder.network if holder else "",
        holder.interface if holder else "",
    )
    # A pod's root may give its device any name.
    return [printable(text) for text in texts]


def write(path: str, text: bytes) -> None:
    """Replace the file at `path` at once: node_exporter reads it at any moment, and as another user. Raises OSError."""
    # Not *.prom, which would be read as well.
    unfinished = Path(f"{path}.{os.getpid()}")
    try:
        unfinished.write_bytes(text)
        unfinished.chmod(0o644)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
