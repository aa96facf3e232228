"""`rdma-cni labels`."""

import json
import os
import re
import tempfile
from collections.abc import Iterable

import click

from rdma_cni.cli import hardware, inventory
from rdma_cni.cli.command import Command, Failure, complain, json_option
from rdma_cni.cli.inventory import Node

_FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/rdma-cni"
_LONGEST = 63


@click.command(
    "labels",
    cls=Command,
    help="""Print what the scheduler may want to know of this node's RDMA, as labels: a line key=value for each.

Node Feature Discovery reads such lines from files below /etc/kubernetes/node-feature-discovery/features.d and makes
labels feature.node.kubernetes.io/KEY of them; --nfd writes one there, whole at once. What a node may have several of
is a label for each, with the value true: rdma.vendor.15b3. Numbers are integers, for Gt and Lt.
""",
    examples=[
        ("rdma-cni labels", "What there is to say."),
        ("rdma-cni labels --nfd", "For Node Feature Discovery, by a timer on each node."),
        ("rdma-cni labels --output /host/features.d/rdma-cni", "The same, in a container."),
        (
            "kubectl label node gpu-07 --overwrite $(rdma-cni labels --prefix example.com/)",
            "Without Node Feature Discovery.",
        ),
    ],
)
@click.option("--prefix", default="", help="Before each key, for instance example.com/.")
@click.option("--nfd", is_flag=True, help=f"Write {_FEATURES}.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write this file, in place of printing.")
@json_option
def command(prefix: str, nfd: bool, output: str | None, as_json: bool) -> None:
    if nfd and output:
        raise click.UsageError("found --nfd and --output, expected one of the two")
    if prefix and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/", prefix):
        raise click.BadParameter(
            f"found {prefix!r}, expected a DNS name and a slash: example.com/", param_hint="--prefix"
        )
    node = inventory.read(gids=True)
    complain(*node.problems)
    labels = {prefix + key: value for key, value in of(node).items()}
    text = json.dumps(labels, indent=2) + "\n" if as_json else "".join(f"{k}={v}\n" for k, v in labels.items())
    path = _FEATURES if nfd else output
    if path is None:
        click.echo(text, nl=False)
        return
    _write(path, text)


def of(node: Node) -> dict[str, str]:
    """The labels of a node, in a fixed order."""
    having = [function for function in node.functions if function.rdma]
    labels = {"rdma.capable": "true" if having else "false"}
    if node.exclusive is not None:
        labels["rdma.netns-mode"] = "exclusive" if node.exclusive else "shared"
    if not node.functions:
        return labels
    ports = [port for function in having for device in function.rdma for port in device.ports]
    _each(labels, "rdma.vendor", (f.vendor for f in having))
    _each(labels, "rdma.device", (f"{f.vendor}-{f.device}" for f in having if f.device))
    _each(labels, "rdma.driver", (f.driver for f in having))
    _each(labels, "rdma.link", (port.link_layer.lower() for port in ports))
    _each(labels, "rdma.firmware", (device.firmware for f in having for device in f.rdma))
    versions = {gid.type for port in ports for gid in port.gids}
    _each(labels, "rdma.roce", (kind.removeprefix("RoCE ") for kind in versions if kind.startswith("RoCE ")))
    speeds = [int(port.gbps) for port in ports if port.gbps and port.state == "ACTIVE"]
    if speeds:
        labels["rdma.speed"] = str(min(speeds))
    parents = {f.pf for f in having if f.pf} | {f.id for f in having if f.kind == "pf"}
    labels["rdma.pfs"] = str(len(parents))
    for kind, name in (("vf", "rdma.vfs"), ("sf", "rdma.sfs")):
        functions = [f for f in having if f.kind == kind]
        labels[name] = str(len(functions))
        labels[f"{name}-free"] = str(sum(f.state == "free" for f in functions))
    _each(labels, "rdma.numa-node", (str(f.numa) for f in having if f.numa is not None))
    near = [f.gpu_distance for f in having if f.gpu_distance]
    if near:
        # Of the functions the one that is worst off: what any pod can count on.
        worst = max(near, key=hardware.DISTANCES.index)
        labels["rdma.gpu-distance"] = worst.lower().replace(" ", "-")
    return labels


def _each(labels: dict[str, str], key: str, values: Iterable[str]) -> None:
    """A label for each value that is not empty."""
    for value in sorted({value for value in values if value}):
        name = f"{key}.{value}"
        # What a label's name may have in it; a driver's or a firmware's may be anything.
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:_LONGEST].rstrip("._-")
        labels[plain] = "true"


def _write(path: str, text: str) -> None:
    """Write a file beside it and rename it: nobody reads half of it. A name with a dot in front is ignored there."""
    directory = os.path.dirname(path) or "."
    try:
        fd, work = tempfile.mkstemp(prefix=".rdma-cni-", dir=directory)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            os.replace(work, path)
        except BaseException:
            os.unlink(work)
            raise
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror}; expected a directory that is there") from None
