"""What the fuzz tests share: how long they run, and the corpus.

In `make test` they try a few hundred inputs, the same each time. `make fuzz` sets FUZZ, and they try
as many as it says, others each time. What was ever found goes into corpus/, a file for each input.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("FUZZ", "0"))


def examples(count: int) -> settings:
    """How a test is run that tries `count` inputs in `make test`."""
    return settings(
        # How long an example takes says nothing on a machine that others share.
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        max_examples=EXAMPLES or count,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


def corpus(kind: str) -> list[Path]:
    """The inputs of a kind: what stdin has, for instance."""
    return sorted((CORPUS / kind).iterdir())
