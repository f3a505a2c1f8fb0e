"""kill -9 at any moment: every acknowledged batch is there whole, none is there by half, nothing hangs or is left over.

Writers write batches that are told apart by a number and complete at a known size. After the kill each batch is
counted: acknowledged ones have all their rows; the others all or none.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import names_in_dev_shm, wait_until

import kalos_memory as kalos
from kalos_memory import _sidecar

ROWS = 20

WRITER = f"""
import sys, kalos_memory as kalos
client = kalos.connect(sys.argv[1], timeout=30)
notes = client.collection("notes", dimension=4)
writer = sys.argv[2]
for batch in range(100_000):
    ids = [f"{{writer}}-{{batch}}-{{row}}" for row in range({ROWS})]
    texts = ["x" * 3000] * {ROWS}  # more than one slot
    metadatas = [{{"batch": f"{{writer}}-{{batch}}"}}] * {ROWS}
    notes.upsert(ids, [[1.0, 0.0, 0.0, 0.0]] * {ROWS}, texts=texts, metadatas=metadatas)
    print(batch, flush=True)
"""


def batches_in(data_dir):
    """How many rows of each batch there are."""
    with kalos.connect(data_dir, timeout=60) as client:
        counted = {}
        for hit in client.collection("notes", dimension=4).scan(include=("metadata",)):
            batch = hit.metadata["batch"]
            counted[batch] = counted.get(batch, 0) + 1
        return counted


def kill_holder(data_dir):
    """Kills whoever serves the data directory, if it is one that has written its pid down."""
    holder = _sidecar.lock_holder(data_dir)
    if holder and "pid" in holder:
        with contextlib.suppress(ProcessLookupError):  # the words of a dead one, while the next is starting
            os.kill(holder["pid"], signal.SIGKILL)


def check(data_dir, acknowledged):
    counted = batches_in(data_dir)
    assert {batch for batch, rows in counted.items() if rows != ROWS} == set(), "halved batches"
    assert acknowledged <= set(counted), "lost batches"


@pytest.mark.parametrize("seed", range(3))
def test_kalosd_is_killed_while_writers_run(client, data_dir, seed):
    """The writers go on with the next sidecar by themselves, again and again."""
    notes = client.collection("notes", dimension=4)
    stop = threading.Event()
    acknowledged, unknown, failed = set(), set(), []

    def write(writer):
        for number in range(100_000):
            if stop.is_set():
                return
            batch = f"{writer}-{number}"
            ids = [f"{batch}-{row}" for row in range(ROWS)]
            try:
                notes.upsert(ids, [[1, 0, 0, 0]] * ROWS, texts=["x" * 3000] * ROWS, metadatas=[{"batch": batch}] * ROWS)
                acknowledged.add(batch)
            except kalos.WriteOutcomeUnknown:
                unknown.add(batch)
            except Exception as error:
                failed.append(error)
                return

    writers = [threading.Thread(target=write, args=(writer,)) for writer in "ab"]
    for writer in writers:
        writer.start()
    dice = random.Random(seed)
    for _ in range(4):
        wanted = len(acknowledged) + dice.randint(1, 5)
        wait_until(lambda wanted=wanted: len(acknowledged) >= wanted or failed, "batches are acknowledged", 60)
        time.sleep(dice.random() * 0.02)
        kill_holder(data_dir)
    wanted = len(acknowledged) + 2
    wait_until(lambda: len(acknowledged) >= wanted or failed, "writing goes on after the last kill", 60)
    stop.set()
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()
    assert not failed
    check(data_dir, acknowledged)


@pytest.mark.parametrize("seed", range(2))
def test_a_client_is_killed_while_it_writes(client, data_dir, seed):
    """kalosd drops what was half sent, keeps what was acknowledged, and serves the others as if nothing had been."""
    client.collection("notes", dimension=4)
    dice = random.Random(seed)
    acknowledged = set()
    for writer in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, data_dir, str(writer)], stdout=subprocess.PIPE, text=True
        )
        lines = [process.stdout.readline() for _ in range(dice.randint(1, 4))]
        time.sleep(dice.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=60)
        numbers = "".join(lines).split() + [line for line in rest.split("\n")[:-1] if line]
        acknowledged |= {f"{writer}-{number}" for number in numbers}
        assert client.collection("notes").count() >= len(acknowledged) * ROWS
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the clients")
    assert client.stats()["requests"]["staged_bytes"] == 0
    check(data_dir, acknowledged)


@pytest.mark.parametrize("failpoint", ["mid_transaction", "after_commit", "after_publish"])
def test_kalosd_dies_at_the_worst_moments(data_dir, monkeypatch, failpoint):
    """In the transaction, between commit and publication, between publication and acknowledgement: the caller gets its
    answer from the next sidecar, and the write is there once."""
    monkeypatch.setenv("KALOS_FAILPOINT", f"{failpoint}:3")
    with kalos.connect(data_dir, timeout=30) as client:
        pid = client.stats()["kalosd"]["pid"]
        monkeypatch.delenv("KALOS_FAILPOINT")
        notes = client.collection("notes", dimension=4)
        sequences = [notes.upsert([f"r{i}"], [[1, 0, 0, 0]], metadatas=[{"i": i}]) for i in range(6)]
        assert sequences == sorted(set(sequences))
        assert client.stats()["kalosd"]["pid"] != pid, "the failpoint was not reached"
        assert [hit.metadata["i"] for hit in notes.scan()] == list(range(6))
        assert notes.delete(everything=True) == 6


def test_killed_in_the_middle_of_attaching(data_dir):
    """Clients that are killed at any moment of connecting leave no name in /dev/shm and no lane in kalosd."""
    with kalos.connect(data_dir, timeout=30) as client:
        code = (
            "import sys, kalos_memory as k\n"
            "connect = k.connect; print('.', flush=True)\n"
            "while True: connect(sys.argv[1]).close()"
        )
        for delay in (0.0, 0.003, 0.01, 0.03):
            process = subprocess.Popen([sys.executable, "-c", code, data_dir], stdout=subprocess.PIPE)
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
            process.communicate(timeout=60)
        wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the clients")
        instance = client.stats()["kalosd"]["instance"][:8]
        wait_until(lambda: not any(instance in name for name in names_in_dev_shm()), "the names are gone")


def test_kalosd_is_killed_in_the_middle_of_attaching(data_dir):
    """The next one sweeps what the dead one left."""
    stop = threading.Event()

    def connect_and_close():
        while not stop.is_set():
            with contextlib.suppress(kalos.KalosError):
                kalos.connect(data_dir).close()

    threads = [threading.Thread(target=connect_and_close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(5):
        time.sleep(0.05 + 0.01 * i)
        kill_holder(data_dir)
    stop.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    with kalos.connect(data_dir) as client:
        assert client.health()["status"] == "ready"
