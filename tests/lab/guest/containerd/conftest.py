"""The fixtures of the boot `containerd`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import guest
import pytest
from runtime import PAYLOAD, CniTool, Containerd


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
