"""Attachments that are tried at the same time: the guest has two CPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest
from attachments import Attachment, look
from guest import Function, Pod

AT_ONCE = 3


@pytest.fixture
def attachments(
    vfs: list[Function], make_pod: Callable[[str], Pod], tmp_path: Path
) -> Callable[[str], list[Attachment]]:
    """Some of a kind, each with a VF and pods of its own; the state is there and has been used."""

    def make(kind: str) -> list[Attachment]:
        before = {vf.device: look(vf.device) for vf in vfs}
        made = []
        for number in range(AT_ONCE):
            pod, other = make_pod(f"pod{number}"), make_pod(f"other{number}")
            one = Attachment(kind, number, vfs[number], pod, other, tmp_path, before)
            one.earlier(pod)
            one.succeed("ADD", pod)
            one.succeed("DEL", pod)
            made.append(one)
        return made

    return make
