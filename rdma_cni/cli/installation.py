"""Puts the bundle into a directory of CNI plugins, and takes it out again.

That directory may be all of a node that lasts, is searched by file name, and belongs to others as
well. So each version lies in a hidden directory of its own below it, and the executables are
symlinks into that, replaced by rename: a plugin that is being started gets the old or the new one,
and one that runs keeps its files. Nothing but those symlinks looks like a plugin.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rdma_cni.cli.command import Failure
from rdma_cni.cni import __version__

NAMES = ("rdma", "node-subnet", "rdma-cni")
_HOME = ".rdma-cni"
_ASIDE = "replaced"


class InstallError(Failure):
    """What is in the way, and what to do."""


def bundle() -> Path:
    """The directory of the bundle that is running."""
    if not getattr(sys, "frozen", False):
        raise InstallError("this runs from a source tree: build the bundle and run its `rdma-cni install`")
    return Path(sys.prefix).parent


def version(source: Path) -> str:
    """A version's directory's name: the version and what is in it."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        digest.update(str(path.relative_to(source)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return f"{__version__}-{digest.hexdigest()[:12]}"


def installed(directory: Path) -> str:
    """The version that `rdma` in a directory leads to; "" when it is not ours."""
    with contextlib.suppress(OSError):
        target = Path((directory / NAMES[0]).readlink())
        if target.parts[:1] == (_HOME,) and len(target.parts) == 3:
            return target.parts[1]
    return ""


def install(directory: Path, source: Path) -> str:
    """Install the bundle at `source`; returns the version. Raises InstallError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        home = directory / _HOME
        home.mkdir(mode=0o755, exist_ok=True)
        name = version(source)
        with _temporary(home) as work:
            if not (home / name).is_dir():
                shutil.copytree(source, work / "bundle", symlinks=True)
                _sync(work / "bundle")
                (work / "bundle").rename(home / name)
            previous = installed(directory)
            for program in NAMES:
                _keep_aside(directory / program, home)
                link = work / program
                link.symlink_to(Path(_HOME) / name / program)
                link.replace(directory / program)
    except OSError as error:
        raise InstallError(f"{error.filename}: {error.strerror}; is {directory} writable, and is there room?") from None
    # A plugin that runs at this moment may still be of the version before.
    for old in home.iterdir() if previous != name else ():
        if old.is_dir() and old.name not in (name, previous, _ASIDE):
            shutil.rmtree(old, ignore_errors=True)
    return name


def uninstall(directory: Path) -> list[str]:
    """Remove what install put there, bring back what was there before; the names that came back."""
    home = directory / _HOME
    if not home.is_dir():
        raise InstallError(f"{home}: not there; nothing of this bundle is installed in {directory}")
    back = []
    try:
        for program in NAMES:
            path = directory / program
            if not (path.is_symlink() and path.readlink().parts[:1] == (_HOME,)):
                continue
            aside = home / _ASIDE / program
            if aside.exists():
                aside.replace(path)
                back.append(program)
            else:
                path.unlink()
        shutil.rmtree(home)
    except OSError as error:
        raise InstallError(f"{error.filename}: {error.strerror}; is {directory} writable?") from None
    return back


def problems(directory: Path, source: Path | None) -> list[str]:
    """What is not as `install` leaves it; the program is asked, not its file looked at."""
    found = []
    name = installed(directory)
    if not name:
        return [f"{directory / NAMES[0]}: found no symlink into {_HOME}, expected one: run `rdma-cni install`"]
    if source is not None and version(source) != name:
        found.append(f"{directory}: found version {name}, expected {version(source)}: run `rdma-cni install`")
    for program in NAMES:
        path = directory / program
        if not path.is_symlink() or path.readlink() != Path(_HOME) / name / program:
            found.append(f"{path}: found another file, expected a symlink to {_HOME}/{name}/{program}")
            continue
        environment = {"CNI_COMMAND": "VERSION"}
        arguments = ["--version"] if program == "rdma-cni" else []
        answer = subprocess.run([path, *arguments], env=environment, input=b"", capture_output=True, check=False)
        if answer.returncode:
            found.append(f"{path}: ended with status {answer.returncode}: {answer.stderr.decode().strip()}")
    return found


def _keep_aside(path: Path, home: Path) -> None:
    """Keep a program of somebody else's, the Go `rdma` for one, for the day of `uninstall`."""
    if not path.exists() and not path.is_symlink():
        return
    if path.is_symlink() and path.readlink().parts[:1] == (_HOME,):
        return
    (home / _ASIDE).mkdir(exist_ok=True)
    aside = home / _ASIDE / path.name
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    # A second name: it is never missing under its own. It is not executable by search, below a hidden directory.
    os.link(path, aside, follow_symlinks=False)


@contextlib.contextmanager
def _temporary(home: Path) -> Iterator[Path]:
    work = home / f".new-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Have a tree on the disk before a symlink leads there."""
    for path in [*directory.rglob("*"), directory]:
        if path.is_symlink():
            continue
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
