"""What a test in the lab's guest works with: VFs, pods, the plugin as a runtime calls it.

Debian's python3, python3-pytest and iproute2 are all there is in the guest.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CNI_PATH = "/opt/cni/bin"
WRAPPER_FAILED = 125
PCI = Path("/sys/bus/pci/devices")
AUXILIARY = Path("/sys/bus/auxiliary/devices")


def run(*command: str, ns: str | None = None, check: bool = True) -> str:
    """A command's stdout; in the namespace `ns` when given."""
    prefix = ["ip", "netns", "exec", ns] if ns else []
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=60, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def settle() -> None:
    """Wait until udev has dealt with what the kernel reported: it renames what appears, a little later."""
    run("udevadm", "settle", "--timeout=20", check=False)


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether the condition comes true in time; a namespace, for one, dies in the background."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def links(ns: str | None = None) -> list[dict[str, Any]]:
    """`ip -d link`, without the loopback."""
    at = ["-n", ns] if ns else []
    answer: list[dict[str, Any]] = json.loads(run("ip", *at, "-j", "-d", "link") or "[]")
    return [link for link in answer if link.get("ifname") not in (None, "lo")]


def addresses(ifname: str, ns: str | None = None) -> list[str]:
    """An interface's addresses with their prefix lengths, without the link-local ones."""
    at = ["-n", ns] if ns else []
    (link,) = (a for a in json.loads(run("ip", *at, "-j", "addr", "show", "dev", ifname)) if a)
    return [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] != "link"]


def rdma_devices(ns: str | None = None) -> list[dict[str, Any]]:
    """`rdma dev`: the ifindex (nldev's index), ifname and node_guid of each device."""
    answer: list[dict[str, Any]] = json.loads(run("rdma", "-j", "dev", ns=ns) or "[]", strict=False)
    return answer


def rdma_names(ns: str | None = None) -> list[str]:
    """The names of the RDMA devices that a namespace sees, sorted."""
    return sorted(device["ifname"] for device in rdma_devices(ns))


@dataclass(frozen=True)
class Function:
    """A VF or a scalable function, as it was when the guest came up.

    `device` is its PCI address or auxiliary device, `netdevs` are all of its netdevs, and `netdev`
    is the one of its RDMA device's link layer ("" when it has none).
    """

    device: str
    netdevs: tuple[str, ...]
    netdev: str
    mac: str
    rdma: tuple[str, ...]


def function(sysfs: Path) -> Function:
    rdma = tuple(sorted(os.listdir(sysfs / "infiniband"))) if (sysfs / "infiniband").is_dir() else ()
    netdevs = tuple(sorted(os.listdir(sysfs / "net"))) if (sysfs / "net").is_dir() else ()
    wanted = "1"  # ARPHRD_ETHER
    if rdma and (sysfs / "infiniband" / rdma[0] / "ports/1/link_layer").read_text().strip() == "InfiniBand":
        wanted = "32"  # ARPHRD_INFINIBAND
    netdev = next((n for n in netdevs if (sysfs / "net" / n / "type").read_text().strip() == wanted), "")
    mac = (sysfs / "net" / netdev / "address").read_text().strip() if netdev else ""
    return Function(sysfs.name, netdevs, netdev, mac, rdma)


def pci_functions() -> list[Function]:
    """All VFs, in their PF's order."""
    paths = Path("/sys/bus/pci/drivers/igb").glob("0000:*/virtfn*")
    return [function(PCI / path.resolve().name) for path in sorted(paths, key=lambda p: int(p.name[6:]))]


def auxiliary_functions() -> list[Function]:
    return [function(path) for path in sorted(AUXILIARY.glob("mlx5_core.sf.*"))]


def rebind(device: str, driver: str) -> None:
    """Take the driver off a PCI function and bind the one that is named."""
    (PCI / device / "driver_override").write_text(driver)
    if (PCI / device / "driver").exists():
        (PCI / device / "driver" / "unbind").write_text(device)
    Path("/sys/bus/pci/drivers_probe").write_text(device)
    settle()


@dataclass(frozen=True)
class Pod:
    """A network namespace, by the name that `ip netns` knows it by."""

    name: str

    @property
    def netns(self) -> str:
        return f"/run/netns/{self.name}"

    def run(self, *command: str, check: bool = True) -> str:
        return run(*command, ns=self.name, check=check)

    def links(self) -> list[dict[str, Any]]:
        return links(self.name)

    def link(self, ifname: str) -> dict[str, Any]:
        found = [link for link in self.links() if link["ifname"] == ifname]
        assert found, f"no {ifname} in {self.name}, there is {[link['ifname'] for link in self.links()]}"
        return found[0]

    def addresses(self, ifname: str) -> list[str]:
        return addresses(ifname, self.name)

    def rdma_devices(self) -> list[dict[str, Any]]:
        return rdma_devices(self.name)

    def rdma_names(self) -> list[str]:
        return rdma_names(self.name)

    def delete(self) -> None:
        run("ip", "netns", "del", self.name, check=False)


