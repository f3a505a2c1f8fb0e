"""The asyncio twins: same answers, no blocked loop, cancellation, many loops, and the death of the sidecar."""

import asyncio
import inspect
import os
import signal
import threading
import time

import pytest
from conftest import stopped, wait_until

import kalos_memory as kalos
from kalos_memory import _abi, _sidecar

V = [1.0, 0.0, 0.0, 0.0]


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120))


TWINS = [
    (kalos.Collection, ["upsert", "search", "get", "delete", "count", "scan", "namespaces"]),
    (kalos.Client, ["batch", "collection", "collections", "drop_collection", "health", "stats", "close"]),
]


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in TWINS for name in names])
def test_every_method_has_a_twin_with_the_same_arguments(owner, name):
    """Prefixed with `a`; nothing more to learn."""
    plain, twin = inspect.signature(getattr(owner, name)), inspect.signature(getattr(owner, "a" + name))
    assert list(plain.parameters.values()) == list(twin.parameters.values())


def test_connect_has_a_twin():
    assert inspect.signature(kalos.connect).parameters == inspect.signature(kalos.aconnect).parameters


def test_the_whole_life_of_a_collection(data_dir):
    async def main():
        async with await kalos.aconnect(data_dir, timeout=30) as client:
            notes = await client.acollection("notes", dimension=4)
            sequence = await notes.aupsert(
                ["a", "b"], [V, [0, 1, 0, 0]], texts=["ta", "tb"], metadatas=[{"n": 1}, None]
            )
            assert [hit.id for hit in await notes.asearch(V, k=1, min_sequence=sequence)] == ["a"]
            assert [len(hits) for hits in await notes.asearch([V, V], 5)] == [2, 2]
            assert [hit and hit.text for hit in await notes.aget(["b", "x"])] == ["tb", None]
            assert await notes.acount(filter={"n": 1}) == 1
            assert [hit.id async for hit in notes.ascan()] == ["a", "b"]
            assert [hit.id async for hit in notes.ascan(limit=1, offset=1)] == ["b"]
            assert await notes.anamespaces() == [()]
            assert await client.abatch([notes.op.count(), notes.op.delete(["a"])]) == [2, 1]
            assert await notes.adelete(everything=True) == 1
            assert [described["name"] for described in await client.acollections()] == ["notes"]
            assert (await client.ahealth())["status"] == "ready"
            assert (await client.astats())["kalosd"]["pid"] > 0
            hits, timings = await notes._asearch_timed(V, 1)
            assert hits == []
            assert timings.transport_us >= 0
            await client.adrop_collection("notes", confirm="notes")
            with pytest.raises(kalos.NotFound):
                await notes.asearch(V)
        with pytest.raises(kalos.SidecarUnavailable, match="closed"):
            await notes.acount()

    run(main())


def test_bad_arguments_raise_in_the_caller(collection):
    async def main():
        with pytest.raises(kalos.InvalidRequest):
            await collection.asearch([1, 2])
        with pytest.raises(kalos.InvalidRequest):
            collection.ascan(order="random")
        with pytest.raises(kalos.InvalidRequest):
            await collection.acount(timeout=-1)

    run(main())


def test_more_tasks_than_slots(collection):
    """All of them are answered, each with its own answer, also with messages in several parts."""
    collection.upsert([str(i) for i in range(50)], [[i, 1, 0, 0] for i in range(50)], texts=["x" * 40_000] * 50)

    async def main():
        async def one(i):
            hits = await collection.aget([str(i), str((i + 1) % 50), *(str(j) for j in range(6))])
            assert [hit.id for hit in hits[:2]] == [str(i), str((i + 1) % 50)]
            assert all(len(hit.text) == 40_000 for hit in hits)

        await asyncio.gather(*(one(i) for i in range(50)))

    run(main())


def test_five_hundred_tasks_at_once(shared, collection):
    """Of one client with eight slots: reads and writes of all sizes, each answered with what its own task wrote."""

    async def one(number):
        own = f"task-{number}"
        ids = [f"{own}/{row}" for row in range(3)]
        vectors = [[1, number, row, 0] for row in range(3)]
        texts = [f"{own}/{row}" + "x" * (90_000 if number % 50 == 0 else 0) for row in range(3)]
        sequence = await collection.aupsert(ids, vectors, texts=texts, namespace=own, durability="relaxed")
        hits, found, listed, count = await asyncio.gather(
            collection.asearch(vectors[1], 1, namespace=own, min_sequence=sequence),
            collection.aget([ids[2], "nobody", ids[0]], namespace=own),
            shared.abatch([collection.op.get(ids, namespace=own), collection.op.count(namespace=own)]),
            collection.acount(namespace=own),
        )
        assert [(hit.id, hit.text) for hit in hits] == [(ids[1], texts[1])]
        assert [hit and hit.text for hit in found] == [texts[2], None, texts[0]]
        assert [[hit.text for hit in listed[0]], listed[1], count] == [texts, 3, 3]
        assert await collection.adelete(ids[:2], namespace=own, durability="relaxed") == 2
        assert [hit.id async for hit in collection.ascan(namespace=own)] == ids[2:]

    async def main():
        await asyncio.gather(*(one(number) for number in range(500)))

    run(main())
    assert collection.count(subtree=True) == 500
    lane = shared.current().lane
    assert (lane.in_use, len(lane._free)) == (0, lane.slot_count)


