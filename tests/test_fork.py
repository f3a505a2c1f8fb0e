"""fork: the child drops the parent's lane untouched, connects by itself, and neither disturbs the other."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from conftest import wait_until

import kalos_memory as kalos

V = [1.0, 0.0, 0.0, 0.0]


def in_child(work):
    """Runs work() in a forked child and returns what it returned, as text."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the test process has threads; that is what is tested
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_end)
            answer = repr(work())
            code = 0
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write_end, answer.encode())
        os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, answer
    return answer


@pytest.fixture
def notes(client):
    notes = client.collection("notes", dimension=4)
    notes.upsert(["a"], [V])
    return notes


def test_child_and_parent_go_on_independently(client, notes):
    """The child has a connection of its own, its writes are seen, the parent's lane works as before."""
    lane = client._connection.lane

    def work():
        notes.upsert(["child"], [V])
        for _ in range(50):
            assert len(notes.search(V)) == 2
        return len(client.stats()["lanes"]["clients"]), notes.count()

    assert in_child(work) == "(2, 2)"
    assert client._connection.lane is lane
    assert [hit.id for hit in notes.search(V)] == ["a", "child"]
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the child")


def test_a_child_that_never_touches_kalos_does_not_keep_the_parent_s_lane(client, notes, data_dir):
    """The parent's end is seen by kalosd although the child lives: the inherited socket was closed at the fork."""
    other = kalos.connect(data_dir, timeout=30)
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent says so
        os._exit(0)
    os.close(read_end)
    try:
        assert len(client.stats()["lanes"]["clients"]) == 2
        other.close()
        wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the connection")
    finally:
        os.close(write_end)
        os.waitpid(pid, 0)


def test_fork_while_threads_are_in_calls(client, notes):
    """Locks that a thread of the parent held do not hang the child."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            notes.search(V)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(lambda: [hit.id for hit in notes.search(V)]) == "['a']"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert notes.count() == 1


def test_grandchildren(notes):
    assert in_child(lambda: in_child(lambda: notes.count())) == "'1'"


def test_close_in_the_child_leaves_the_parent_alone(client, notes):
    assert in_child(lambda: (notes.count(), client.close())) == "(1, None)"
    assert notes.count() == 1


def test_private_sidecar_in_a_child(kalosd):
    """The child may use it; it ends with the parent's client, not with the child's."""
    with kalos.connect(":memory:", timeout=30) as client:
        notes = client.collection("notes", dimension=4)
        notes.upsert(["a"], [V])
        assert in_child(lambda: (notes.count(), client.close())) == "(1, None)"
        assert notes.count() == 1
        data_dir = client.stats()["kalosd"]["data_dir"]
    assert not os.path.exists(data_dir)


def test_private_sidecar_ends_although_a_child_lives(kalosd):
    client = kalos.connect(":memory:", timeout=30)
    data_dir = client.stats()["kalosd"]["data_dir"]
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    client.close()
    assert not os.path.exists(data_dir)
    os.close(write_end)
    os.waitpid(pid, 0)


def test_asyncio_before_and_after_a_fork(notes):
    """The child has no waiter thread of the parent's, and makes its own."""
    import asyncio

    async def main():
        return [hits[0].id for hits in await asyncio.gather(*(notes.asearch(V) for _ in range(20)))]

    assert asyncio.run(main()) == ["a"] * 20
    assert in_child(lambda: asyncio.run(main())) == repr(["a"] * 20)
    assert asyncio.run(main()) == ["a"] * 20


