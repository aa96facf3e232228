"""The part of `make bench` that runs in the lab's guest; the samples go to /out."""

import json
import os
import subprocess
from pathlib import Path

from samples import BARE, RUNS, Samples, peak_memory, spawn

RDMA = "/opt/cni/bin/rdma"
HOST_DEVICE = "/opt/cni/bin/host-device"
POD = "/run/netns/pod"
IPV4, IPV6 = "10.56.2.0/24", "fd00:56:2::/64"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def environment(command: str, ifname: str = "net1") -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "bench",
        "CNI_NETNS": POD,
        "CNI_IFNAME": ifname,
        "CNI_PATH": "/opt/cni/bin",
    }


def configuration(plugin: str, **more: object) -> bytes:
    return json.dumps({"cniVersion": "1.0.0", "name": f"bench-{plugin}", "type": plugin, **more}).encode()


def ours(device: str, *subnets: str) -> bytes:
    """`rdma` with node-subnet: the whole of each subnet is this node's."""
    pools = [{"subnet": subnet, "nodePrefix": int(subnet.partition("/")[2])} for subnet in subnets]
    ipam = {"type": "node-subnet", "nodeName": "bench", "nodes": {"bench": 0}, "pools": pools}
    return configuration("rdma", deviceID=device, ipam=ipam)


def theirs(device: dict[str, str], *subnets: str) -> bytes:
    """Debian's Go `host-device` with `host-local`, which moves and addresses the netdev and no RDMA device."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}] for subnet in subnets]}
    return configuration("host-device", **device, ipam=ipam)


def chained(vf: str, samples: Samples) -> None:
    """The VF's netdev is in the pod already, as `sriov` leaves it, and a prevResult says so."""
    (netdev,) = os.listdir(f"/sys/bus/pci/devices/{vf}/net")
    mac = Path(f"/sys/class/net/{netdev}/address").read_text().strip()
    ip("link", "set", netdev, "netns", "pod", "name", "net1")
    ip("-n", "pod", "link", "set", "net1", "up")
    result = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "net1", "mac": mac, "sandbox": POD}],
        "ips": [{"address": "10.56.1.2/24", "interface": 0}],
    }
    config = configuration("rdma", deviceID=vf, prevResult=result)
    for _ in range(RUNS):
        for name, command, binary in (
            ("bare", "", BARE),
            ("chained ADD", "ADD", [RDMA]),
            ("chained DEL", "DEL", [RDMA]),
        ):
            samples.setdefault(name, []).append(spawn(binary, environment(command), config))
    ip("-n", "pod", "link", "set", "net1", "down")
    ip("-n", "pod", "link", "set", "net1", "name", netdev, "netns", "1")


def alone(vf: str, samples: Samples, stack: str, *subnets: str) -> None:
    """Both on the same VF, one after the other."""
    for _ in range(RUNS):
        for name, binary, config in (
            ("alone", RDMA, ours(vf, *subnets)),
            ("host-device", HOST_DEVICE, theirs({"pciBusID": vf}, *subnets)),
        ):
            for command in ("ADD", "DEL"):
                taken = spawn([binary], environment(command), config)
                samples.setdefault(f"{name} {command}{stack}", []).append(taken)


def rails(devices: list[str], samples: Samples) -> None:
    """All functions into one pod, one after another, as a runtime does it."""
    netdevs = [
        os.listdir(f"/sys/bus/{'pci' if ':' in device else 'auxiliary'}/devices/{device}/net")[0] for device in devices
    ]
    for _ in range(RUNS):
        for name, binary, configs in (
            ("rails", RDMA, [ours(device, IPV4) for device in devices]),
            # By its netdev: it does not know of auxiliary devices.
            ("host-device rails", HOST_DEVICE, [theirs({"device": netdev}, IPV4) for netdev in netdevs]),
        ):
            for command in ("ADD", "DEL"):
                taken = [spawn([binary], environment(command, f"net{n}"), config) for n, config in enumerate(configs)]
                samples.setdefault(f"{name} {command}", []).append(sum(taken))


def memory(vf: str, samples: Samples) -> None:
    for _ in range(RUNS):
        for name, binary, config in (
            ("memory", RDMA, ours(vf, IPV4)),
            ("host-device memory", HOST_DEVICE, theirs({"pciBusID": vf}, IPV4)),
        ):
            samples.setdefault(name, []).append(peak_memory("./peak", [binary], environment("ADD"), config))
            spawn([binary], environment("DEL"), config)


def main() -> None:
    samples: Samples = {}
    pf = next(Path("/sys/bus/pci/drivers/igb").glob("0000:*"))
    vfs = [Path(os.path.realpath(path)).name for path in sorted(pf.glob("virtfn*"))]
    functions = [*vfs, *(path.name for path in Path("/sys/bus/auxiliary/devices").glob("mlx5_core.sf.*"))]
    ip("netns", "add", "pod")
    chained(vfs[0], samples)
    alone(vfs[0], samples, "", IPV4)
    alone(vfs[0], samples, ", dual stack", IPV4, IPV6)
    memory(vfs[0], samples)
    if "BENCH_SKIP_RAILS" not in os.environ:
        rails(functions, samples)
    Path("/out/samples.json").write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
