"""Cancellation of an asyncio call at each place where it waits: no slot is lost, the next call works, and a write that
was cancelled is whole or absent."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
from conftest import kalosd_left

import kalos_memory as kalos
from kalos_memory import _async
from kalos_memory._lane import Lane

V = [1.0, 0.0, 0.0, 0.0]
LARGE = "x" * 300_000  # several parts, there and back
ROWS = 3


class CancelledAt:
    """Awaits a coroutine and cancels it at its n-th suspension: at once, or when what it waits for has just come."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, late: bool) -> None:
        self.coroutine, self.at, self.late = coroutine, at, late

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            waits_for = self.coroutine.send(None)
            for number in itertools.count():
                if number != self.at:
                    yield waits_for
                    waits_for = self.coroutine.send(None)
                    continue
                if self.late:
                    yield waits_for
                elif waits_for is not None:
                    waits_for.cancel()  # as a task does
                self.coroutine.throw(asyncio.CancelledError())
                self.coroutine.close()
                raise AssertionError("it went on waiting after it was cancelled")
        except StopIteration as stop:
            return stop.value


async def every_slot(lane: Lane) -> None:
    """Promise: none is lost. Those that were given up come back once kalosd has answered in them."""
    deadline_ns = time.monotonic_ns() + 30_000_000_000
    slots = [await _async._slot(lane, deadline_ns) for _ in range(lane.slot_count)]
    assert len({slot.index for slot in slots}) == lane.slot_count
    for slot in slots:
        lane.give_back(slot)


async def cancel_everywhere(
    start: Callable[[], Coroutine[Any, Any, Any]], after: Callable[[bool], Coroutine[Any, Any, None]]
) -> int:
    """Starts the call again and again and cancels it at its first, second, ... suspension, until it ends by itself.
    after(cancelled) looks at what is left each time. -> how often it was cancelled"""
    times = 0
    for late in (False, True):
        for at in itertools.count():
            cancelled = False
            try:
                await CancelledAt(start(), at, late)
            except asyncio.CancelledError:
                cancelled = True
            await after(cancelled)
            times += cancelled
            if not cancelled:
                break
    return times


def run(coroutine: Coroutine[Any, Any, int]) -> int:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


@pytest.fixture
def notes(client: kalos.Client) -> kalos.Collection:
    notes = client.collection("notes", dimension=4)
    notes.upsert(["a", "b"], [V, V], texts=["a", LARGE])
    return notes


READS: list[tuple[str, int, Callable[[Any], Coroutine[Any, Any, Any]], Any]] = [
    ("search", 2, lambda notes: notes.asearch(V, 1), lambda hits: [hit.id for hit in hits] == ["a"]),
    ("get in parts", 10, lambda notes: notes.aget(["b"]), lambda hits: hits[0].text == LARGE),
    ("batch", 10, lambda n: n._transport.abatch([n.op.get(["b"]), n.op.count()]), lambda got: got[1] == 2),
    ("open", 2, lambda notes: notes._transport.acollection("notes"), lambda opened: opened.name == "notes"),
    ("list", 2, lambda notes: notes._transport.acollections(), lambda listed: len(listed) == 1),
    ("stats", 2, lambda notes: notes._transport.astats(), lambda report: report["kalosd"]["pid"] > 0),
]


@pytest.mark.parametrize(("least", "start", "right"), [case[1:] for case in READS], ids=[case[0] for case in READS])
def test_a_read_is_cancelled_wherever_it_waits(
    client: kalos.Client, notes: kalos.Collection, least: int, start: Any, right: Callable[[Any], bool]
) -> None:
    async def after(cancelled: bool) -> None:
        waiter = client.current().waiter  # type: ignore[union-attr]
        assert waiter is None or waiter._pending == {}, "it is still waited for"
        assert right(await start(notes))
        await every_slot(client.current().lane)  # type: ignore[union-attr]

    assert run(cancel_everywhere(lambda: start(notes), after)) >= least


WRITES: list[tuple[str, int, Callable[[Any, list[str], str], Coroutine[Any, Any, Any]]]] = [
    ("upsert", 2, lambda n, ids, text: n.aupsert(ids, [V] * ROWS, texts=[text] * ROWS)),
    ("upsert in parts", 20, lambda n, ids, text: n.aupsert(ids, [V] * ROWS, texts=[text + LARGE] * ROWS)),
    (
        "batch",
        10,
        lambda n, ids, text: n._transport.abatch(
            [n.op.get(["b"]), *(n.op.upsert([one], [V], texts=[text + LARGE]) for one in ids)]
        ),
    ),
    ("delete", 2, lambda n, ids, text: n.adelete(filter={"old": True})),
]