def test_threads_and_tasks_share_a_client(collection):
    collection.upsert(["a"], [V])
    stop = threading.Event()
    failed = []

    def work():
        while not stop.is_set():
            try:
                assert collection.search(V)[0].id == "a"
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def main():
        for _ in range(10):
            assert all(hits[0].id == "a" for hits in await asyncio.gather(*(collection.asearch(V) for _ in range(20))))

    try:
        run(main())
        run(main())  # another loop
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed


def test_loops_in_several_threads(collection):
    collection.upsert(["a"], [V])
    outcomes = []

    def work():
        async def main():
            return [len(hits) for hits in await asyncio.gather(*(collection.asearch(V) for _ in range(30)))]

        outcomes.append(run(main()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [[1] * 30] * 3


def test_the_loop_is_never_blocked(data_dir):
    """While the sidecar is stopped and more calls wait than there are slots, the loop goes on ticking."""
    with kalos.connect(data_dir, timeout=30) as client:
        notes = client.collection("notes", dimension=4)
        pid = client.stats()["kalosd"]["pid"]

        async def main():
            with stopped(pid):
                calls = [asyncio.create_task(notes.acount()) for _ in range(_abi.DEFAULT_SLOT_COUNT + 4)]
                ticks = 0
                end = time.monotonic() + 0.3
                while time.monotonic() < end:
                    await asyncio.sleep(0.005)
                    ticks += 1
                assert ticks > 5
                assert not any(call.done() for call in calls)
            assert await asyncio.gather(*calls) == [0] * len(calls)

        run(main())


def test_timeouts_and_cancellation_give_the_slot_up(data_dir):
    """Neither leaks a slot: once the sidecar answers again, all slots come back."""
    with kalos.connect(data_dir, timeout=30) as client:
        notes = client.collection("notes", dimension=4)
        notes.upsert(["a"], [V])
        pid = client.stats()["kalosd"]["pid"]

        async def main():
            with stopped(pid):
                with pytest.raises(kalos.RecallTimeout):
                    await notes.asearch(V, timeout=0.05)
                calls = [asyncio.create_task(notes.acount()) for _ in range(_abi.DEFAULT_SLOT_COUNT - 1)]
                await asyncio.sleep(0.05)
                for call in calls:
                    call.cancel()
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
                with pytest.raises(kalos.Overloaded):
                    await notes.acount(timeout=0.05)
            for _ in range(1000):
                try:
                    assert await notes.acount() == 1
                    break
                except kalos.Overloaded:
                    await asyncio.sleep(0.01)
            assert await asyncio.gather(*(notes.acount() for _ in range(40))) == [1] * 40

        run(main())
        wait_until(lambda: notes.count() == 1 and client._connection.lane._reclaim() in (True, False), "reclaim")
        assert client._connection.lane.in_use == 0


def test_the_death_of_the_sidecar_is_survived(data_dir):
    """Reads and writes that wait are sent again to the next one."""
    with kalos.connect(data_dir, timeout=30) as client:
        notes = client.collection("notes", dimension=4)
        notes.upsert(["a"], [V])
        pid = client.stats()["kalosd"]["pid"]

        async def main():
            with stopped(pid):
                reads = [asyncio.create_task(notes.asearch(V)) for _ in range(4)]
                write = asyncio.create_task(notes.aupsert(["b"], [V]))
                await asyncio.sleep(0.05)
                os.kill(pid, signal.SIGKILL)
            assert [[hit.id for hit in hits][:1] for hits in await asyncio.gather(*reads)] == [["a"]] * 4
            assert await write > 0
            assert await notes.acount() == 2

        run(main())
        assert client.stats()["kalosd"]["pid"] != pid


def test_close_ends_tasks_that_wait(data_dir):
    client = kalos.connect(data_dir, timeout=60)
    notes = client.collection("notes", dimension=4)
    pid = client.stats()["kalosd"]["pid"]

    async def main():
        with stopped(pid):
            call = asyncio.create_task(notes.acount())
            await asyncio.sleep(0.05)
            await client.aclose()
            with pytest.raises(kalos.SidecarUnavailable, match="closed"):
                await call

    run(main())


def test_no_thread_outlives_its_client(data_dir):
    client = kalos.connect(data_dir, timeout=30)
    run(client.acollections())
    names = [thread.name for thread in threading.enumerate()]
    assert "kalos-replies" in names
    thread = client._connection.waiter._thread
    lane = client._connection.lane
    client.close()
    thread.join(30)
    assert not thread.is_alive()
    wait_until(lambda: lane.memory.closed, "the lane is given back")
    _sidecar.stop(data_dir)
