"""The fixtures of the boot `containerd`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import guest
import pytest
from runtime import PAYLOAD, CniTool, Containerd

_PLUGINS = Path(guest.CNI_PATH)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that changes the host comes last: the others count on the VFs that there were."""
    items.sort(key=lambda item: item.get_closest_marker("changes_host") is not None)


@pytest.fixture(scope="session")
def pf() -> str:
    """The PF's netdev."""
    (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    return path.name


@pytest.fixture(scope="session")
def started_containerd() -> Iterator[Containerd]:
    containerd = Containerd()
    containerd.start()
    containerd.load(PAYLOAD / "pause.tar")
    yield containerd
    containerd.kill()


@pytest.fixture
def containerd(started_containerd: Containerd) -> Iterator[Containerd]:
    """containerd, with no sandbox when the test begins."""
    yield started_containerd
    started_containerd.remove_all()
    # `bridge` leaves it, whatever becomes of the pods.
    guest.run("ip", "link", "del", "cni0", check=False)


@pytest.fixture
def cnitool(tmp_path: Path) -> CniTool:
    shutil.rmtree("/var/lib/cni/results", ignore_errors=True)
    directory = tmp_path / "net.d"
    directory.mkdir()
    return CniTool(directory)


@pytest.fixture
def without_our_plugins() -> Iterator[None]:
    """A node where nobody has installed the bundle: not in the directory of plugins, and nowhere else."""
    links = {name: (_PLUGINS / name).readlink() for name in ("rdma", "node-subnet", "rdma-cni")}
    for name in links:
        (_PLUGINS / name).unlink()
    bundle = Path("/opt/cni/rdma-cni")
    away = bundle.rename("/opt/bundle-of-the-other-tests")
    yield
    for name, target in links.items():
        (_PLUGINS / name).unlink(missing_ok=True)
        (_PLUGINS / name).symlink_to(target)
    guest.run("rm", "-rf", str(_PLUGINS / ".rdma-cni"))
    away.rename(bundle)
