"""A program: damages the two databases of a node in many ways, and does what a DEL and a GC do with each.

`damage_databases.py SEED COUNT` wants a /run of its own. It prints, as JSON, the damages that were not
recovered from by the second time.
"""

import json
import os
import sys
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ipam.store import Owner, Reservation, Store  # noqa: E402 - found below ROOT
from rdma_cni.cni import log  # noqa: E402
from rdma_cni.cni.database import DIRECTORY  # noqa: E402
from rdma_cni.cni.errors import IO_FAILURE, TRY_AGAIN, CniError  # noqa: E402
from rdma_cni.state import Attachment, State  # noqa: E402

JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""What a journal of SQLite's that is to be played back begins with."""
HERE = Path(DIRECTORY)


def make() -> dict[str, bytes]:
    """Both databases, of a node with 60 attachments: their contents by name."""
    state, store = State(), Store()
    for number in range(60):
        function = f"0000:ff:{number >> 3:02x}.{number & 7}"
        state.put(Attachment("net", f"c{number}", "net1", function, "/run/pod", 5))
        with store:
            reservation = Reservation(bytes([10, 0, 0, number]), 24, "", "10.0.0.0/8")
            store.reserve(reservation, store.scope("rules")[0], Owner("net", f"c{number}", "net1"))
    with store:
        store.release(Owner("net", "c7", "net1"))
    state.close()
    store.close()
    return {name: (HERE / name).read_bytes() for name in ("state.db", "reservations.db")}


def use_state() -> None:
    state = State()
    try:
        attachment = state.get("net", "c3", "net1")
        state.of_network("net")
        state.of_function("0000:ff:00.1")
        if attachment:
            state.remove(attachment)
    finally:
        state.close()


def use_store() -> None:
    store = Store()
    try:
        with store:
            store.release(Owner("net", "c3", "net1"))
        with store:
            for owner in store.owners("net"):
                store.of_owner(owner)
            try:
                store.require_certainty()
            except CniError as error:
                # Said by an ADD alone.
                if ".bad-" not in error.message:
                    raise
    finally:
        store.close()


def damage(content: bytes, chance: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        # Every other time in the head, which says what the rest is.
        where = chance.randrange(chance.choice([100, len(changed)]))
        size = chance.choice([1, 1, 2, 8, 100, 512, 4096])
        changed[where : where + size] = chance.randbytes(size)
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.2 else changed)


def recovered(name: str) -> list[str]:
    """What was said on the way to a success; one that never comes is the last."""
    said: list[str] = []
    for _ in range(3):
        try:
            use_state() if name == "state.db" else use_store()
            return said
        except CniError as error:
            said.append(error.message)
            if error.code not in (IO_FAILURE, TRY_AGAIN):
                break
            if "a newer version" in error.message:
                return []
        except Exception as error:
            said.append(repr(error))
            break
    return [*said, "never"]


def main() -> None:
    log.configure("error", "/dev/null")
    chance = Random(int(sys.argv[1]))  # noqa: S311
    contents = make()
    failures = []
    for number in range(int(sys.argv[2])):
        for leftover in HERE.iterdir():
            leftover.unlink()
        name = chance.choice(sorted(contents))
        (HERE / name).write_bytes(damage(contents[name], chance))
        if chance.random() < 0.3:
            journal = chance.randbytes(chance.choice([8, 28, 512, 5000]))
            (HERE / f"{name}-journal").write_bytes(chance.choice([b"", JOURNAL]) + journal)
        said = recovered(name)
        if len(said) > 1:
            failures.append([number, name, *said])
    print(json.dumps(failures))


if __name__ == "__main__":
    os.umask(0o077)
    main()
