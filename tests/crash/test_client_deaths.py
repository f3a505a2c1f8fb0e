"""A client that is killed, stopped or interrupted while its slot is in each of its states.

For each state four client processes come to it at the same time, by hand over the lane, and are then killed, stopped
for a while, stopped and killed, and interrupted (Ctrl-C). Promises: kalosd gives back the lane, the thread and all
memory of those that die; the one that was stopped gets its right answer; the one that was interrupted goes on with the
same client, and has lost no slot; everybody else is served rightly all the time.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import names_in_dev_shm, wait_until

import kalos_memory as kalos
from kalos_memory import _sidecar

ROWS = 60

# What a doomed client does: it comes to the state, says so, and waits for a line or for a signal. Then it goes on: what
# was under way is finished where nobody interrupted it, and its client must answer rightly, more often than it has
# slots.
CLIENT = """
import sys, numpy as np
from time import monotonic_ns
import kalos_memory as kalos
from kalos_memory import _abi, _sidecar
from kalos_memory._control import Control
from kalos_memory._lane import Exchange

state, data_dir, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
deadline = monotonic_ns() + 120 * 10**9
if state == "hello":
    control = Control(_sidecar.read_lock(data_dir)["socket"])
    control.hello(deadline, slot_count=8, slot_bytes=65536)
client = kalos.connect(data_dir, autostart=False, timeout=120)
notes = client.collection("notes")
lane = client.current().lane
query = np.eye(4, dtype=np.float32)[number % 4]


def right(hits):
    return [hit.id for hit in hits] == [f"r{number % 4 + 4 * i}" for i in range(3)]


def await_answer(run):
    while True:
        run.slot.semaphore.acquire(120)
        if run.answered():
            return


run = None
if state not in ("hello", "free"):
    operation = notes.op.search(query, 3)
    if state == "parts":
        operation = notes.op.upsert([f"new-{number}"], [query], texts=["x" * 200_000])
    elif state == "held":
        operation = notes.op.get(["large"])
    run = Exchange(lane, lane.take(deadline), operation.opcode, operation.message, deadline)
    post = lane.post_request
    if state == "serving":
        print("connected", flush=True)
        sys.stdin.readline()
    if state == "filling":
        lane.words[run.slot.state_word] = _abi.REQUEST_FILLING
    elif state == "posted":
        lane.post_request = lambda: None  # kalosd is not told yet
        run.start()
        lane.post_request = post
    else:
        run.start()
    if state in ("done", "parts", "held"):
        await_answer(run)
    if state == "held":  # the first part is read, and nothing further asked for
        lane.post_request = lambda: None
        assert not run.on_reply()
        lane.post_request = post
    if state == "abandoned":
        lane.give_up(run.slot)
        run = None
try:
    print("ready", flush=True)
    sys.stdin.readline()
    if state == "filling":
        run.start()
    if state in ("posted", "held"):
        lane.post_request()
    if run is not None:
        answered = state in ("done", "parts")
        while True:
            if not answered:
                await_answer(run)
            answered = False
            if run.on_reply():
                break
        lane.give_back(run.slot)
        assert run.status == _abi.STATUS_OK, run.reply
        if state not in ("parts", "held"):
            assert right(operation.decode(run.reply))
        if state == "held":
            assert operation.decode(run.reply)[0].text == "y" * 300_000
    run = None
except KeyboardInterrupt:
    run = None
for _ in range(3 * lane.slot_count):
    assert right(notes.search(query, 3))
slots = [lane.take(deadline) for _ in range(lane.slot_count)]  # none is lost
for slot in slots:
    lane.give_back(slot)
assert right(notes.search(query, 3))
print("right", flush=True)
"""

STATES = ("hello", "free", "filling", "posted", "serving", "done", "abandoned", "parts", "held")


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.parametrize("state", STATES)
def test_clients_die_stop_and_are_interrupted(
    data_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("KALOS_FAILPOINT", f"pass@{gate}")
    with kalos.connect(data_dir, timeout=120.0) as client:
        monkeypatch.delenv("KALOS_FAILPOINT")
        notes = client.collection("notes", dimension=4)
        corners = np.eye(4, dtype=np.float32)
        notes.upsert([f"r{i}" for i in range(ROWS)], corners[np.arange(ROWS) % 4])
        notes.upsert(["large"], None, texts=["y" * 300_000])
        pid = client.stats()["kalosd"]["pid"]
        threads = threads_of(pid)

        def others_are_served() -> None:
            for corner in range(4):
                hits = notes.search(corners[corner], k=3)
                assert [hit.id for hit in hits] == [f"r{corner + 4 * i}" for i in range(3)]

        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, state, data_dir, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(4)
        ]
        killed, stopped, stopped_and_killed, interrupted = processes
        try:
            if state == "serving":
                for process in processes:
                    assert process.stdout is not None
                    assert process.stdout.readline() == "connected\n"
                gate.touch()
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write("ask\n")
                    process.stdin.flush()
            for process in processes:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line == "ready\n", process.stderr.read() if process.stderr else line
            if state == "serving":
                # Whoever asks for its state is answered although the engine is held.
                wait_until(lambda: client.stats()["requests"]["in_flight"] == 4, "the requests are being served", 60)
            stopped.send_signal(signal.SIGSTOP)
            stopped_and_killed.send_signal(signal.SIGSTOP)
            killed.kill()
            interrupted.send_signal(signal.SIGINT)
            if state != "serving":
                others_are_served()
            gate.unlink(missing_ok=True)
            stopped_and_killed.kill()
            for process in (killed, stopped_and_killed):
                assert process.wait(60) == -signal.SIGKILL
            others_are_served()
            stopped.send_signal(signal.SIGCONT)
            assert stopped.stdin is not None
            stopped.stdin.write("go on\n")
            stopped.stdin.flush()
            for process in (stopped, interrupted):
                out, err = process.communicate(timeout=120)
                assert out == "right\n", f"{'stopped' if process is stopped else 'interrupted'}: {out}{err}"
        finally:
            gate.unlink(missing_ok=True)
            for process in processes:
                process.kill()
                process.communicate()
        wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees their end")
        wait_until(lambda: threads_of(pid) == threads, "the threads of their lanes end")
        requests = client.stats()["requests"]
        assert (requests["staged_bytes"], requests["in_flight"]) == (0, 0)
        others_are_served()
        written = [hit is not None for hit in notes.get([f"new-{number}" for number in range(4)])]
        assert written == [False, state == "parts", False, False]  # half of a request is none
        instance = client.stats()["kalosd"]["instance"][:8]
        wait_until(lambda: not any(instance in name for name in names_in_dev_shm()), "the names are gone")
        assert client.stats()["kalosd"]["pid"] == pid
    assert _sidecar.stop(data_dir, timeout=60) is not None
