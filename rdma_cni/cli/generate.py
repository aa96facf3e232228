"""`rdma-cni generate`."""

import ipaddress
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from rdma_cni.cli import inventory
from rdma_cni.cli.command import Command, Failure, complain, nearest
from rdma_cni.cli.devices import pf_address
from rdma_cni.cli.inventory import Function, Node

_RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
_NETWORKS = "k8s.v1.cni.cncf.io/networks"


@dataclass(frozen=True)
class Rail:
    """A PF whose functions pods get, and the network that they belong to."""

    name: str
    pf: Function
    functions: tuple[Function, ...]
    resource: str
    pools: tuple[str, ...]

    @property
    def infiniband(self) -> bool:
        """Its link layer, which a PF may have no RDMA device of its own to tell."""
        return any(function.link_layer == "InfiniBand" for function in (self.pf, *self.functions))


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for. `pools` are networks as CIDR, to be cut for the rails."""

    prefix: str
    namespace: str
    node_prefixes: tuple[int, ...]
    nodes: dict[str, object]
    mtu: int | None


@click.command(
    "generate",
    cls=Command,
    help="""Write configurations from the devices of this node.

\b
WHAT is one of
  sriov-device-plugin   the resource list of sriov-network-device-plugin (JSON)
  shared-device-plugin  that of k8s-rdma-shared-dev-plugin, for shared mode (JSON)
  node-policy           SriovNetworkNodePolicy objects of the SR-IOV network operator
  networks              NetworkAttachmentDefinitions: sriov and rdma, with node-subnet
  pod                   a pod with an interface of each rail
  conflist              a configuration for /etc/cni/net.d, where rdma stands alone