@pytest.mark.parametrize(("name", "least", "start"), WRITES, ids=[case[0] for case in WRITES])
def test_a_write_is_cancelled_wherever_it_waits(
    client: kalos.Client, notes: kalos.Collection, name: str, least: int, start: Any
) -> None:
    """It is done or it is not, all of it, and that stands once its slot has come back; kalosd keeps no part of it."""
    turns = itertools.count(1)
    ids: list[str] = []
    done = []

    def begin() -> Coroutine[Any, Any, Any]:
        ids[:] = [f"{next(turns)}/{row}" for row in range(ROWS)]
        if name == "delete":
            notes.upsert(ids, [V] * ROWS, metadatas=[{"old": True}] * ROWS)
        return start(notes, list(ids), ids[0])  # type: ignore[no-any-return]

    async def after(cancelled: bool) -> None:
        await every_slot(client.current().lane)  # type: ignore[union-attr]
        texts = [hit and (hit.text or "") for hit in await notes.aget(ids)]
        there = {text is not None and text.rstrip("x") in ("", ids[0]) for text in texts}
        assert len(there) == 1, f"cancelled, and half of it is there: {texts!r:.200}"
        done.append(there.pop() != (name == "delete"))
        assert done[-1] or cancelled, "it ended and is not there"
        assert (await notes.aget(["a"]))[0].text == "a"

    async def main() -> int:
        cancelled = await cancel_everywhere(begin, after)
        slots = client.current().lane.slot_count  # type: ignore[union-attr]
        await asyncio.gather(*(notes.acount() for _ in range(slots)))  # each slot begins something new
        return cancelled

    assert run(main()) >= least
    if least > 2:
        assert False in done, "no cancellation came before the last part"
    requests = client.stats()["requests"]
    assert (requests["staged_bytes"], requests["in_flight"]) == (0, 0)


def test_waiting_for_a_slot_is_cancelled(client: kalos.Client, notes: kalos.Collection) -> None:
    """All slots are taken, and given back while the call waits: the one that woke it is not lost."""
    held = []

    def start() -> Coroutine[Any, Any, Any]:
        lane = client.current().lane  # type: ignore[union-attr]
        while (slot := lane.take_now()) is not None:
            held.append(slot)
        asyncio.get_running_loop().call_later(0.005, give_back)
        return notes.acount()

    def give_back() -> None:
        while held:
            client.current().lane.give_back(held.pop())  # type: ignore[union-attr]

    async def after(cancelled: bool) -> None:
        assert not client.current().lane._waiters, "it still stands in line"  # type: ignore[union-attr]
        assert await notes.acount() == 2
        await every_slot(client.current().lane)  # type: ignore[union-attr]

    assert run(cancel_everywhere(start, after)) >= 4


def test_waiting_for_a_commit_is_cancelled(client: kalos.Client, notes: kalos.Collection) -> None:
    """A read with a min_sequence that the next write will reach."""
    sequences = [notes.upsert(["c"], [V])]

    def start() -> Coroutine[Any, Any, Any]:
        asyncio.get_running_loop().call_later(0.005, lambda: sequences.append(notes.upsert(["c"], [V])))
        return notes.acount(min_sequence=sequences[-1] + 1)

    async def after(cancelled: bool) -> None:
        wanted = sequences[-1] + 1
        while len(sequences) < 2 or sequences[-1] < wanted - 1:
            await asyncio.sleep(0.001)
        assert await notes.acount() == 3
        await every_slot(client.current().lane)  # type: ignore[union-attr]
        await asyncio.sleep(0.01)

    assert run(cancel_everywhere(start, after)) >= 6


def test_connecting_is_cancelled(client: kalos.Client, notes: kalos.Collection) -> None:
    """By the first call of a client that has not connected yet. The same client connects after that."""
    clients: list[kalos.Client] = []

    def start() -> Coroutine[Any, Any, Any]:
        clients.append(pickle.loads(pickle.dumps(client)))
        return clients[-1].acollections()

    async def after(cancelled: bool) -> None:
        assert len(await clients[-1].acollections()) == 1
        await every_slot(clients[-1].current().lane)  # type: ignore[union-attr]
        await clients[-1].aclose()

    assert run(cancel_everywhere(start, after)) >= 4


def test_starting_a_private_sidecar_is_cancelled(kalosd: str) -> None:
    """The sidecar that nobody got ends, and leaves nothing."""

    async def connect_and_close() -> None:
        await (await kalos.aconnect(":memory:", timeout=30)).aclose()

    async def after(cancelled: bool) -> None:
        while any(kalosd_left(path) for path in places()):
            await asyncio.sleep(0.005)

    def places() -> list[str]:
        return [path for path in kalosd_left(tempfile.gettempdir()).values() if path not in before]

    before = set(kalosd_left(tempfile.gettempdir()).values())
    assert run(cancel_everywhere(connect_and_close, after)) >= 4
