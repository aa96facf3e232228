"""The part of `make bench` that runs in the lab's guest; the samples go to /out."""

import json
import os
import subprocess
from pathlib import Path

from samples import BARE, RUNS, Samples, spawn

RDMA = "/opt/cni/bin/rdma"
HOST_DEVICE = "/opt/cni/bin/host-device"
POD = "/run/netns/pod"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def environment(command: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "bench",
        "CNI_NETNS": POD,
        "CNI_IFNAME": "net1",
        "CNI_PATH": "/opt/cni/bin",
    }


def configuration(plugin: str, **more: object) -> bytes:
    return json.dumps({"cniVersion": "1.0.0", "name": f"bench-{plugin}", "type": plugin, **more}).encode()


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
        samples["bare"].append(spawn(BARE, environment("ADD")))
        samples["chained ADD"].append(spawn([RDMA], environment("ADD"), config))
        samples["chained DEL"].append(spawn([RDMA], environment("DEL"), config))
    ip("-n", "pod", "link", "set", "net1", "down")
    ip("-n", "pod", "link", "set", "net1", "name", netdev, "netns", "1")


def alone(vf: str, samples: Samples) -> None:
    """The plugin beside Debian's Go `host-device`, on the same VF, each with host-local."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.56.2.0/24"}]]}
    ours = configuration("rdma", deviceID=vf, ipam=ipam)
    theirs = configuration("host-device", pciBusID=vf, ipam=ipam)
    for _ in range(RUNS):
        for name, binary, config in (("alone", RDMA, ours), ("host-device", HOST_DEVICE, theirs)):
            for command in ("ADD", "DEL"):
                samples[f"{name} {command}"].append(spawn([binary], environment(command), config))


def main() -> None:
    names = ["bare", *(f"{n} {c}" for n in ("chained", "alone", "host-device") for c in ("ADD", "DEL"))]
    samples: Samples = {name: [] for name in names}
    vf = Path(os.path.realpath(next(Path("/sys/bus/pci/drivers/igb").glob("0000:*")) / "virtfn0")).name
    ip("netns", "add", "pod")
    chained(vf, samples)
    alone(vf, samples)
    Path("/out/samples.json").write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