@dataclass(frozen=True)
class Answer:
    """What the plugin said: `code` is its exit status."""

    code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def json(self) -> Any:
        """Stdout, which never carries anything but one JSON object."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict), self.stdout
        return value

    @property
    def error(self) -> int:
        """The code of the CNI error object; a failure without one is a failure of the test."""
        assert self.code == 1, self
        value = self.json
        assert set(value) >= {"cniVersion", "code", "msg"}, value
        code = value["code"]
        assert isinstance(code, int)
        return code


def cni_environment(
    command: str | None,
    container: str | None = "container1",
    netns: "str | Pod | None" = None,
    ifname: str | None = "net1",
    env: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """A runtime's environment for a plugin; what is None is not in it."""
    variables: dict[str, str | None] = {
        "PATH": os.environ["PATH"],
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": netns.netns if isinstance(netns, Pod) else netns,
        "CNI_IFNAME": ifname,
        "CNI_PATH": CNI_PATH,
    }
    variables.update(env or {})
    return {key: value for key, value in variables.items() if value is not None}


def cni(
    command: str | None,
    config: object = None,
    *,
    container: str | None = "container1",
    netns: "str | Pod | None" = None,
    ifname: str | None = "net1",
    env: Mapping[str, str | None] | None = None,
    binary: str = f"{CNI_PATH}/rdma",
    wrapper: Sequence[str] = (),
    timeout: float = 60,
) -> Answer:
    """Run a frozen executable as a runtime does: environment, configuration on stdin.

    `config` is a dictionary, or the bytes that stdin is to have. `wrapper` is what runs the plugin
    (strace and its options, for instance).
    """
    stdin = config if isinstance(config, bytes) else b"" if config is None else json.dumps(config).encode()
    done = subprocess.run(
        [*wrapper, binary],
        input=stdin,
        env=cni_environment(command, container, netns, ifname, env),
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    # No exit status of a plugin's: `atcall`, and others that run a program, end so when they themselves fail.
    assert done.returncode != WRAPPER_FAILED, (wrapper, done.stderr)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"))


def host() -> dict[str, list[tuple[object, ...]]]:
    """What the host has: each netdev, each RDMA device, each with all that a pod might change of it."""
    return {
        "netdevs": sorted(
            (
                link.get("parentdev", ""),
                link["ifname"],
                link.get("address", ""),
                link["mtu"],
                tuple(sorted(link.get("altnames", []))),
                "UP" in link["flags"],
            )
            for link in links()
        ),
        "rdma": sorted((d["ifindex"], d["ifname"], d["node_guid"]) for d in rdma_devices()),
    }


def differences(before: Mapping[str, Sequence[object]], after: Mapping[str, Sequence[object]]) -> list[str]:
    found = []
    for kind in before:
        found += [f"missing: {kind} {item}" for item in before[kind] if item not in after[kind]]
        found += [f"new: {kind} {item}" for item in after[kind] if item not in before[kind]]
    return found


def repair(before: Mapping[str, Sequence[tuple[object, ...]]]) -> None:
    """Put the host's names, MACs and MTUs back after a test that failed, so that the next one starts level."""
    settle()
    names = {item[1] for item in before["netdevs"]}
    for link in links():
        if not link.get("parentdev") and link["ifname"] not in names:
            run("ip", "link", "del", link["ifname"], check=False)
    by_parent = {str(item[0]): item for item in before["netdevs"] if item[0]}
    for attempt in ("aside", "home"):  # two netdevs may have one another's names
        for link in links():
            was = by_parent.get(link.get("parentdev", ""))
            if was is None:
                continue
            _, name, mac, mtu, altnames, up = was
            here = link["ifname"]
            run("ip", "link", "set", here, "down", check=False)
            for altname in set(link.get("altnames", [])) - set(altnames):  # type: ignore[call-overload]
                run("ip", "link", "property", "del", "dev", here, "altname", altname, check=False)
            if attempt == "aside" and here != name:
                run("ip", "link", "set", here, "name", f"aside{link['ifindex']}", check=False)
            if attempt == "home":
                run("ip", "link", "set", here, "name", str(name), check=False)
                run("ip", "link", "set", str(name), "mtu", str(mtu), "alias", "", check=False)
                if link["link_type"] == "ether":
                    run("ip", "link", "set", str(name), "address", str(mac), check=False)
                if up:
                    run("ip", "link", "set", str(name), "up", check=False)
        of_rdma = {item[0]: str(item[1]) for item in before["rdma"]}
        for device in rdma_devices():
            name = of_rdma.get(device["ifindex"], device["ifname"])
            if device["ifname"] != name:
                there = f"aside{device['ifindex']}" if attempt == "aside" else name
                run("rdma", "dev", "set", device["ifname"], "name", there, check=False)
