"""The frozen executables on the machine itself, in namespaces of their own: for what needs no RDMA."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUNDLE = Path(os.environ.get("BUNDLE", ROOT / "dist" / "rdma-cni"))
sys.path.insert(0, str(ROOT / "tests" / "lab" / "guest"))

import guest  # noqa: E402 - it lies there

# A /run that is the test's, a network namespace that is nobody's, and one more at /run/pod.
_APART = """
mount --bind "$1" /run
touch /run/pod
unshare --net=/run/pod true
shift
exec "$@"
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """What the plugin finds at /run."""
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def rdma(run_dir: Path) -> Callable[..., guest.Answer]:
    """`guest.cni` for the frozen `rdma`, with /run/pod as the pod's namespace."""
    binary = BUNDLE / "rdma"
    assert binary.is_file(), f"{binary} is missing: run `make bundle`"

    def call(
        command: str | None, config: object = None, *, wrapper: tuple[str, ...] = (), **more: object
    ) -> guest.Answer:
        apart = ("unshare", "--mount", "--net", "sh", "-ec", _APART, "apart", str(run_dir), *wrapper)
        arguments: dict[str, object] = {"netns": "/run/pod", **more}
        return guest.cni(command, config, binary=str(binary), wrapper=apart, **arguments)  # type: ignore[arg-type]

    return call
