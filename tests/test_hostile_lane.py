"""A client of the same user may break its own lane. It must not break kalosd, nor anybody else's lane."""

import os
import subprocess
import sys
from time import monotonic_ns

import pytest
from conftest import wait_until
from posix_ipc import Semaphore, SharedMemory

import kalos_memory as kalos
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
