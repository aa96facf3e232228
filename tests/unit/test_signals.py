"""A SIGTERM that comes while something on the way deals with errors of its own: it is never lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What an ADD does when it is stopped: {} is where.
PROGRAM = """
import os, signal
from rdma_cni.cni.errors import CniError
from rdma_cni.cni.plugin import Plugin, run

class Stopped(Plugin):
    name = "rdma"

    def add(self, request, undo):
        undo.push("tell", lambda: os.write(2, b"undone"))
        {}
        return {{"cniVersion": request.version}}

raise SystemExit(run(Stopped()))
"""
KILL = "os.kill(os.getpid(), signal.SIGTERM)"
PLACES = {
    "where a CniError stops nothing": f"try: {KILL}\n        except CniError: pass",
    "where nothing that fails stops anything": f"try: {KILL}\n        except Exception: pass",
    "where cleaning up fails": f"""try:
            try: {KILL}
            except BaseException: os.unlink("/nowhere/there")
        except OSError: pass""",
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_an_add_that_is_stopped_says_so_and_is_undone(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(place)],
        input=json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "rdma"}),
        env={
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": "/run/netns/pod",
            "CNI_IFNAME": "net1",
            "CNI_PATH": "/opt/cni/bin",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done
    answer = json.loads(done.stdout)
    assert (answer["code"], "SIGTERM" in answer["msg"]) == (11, True), answer
    assert done.stderr.startswith("undone"), done
    assert "Traceback" not in done.stderr
