"""The fixtures of the tests in the guest."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import guest
import pytest
from attachments import ALONE, Attachment, look
from guest import Function, Pod
from network import ScriptedIpam

_STATE = ("/run/rdma-cni", "/var/lib/cni/networks")


def pytest_sessionstart() -> None:
    """With rdmasim's bare=pci-stub, make the last VF one that has an RDMA device and no netdev."""
    driver = Path("/sys/module/rdmasim/parameters/bare").read_text().strip()
    if driver:
        guest.run("modprobe", driver)
        guest.rebind(guest.pci_functions()[-1].device, driver)
    guest.settle()


@pytest.fixture(scope="session")
def vfs() -> list[Function]:
    """The VFs that have a netdev and RDMA devices."""
    return [vf for vf in guest.pci_functions() if vf.netdev and vf.rdma]


@pytest.fixture
def vf(vfs: list[Function]) -> Function:
    return vfs[0]


@pytest.fixture
def other_vf(vfs: list[Function]) -> Function:
    return vfs[1]


@pytest.fixture(scope="session")
def bare_vf() -> Function:
    """A VF with an RDMA device and no netdev."""
    (vf,) = [vf for vf in guest.pci_functions() if not vf.netdevs]
    return vf


@pytest.fixture(scope="session")
def sf() -> Function:
    """A scalable function."""
    return guest.auxiliary_functions()[0]


@pytest.fixture
def make_pod() -> Iterator[Callable[[str], Pod]]:
    """Makes network namespaces, and deletes them when the test ends."""
    pods = []

    def make(name: str = "pod") -> Pod:
        guest.run("ip", "netns", "add", name)
        pod = Pod(name)
        pods.append(pod)
        pod.run("ip", "link", "set", "lo", "up")
        return pod

    yield make
    for pod in pods:
        pod.delete()


@pytest.fixture
def pod(make_pod: Callable[[str], Pod]) -> Pod:
    return make_pod("pod")


@pytest.fixture
def ipam(tmp_path: Path) -> ScriptedIpam:
    """An IPAM plugin that does as the test tells it."""
    return ScriptedIpam(tmp_path / "ipam")


@pytest.fixture
def one(tmp_path: Path, pod: Pod) -> Attachment:
    """The last VF, as it is now, and a pod for it; the state is there and has been used."""
    vf = guest.pci_functions()[-1]
    made = Attachment(ALONE, 0, vf, pod, pod, tmp_path, {vf.device: look(vf.device)})
    made.succeed("ADD", pod)
    made.succeed("DEL", pod)
    return made


@pytest.fixture(autouse=True)
def host_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves the host's netdevs and RDMA devices as it found them."""
    for path in _STATE:
        shutil.rmtree(path, ignore_errors=True)
    before = guest.host()
    yield
    if request.node.get_closest_marker("changes_host"):
        guest.settle()
        return

    def same() -> bool:
        guest.settle()
        return not guest.differences(before, guest.host())

    if not guest.eventually(same):
        differences = guest.differences(before, guest.host())
        guest.repair(before)
        pytest.fail("the host is not as it was:\n" + "\n".join(differences), pytrace=False)
