"""`rdma-cni install` and `uninstall`, on directories of this machine."""

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import BUNDLE

NAMES = ["node-subnet", "rdma", "rdma-cni"]


def rdma_cni(*arguments: object, bundle: Path = BUNDLE) -> subprocess.CompletedProcess[str]:
    """The frozen command, with a /run of its own."""
    words = [str(bundle / "rdma-cni"), *map(str, arguments)]
    script = 'mount -t tmpfs run /run; exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "bridge").write_text("another plugin")
    return directory


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A bundle of another version: one byte more in it."""
    copy = tmp_path / "other"
    shutil.copytree(BUNDLE, copy, symlinks=True)
    (copy / "_internal" / "NOTE").write_text("x")
    return copy


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def versions(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / ".rdma-cni").iterdir() if path.name != "replaced")


def test_its_programs_are_found_by_name_and_nothing_else_is(bin_dir: Path) -> None:
    done = rdma_cni("install", "--bin-dir", bin_dir)
    assert done.returncode == 0, done
    assert visible(bin_dir) == ["bridge", *NAMES]
    env = {"CNI_COMMAND": "VERSION"}
    for name in ("rdma", "node-subnet"):
        assert b"supportedVersions" in subprocess.run([bin_dir / name], env=env, capture_output=True, check=True).stdout
    assert rdma_cni("install", "--check", "--bin-dir", bin_dir).returncode == 0


def test_the_directory_may_be_seen_under_another_path(bin_dir: Path, tmp_path: Path) -> None:
    """As with a DaemonSet, which mounts the host's directory somewhere."""
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    bin_dir.rename(tmp_path / "elsewhere")
    assert subprocess.run([tmp_path / "elsewhere" / "rdma-cni", "--version"], capture_output=True, check=True).stdout


def test_the_version_before_stays_for_those_that_run_and_the_one_before_that_goes(bin_dir: Path, other: Path) -> None:
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    first = versions(bin_dir)
    assert rdma_cni("install", "--bin-dir", bin_dir, bundle=other).returncode == 0
    both = versions(bin_dir)
    assert len(both) == 2
    (other / "_internal" / "NOTE").write_text("y")
    assert rdma_cni("install", "--bin-dir", bin_dir, bundle=other).returncode == 0
    assert len(versions(bin_dir)) == 2
    assert first[0] not in versions(bin_dir)
    # The same again changes nothing.
    now = versions(bin_dir)
    assert rdma_cni("install", "--bin-dir", bin_dir, bundle=other).returncode == 0
    assert versions(bin_dir) == now


def test_another_program_of_that_name_is_kept_aside_and_comes_back(bin_dir: Path) -> None:
    (bin_dir / "rdma").write_text("the Go plugin")
    (bin_dir / "rdma").chmod(0o755)
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    assert (bin_dir / "rdma").is_symlink()
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    done = rdma_cni("uninstall", "--bin-dir", bin_dir)
    assert done.returncode == 0, done
    assert "rdma" in done.stdout
    assert (bin_dir / "rdma").read_text() == "the Go plugin"
    assert os.access(bin_dir / "rdma", os.X_OK)
    assert sorted(path.name for path in bin_dir.iterdir()) == ["bridge", "rdma"]


def test_check_tells_what_is_not_as_it_should_be(bin_dir: Path, other: Path) -> None:
    assert rdma_cni("install", "--check", "--bin-dir", bin_dir).returncode == 1
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    done = rdma_cni("install", "--check", "--bin-dir", bin_dir, bundle=other)
    assert (done.returncode, "expected" in done.stdout) == (1, True)
    (bin_dir / "node-subnet").unlink()
    (bin_dir / "node-subnet").write_text("of another installer")
    done = rdma_cni("install", "--check", "--bin-dir", bin_dir)
    assert (done.returncode, "node-subnet" in done.stdout) == (1, True)


def test_uninstall_removes_only_what_install_put_there(bin_dir: Path) -> None:
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    (bin_dir / "node-subnet").unlink()
    (bin_dir / "node-subnet").write_text("of another installer")
    assert rdma_cni("uninstall", "--bin-dir", bin_dir).returncode == 0
    assert sorted(path.name for path in bin_dir.iterdir()) == ["bridge", "node-subnet"]
    done = rdma_cni("uninstall", "--bin-dir", bin_dir)
    assert (done.returncode, "nothing of this bundle" in done.stderr) == (1, True)


def test_an_install_that_is_killed_leaves_the_old_or_the_new(bin_dir: Path, other: Path) -> None:
    """At every third rename, symlink or link."""
    assert rdma_cni("install", "--bin-dir", bin_dir).returncode == 0
    for number in range(1, 60, 3):
        trace = ["strace", "-f", "-o", "/dev/null", "-e", "trace=rename,symlink,link,mkdir"]
        kill = ["-e", f"inject=rename,symlink,link,mkdir:signal=KILL:when={number}"]
        command = [*trace, *kill, str(other / "rdma-cni"), "install", "--bin-dir", str(bin_dir)]
        done = subprocess.run(command, capture_output=True, check=False)
        for name in ("rdma", "node-subnet"):
            answer = subprocess.run([bin_dir / name], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=False)
            assert b"supportedVersions" in answer.stdout, (number, answer)
        if done.returncode == 0:
            break
    assert number > 1
    assert done.returncode == 0
    assert len(versions(bin_dir)) == 2


def test_it_waits_to_be_told_to_end(bin_dir: Path) -> None:
    command = [str(BUNDLE / "rdma-cni"), "install", "--bin-dir", str(bin_dir), "--wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "installed" in process.stdout.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = rdma_cni("install", "--bin-dir", tmp_path / "file" / "bin")
    assert (done.returncode, "writable" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


def test_what_it_does_not_know_is_a_matter_of_usage() -> None:
    done = rdma_cni("instal")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_the_image_holds_a_bundle_that_installs_itself_where_there_is_nothing_else(tmp_path: Path) -> None:
    """Unpacked by hand and entered with chroot; a runtime does the same, and more."""
    out = tmp_path / "image.tar"
    builder = Path(__file__).parents[2] / "frozen" / "image.py"
    subprocess.run([sys.executable, builder, BUNDLE, out, "rdma-cni:test"], check=True, capture_output=True)
    with tarfile.open(out) as tar:
        blobs = {member.name: tar.extractfile(member) for member in tar.getmembers()}

        def blob(descriptor: dict[str, str]) -> bytes:
            data = blobs[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
            assert data is not None
            return data.read()

        index = blobs["index.json"]
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        layer = gzip.decompress(blob(manifest["layers"][0]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-x", "-C", root], input=layer, check=True)
    node = root / "host" / "opt" / "cni" / "bin"
    node.mkdir(parents=True)
    entrypoint = [word for word in config["config"]["Entrypoint"] if word != "--wait"]
    script = f'mount -t proc proc {root}/proc; exec chroot {root} "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-ec", script, "sh", *entrypoint], check=True, capture_output=True)
    answer = subprocess.run([node / "rdma"], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True)
    assert b"supportedVersions" in answer.stdout
