"""kill -9 of kalosd at some two hundred seeded points of a mixed load of writes, and what the next one finds.

At each point one write is under way. It is sent once, without the client's own resending, so that what the dead kalosd
left can be looked at first: the state before the write or the state after it, never one in between, and nothing that
was acknowledged is missing. Then the write is sent again under its write id: it is done once, and a write that was
committed already gets the commit sequence that it had.

KALOS_CRASH_SEED repeats a run, KALOS_CRASH_POINTS makes it longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from time import monotonic_ns
from typing import Any

import kalos_memory as kalos
from kalos_memory import _abi, _client, _sidecar
from kalos_memory._checks import DURABILITIES
from kalos_memory._lane import LaneLost, exchange
from kalos_memory._operations import Operations, batch
from kalos_memory._wait import DeadlinePassed

SEED = int(os.environ.get("KALOS_CRASH_SEED", "20261201"))
POINTS = int(os.environ.get("KALOS_CRASH_POINTS", "200"))

# In the transaction; before the commit; between commit and publication; between publication and acknowledgement; in a
# checkpoint; while a collection is read at the start.
FAILPOINTS = ("mid_transaction", "before_commit", "after_commit", "after_publish", "checkpoint", "load")
NAMESPACES: tuple[tuple[str, ...], ...] = ((), ("alice",), ("alice", "home"))

Rows = dict[tuple[tuple[str, ...], str], str]  # (namespace, id) -> text


class Load:
    """A random mixture of writes, and what they leave when they are done."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.rows: Rows = {}
        self.serial = 0
        self.deleted: set[str] = set()  # texts that must be nowhere in the end

    def next_write(self, op: Operations) -> tuple[Any, Rows]:
        """-> an operation, and the rows after it."""
        dice, after = self.dice, dict(self.rows)
        namespace = dice.choice(NAMESPACES)
        durability = dice.choice(["commit", "commit", "relaxed"])
        kind = dice.random()
        if kind < 0.15:
            ids = [f"r{dice.randrange(40)}" for _ in range(dice.randint(1, 5))]
            for row_id in ids:
                after.pop((namespace, row_id), None)
            return op.delete(ids, namespace=namespace, durability=durability), after
        if kind < 0.25:
            parity = dice.randrange(2)
            after = {
                (where, row_id): text
                for (where, row_id), text in after.items()
                if where != namespace or int(row_id[1:]) % 2 != parity
            }
            operation = op.delete(filter={"parity": parity}, namespace=namespace, durability=durability)
            return operation, after
        upserts = []
        for _ in range(dice.choice([1, 1, 1, 3])):
            ids = [f"r{number}" for number in dice.sample(range(40), dice.choice([1, 1, 8, 25]))]
            texts = []
            for _ in ids:
                self.serial += 1
                texts.append(f"<{self.serial}>" + "x" * dice.choice([0, 20, 5000]))
            upserts.append(
                op.upsert(
                    ids,
                    [[1.0, 2.0, 3.0, 4.0]] * len(ids),
                    texts=texts,
                    metadatas=[{"parity": int(row_id[1:]) % 2} for row_id in ids],
                    namespace=namespace,
                    durability=durability,
                )
            )
            after.update({(namespace, row_id): text for row_id, text in zip(ids, texts, strict=True)})
        if len(upserts) == 1:
            return upserts[0], after
        return batch([op.count(), *upserts], DURABILITIES[durability]), after


def rows_in(notes: kalos.Collection) -> Rows:
    return {(hit.namespace, hit.id): str(hit.text) for hit in notes.scan(subtree=True, include=("text",))}


def commit_sequence(client: kalos.Client) -> int:
    return int(client.stats()["database"]["commit_sequence"])


def send_once(client: kalos.Client, operation: Any) -> bytes | None:
    """One sending, and no more. -> the acknowledgement, or None where none came."""
    deadline_ns = monotonic_ns() + 60_000_000_000
    while True:
        connection = client.current()
        if connection is None:
            return None
        try:
            run = exchange(connection.lane, operation.opcode, operation.message, deadline_ns)
        except (LaneLost, DeadlinePassed):
            client.discard(connection)
            return None
        if run.status != _abi.STATUS_LOADING:
            assert run.status == _abi.STATUS_OK, run.reply
            return run.reply
        time.sleep(0.001)  # nothing was done


