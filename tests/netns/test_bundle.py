"""The bundle starts where there is nothing else, and wherever it was put."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BUNDLE

VERSION = {"CNI_COMMAND": "VERSION"}
NONSENSE = {
    "PYTHONHOME": "/nonsense",
    "PYTHONPATH": "/nonsense",
    "PYTHONSTARTUP": "/nonsense",
    "PYTHONINSPECT": "1",
    "LD_LIBRARY_PATH": "/nonsense",
    "LD_BIND_NOW": "1",
    "LANG": "nonsense",
    "LC_ALL": "xx_YY.KOI8-R",
}


def answer(*command: str | Path, env: dict[str, str], cwd: Path | None = None) -> str:
    """What a program of the bundle that succeeds prints, and nothing on stderr."""
    done = subprocess.run(command, env=env, cwd=cwd, input="", capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A root with the bundle, /proc and /sys, and nothing else: no libc, no shell."""
    root = tmp_path / "root"
    for directory in ("proc", "sys"):
        (root / directory).mkdir(parents=True)
    shutil.copytree(BUNDLE, root / "bundle", symlinks=True)
    return root


@pytest.mark.parametrize("env", [{}, NONSENSE], ids=["an empty environment", "nonsense in the environment"])
@pytest.mark.parametrize(
    ("program", "printed"),
    [("rdma", "supportedVersions"), ("node-subnet", "supportedVersions"), ("rdma-cni", "rdma-cni 0")],
)
def test_it_starts_where_there_is_nothing_but_proc_and_sys(
    program: str, printed: str, env: dict[str, str], nowhere: Path
) -> None:
    script = f'mount -t proc proc {nowhere}/proc; mount -t sysfs sys {nowhere}/sys; exec chroot {nowhere} "$@"'
    arguments = ["--version"] if program == "rdma-cni" else []
    more = [f"{name}={value}" for name, value in (env | VERSION).items()]
    # `env` is the host's and would not be found inside; the shell's own assignment goes on to chroot.
    command = ["unshare", "--mount", "env", "-i", "PATH=/usr/sbin:/usr/bin", *more, "sh", "-ec", script, "sh"]
    if "LD_LIBRARY_PATH" in env:
        # Those that run before chroot need their own libc.
        command = [word for word in command if not word.startswith(("LD_", "LC_"))]
    assert printed in answer(*command, f"/bundle/{program}", *arguments, env={"PATH": os.environ["PATH"]})


@pytest.mark.parametrize("env", [{}, NONSENSE], ids=["an empty environment", "nonsense in the environment"])
def test_no_variable_of_pythons_or_the_loaders_reaches_it(env: dict[str, str]) -> None:
    assert "supportedVersions" in answer(BUNDLE / "rdma", env=env | VERSION)


def test_it_is_found_through_a_symlink(tmp_path: Path) -> None:
    for name in ("rdma", "node-subnet", "rdma-cni"):
        (tmp_path / name).symlink_to(BUNDLE / name)
    assert (
        "node-subnet" in subprocess.run([tmp_path / "node-subnet"], capture_output=True, text=True, check=True).stderr
    )
    assert "supportedVersions" in answer(tmp_path / "rdma", env=VERSION)
    assert "rdma-cni 0" in answer(tmp_path / "rdma-cni", "--version", env={})


def test_it_may_be_copied_flat_with_its_symlinks_dereferenced(tmp_path: Path) -> None:
    shutil.copytree(BUNDLE, tmp_path / "bin", symlinks=False)
    done = subprocess.run([tmp_path / "bin" / "node-subnet"], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("node-subnet ")


def test_it_runs_in_a_directory_that_is_gone() -> None:
    script = 'cd "$(mktemp -d)"; rmdir "$PWD"; exec "$1"'
    assert "supportedVersions" in answer("/bin/sh", "-ec", script, "sh", BUNDLE / "rdma", env=VERSION)


def test_modules_that_lie_in_the_current_directory_are_not_taken_for_its_own(tmp_path: Path) -> None:
    for name in ("os", "sys", "_json", "json", "rdma_cni", "ipam", "posixpath", "encodings"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')")
    assert "supportedVersions" in answer(BUNDLE / "rdma", env=VERSION, cwd=tmp_path)


def test_its_directory_may_be_read_only(tmp_path: Path) -> None:
    script = f'mount --bind "{BUNDLE}" "{tmp_path}"; mount -o remount,bind,ro "{tmp_path}"; exec "{tmp_path}/rdma"'
    assert "supportedVersions" in answer(
        "unshare", "--mount", "sh", "-ec", script, env=VERSION | {"PATH": os.environ["PATH"]}
    )


def test_a_directory_as_stdin_is_told(tmp_path: Path) -> None:
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "a", "CNI_NETNS": "/x", "CNI_IFNAME": "net1", "CNI_PATH": "/x"}
    done = subprocess.run(f'"{BUNDLE}/rdma" < "{tmp_path}"', shell=True, env=env, capture_output=True, check=False)  # noqa: S602
    assert done.returncode == 1
    assert b'"code":5' in done.stdout
