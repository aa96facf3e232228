"""The frozen `rdma-cni validate`, as any user runs it anywhere."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import guest
import pytest
from conftest import BUNDLE, ROOT

WRONG = {"cniVersion": "1.0.0", "name": "rail0", "type": "rdma", "pf": "ens1f0", "mtu": 3, "logLevl": "debug"}


def validate(*arguments: str | Path, stdin: str = "", prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, BUNDLE / "rdma-cni", "validate", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_examples_pass() -> None:
    names = ["crio/05-two-rails.conflist", "daemonset.yaml", "shared-mode/macvlan.yaml"]
    for group in [["multus/eight-rails.yaml", "multus/pod-eight-rails.yaml"], *([name] for name in names)]:
        done = validate(*(ROOT / "examples" / name for name in group))
        assert (done.returncode, done.stdout) == (0, "")
        assert "0 errors, 0 warnings" in done.stderr


def test_it_tells_file_line_field_found_and_expected_a_line_for_each_without_colour(tmp_path: Path) -> None:
    path = tmp_path / "rail0.conf"
    path.write_text(json.dumps(WRONG, indent=1))
    done = validate(path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{path}:6: error: mtu: found 3, expected greater than or equal to 68",
        f"{path}:7: warning: logLevl: found a key that the plugin does not know, and ignores; did you mean 'logLevel'?",
    ]
    assert done.stderr == "1 error, 1 warning\n"


def test_it_reads_stdin_and_answers_json() -> None:
    done = validate("--json", "--errors", "-", stdin=json.dumps(WRONG))
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"] == [
        {
            "file": "-",
            "line": 1,
            "severity": "error",
            "field": "mtu",
            "found": "3",
            "expected": "greater than or equal to 68",
            "nearest": "",
        }
    ]


def test_it_needs_no_root_and_nothing_of_the_node(tmp_path: Path) -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    probe = subprocess.run([*nobody, BUNDLE / "rdma-cni", "--version"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{BUNDLE} lies where no other user may look")
    done = validate("-", stdin=json.dumps(WRONG), prefix=nobody)
    assert (done.returncode, done.stderr) == (1, "1 error, 1 warning\n")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = validate(tmp_path / "none.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rdma-cni: {tmp_path}/none.yaml: No such file or directory\n"


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "rail0.json"
    path.write_text(json.dumps(WRONG | {"log\x1b[31mLevel": 1}))
    done = validate(path)
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\x1b[31m" in done.stdout


@pytest.mark.parametrize(
    "keys",
    [
        {"mtu": "9000"},
        {"mac": "01:00:00:00:00:01"},
        {"logFile": "relative"},
        {"deviceID": "0000:03:00.2"},
        {"ifName": "rail1"},
        {"pf": []},
        {"args": {"cni": {"rdmaDeviceName": "a/b"}}},
        {"ipam": {"type": "rdma"}},
        {"ipam": {"pools": []}},
        {"ipam": {"type": "../x"}},
    ],
)
def test_what_it_refuses_the_plugin_refuses_in_the_same_words(
    keys: dict[str, object], rdma: Callable[..., guest.Answer]
) -> None:
    conf = {key: value for key, value in WRONG.items() if key not in ("mtu", "logLevl")} | keys
    (found,) = [
        each
        for each in json.loads(validate("--json", "-", stdin=json.dumps(conf)).stdout)["findings"]
        if each["severity"] == "error"
    ]
    answer = rdma("ADD", conf)
    assert answer.error == 7
    assert answer.json["msg"].startswith(f"{found['field']}: found {found['found']}")
    assert found["expected"] in answer.json["msg"]
