"""Clients that come and go in numbers: each gets a lane, or is told why not, and none suffers for another."""

import json
import os
import resource
import socket
import subprocess
import sys
import time

import pytest
from conftest import skip_under_sanitizers, stopped, wait_until

import kalos_memory as kalos
from kalos_memory import _sidecar

# A client that closes its connection when it is told to, and ends when it is told to.
COMES_AND_GOES = """
import sys, kalos_memory as kalos
client = kalos.connect(sys.argv[1], timeout=30)
print("connected", flush=True)
sys.stdin.readline()
client.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def socket_of(data_dir):
    with open(os.path.join(data_dir, "kalosd.lock")) as lock:
        return json.loads(lock.read())["socket"]


def connects(data_dir):
    try:
        kalos.connect(data_dir, autostart=False).close()
    except kalos.SidecarUnavailable:
        return False
    return True


def test_the_end_of_one_client_is_not_taken_for_that_of_the_next(client, data_dir, sidecar_pid):
    """The next is given descriptors of the same numbers, while events of the one before are still on their way."""
    arguments = [sys.executable, "-c", COMES_AND_GOES, data_dir]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as former:
        assert former.stdout.readline() == "connected\n"
        with socket.socket(socket.AF_UNIX) as later:
            with stopped(sidecar_pid(client)):
                former.stdin.write("\n")
                former.stdin.flush()
                assert former.stdout.readline() == "closed\n"
                later.connect(socket_of(data_dir))
                former.stdin.close()
                former.wait(30)
            wait_until(lambda: len(client.stats()["lanes"]["clients"]) == 1, "kalosd sees the end of the former")
            later.settimeout(0.2)
            with pytest.raises(TimeoutError):  # nothing was asked, nothing is answered: above all no end of file
                later.recv(1)


def test_more_clients_than_descriptors(data_dir, kalosd):
    """One too many is turned away in words and at once; kalosd stays calm, and takes clients again when some left."""
    process = subprocess.Popen(
        [kalosd, "--data-dir", data_dir, "--log-level", "error"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )
    try:
        wait_until(lambda: _sidecar.lock_holder(data_dir), "kalosd runs")
        with kalos.connect(data_dir, timeout=30) as client:
            crowd = []
            try:
                for _ in range(64):
                    one = socket.socket(socket.AF_UNIX)
                    one.settimeout(30)
                    one.connect(socket_of(data_dir))
                    crowd.append(one)
                with pytest.raises(kalos.SidecarUnavailable, match="descriptor"):
                    kalos.connect(data_dir, autostart=False)

                def cpu_seconds():
                    with open(f"/proc/{process.pid}/stat") as stat:
                        fields = stat.read().rsplit(")", 1)[1].split()
                    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

                before = cpu_seconds()
                time.sleep(1)
                assert cpu_seconds() - before < 0.3
            finally:
                for one in crowd:
                    one.close()
            assert client.health()["status"] == "ready"
            wait_until(lambda: connects(data_dir), "there is room again")
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_more_clients_than_threads(data_dir, kalosd):
    """One too many is told so; it does not end kalosd for the others."""
    skip_under_sanitizers(kalosd)

    def little_room_for_stacks():
        resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, 256 << 20))  # of each thread
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    arguments = [kalosd, "--data-dir", data_dir, "--log-level", "error"]
    process = subprocess.Popen(arguments, preexec_fn=little_room_for_stacks)
    clients = []
    try:
        wait_until(lambda: _sidecar.lock_holder(data_dir), "kalosd runs")
        clients.append(kalos.connect(data_dir, timeout=30))

        def connect_30_more():
            for _ in range(30):
                clients.append(kalos.connect(data_dir, autostart=False))

        with pytest.raises(kalos.SidecarUnavailable, match="thread"):
            connect_30_more()
        assert len(clients) > 1
        assert [client.health()["status"] for client in clients] == ["ready"] * len(clients)
        clients.pop().close()
        wait_until(lambda: connects(data_dir), "there is room again")
    finally:
        for client in clients:
            client.close()
        process.terminate()
        assert process.wait(60) == 0


def test_fifty_idle_clients_cost_no_cpu_and_little_memory(client, sidecar_pid, kalosd):
    """kalosd sleeps while nobody asks: no thread of it wakes, but for the look at its socket every ten seconds. Lanes,
    threads and itself take less than 50 MB."""
    skip_under_sanitizers(kalosd)
    pid = sidecar_pid(client)

    def sleeps():
        total = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as status:
                total += next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
        return total

    client.collection("notes", dimension=4).upsert(["a"], [[1, 0, 0, 0]])
    others = [kalos.connect(client._target.data_dir, timeout=30) for _ in range(49)]
    for other in others:
        assert other.collection("notes").search([1, 0, 0, 0], 1)[0].id == "a"
    time.sleep(0.5)  # the last one's lane stops polling
    before = sleeps()
    time.sleep(3)
    assert sleeps() - before <= 4
    with open(f"/proc/{pid}/status") as status:
        resident_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert resident_kib * 1024 < 50_000_000
    for other in others:
        other.close()
