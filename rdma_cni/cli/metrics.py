"""`rdma-cni metrics`."""

import signal
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rdma_cni.cli.command import Command, Failure
from rdma_cni.cli.inventory import Node

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


@click.command(
    "metrics",
    cls=Command,
    help="""Print Prometheus metrics of this node, write them for node_exporter, or serve them.

Functions by state, free VFs by PF, attachments, reservations and room by pool, calls of the plugins with errors and
durations, ports of RDMA devices with their counters, also of those inside pods and labelled with the pod, and the
findings of `rdma-cni doctor`. examples/monitoring has a dashboard and alert rules.

Served, the node is looked at each time it is asked for. It needs root, as the other commands do.
""",
    statuses=[(0, "Written; when serving: it was told to end.")],
    examples=[
        ("rdma-cni metrics", "To see them."),
        (
            "rdma-cni metrics --textfile /var/lib/prometheus/node-exporter/rdma_cni.prom",
            "From a timer, for node_exporter's textfile collector; the file is replaced at once.",
        ),
        ("rdma-cni metrics --listen 127.0.0.1:9456", "Until SIGTERM or Ctrl-C."),
    ],
)
@click.option("--textfile", metavar="PATH", type=click.Path(dir_okay=False), help="Write them to this file.")
@click.option(
    "--listen", metavar="ADDRESS:PORT", help="Serve them at http://ADDRESS:PORT/metrics; [::1]:PORT for IPv6."
)
@click.option("--no-doctor", is_flag=True, help="Without doctor's findings, of which some take a while.")
def command(textfile: str | None, listen: str | None, no_doctor: bool) -> None:
    if textfile and listen:
        raise click.UsageError("found --textfile and --listen, expected one of them")
    registry = _registry(doctor=not no_doctor)
    if listen:
        _serve(registry, *_address(listen))
        return
    from prometheus_client import generate_latest

    text = generate_latest(registry)
    if textfile:
        from rdma_cni.cli import measurements

        measurements.write(textfile, text)
    else:
        click.echo(text, nl=False)


def _registry(*, doctor: bool) -> "CollectorRegistry":
    try:
        import ssl  # noqa: F401
    except ImportError:
        # The bundle has none. prometheus_client wants it for serving with TLS, and names its types when imported.
        stand_in: Any = types.ModuleType("ssl")
        stand_in.__getattr__ = lambda name: object
        sys.modules["ssl"] = stand_in
    from prometheus_client import CollectorRegistry

    from rdma_cni.cli.measurements import Collector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(_diagnosis if doctor else None))
    return registry


def _diagnosis(node: Node) -> Iterator[tuple[str, str, int]]:
    from rdma_cni.cli import diagnosis

    return diagnosis.count(node)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise click.BadParameter(f"found {text!r}, expected ADDRESS:PORT such as 127.0.0.1:9456", param_hint="--listen")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104 - it was asked for


def _serve(registry: "CollectorRegistry", host: str, port: int) -> None:
    from prometheus_client import start_http_server

    ends = {signal.SIGTERM, signal.SIGINT}
    # Before any thread is there, so that none of them takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Failure(f"--listen {host}:{port}: cannot be listened on: {error.strerror or error}") from None
    click.echo(f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics", err=True)
    signal.sigwait(ends)
    server.shutdown()
    server.server_close()
    thread.join()
