"""How near a GPU is, what a GPU is, and names out of databases: what the lab has too few machines for."""

from pathlib import Path

import pytest

from rdma_cni.cli import hardware
from rdma_cni.cli.hardware import distance, is_gpu

# As /sys/devices has them on a machine with a PCIe switch for each pair of NIC and GPU.
NIC = ["pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:00.0", "0000:19:00.0"]
SAME_SWITCH = ["pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:01.0", "0000:1a:00.0"]
SAME_BRIDGE = ["pci0000:16", "0000:16:03.0", "0000:20:00.0"]
OTHER_BRIDGE = ["pci0000:38", "0000:38:01.0", "0000:39:00.0"]


@pytest.mark.parametrize(
    ("gpu", "numa", "expected"),
    [
        (SAME_SWITCH, 0, "PCIe switch"),
        # What shares the switch is near, whatever the firmware says of nodes.
        (SAME_SWITCH, 1, "PCIe switch"),
        (SAME_BRIDGE, 0, "host bridge"),
        (OTHER_BRIDGE, 0, "NUMA node"),
        (OTHER_BRIDGE, 1, "system"),
        (OTHER_BRIDGE, None, "system"),
    ],
)
def test_how_near_a_gpu_is(gpu: list[str], numa: int | None, expected: str) -> None:
    assert distance(NIC, gpu, 0, numa)[0] == expected


def test_without_numa_nodes_two_host_bridges_are_a_system_apart() -> None:
    assert distance(NIC, OTHER_BRIDGE, None, None)[0] == "system"


def test_of_two_below_one_switch_the_nearer_has_fewer_hops() -> None:
    assert distance(NIC, SAME_SWITCH, 0, 0)[1] < distance(NIC, SAME_BRIDGE, 0, 0)[1]


@pytest.mark.parametrize(
    ("vendor", "code", "expected"),
    [
        ("10de", 0x030200, True),
        ("10de", 0x030000, True),
        ("1002", 0x038000, True),
        ("1002", 0x120000, True),
        ("8086", 0x038000, True),
        ("1da3", 0x120000, True),
        # What drives a screen: a server's management controller, a processor's own graphics.
        ("1a03", 0x030000, False),
        ("8086", 0x030000, False),
        # A GPU's own audio function, and a NIC.
        ("10de", 0x040300, False),
        ("15b3", 0x020000, False),
    ],
)
def test_what_a_gpu_is(vendor: str, code: int, expected: bool) -> None:
    assert is_gpu(vendor, code) is expected


PCI_IDS = """\
# Vendors
15b2  Before
\t101d  Of another
15b3  Mellanox Technologies
\t1017  MT27800 Family [ConnectX-5]
\t\t15b3 0006  A board
\t101d  MT2892 Family [ConnectX-6 Dx]
15b4  After
\t101e  Of another
C 00  Unclassified device
"""
HWDB = """\
pci:v000015B3*
 ID_VENDOR_FROM_DATABASE=Mellanox Technologies

pci:v000015B3d0000101D*
 ID_MODEL_FROM_DATABASE=MT2892 Family [ConnectX-6 Dx]

pci:v000015B3d0000101Dsv000015B3sd00000016*
 ID_MODEL_FROM_DATABASE=A board
"""


@pytest.fixture
def databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two databases: the names of the first that knows the vendor count."""
    (tmp_path / "pci.ids").write_text(PCI_IDS)
    (tmp_path / "hwdb").write_text(HWDB.replace("Mellanox Technologies", "By udev"))
    monkeypatch.setattr(hardware, "_PCI_IDS", (str(tmp_path / "missing"), str(tmp_path / "pci.ids")))
    monkeypatch.setattr(hardware, "_HWDB", (str(tmp_path / "hwdb"),))
    hardware.pci_names.cache_clear()


@pytest.mark.usefixtures("databases")
def test_names_come_from_pci_ids() -> None:
    assert hardware.pci_names("15b3", "101d") == ("Mellanox Technologies", "MT2892 Family [ConnectX-6 Dx]")
    assert hardware.pci_names("15b3", "101e") == ("Mellanox Technologies", "")
    assert hardware.pci_names("15b4", "101e") == ("After", "Of another")
    assert hardware.pci_names("ffff", "0000") == ("", "")
    assert hardware.pci_names("", "") == ("", "")


@pytest.mark.usefixtures("databases")
def test_without_pci_ids_names_come_from_udevs_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_PCI_IDS", ())
    assert hardware.pci_names("15b3", "101d") == ("By udev", "MT2892 Family [ConnectX-6 Dx]")
    assert hardware.pci_names("15b3", "1017") == ("By udev", "")
