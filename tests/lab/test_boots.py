"""The tests in guest/, through the frozen plugin on a real kernel: one boot of the lab for each directory."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

LAB = Path(__file__).parent
BUNDLE = LAB.parent.parent / "dist" / "rdma-cni"
ATCALL = Path(os.environ["ATCALL"])

# `make soak` asks for more of both, see guest/soak.
SOAK_MINUTES = int(os.environ.get("SOAK_MINUTES", "3"))
SOAK_ROUNDS = int(os.environ.get("SOAK_ROUNDS", "50"))

# The NIC and a GPU below a PCIe switch, on the second of two NUMA nodes; another GPU elsewhere; an IOMMU.
TOPOLOGY = (
    "-device intel-iommu "
    "-object memory-backend-ram,id=m0,size=1G -numa node,nodeid=0,memdev=m0,cpus=0 "
    "-object memory-backend-ram,id=m1,size=1G -numa node,nodeid=1,memdev=m1,cpus=1 "
    "-device pxb-pcie,id=pxb,bus_nr=64,numa_node=1 "
    "-device pcie-root-port,id=slot2,bus=pxb,chassis=2 -device x3130-upstream,id=switch,bus=slot2 "
    "-device xio3130-downstream,id=port1,bus=switch,chassis=3 "
    "-device xio3130-downstream,id=port2,bus=switch,chassis=4 "
    "-device ati-vga,bus=port2,romfile= -device ati-vga,bus=pcie.0,romfile="
)

# What the guest of each boot has: rdmasim's parameters and the lab's, see README.md.
BOOTS = {
    "main": {"LAB_SIM": "sf=1 bare=pci-stub", "LAB_TIMEOUT": "3600"},
    "two_devices": {"LAB_SIM": "per_function=2"},
    "infiniband": {"LAB_SIM": "link_layer=ib"},
    "faults": {"LAB_SIM": "", "LAB_TIMEOUT": "3600"},
    "soak": {"LAB_SIM": "", "LAB_TIMEOUT": str(1800 + 60 * SOAK_MINUTES + 10 * SOAK_ROUNDS)},
    "vfs": {"LAB_SIM": "", "LAB_TIMEOUT": "600"},
    "udev": {"LAB_SIM": "", "LAB_UDEV_NAMES": "1"},
    "operator": {"LAB_SIM": "sf=1 pf=igb gids=16", "LAB_SLOT": "port1", "LAB_QEMU": TOPOLOGY, "LAB_TIMEOUT": "1800"},
    "containerd": {"LAB_SIM": "", "LAB_PACKAGES": "containerd,runc", "LAB_MEMORY": "4G", "LAB_TIMEOUT": "1800"},
}

# Where VFs are removed the whole guest stands still now and then, idle, and nothing in it answers any more.
ATTEMPTS = {"vfs": 2}
GUEST_DID_NOT_END = 125


def runtime_payload(directory: Path) -> list[Path]:
    """What the guest of the boot `containerd` has beside the others': programs, the bundle's image, the README."""
    built = subprocess.run([LAB / "programs" / "build"], stdout=subprocess.PIPE, text=True, check=True)
    image = directory / "image.tar"
    make_image = LAB.parent.parent / "frozen" / "image.py"
    subprocess.run([sys.executable, make_image, BUNDLE, image, "rdma-cni:lab"], check=True)
    return [*sorted(Path(built.stdout.strip()).iterdir()), image, LAB.parent.parent / "README.md"]


def examples(directory: Path) -> Path:
    """A copy of examples/ with its YAML as JSON: the guest's Python reads no other."""
    copy = shutil.copytree(LAB.parent.parent / "examples", directory / "examples")
    shutil.rmtree(copy / "monitoring")
    for path in copy.rglob("*.yaml"):
        path.write_text(json.dumps(list(yaml.safe_load_all(path.read_text()))))
    return copy


def check_json(directory: Path) -> None:
    """Hold what `rdma-cni ... --json` printed in the guest, COMMAND-NUMBER.json each, against its documented schema."""
    schema = json.loads((LAB.parent.parent / "docs" / "cli.schema.json").read_text())
    for path in sorted(directory.glob("*.json")):
        command = path.stem.rpartition("-")[0]
        assert command in schema["$defs"], f"docs/cli.schema.json says nothing of `rdma-cni {command} --json`"
        jsonschema.validate(json.loads(path.read_text()), {**schema, "$ref": f"#/$defs/{command}"})


@pytest.mark.parametrize("boot", BOOTS)
def test_the_guests_tests_pass_in_boot(boot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (BUNDLE / "rdma").is_file(), f"{BUNDLE} is missing: run `make bundle`"
    selection = shlex.split(os.environ.get("LAB_ARGS", ""))
    pytest_in_guest = ["python3", "-m", "pytest", "-c", "guest/pytest.ini", f"guest/{boot}", *selection]
    job = tmp_path / "job"
    job.write_text(
        "#!/bin/sh\nexport PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=guest FAULTS=/out/faults.jsonl\n"
        f"export SOAK_MINUTES={SOAK_MINUTES} SOAK_ROUNDS={SOAK_ROUNDS} SOAK_SEED={os.environ.get('SOAK_SEED', '')}\n"
        f"exec {shlex.join(pytest_in_guest)}\n"
    )
    payload = [
        examples(tmp_path),
        LAB.parent.parent / "frozen",
        *(runtime_payload(tmp_path) if boot == "containerd" else []),
    ]
    out = tmp_path / "out"
    environment = os.environ | BOOTS[boot] | {"LAB_OUT": str(out)}
    for attempt in range(1, ATTEMPTS.get(boot, 1) + 1):
        (out / "faults.jsonl").unlink(missing_ok=True)
        output = []
        with subprocess.Popen(
            [LAB / "lab", "run", job, BUNDLE, LAB / "guest", ATCALL, *payload],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as lab:
            assert lab.stdout is not None
            with capsys.disabled():
                print(f"\n--- boot {boot}, attempt {attempt}: {BOOTS[boot]}", flush=True)
                for line in lab.stdout:
                    print(f"{boot}: {line}", end="", flush=True)
                    output.append(line)
        if lab.returncode != GUEST_DID_NOT_END:
            break
    if (out / "faults.jsonl").exists():
        with Path(os.environ["FAULTS"]).open("a") as faults:
            faults.write((out / "faults.jsonl").read_text())
    if lab.returncode:
        pytest.fail(f"boot {boot}: exit status {lab.returncode}\n{''.join(output[-400:])}", pytrace=False)
    check_json(out / "json")
