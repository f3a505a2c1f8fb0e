"""A client of the same user may break its own lane. It must not break kalosd, nor anybody else's lane."""

import os
import resource
import subprocess
import sys
from time import monotonic_ns

import numpy as np
import pytest
from conftest import skip_under_sanitizers, wait_until
from posix_ipc import Semaphore, SharedMemory

import kalos_memory as kalos
from kalos_memory import _lane
from kalos_memory._control import Control
from kalos_memory._sidecar import read_lock

# In a process of its own, because what it breaks is mapped there too. argv: the socket, and which object to shrink.
SHRINKS = """
import os, struct, sys
from time import monotonic_ns
from kalos_memory import _abi
from kalos_memory._connection import Connection
from kalos_memory._control import Control

path, which = sys.argv[1:]
deadline_ns = monotonic_ns() + 30_000_000_000
control = Control(path)
welcome = control.hello(deadline_ns, slot_count=8, slot_bytes=131072)
granted = welcome["lane"]
files = {
    "memory": granted["name"][1:],
    "request": "sem." + granted["request_semaphore"][1:],
    "reply": "sem." + granted["reply_semaphores"][0][1:],  # of the slot that is used first
}
descriptor = os.open("/dev/shm/" + files[which], os.O_RDWR)
connection = Connection(control, welcome, deadline_ns)  # from here on kalosd serves the lane, and the names are gone
lane = connection.lane
if which != "reply":
    os.ftruncate(descriptor, 0)
if which == "reply":
    slot = lane.take_now()
    noop = (_abi.REQUEST_POSTED, _abi.OP_NOOP, 3, 7, 0, 0, 0, slot.index, 0)
    assert slot.index == 0
    struct.pack_into("<IHHQQQIIq", lane.memory, slot.base + 8, *noop)
    os.ftruncate(descriptor, 0)
    lane.words[slot.word] = 7
if which != "request":
    lane.post_request()
print("broken", flush=True)
sys.stdin.readline()
os._exit(0)  # without touching what is broken
"""


def hello(data_dir):
    """A greeted control connection, and the WELCOME: the lane's objects still have their names."""
    control = Control(read_lock(data_dir)["socket"])
    deadline_ns = monotonic_ns() + 30_000_000_000
    return control, control.hello(deadline_ns, slot_count=8, slot_bytes=131072), deadline_ns


@pytest.mark.parametrize("which", ["memory", "request", "reply"])
def test_a_shrunken_object_ends_only_its_own_lane(client, data_dir, sidecar_pid, which):
    """kalosd's access to it would be a SIGBUS; it becomes zeros, for that lane alone."""
    pid = sidecar_pid(client)
    threads = len(os.listdir(f"/proc/{pid}/task"))
    arguments = [sys.executable, "-c", SHRINKS, read_lock(data_dir)["socket"], which]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hostile:
        assert hostile.stdout.readline() == "broken\n"
        for _ in range(20):
            client._noop()
        hostile.stdin.close()
        assert hostile.wait(30) == 0
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the hostile client")
    for _ in range(20):
        client._noop()
    assert sidecar_pid(client) == pid
    # Also the thread that slept on a semaphore which is gone.
    wait_until(lambda: len(os.listdir(f"/proc/{pid}/task")) == threads, "the lane's thread ends")


# Writes into the bytes of a semaphore before kalosd serves the lane. argv: the socket, and what.
FORGES = """
import os, struct, sys
from time import monotonic_ns
from kalos_memory import _abi
from kalos_memory._connection import Connection
from kalos_memory._control import Control

path, what = sys.argv[1:]
deadline_ns = monotonic_ns() + 30_000_000_000
control = Control(path)
welcome = control.hello(deadline_ns, slot_count=8, slot_bytes=131072)
granted = welcome["lane"]
name = granted["reply_semaphores"][0] if what == "reply flags" else granted["request_semaphore"]
descriptor = os.open("/dev/shm/sem." + name[1:], os.O_RDWR)
value, waiters, flags = {
    "full": (2**31 - 1, 0, 128), "request flags": (0, 0, 0x7F), "reply flags": (0, 1, 0x7F), "noise": (0xFFFFFFFF,) * 3
}[what]
os.pwrite(descriptor, struct.pack("<III", value, waiters, flags), 0)  # as glibc lays them out
connection = Connection(control, welcome, deadline_ns)
lane = connection.lane
if what == "reply flags":
    slot = lane.take_now()
    assert slot.index == 0
    noop = (_abi.REQUEST_POSTED, _abi.OP_NOOP, 3, 7, 0, 0, 0, slot.index, 0)
    struct.pack_into("<IHHQQQIIq", lane.memory, slot.base + 8, *noop)
    lane.words[slot.word] = 7
    lane.post_request()
print("broken", flush=True)
sys.stdin.readline()
os._exit(0)  # without touching what is broken
"""


