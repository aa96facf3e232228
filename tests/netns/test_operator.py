"""What every subcommand of `rdma-cni` has in common, on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUNDLE

from rdma_cni.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]


def rdma_cni(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BUNDLE / "rdma-cni", *arguments],
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_says_what_it_does_with_examples_and_exit_statuses(command: str) -> None:
    done = rdma_cni(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("Usage: rdma-cni", "Options:", "Exit status:", "Examples:", f"$ rdma-cni {command}"):
        assert part in done.stdout, done.stdout


def test_the_listing_has_every_command() -> None:
    done = rdma_cni("--help")
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS), done.stdout


@pytest.mark.parametrize(
    ("typed", "meant"), [("instal", "install"), ("uninstal", "uninstall"), ("complet", "completion")]
)
def test_a_command_that_it_does_not_know_suggests_the_nearest(typed: str, meant: str) -> None:
    done = rdma_cni(typed)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"did you mean {meant!r}" in done.stderr


def test_an_option_that_it_does_not_know_suggests_the_nearest() -> None:
    done = rdma_cni("install", "--chek")
    assert done.returncode == 2
    assert "--check" in done.stderr


def test_a_reader_that_went_away_is_no_reason_for_a_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f'"{BUNDLE}/rdma-cni" install --help | true; echo "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() in ("0", "1")


def test_what_it_quotes_reaches_no_terminal_as_anything_but_text() -> None:
    hostile = "/run/netns/\x1b[31mred\x07"
    script = f"exec '{BUNDLE}/rdma-cni' verify \"$HOSTILE\""
    done = subprocess.run(
        ["script", "-qec", script, "/dev/null"],
        env=os.environ | {"HOSTILE": hostile},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert r"\x1b[31mred\x07: found no such namespace" in done.stdout
    assert "\x1b[31m" not in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_its_commands(shell: str) -> None:
    done = rdma_cni("completion", shell)
    assert done.returncode == 0
    assert "_RDMA_CNI_COMPLETE" in done.stdout


def test_bash_runs_the_completion_script_and_is_told_the_options() -> None:
    script = rdma_cni("completion", "bash").stdout
    words = 'COMP_WORDS=(rdma-cni install --ch); COMP_CWORD=2; _rdma_cni_completion rdma-cni; echo "${COMPREPLY[*]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{words}"],
        env=os.environ | {"PATH": f"{BUNDLE}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "--check", done


def test_the_plugins_import_nothing_of_the_operators_command() -> None:
    script = (
        "import sys, rdma_cni.plugin, rdma_cni.attach, ipam.plugin, ipam.allocator, rdma_cni.main\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rich', 'click') or 'rdma_cni.cli' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_command_is_imported_when_it_is_called_and_no_other_is() -> None:
    script = (
        "import sys; from rdma_cni.cli.main import main; main(['completion', 'zsh'])\n"
        "print(sorted(n for n in sys.modules if n.startswith('rdma_cni.cli.') or n == 'rich'), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    expected = ["rdma_cni.cli.command", "rdma_cni.cli.completion", "rdma_cni.cli.main"]
    assert done.stderr.strip() == str(expected)


def test_the_bundle_stays_small() -> None:
    """It is copied to every node and read at each start: what it weighs was measured, and should be noticed."""
    size = sum(path.stat().st_size for path in BUNDLE.rglob("*") if path.is_file() and not path.is_symlink())
    assert size < 35 << 20
