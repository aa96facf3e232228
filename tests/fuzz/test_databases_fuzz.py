"""Damage of any kind to the databases: no error is for good."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fuzzing import EXAMPLES
from record import Tried

PROGRAM = Path(__file__).parent / "damage_databases.py"


@pytest.mark.fault("state", "state.db or reservations.db damaged in several places, with or without a journal")
def test_any_damage_is_recovered_from_by_the_second_time(tried: Tried) -> None:
    seed = Random().randrange(1 << 30) if EXAMPLES else 512  # noqa: S311
    count = EXAMPLES or 500
    script = 'mount -t tmpfs tmpfs /run && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "own", sys.executable, PROGRAM, str(seed), str(count)],
        capture_output=True,
        text=True,
        timeout=600 + count,
        check=False,
    )
    assert done.returncode == 0, (seed, done.stderr[-2000:])
    assert json.loads(done.stdout) == [], f"seed {seed}"
    tried(count)