@pytest.mark.parametrize("what", ["full", "request flags", "reply flags", "noise"])
def test_a_forged_semaphore_harms_only_its_own_lane(client, data_dir, sidecar_pid, what):
    """glibc takes the flags of its system call from a semaphore's bytes and ends the process where the kernel refuses
    them; and two billion tokens must not keep a thread busy for minutes."""
    pid = sidecar_pid(client)
    tasks = f"/proc/{pid}/task"
    threads = len(os.listdir(tasks))

    def all_asleep():
        states = []
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/stat") as stat:
                states.append(stat.read().rsplit(")", 1)[1].split()[0])
        return all(state == "S" for state in states)

    arguments = [sys.executable, "-c", FORGES, read_lock(data_dir)["socket"], what]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hostile:
        assert hostile.stdout.readline() == "broken\n"
        for _ in range(20):
            client._noop()
        assert sidecar_pid(client) == pid
        wait_until(all_asleep, "kalosd's threads sleep")
        hostile.stdin.close()
        assert hostile.wait(30) == 0
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the hostile client")
    wait_until(lambda: len(os.listdir(tasks)) == threads, "the lane's thread ends")
    assert sidecar_pid(client) == pid


def test_a_kalosd_that_is_killed_while_it_hands_out_lanes_leaves_no_half_made_semaphore(data_dir):
    """sem_open makes a semaphore under a temporary name; kalosd makes its own, under a name that a sweep knows."""
    before = {name for name in os.listdir("/dev/shm") if name.startswith("sem.") and len(name) == 10}
    with kalos.connect(data_dir, timeout=30.0) as client:
        control, welcome, _ = hello(data_dir)
        names = os.listdir("/dev/shm")
        assert welcome["lane"]["name"][1:] in names
        os.kill(client.stats()["kalosd"]["pid"], 9)
        control.close()
        wait_until(lambda: client.stats()["kalosd"]["pid"], "another kalosd serves")
        left = set(os.listdir("/dev/shm"))
    assert welcome["lane"]["name"][1:] not in left, "the next start swept the lane of the dead"
    assert {name for name in left if name.startswith("sem.") and len(name) == 10} <= before


def test_lane_objects_are_what_posix_ipc_opens(data_dir):
    """Made by hand, the semaphores are still what sem_open finds: 0 at first, posted and taken from both sides."""
    with kalos.connect(data_dir, timeout=30.0):
        control, welcome, _ = hello(data_dir)
        semaphore = Semaphore(welcome["lane"]["request_semaphore"])
        assert semaphore.value == 0
        semaphore.release()
        semaphore.acquire(0)
        semaphore.close()
        shared = SharedMemory(welcome["lane"]["name"])
        assert shared.size == welcome["lane"]["lane_bytes"]
        shared.close_fd()
        control.close()


# Writes over its own slots without a pause, while it posts requests in them: good ones, good ones that change while
# kalosd reads them, and noise.
SCRIBBLER = """
import random, sys, time
import numpy as np
import kalos_memory as kalos
from kalos_memory import _abi

client = kalos.connect(sys.argv[1], autostart=False, timeout=30)
notes = client.collection("notes")
lane, dice = client.current().lane, random.Random(int(sys.argv[2]))
memory, words = lane.memory, lane.words
op, query = notes.op, np.ones(4, np.float32)
messages = [
    (one.opcode, one.message.to_bytes())
    for one in (
        op.search(query, 5), op.search(np.ones((7, 4), np.float32), 3, filter={"n": {"$gte": 1}}, subtree=True),
        op.get(["a", "b"]), op.count(filter={"n": 1}), op.scan_page(page_limit=3), op.namespaces(),
        op.upsert(["mine"], [query], texts=["t" * 500], metadatas=[{"n": 1}], namespace="scribbler"),
        op.delete(["mine"], namespace="scribbler"),
        client._batch([op.count(), op.upsert(["mine"], [query], namespace="scribbler")], "relaxed"),
    )
]
header = lane._free[0].base
sequence = 1 << 32
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    index = dice.randrange(lane.slot_count)
    base = _abi.LANE_HEADER_BYTES + index * (lane.payload_bytes + _abi.SLOT_HEADER_BYTES)
    opcode, message = dice.choice(messages)
    payload = base + _abi.SLOT_HEADER_BYTES
    memory[payload : payload + len(message)] = message
    sequence += 1
    flags, total = dice.choice([(3, len(message)), (1, 2 * len(message)), (2, len(message)), (0, 1 << 40)])
    kalos._lane._REQUEST_INTO(
        memory, base + 8, _abi.REQUEST_POSTED, opcode, flags, sequence, total, 0, len(message), index, 0
    )
    words[base // 8] = sequence
    lane.post_request()
    for _ in range(dice.randrange(60)):  # while it is read, and while the reply is written
        what = dice.random()
        if what < 0.6:
            at = payload + dice.randrange(len(message))
            memory[at] = dice.randrange(256)
        elif what < 0.8:
            at = payload + dice.randrange(0, len(message), 4)
            memory[at : at + 4] = dice.choice([bytes([255] * 4), bytes(4), bytes([0, 0, 0, 128]), dice.randbytes(4)])
        else:
            at = base + 8 + dice.randrange(240)
            memory[at] = dice.randrange(256)
print("done", flush=True)
"""


