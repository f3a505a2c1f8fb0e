"""A process that ends, and a client that is dropped, while calls are under way: no hang, no word on stderr, the exit
code is kept, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

import pytest
from conftest import kalosd_left, names_in_dev_shm, wait_until

import kalos_memory as kalos

# Runs programs one after the other, each in a child of its own that was forked before anything was connected and ends
# as an interpreter does: that saves its start. Each is waited for until it says that its calls are under way.
RUN = """
import asyncio, gc, json, os, signal, sys, threading, time, weakref
import kalos_memory as kalos
from kalos_memory import _async

programs = json.load(sys.stdin)
to_stop = int(sys.argv[2])
outcomes = {}
for name, program in programs.items():
    ends = [os.pipe() for _ in range(3)]
    pid = os.fork()
    if not pid:
        for number, pair in enumerate(ends):
            os.dup2(pair[number > 0], number)
            os.close(pair[0]), os.close(pair[1])
        signal.alarm(60)
        break
    for number, pair in enumerate(ends):
        os.close(pair[number > 0])
    with open(ends[0][1], "w") as stdin, open(ends[1][0]) as stdout, open(ends[2][0]) as stderr:
        first = stdout.readline()
        if to_stop:
            os.kill(to_stop, signal.SIGSTOP)
        print("go on", file=stdin, flush=True)
        outcomes[name] = first + stdout.read() + stderr.read()
        outcomes[name] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), outcomes[name]]
        if to_stop:
            os.kill(to_stop, signal.SIGCONT)
else:
    print(json.dumps(outcomes))
    sys.exit()
exec(program)
"""

# What each of them begins with: a client, and threads, tasks or both that call for as long as the process lives.
BEGIN = """
V = [1.0, 0.0, 0.0, 0.0]
client = kalos.connect(sys.argv[1], timeout=60)
notes = client.collection("notes", dimension=4)
notes.upsert(["a"], [V], texts=["x" * 100_000])
calls = []


def call_for_ever(number):
    while True:
        calls.append(len(notes.search(V) if number % 2 else notes.get(["a"])))
        notes.upsert([f"t{number}"], [V], durability="relaxed")


async def acall_for_ever(number):
    while True:
        calls.append(len(await (notes.asearch(V) if number % 2 else notes.aget(["a"]))))
        await notes.aupsert([f"t{number}"], [V], durability="relaxed")


def in_threads():
    for number in range(6):
        threading.Thread(target=call_for_ever, args=(number,), daemon=True).start()


async def in_tasks():
    return [asyncio.create_task(acall_for_ever(number)) for number in range(12)]


async def tasks_until_told(end):
    tasks = await in_tasks()
    while len(calls) < 50:
        await asyncio.sleep(0.001)
    told()
    end()


def in_a_loop_of_a_thread():
    async def main():
        await asyncio.gather(*await in_tasks())
    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()


def told():
    while len(calls) < 50:
        time.sleep(0.001)
    print("under way", flush=True)
    os.read(0, 100)
"""

ENDS = {
    "threads, falling off the end": "in_threads(); told()",
    "threads, sys.exit": "in_threads(); told(); sys.exit(7)",
    "threads, os._exit": "in_threads(); told(); os._exit(7)",
    "a loop in a thread, falling off the end": "in_a_loop_of_a_thread(); told()",
    "a loop in a thread, sys.exit": "in_a_loop_of_a_thread(); told(); sys.exit(7)",
    "a loop, whose main function returns": "asyncio.run(tasks_until_told(lambda: None))",
    "a loop, sys.exit in it": "asyncio.run(tasks_until_told(lambda: sys.exit(7)))",
    "both, sys.exit": "in_threads(); in_a_loop_of_a_thread(); told(); sys.exit(7)",
    "both, a loop, sys.exit in it": "in_threads(); asyncio.run(tasks_until_told(lambda: sys.exit(7)))",
}


def outcomes(programs: dict[str, str], data_dir: str, to_stop: int = 0) -> dict[str, list[Any]]:
    """-> of each its exit code, and all that it printed or complained of. to_stop: a process that is stopped at the
    end of each."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, data_dir, str(to_stop)],
        input=json.dumps({name: BEGIN + program for name, program in programs.items()}),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("where", ["a data directory", ":memory:", "a sidecar that is stopped"])
