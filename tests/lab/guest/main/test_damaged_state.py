"""State that is damaged while pods have VFs: the kernel tells what is where, and every VF comes home."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import guest
import pytest
from guest import Function, Pod
from network import attach, conf, earlier_plugin, earlier_plugin_deletes, error

DATABASE = Path("/run/rdma-cni/state.db")


def emptied() -> None:
    DATABASE.write_bytes(b"")


def random_bytes() -> None:
    DATABASE.write_bytes(Random(1).randbytes(20_000))  # noqa: S311


def all_but_its_head() -> None:
    content = DATABASE.read_bytes()
    DATABASE.write_bytes(content[:100] + b"\xff" * (len(content) - 100))


def cut_short() -> None:
    DATABASE.write_bytes(DATABASE.read_bytes()[:4608])


def sql(statement: str) -> None:
    connection = sqlite3.connect(DATABASE)
    connection.execute(statement)
    connection.commit()
    connection.close()


def without_its_table() -> None:
    sql("DROP TABLE attachment")


def records_that_cannot_be_read() -> None:
    sql("UPDATE attachment SET record='{}'")


def texts_that_are_no_utf8() -> None:
    sql("UPDATE attachment SET record=CAST(x'ff' AS TEXT)")


def of_an_older_schema() -> None:
    sql("PRAGMA user_version=0")


def delete_in_the_end(config: object, pod: Pod, container: str) -> None:
    """DEL, a second time where damage showed only in use."""
    answer = guest.cni("DEL", config, netns=pod, container=container)
    if not answer.ok:
        error(answer, 11, "state.db")
        answer = guest.cni("DEL", config, netns=pod, container=container)
    assert answer.ok, answer


@pytest.mark.fault("state", "state.db is damaged while pods have VFs")
@pytest.mark.parametrize(
    "damage",
    [
        emptied,
        random_bytes,
        all_but_its_head,
        cut_short,
        without_its_table,
        records_that_cannot_be_read,
        texts_that_are_no_utf8,
        of_an_older_schema,
    ],
)
def test_every_vf_in_a_live_pod_stays_there_and_comes_home_with_its_del(
    damage: Callable[[], None], vfs: list[Function], bare_vf: Function, make_pod: Callable[[str], Pod]
) -> None:
    alone, chained = vfs[:2]
    pods = [make_pod(f"pod{number}") for number in range(4)]
    attach(conf(alone), pods[0], container="alone")
    chain = conf(chained, prevResult=earlier_plugin(chained, pods[1]))
    attach(chain, pods[1], container="chained")
    attach(conf(bare_vf), pods[2], container="bare")
    inside = [pod.rdma_names() for pod in pods[:3]]
    damage()
    # Nobody is given what a live pod has, by name or by choice.
    for function in (alone, bare_vf):
        answer = guest.cni("ADD", conf(function), netns=pods[3], container="other")
        if not answer.ok and "moved aside" in answer.json["msg"]:
            answer = guest.cni("ADD", conf(function), netns=pods[3], container="other")
        error(answer, 11, function.device)
    assert [pod.rdma_names() for pod in pods[:3]] == inside
    delete_in_the_end(conf(alone), pods[0], "alone")
    delete_in_the_end(chain, pods[1], "chained")
    earlier_plugin_deletes(chained, pods[1])
    delete_in_the_end(conf(bare_vf), pods[2], "bare")
    assert all(pod.rdma_names() == [] for pod in pods)
    # The next pod gets it.
    attach(conf(alone), pods[3], container="next")
    delete_in_the_end(conf(alone), pods[3], "next")