A rail is a PF with VFs: rail0, rail1, ... in the order of their PCI addresses. Each has a network and a pool of its
own, an equal part of each --pool. What is written passes `rdma-cni validate`.
""",
    examples=[
        (
            "rdma-cni generate networks --pool 10.56.0.0/13 --node-prefix 24 --node gpu-07=7 --node gpu-08=8",
            "For Multus.",
        ),
        ("rdma-cni generate sriov-device-plugin > config.json", "For the device plugin's ConfigMap."),
        ("rdma-cni generate pod --resource-prefix example.com", "What a pod asks for."),
        (
            "rdma-cni generate conflist --pf ens1f0 --pool 10.56.0.0/16 > /etc/cni/net.d/10-rail0.conflist",
            "Without Multus.",
        ),
    ],
)
@click.argument("what", metavar="WHAT")
@click.option("--pf", "pfs", multiple=True, help="Only this PF, by netdev or address; may be given several times.")
@click.option(
    "--pool", "pools", multiple=True, help="A network of which each rail gets a part. [default: 10.56.0.0/13]"
)
@click.option(
    "--node-prefix",
    "node_prefixes",
    multiple=True,
    type=click.IntRange(1, 128),
    help="The prefix length of a node's part of each pool, in their order. [default: 24, 64]",
)
@click.option(
    "--node", "nodes", multiple=True, metavar="NAME=INDEX", help="A node and its index; without, node.json tells."
)
@click.option("--resource-prefix", default="rdma-cni.io", show_default=True, help="Of the device plugin's resources.")
@click.option("--namespace", default="default", show_default=True, help="Of the objects.")
@click.option("--mtu", type=click.IntRange(68, 65535), help="Of conflist and node-policy.")
def command(
    what: str,
    pfs: tuple[str, ...],
    pools: tuple[str, ...],
    node_prefixes: tuple[int, ...],
    nodes: tuple[str, ...],
    resource_prefix: str,
    namespace: str,
    mtu: int | None,
) -> None:
    if what not in _WRITERS:
        raise click.BadParameter(
            f"found {what!r}, expected a configuration{nearest(what, _WRITERS)}", param_hint="WHAT"
        )
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", resource_prefix):
        found = f"found {resource_prefix!r}, expected a DNS name: example.com"
        raise click.BadParameter(found, param_hint="--resource-prefix")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", namespace):
        raise click.BadParameter(f"found {namespace!r}, expected a namespace's name", param_hint="--namespace")
    networks = _networks(pools or ("10.56.0.0/13",))
    wanted = Wanted(resource_prefix, namespace, _node_prefixes(networks, node_prefixes), _indices(nodes), mtu)
    node = inventory.read(gids=False)
    complain(*node.problems)
    rails = _rails(node, pfs, networks, wanted)
    click.echo(_WRITERS[what](rails, wanted), nl=False)


def _networks(pools: Sequence[str]) -> "list[ipaddress.IPv4Network | ipaddress.IPv6Network]":
    found: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
    for pool in pools:
        try:
            network = ipaddress.ip_network(pool)
        except ValueError as error:
            raise click.BadParameter(
                f"found {pool!r}: {error}; expected a network: 10.56.0.0/13", param_hint="--pool"
            ) from None
        other = next((other for other in found if other.version == network.version and other.overlaps(network)), None)
        if other:
            raise click.BadParameter(f"found {pool}, which overlaps {other}; expected pools apart", param_hint="--pool")
        found.append(network)
    return found


def _node_prefixes(
    networks: "Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]", given: Sequence[int]
) -> tuple[int, ...]:
    if given and len(given) != len(networks):
        found = f"found {len(given)}, expected one for each pool ({len(networks)})"
        raise click.BadParameter(found, param_hint="--node-prefix")
    return tuple(given) or tuple(24 if network.version == 4 else 64 for network in networks)


def _indices(nodes: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for entry in nodes:
        name, _, index = entry.rpartition("=")
        if not name or not index.isdecimal() or name in found or int(index) in found.values():
            expected = "expected NAME=INDEX, each name and each index once"
            raise click.BadParameter(f"found {entry!r}, {expected}", param_hint="--node")
        found[name] = int(index)
    return found


def _rails(
    node: Node,
    pfs: Sequence[str],
    networks: "Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]",
    wanted: Wanted,
) -> list[Rail]:
    """The PFs that pods get functions of: those named, or all that have VFs with RDMA devices. Raises Failure."""
    addresses = [pf_address(node.functions, name) for name in pfs]
    chosen = []
    for pf in node.functions:
        vfs = tuple(
            f for f in node.functions if f.pf == pf.id and f.kind == "vf" and f.state not in ("no driver", "vfio")
        )
        if pf.kind == "pf" and ((vfs and not addresses) or pf.id in addresses):
            if not vfs:
                raise Failure(
                    f"{pf.id}: found no VF that pods can have, expected some: "
                    f"echo {pf.vfs_possible} > /sys/bus/pci/devices/{pf.id}/sriov_numvfs"
                )
            chosen.append((pf, vfs))
    if not chosen:
        raise Failure(
            "found no PF with VFs that have RDMA devices, expected one: `rdma-cni doctor` says what is missing"
        )
    parts = [
        _parts(network, len(chosen), prefix) for network, prefix in zip(networks, wanted.node_prefixes, strict=True)
    ]
    return [
        Rail(f"rail{number}", pf, vfs, f"{wanted.prefix}/rail{number}", tuple(part[number] for part in parts))
        for number, (pf, vfs) in enumerate(chosen)
    ]


def _parts(network: "ipaddress.IPv4Network | ipaddress.IPv6Network", count: int, node_prefix: int) -> list[str]:
    """COUNT equal parts of a network, each of a size that is a power of two."""
    bits = (count - 1).bit_length()
    prefix = network.prefixlen + bits
    if prefix > node_prefix or node_prefix > network.max_prefixlen:
        found = f"found {network} for {count} rails: {1 << bits} parts of /{prefix}"
        raise click.BadParameter(f"{found}, expected parts that hold a node's /{node_prefix}", param_hint="--pool")
    first = int(network.network_address)
    size = 1 << (network.max_prefixlen - prefix)
    kind = ipaddress.IPv4Address if network.version == 4 else ipaddress.IPv6Address
    return [f"{kind(first + number * size)}/{prefix}" for number in range(count)]


def _ipam(rail: Rail, wanted: Wanted) -> dict[str, object]:
    pools = [
        {"subnet": subnet, "nodePrefix": prefix}
        for subnet, prefix in zip(rail.pools, wanted.node_prefixes, strict=True)
    ]
    return {"type": "node-subnet", **({"nodes": wanted.nodes} if wanted.nodes else {}), "pools": pools}


def _pf_name(pf: Function) -> str:
    return pf.netdev.name if pf.netdev else ""


def _vendors_and_devices(rail: Rail) -> tuple[list[str], list[str], list[str]]:
    functions = rail.functions
    return (
        sorted({f.vendor for f in functions}),
        sorted({f.device for f in functions}),
        sorted({f.driver for f in functions}),
    )


def _sriov_device_plugin(rails: Sequence[Rail], wanted: Wanted) -> str:
    entries = []
    for rail in rails:
        vendors, devices, drivers = _vendors_and_devices(rail)
        # By the PF's name when it has one: that is stable where udev names by path, and readable.
        of_pf = {"pfNames": [_pf_name(rail.pf)]} if _pf_name(rail.pf) else {"rootDevices": [rail.pf.id]}
        selectors = {"vendors": vendors, "devices": devices, "drivers": drivers, **of_pf, "isRdma": True}
        entries.append({"resourcePrefix": wanted.prefix, "resourceName": rail.name, "selectors": selectors})
    return json.dumps({"resourceList": entries}, indent=2) + "\n"


def _shared_device_plugin(rails: Sequence[Rail], wanted: Wanted) -> str:
    entries = []
    for rail in rails:
        link = "infiniband" if rail.infiniband else "ether"
        selectors: dict[str, object] = {
            "vendors": [rail.pf.vendor],
            "deviceIDs": [rail.pf.device],
            "drivers": [rail.pf.driver],
        }
        if _pf_name(rail.pf):
            selectors |= {"ifNames": [_pf_name(rail.pf)], "linkTypes": [link]}
        entries.append(
            {
                "resourcePrefix": wanted.prefix,
                "resourceName": f"{rail.name}-shared",
                "rdmaHcaMax": 64,
                "selectors": selectors,
            }
        )
    return json.dumps({"periodicUpdateInterval": 300, "configList": entries}, indent=2) + "\n"


def _yaml(objects: Sequence[object]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """A string of several lines is a literal block, as people write one."""

    def literal(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, literal)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=len(objects) > 1, width=1000)


def _node_policy(rails: Sequence[Rail], wanted: Wanted) -> str:
    objects = []
    for rail in rails:
        selector: dict[str, object] = {"vendor": rail.pf.vendor, "deviceID": rail.pf.device}
        selector |= {"pfNames": [_pf_name(rail.pf)]} if _pf_name(rail.pf) else {}
        spec: dict[str, object] = {
            "resourceName": rail.name,
            "nodeSelector": {"feature.node.kubernetes.io/rdma.capable": "true"},
            "priority": 99,
            "numVfs": rail.pf.vfs,
            "nicSelector": {**selector, "rootDevices": [rail.pf.id]},
            "deviceType": "netdevice",
            "isRdma": True,
            "linkType": "ib" if rail.infiniband else "eth",
            **({"mtu": wanted.mtu} if wanted.mtu else {}),
        }
        objects.append(
            {
                "apiVersion": "sriovnetwork.openshift.io/v1",
                "kind": "SriovNetworkNodePolicy",
                "metadata": {"name": rail.name, "namespace": wanted.namespace},
                "spec": spec,
            }
        )
    return _yaml(objects)


def _network_definitions(rails: Sequence[Rail], wanted: Wanted) -> str:
    objects = []
    for rail in rails:
        # On InfiniBand the plugin before is ib-sriov.
        first = "ib-sriov" if rail.infiniband else "sriov"
        main: dict[str, object] = {"type": first, "ipam": _ipam(rail, wanted)}
        rdma: dict[str, object] = {"type": "rdma"}
        config = {"cniVersion": "1.0.0", "name": rail.name, "plugins": [main, rdma]}
        objects.append(
            {
                "apiVersion": "k8s.cni.cncf.io/v1",
                "kind": "NetworkAttachmentDefinition",
                "metadata": {
                    "name": rail.name,
                    "namespace": wanted.namespace,
                    "annotations": {_RESOURCE: rail.resource},
                },
                "spec": {"config": json.dumps(config, indent=2) + "\n"},
            }
        )
    return _yaml(objects)


def _pod(rails: Sequence[Rail], wanted: Wanted) -> str:
    counts = {rail.resource: "1" for rail in rails}
    networks = ",".join(f"{wanted.namespace}/{rail.name}" for rail in rails)
    container = {
        "name": "main",
        "image": "example.com/training:1",
        # Memory that RDMA registers is locked; the capability is for runtimes with a limit on that.
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "resources": {"requests": counts, "limits": dict(counts)},
    }
    return _yaml(
        [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "rdma", "namespace": wanted.namespace, "annotations": {_NETWORKS: networks}},
                "spec": {"containers": [container]},
            }
        ]
    )


def _conflist(rails: Sequence[Rail], wanted: Wanted) -> str:
    if len(rails) > 1:
        names = ", ".join(_pf_name(rail.pf) or rail.pf.id for rail in rails)
        raise Failure(f"found {len(rails)} rails ({names}), expected one: a file is one network; name its PF with --pf")
    (rail,) = rails
    plugin: dict[str, object] = {"type": "rdma", "pf": _pf_name(rail.pf) or rail.pf.id}
    plugin |= {"mtu": wanted.mtu} if wanted.mtu else {}
    config = {"cniVersion": "1.0.0", "name": rail.name, "plugins": [{**plugin, "ipam": _ipam(rail, wanted)}]}
    return json.dumps(config, indent=2) + "\n"


_WRITERS: dict[str, Callable[[Sequence[Rail], Wanted], str]] = {
    "sriov-device-plugin": _sriov_device_plugin,
    "shared-device-plugin": _shared_device_plugin,
    "node-policy": _node_policy,
    "networks": _network_definitions,
    "pod": _pod,
    "conflist": _conflist,
}