def test_the_interpreter_ends_with_calls_under_way(client: kalos.Client, data_dir: str, where: str) -> None:
    before = set(kalosd_left(tempfile.gettempdir()))
    pid = client.stats()["kalosd"]["pid"]
    ended = outcomes(ENDS, ":memory:" if where == ":memory:" else data_dir, pid if "stopped" in where else 0)
    assert ended == {end: [7 if "exit" in end else 0, "under way\n"] for end in ENDS}
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees their end")
    wait_until(lambda: set(kalosd_left(tempfile.gettempdir())) <= before, "the private sidecars end")
    instance = client.stats()["kalosd"]["instance"][:8]
    wait_until(lambda: not any(instance in name for name in names_in_dev_shm()), "the names are gone")


# What holds the client when the interpreter takes itself apart; no call of its own ends it.
HELD = {
    "by a cycle": "class Node: pass\nnode = Node(); node.me = node; node.client = client; del client, notes",
    "by builtins": "import builtins; builtins.kept = client",
    "by a thread's frame": "threading.Thread(target=lambda kept: time.sleep(1e6), args=(client,), daemon=True).start()",
    "by half a scan": "rows = notes.scan(); next(rows)",
    "by half a scan of a loop": (
        "async def main():\n    global rows\n    rows = notes.ascan(); await rows.__anext__()\nasyncio.run(main())"
    ),
    "by a hit and an operation": "hit, operation = notes.search(V)[0], notes.op.count(); del client, notes",
    "by a slot that is given up": "lane = client.current().lane; slot = lane.take_now(); del client, notes",
}


@pytest.mark.parametrize("where", ["a data directory", ":memory:"])
def test_a_client_that_nobody_closes_ends_with_the_interpreter(data_dir: str, where: str) -> None:
    programs = {held: f"calls.extend(range(50)); told()\n{code}\nsys.exit(7)" for held, code in HELD.items()}
    ended = outcomes(programs, ":memory:" if where == ":memory:" else data_dir)
    assert ended == {held: [7, "under way\n"] for held in HELD}


def test_calls_while_the_interpreter_ends(data_dir: str) -> None:
    """What was registered to be called at the exit may still use a client that was made before it, and gets words from
    one that is closed by then; a new one works to the very end."""
    code = """
import atexit, sys

def last():
    try:
        notes.count()
    except kalos.SidecarUnavailable as error:
        print(error)
    late = kalos.connect(":memory:", timeout=60)
    print(late.collection("late", dimension=4).upsert(["a"], [V]), flush=True)

atexit.register(last)
import kalos_memory as kalos

V = [1.0, 0.0, 0.0, 0.0]
client = kalos.connect(sys.argv[1], timeout=60)
notes = client.collection("notes", dimension=4)
atexit.register(lambda: print(notes.upsert(["a"], [V]) > 0, notes.count()))
sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, data_dir], capture_output=True, text=True, timeout=100
    )
    said = "True 1\nthis client was closed: connect() makes a new one\n2\n"
    assert (done.returncode, done.stdout, done.stderr) == (7, said, "")


def test_a_client_that_is_dropped_while_its_calls_are_under_way(data_dir: str) -> None:
    """They hold it, and are answered; with the last of them it goes, its thread and its lane too."""
    code = """
def search(_):
    calls.append(kalos.connect(sys.argv[1], timeout=60).collection("notes").search(V)[0].id)

threads = [threading.Thread(target=search, args=(number,)) for number in range(8)]
held = [kalos.connect(sys.argv[1], timeout=60) for _ in range(4)]
seen = [weakref.ref(one) for one in [client, *held]]
calls.extend(range(50)); told(); del calls[:]

async def main():
    global client, notes, held
    tasks = [asyncio.create_task(one.collection("notes").asearch(V)) for one in [client, *held] for _ in range(8)]
    await asyncio.sleep(0)  # all of them are posted, or stand in line
    del client, notes, held
    gc.collect()
    for thread in threads:
        thread.start()
    calls.extend([hits[0].id for hits in await asyncio.gather(*tasks)])

asyncio.run(main())
for thread in threads:
    thread.join()
end = time.monotonic() + 30
while (any(ref() for ref in seen) or threading.active_count() > 1) and time.monotonic() < end:
    gc.collect(); time.sleep(0.01)
print(len(calls), set(calls), [ref() for ref in seen], threading.active_count())
"""
    assert outcomes({"one": code}, data_dir) == {"one": [0, "under way\n48 {'a'} [None, None, None, None, None] 1\n"]}