def test_a_client_that_rewrites_its_slots_while_they_are_read(client, data_dir, sidecar_pid):
    """Whatever a slot turns into while kalosd reads it, an honest client beside it gets right answers, and kalosd
    lives."""
    pid = sidecar_pid(client)
    notes = client.collection("notes", dimension=4)
    corners = np.eye(4, dtype=np.float32)
    notes.upsert(list("abcd"), corners, texts=[f"text {one}" for one in "abcd"], metadatas=[{"n": n} for n in range(4)])
    scribblers = [
        subprocess.Popen([sys.executable, "-c", SCRIBBLER, data_dir, str(seed), "3"], stdout=subprocess.PIPE, text=True)
        for seed in range(2)
    ]
    for process in scribblers:
        assert process.stdout.readline() == "ready\n"
    answers = 0
    while any(process.poll() is None for process in scribblers):
        for corner, name in enumerate("abcd"):
            hits = notes.search(corners[corner], 1)
            assert [(hit.id, hit.text) for hit in hits] == [(name, f"text {name}")]
        notes.upsert(["e"], [corners[0]], namespace="honest")
        assert notes.delete(["e"], namespace="honest") == 1
        answers += 1
    for process in scribblers:
        out, _ = process.communicate(timeout=60)
        assert out == "done\n"
    assert answers > 3
    assert [hit.text for hit in notes.get(list("abcd"))] == [f"text {one}" for one in "abcd"]
    wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees their end")
    requests = client.stats()["requests"]
    assert (requests["staged_bytes"], requests["in_flight"]) == (0, 0)
    assert sidecar_pid(client) == pid


def test_what_is_announced_is_not_what_arrived(client, data_dir):
    """A client that announces four messages of 256 MiB and sends little of them keeps nobody else from sending."""
    notes = client.collection("notes", dimension=4)
    hoarder = kalos.connect(data_dir, timeout=30)
    lane = hoarder.current().lane
    for _ in range(4):
        slot = lane.take_now()
        part = lane.payload_bytes
        lane.memory[slot.payload : slot.payload + part] = bytes(part)
        sequence = lane.next_sequence()
        fields = (2, 48, 1, sequence, 256 << 20, 0, part, slot.index, 0)  # posted, UPSERT, BEGIN, no deadline
        _lane._REQUEST_INTO(lane.memory, slot.request, *fields)
        lane.words[slot.word] = sequence
        lane.post_request()
        slot.semaphore.acquire(30)
    wait_until(lambda: client.stats()["requests"]["staged_bytes"] > 0, "the parts are staged")
    assert client.stats()["requests"]["staged_bytes"] < 1 << 20
    text = "x" * 3_000_000
    notes.upsert(["a"], [[1, 0, 0, 0]], texts=[text])
    assert notes.get(["a"])[0].text == text
    hoarder.close()
    wait_until(lambda: client.stats()["requests"]["staged_bytes"] == 0, "they are dropped with their client")


def test_no_memory_for_one_request_ends_only_that_request(data_dir, kalosd):
    """Where the system gives no more memory, who asked for it is told so, and kalosd lives for the others."""
    skip_under_sanitizers(kalosd)

    def little_memory():
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))

    process = subprocess.Popen([kalosd, "--data-dir", data_dir, "--log-level", "error"], preexec_fn=little_memory)
    try:
        wait_until(lambda: (read_lock(data_dir) or {}).get("socket"), "kalosd runs")
        with kalos.connect(data_dir, autostart=False, timeout=30) as client:
            notes = client.collection("notes", dimension=4)
            notes.upsert(["a"], [[1, 0, 0, 0]], texts=["small"])
            ids = [f"large-{row}" for row in range(15)]
            for _ in range(3):
                with pytest.raises((kalos.Overloaded, kalos.StoreError), match="memory"):
                    notes.upsert(ids, [[1, 0, 0, 0]] * 15, texts=["x" * (16 << 20)] * 15)
            assert [hit.text for hit in notes.scan()] == ["small"]
            notes.upsert(["b"], [[1, 0, 0, 0]])
            assert notes.count() == 2
    finally:
        process.terminate()
        assert process.wait(60) == 0