def start_doomed(data_dir: str, spec: str | None) -> tuple[subprocess.Popen[bytes], kalos.Client | None]:
    """A kalosd that will die at the failpoint, and a client; None where it died before it could be talked to."""
    environment = {**os.environ, **({"KALOS_FAILPOINT": spec} if spec else {})}
    process = subprocess.Popen(
        [_sidecar.find_kalosd(), "--data-dir", data_dir, "--log-level", "error"],
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    while process.poll() is None:
        try:
            return process, kalos.connect(data_dir, autostart=False, timeout=1.0)
        except kalos.SidecarUnavailable:
            time.sleep(0.002)
    return process, None


def test_kalosd_is_killed_at_two_hundred_points(data_dir: str) -> None:
    """Promise: every acknowledged write is whole after any kill, no write is there by half, and a resend by write id
    gets the first answer; commit sequences never go back."""
    print(f"KALOS_CRASH_SEED={SEED} KALOS_CRASH_POINTS={POINTS}")
    dice = random.Random(SEED)
    load = Load(dice)
    with kalos.connect(data_dir, timeout=60.0) as client:
        op = client.collection("notes", dimension=4).op
    kinds: dict[str, int] = {}
    answered_first = redone = 0
    last_sequence = 0
    for point in range(POINTS):
        where = f"point {point} of seed {SEED}"
        name = dice.choice([*FAILPOINTS, "moment", "moment"])
        kinds[name] = kinds.get(name, 0) + 1
        assert _sidecar.stop(data_dir, timeout=60) is not None
        # ---- a kalosd that is going to die, and writes until it does
        count = 1 if name == "checkpoint" else dice.randint(1, 4)
        process, doomed = start_doomed(data_dir, None if name == "moment" else f"{name}:{count}")
        pending: tuple[Any, Rows] | None = None
        if doomed is not None:
            if name == "moment":
                killer = threading.Timer(dice.random() * 0.03, process.kill)
                killer.start()
            writes = dice.randint(1, 5) if name in ("checkpoint", "load") else 10_000
            for _ in range(writes):
                operation, after = load.next_write(op)
                if send_once(doomed, operation) is None:
                    pending = (operation, after)
                    break
                load.rows = after
            if name == "checkpoint":
                process.terminate()  # it checkpoints when it ends
                process.wait(60)
            doomed.close()
        if name == "load":
            process.kill()  # where it had fewer rows to read
        assert process.wait(60) == -signal.SIGKILL, where
        # ---- the next one
        with kalos.connect(data_dir, timeout=60.0) as client:
            notes = client.collection("notes")
            found = rows_in(notes)
            before_resend = commit_sequence(client)
            assert before_resend >= last_sequence, where
            if pending is None:
                assert found == load.rows, where
            else:
                operation, after = pending
                assert found in (load.rows, after), f"{where}: a write is there by half, or one was lost"
                was_done = found == after and after != load.rows
                client._perform(operation)
                assert rows_in(notes) == after, where
                if was_done:
                    assert commit_sequence(client) == before_resend, f"{where}: the resend was done a second time"
                    answered_first += 1
                else:
                    redone += 1
                load.rows = after
            last_sequence = commit_sequence(client)
    # The seeds come to both outcomes, many times, and to every kind of point.
    assert set(kinds) == {*FAILPOINTS, "moment"} or POINTS < 100
    assert POINTS < 100 or min(answered_first, redone) >= 10, (answered_first, redone)
    # ---- what was replaced or deleted is nowhere in the files
    assert _sidecar.stop(data_dir, timeout=60) is not None
    stored = b"".join(path.read_bytes() for path in Path(data_dir).glob("kalos.db*"))
    kept = {text.split(">")[0] + ">" for text in load.rows.values()}
    gone = [serial for serial in range(1, load.serial + 1) if f"<{serial}>" not in kept]
    left = [serial for serial in gone if f"<{serial}>".encode() in stored]
    assert left == []


def test_collections_are_whole_or_not_there(data_dir: str) -> None:
    """Promise: making and dropping a collection is one commit too: after a kill it is there whole, or not at all."""
    dice = random.Random(SEED)
    for point in range(16):
        name = dice.choice(["mid_transaction", "before_commit", "after_commit", "after_publish"])
        process, doomed = start_doomed(data_dir, f"{name}:{dice.randint(1, 6)}")
        assert doomed is not None
        states: list[Any] = []  # that there may be: None, or the ids
        there = bool(doomed.collections())
        while True:
            if there:
                states = [["a", "b"], None]
                if send_once(doomed, _client._drop("notes", "notes")) is None:
                    break
            else:
                states = [None, []]
                made = send_once(doomed, kalos.Client._open("notes", 4, None, None))
                if made is None:
                    break
                states = [[], ["a", "b"]]
                op = Operations(json.loads(made)["id"], 4, "cosine", "commit")
                if send_once(doomed, op.upsert(["a", "b"], [[1.0, 0.0, 0.0, 0.0]] * 2)) is None:
                    break
            there = not there
        doomed.close()
        assert process.wait(60) == -signal.SIGKILL
        with kalos.connect(data_dir, timeout=60.0) as client:
            names = [one["name"] for one in client.collections()]
            found = [hit.id for hit in client.collection("notes").scan()] if names else None
            assert found in states, f"{name}, point {point}"
            if found == []:  # made, and killed before its rows came
                client.drop_collection("notes", confirm="notes")
        assert _sidecar.stop(data_dir, timeout=60) is not None
