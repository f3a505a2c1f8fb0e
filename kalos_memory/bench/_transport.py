"""The way between processes, measured: several client processes at once, in the rhythms of real applications.

    closed      the next call follows at once: both sides are hot
    sleeping    2 ms of sleep before each call: both sides have gone to sleep
    computing   200 us of Python before each call: a client's process is hot, and takes a CPU from the others

Two calls, in each rhythm, from 1, 2, 4 and 16 processes that nothing pins to a CPU:

    lane        an empty request: nothing but the way
    search      a recall by vector, of which the time inside kalosd's engine is taken off: what is left is the way there
                and back, the wait for others, and Python on both ends

Beside them, for one client, an echo over a Unix socket between two Python processes.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from kalos_memory.bench import _vectors
from kalos_memory.bench._stats import summarize

if TYPE_CHECKING:
    from kalos_memory import Client

CLIENTS = (1, 2, 4, 16)
RHYTHMS = ("closed", "sleeping", "computing")
PAUSE_S = 0.002
COMPUTE_NS = 200_000
ROUNDS = 3  # everything takes turns, so that a disturbance of the machine meets all
COLLECTION = "bench-transport"
ECHO_BYTES = 136  # a small request

Latencies = list[int]  # nanoseconds


@dataclass(frozen=True)
class Load:
    """What every client does at the same time: the call, the rhythm, for so long; and the size of the collection."""

    call: str
    rhythm: str
    seconds: float
    dimension: int
    seed: int


def measure_transport(
    client: Client, rows: int, dimension: int, seed: int, seconds: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Everything of this file, against the sidecar of `client`. Client processes are started once and ended here."""
    collection = client.collection(COLLECTION, dimension=dimension)
    vectors = _vectors.unit_vectors(rows, dimension, seed)
    collection.upsert(_vectors.record_ids(rows), vectors, durability="relaxed")
    cells = [(call, rhythm, count) for rhythm in RHYTHMS for call in ("lane", "search") for count in CLIENTS]
    cells += [("Unix socket", rhythm, 1) for rhythm in RHYTHMS]
    cells.sort(key=lambda cell: (RHYTHMS.index(cell[1]), cell[2]))  # what is compared is measured side by side
    latencies: dict[tuple[str, str, int], Latencies] = {cell: [] for cell in cells}
    before = client.stats()["requests"]
    with Clients(str(client._target.data_dir), max(CLIENTS), progress) as clients:
        for turn in range(ROUNDS):
            for call, rhythm, count in cells:
                progress(f"round {turn + 1} of {ROUNDS}: {call}, {rhythm}, {count} client processes")
                if call == "Unix socket":
                    found = measure_echo(rhythm, seconds / ROUNDS)
                else:
                    found = clients.run(Load(call, rhythm, seconds / ROUNDS, dimension, seed), count)
                latencies[call, rhythm, count] += found
    results = [_summary(*cell, latencies[cell]) for cell in sorted(cells)]
    after = client.stats()["requests"]
    client.drop_collection(COLLECTION, confirm=COLLECTION)
    return {
        "rows": rows,
        "dimension": dimension,
        "pause_s": PAUSE_S,
        "compute_us": COMPUTE_NS / 1000,
        "measurements": results,
        "passes": after["passes"] - before["passes"],
        "combined": after["combined"] - before["combined"],
    }


def _summary(call: str, rhythm: str, clients: int, latencies: Latencies) -> dict[str, Any]:
    summary = summarize(latencies)
    return {
        "call": call,
        "rhythm": rhythm,
        "clients": clients,
        "n": summary.n,
        "p50_us": summary.p50_us,
        "p99_us": summary.p99_us,
        "max_us": summary.max_us,
    }


# ------------------------------------------------------------------------------------------------ clients ------------


class Clients:
    """Client processes that wait for a Load and answer with latencies. A context manager."""

    def __init__(self, data_dir: str, count: int, progress: Callable[[str], None]) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            mine, theirs = spawning.Pipe()
            process = spawning.Process(target=_client, args=(data_dir, number, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
        for number, pipe in enumerate(self._pipes):
            progress(f"starting client processes: {number} of {count}")
            pipe.recv()

    def run(self, load: Load, count: int) -> Latencies:
        """The latencies of the first `count` clients under the load, all in one list."""
        pipes = self._pipes[:count]
        for pipe in pipes:
            pipe.send(load)
        for pipe in pipes:
            pipe.recv()  # ready
        for pipe in pipes:
            pipe.send(None)  # go
        return [int(latency) for pipe in pipes for latency in np.frombuffer(pipe.recv_bytes(), np.int64)]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # whose end is the end of the process
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _client(data_dir: str, number: int, pipe: Connection) -> None:
    """A client process: answers loads until the pipe ends."""
    import kalos_memory as kalos

    with kalos.connect(data_dir, autostart=False, timeout=30.0) as client:
        pipe.send("connected")
        while True:
            try:
                load: Load = pipe.recv()
            except EOFError:
                return
            call = _empty(client) if load.call == "lane" else _search(client, load, number)
            for _ in range(20):
                call()
            pipe.send("ready")
            pipe.recv()
            pipe.send_bytes(np.array(_loop(call, load.rhythm, load.seconds), np.int64).tobytes())


# A call returns the nanoseconds that are not the transport's: those in the engine.
Call = Callable[[], int]


def _empty(client: Client) -> Call:
    def call() -> int:
        client._noop()
        return 0

    return call


def _search(client: Client, load: Load, number: int) -> Call:
    collection = client.collection(COLLECTION)
    queries = list(_vectors.unit_vectors(64, load.dimension, load.seed + 1 + number))
    turn = 0

    def call() -> int:
        nonlocal turn
        turn += 1
        _, timings = collection._search_timed(queries[turn % 64], 10, include=())
        return round((timings.search_us + timings.fetch_us) * 1000)

    return call


def _loop(call: Call, rhythm: str, seconds: float) -> Latencies:
    clock = time.perf_counter_ns
    latencies = []
    end = clock() + int(seconds * 1e9)
    while (begun := clock()) < end:
        if rhythm == "sleeping":
            time.sleep(PAUSE_S)
            begun = clock()
        elif rhythm == "computing":
            until = begun + COMPUTE_NS
            while begun < until:
                begun = clock()
        work = call()
        latencies.append(max(0, clock() - begun - work))
    return latencies


# --------------------------------------------------------------------------------------------------- echo ------------


def measure_echo(rhythm: str, seconds: float) -> Latencies:
    """The same rhythm over a Unix stream socket: another Python process sends back what it got."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid == 0:
        try:
            mine.close()
            while data := theirs.recv(ECHO_BYTES):
                theirs.sendall(data)
        finally:
            os._exit(0)
    theirs.close()
    message = bytes(ECHO_BYTES)

    def call() -> int:
        mine.sendall(message)
        mine.recv(ECHO_BYTES, socket.MSG_WAITALL)
        return 0

    try:
        for _ in range(20):
            call()
        return _loop(call, rhythm, seconds)
    finally:
        mine.close()
        os.waitpid(pid, 0)