def test_a_forked_interpreter_ends_cleanly(data_dir):
    """With all its finalisers: nothing touches memory that the child does not have."""
    code = (
        "import os, sys, gc, kalos_memory as k\n"
        "c = k.connect(sys.argv[1], timeout=30); n = c.collection('n', dimension=4); n.upsert(['a'], [[1, 0, 0, 0]])\n"
        "pids = []\n"
        "for use in (False, True):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        filler = [bytearray(1 << 20) for _ in range(64)]\n"
        "        if use: assert n.count() == 1\n"
        "        del c, n; gc.collect()\n"
        "        sys.exit(7)\n"
        "    pids.append(pid)\n"
        "print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], n.count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, data_dir], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("[7, 7] 1\n", "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(notes, method):
    """Inherited by fork, pickled by spawn: both work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_count, [notes] * 4) == [1] * 4


def _count(notes):
    return notes.count(timeout=30)


# A parent and a child with a client each, who both call all the time; the parent then ends in some way, calls under
# way, and the child goes on.
FAMILY = """
import os, signal, sys, threading, time
import kalos_memory as kalos

V = [1.0, 0.0, 0.0, 0.0]
client = kalos.connect(sys.argv[1], timeout=30)
notes = client.collection("notes", dimension=4)
notes.upsert(["a"], [V], texts=["x" * 100_000])


def call(who):
    hit = notes.search(V, 1)[0]
    assert (hit.id, len(hit.text)) == ("a", 100_000)
    notes.upsert([who], [[0.0, 1.0, 0.0, 0.0]], durability="relaxed")


parent = os.getpid()
is_ready, ready = os.pipe()
if not os.fork():
    call("child")
    os.write(ready, b".")
    both, alone = 0, 0
    try:
        while alone < 100:
            both, alone = (both + 1, 0) if os.getppid() == parent else (both, alone + 1)
            call("child")
    except kalos.KalosError as error:
        print(error)
    else:
        rows, lane = notes.count(), client.current().lane
        slots = [lane.take(time.monotonic_ns() + 10**10) for _ in range(lane.slot_count)]
        print(both > 0, alone, rows, len(slots))
    os._exit(0)

os.read(is_ready, 1)
calls = []


def call_for_ever():
    while True:
        call("parent")
        calls.append(None)


for _ in range(3):
    threading.Thread(target=call_for_ever, daemon=True).start()
while len(calls) < 30:
    time.sleep(0.001)
"""

ENDINGS = {"": 0, "sys.exit(7)": 7, "os._exit(7)": 7, "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_parent_ends_and_the_child_goes_on(client, data_dir, ending):
    """With the lane that it made for itself, all slots of it; kalosd gives back the parent's at once."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FAMILY + ending, data_dir], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (ENDINGS[ending], "True 100 3 8\n", "")
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of both")
    assert client.stats()["requests"]["staged_bytes"] == 0
    assert sorted(hit.id for hit in client.collection("notes").scan()) == ["a", "child", "parent"]


def test_a_private_sidecar_ends_with_the_parent_and_the_child_is_told(kalosd):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FAMILY + "sys.exit(7)", ":memory:"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert "private sidecar" in done.stdout
    assert "has ended" in done.stdout


def _call_and_end(notes, ending):
    """In a child: ends with calls under way."""
    calls = []

    def call_for_ever():
        while True:
            assert notes.search(V, 1, timeout=30)[0].id == "a"
            notes.upsert(["child"], [[0.0, 1.0, 0.0, 0.0]], texts=["y" * 100_000], durability="relaxed")
            calls.append(None)

    for _ in range(4):
        threading.Thread(target=call_for_ever, daemon=True).start()
    while len(calls) < 30:
        time.sleep(0.001)
    ending()


def _exit_at_once():
    os._exit(5)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _exit():
    sys.exit(6)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_end_with_calls_under_way(client, notes, method):
    """By os._exit, a signal, or as they should: the parent's lane is whole, and its calls are answered all the time."""
    context = multiprocessing.get_context(method)
    endings = {_exit_at_once: 5, _kill: -signal.SIGKILL, _exit: 6}
    children = [context.Process(target=_call_and_end, args=(notes, ending)) for ending in endings]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for child in children:
            child.start()
    while any(child.is_alive() for child in children):
        assert notes.search(V, 1)[0].id == "a"
        notes.upsert(["parent"], [[0.0, 1.0, 0.0, 0.0]], durability="relaxed")
    assert [child.exitcode for child in children] == list(endings.values())
    lane = client.current().lane
    slots = [lane.take(time.monotonic_ns() + 30_000_000_000) for _ in range(lane.slot_count)]
    for slot in slots:
        lane.give_back(slot)
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the children")
    assert client.stats()["requests"]["staged_bytes"] == 0
    assert [hit and len(hit.text or "") for hit in notes.get(["a", "child", "parent"])] == [0, 100_000, 0]
