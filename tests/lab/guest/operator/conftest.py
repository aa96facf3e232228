"""A healthy node, as `rdma-cni doctor` sees one."""

import json
from pathlib import Path

import pytest
from operating import DSCP, MODPROBE, NET_D, POOL, flow_control, trust


@pytest.fixture(scope="session", autouse=True)
def healthy() -> None:
    """What an administrator does to a new node."""
    MODPROBE.write_text("options ib_core netns_mode=0\n")
    NET_D.mkdir(parents=True, exist_ok=True)
    (pf,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    plugins = [{"type": "rdma", "pf": pf.name, "ipam": POOL}]
    (NET_D / "10-rail0.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "rail0", "plugins": plugins}))
    flow_control("sf0", 3)
    trust("sf0", DSCP)


@pytest.fixture(scope="session")
def pf() -> str:
    """The PF's netdev."""
    (path,) = Path("/sys/bus/pci/drivers/igb").glob("0000:*/net/*")
    return path.name


@pytest.fixture(scope="session")
def pf_address(pf: str) -> str:
    return Path(f"/sys/class/net/{pf}/device").resolve().name
