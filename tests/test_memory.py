"""Promises of Memory: text in, text out, in one namespace; failures in words; timings of every stage."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from fake_collection import FakeClient, embed

import kalos_memory as kalos
from kalos_memory import _memory, _sidecar
from kalos_memory._documents import read_documents
from kalos_memory._errors import (
    CollectionMismatch,
    InvalidRequest,
    KalosTimeout,
    RecallTimeout,
    SidecarUnavailable,
    StoreError,
)
from kalos_memory._ingest import ingest
from kalos_memory._memory import Memory
from kalos_memory.embed import as_embedder

EMBEDDER = as_embedder(embed, name="letters", dimension=32, fingerprint="letters-1")


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
def memory(client):
    return Memory("assistant", namespace="alice", embedder=EMBEDDER, client=client)


def rows(client):
    return client.known["assistant"].rows


def test_remember_then_recall(memory):
    """What was remembered is recalled, the nearest first, with its text, metadata and score."""
    tea = memory.remember("Alice drinks green tea", metadata={"source": "chat"})
    memory.remember("The train leaves at nine")
    found = memory.recall("green tea", k=1)
    assert [hit.id for hit in found] == [tea]
    assert (found[0].text, found[0].metadata) == ("Alice drinks green tea", {"source": "chat"})
    assert found.query == "green tea"
    assert 0 < found[0].score <= 1
    assert "Alice drinks green tea" in found.text
    assert 'source="chat"' in found.text


def test_recall_is_a_sequence(memory):
    """A Recall has a length, indexes, slices, iteration and membership like a list."""
    memory.remember(["one", "two", "three"], id=["1", "2", "3"])
    found = memory.recall("one")
    assert len(found) == 3
    assert found[0].id == "1"
    assert [hit.id for hit in found[:1]] == ["1"]
    assert found[-1] in found
    assert list(reversed(found))[-1].id == "1"
    assert "3 hits" in repr(found)


def test_timings_tell_every_stage(memory):
    """timings has each stage in microseconds, as attributes and as a mapping; the total is at least their sum."""
    memory.remember("x")
    timings = memory.recall("x").timings
    assert set(timings) == {"tokenize", "embed", "transport", "queue", "search", "fetch", "total"}
    assert (timings.queue, timings.search, timings.fetch, timings.transport) == (1.0, 2.0, 3.0, 4.0)
    assert timings["embed"] == timings.embed > 0
    assert timings.total >= timings.embed + timings.tokenize
    assert "us" in repr(timings)
    with pytest.raises(KeyError):
        timings["_NAMES"]


def test_the_same_text_twice_makes_two_memories(memory):
    """Without an id each remember makes a new one."""
    assert memory.remember("tea") != memory.remember("tea")
    assert memory.count() == 2


def test_an_id_that_exists_is_overwritten(memory):
    """remember with a given id replaces text and metadata."""
    assert memory.remember("tea", id="drink", metadata={"a": 1}) == "drink"
    memory.remember("coffee", id="drink")
    (hit,) = memory.recall("coffee")
    assert (hit.id, hit.text, hit.metadata) == ("drink", "coffee", {})


def test_a_list_gives_a_list(memory):
    """Lists of texts, ids and metadata are aligned; one dict is for all; None in ids is a new id; a generator works."""
    assert memory.remember(["a", "b"], id=["1", "2"], metadata=[{"n": 1}, None]) == ["1", "2"]
    assert [hit.metadata for hit in memory.recall("a", k=2)] == [{"n": 1}, {}]
    ids = memory.remember((text for text in ["c", "d"]), id=["3", None], metadata={"all": True})
    assert ids[0] == "3"
    assert len(ids[1]) == 32
    assert memory.count(filter={"all": True}) == 2
    assert memory.remember([]) == []


def test_a_list_is_one_write_and_a_huge_one_is_several(memory, client, monkeypatch):
    """A list commits as one transaction until it is too large, then in parts, in order and complete."""
    memory.remember(["x"] * 700)
    assert client.known["assistant"].writes == [700]
    monkeypatch.setattr("kalos_memory._records.WRITE_BYTES", 1000)
    ids = memory.remember([f"text {i}" for i in range(20)], metadata={"part": True})
    assert len(client.known["assistant"].writes) > 3
    assert sum(client.known["assistant"].writes) == 720
    assert memory.count(filter={"part": True}) == 20
    assert len(set(ids)) == 20


@pytest.mark.parametrize(("ttl", "seconds"), [(60, 60), (0.5, 0.5), (timedelta(days=1), 86400), (np.float64(2), 2)])
def test_ttl_becomes_a_moment(memory, client, ttl, seconds):
    """ttl, in seconds or as a timedelta, is kept as an aware moment that far from now."""
    before = datetime.now(timezone.utc)
    memory.remember("x", id="1", ttl=ttl)
    moment = rows(client)[("alice",), "1"]["expires_at"]
    assert before <= moment - timedelta(seconds=seconds) <= datetime.now(timezone.utc)


@pytest.mark.parametrize("ttl", [0, -1, timedelta(0), float("nan"), float("inf"), 1e300, True, "60"])
def test_an_impossible_ttl_is_refused(memory, ttl):
    """A ttl that is not a positive span of time is InvalidRequest, and nothing is written."""
    with pytest.raises(InvalidRequest, match="ttl"):
        memory.remember("x", ttl=ttl)
    assert memory.count() == 0


def test_forget(memory):
    """forget deletes by id, list of ids, filter or everything, and says how many there were."""
    memory.remember(list("abcdef"), id=list("123456"), metadata=[{"n": i % 2} for i in range(6)])
    assert memory.forget("1") == 1
    assert memory.forget("1") == 0
    assert memory.forget(["2", "3", "none"]) == 2
    assert memory.forget([]) == 0
    assert memory.forget(filter={"n": 1}) == 2
    assert memory.forget(everything=True) == 1
    assert memory.count() == 0


def test_forgetting_what_is_no_id_is_an_error(memory):
    with pytest.raises(kalos.InvalidRequest, match="ids must be a str or several, not a int"):
        memory.forget(5)


def test_forgetting_nothing_is_an_error(memory):
    """Without an argument, and with two, forget refuses, also before there is a collection."""
    for arguments in ({}, {"everything": False}, {"ids": "a", "everything": True}, {"ids": "a", "filter": {}}):
        with pytest.raises(InvalidRequest, match="expected one of ids, filter and everything=True"):
            memory.forget(**arguments)


def test_before_the_first_memory(memory, client):
    """recall, forget and count on nothing are empty answers; forget and count make no collection."""
    assert memory.count() == 0
    assert memory.forget(everything=True) == 0
    assert client.known == {}
    found = memory.recall("anything")
    assert (len(found), found.text, found.error) == (0, "", None)


def test_namespaces_are_walls(client):
    """Two memories of one collection never see each other's; a str and a 1-tuple are the same namespace."""
    alice = Memory("assistant", namespace="alice", embedder=EMBEDDER, client=client)
    bob = Memory("assistant", namespace=("bob",), embedder=EMBEDDER, client=client)
    alice.remember("tea")
    assert len(bob.recall("tea")) == 0
    assert bob.forget(everything=True) == 0
    assert len(Memory("assistant", namespace=("alice",), embedder=EMBEDDER, client=client).recall("tea")) == 1


def test_filter_and_min_score_reach_the_search(memory):
    """recall passes filter and min_score on, k bounds the answer, k=0 is empty."""
    memory.remember(["green tea", "black tea", "train"], metadata=[{"c": "g"}, {"c": "b"}, {"c": "n"}])
    assert [hit.text for hit in memory.recall("tea", filter={"c": "b"})] == ["black tea"]
    assert {hit.text for hit in memory.recall("tea", min_score=0.5)} == {"green tea", "black tea"}
    assert len(memory.recall("tea", 2)) == 2
    assert len(memory.recall("tea", 0)) == 0


@pytest.mark.parametrize("text", ["", " \n\t", "a\x00b", "😀👩‍💻", "x" * 1_000_000, "\u202eabc"])
def test_odd_texts_work(memory, text):
    """Empty, blank, NUL, emoji and a megabyte of text come back as they went in, and work as queries."""
    id = memory.remember(text)
    found = memory.recall(text, k=1)
    assert (found[0].id, found[0].text) == (id, text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": "\ud800"}, "lone surrogate"),
        ({"text": ["fine", "\udfff"]}, r"texts\[1\] holds a lone surrogate"),
        ({"text": None}, "text must be a str or a list of str, not a NoneType"),
        ({"text": b"bytes"}, "not a bytes"),
        ({"text": {"a": "b"}}, "not a dict"),
        ({"text": ["a", None]}, "text 1 is None"),
        ({"text": ["a", 3]}, r"texts\[1\] must be a str"),
        ({"text": ["a", "b"], "id": "x"}, "id must be a list"),
        ({"text": ["a", "b"], "id": ["x"]}, "id has 1 elements for 2 texts"),
        ({"text": "a", "id": 7}, r"id\[0\] must be a str"),
        ({"text": "a", "id": ""}, "is empty"),
        ({"text": "a", "metadata": [{"a": 1}]}, "metadata must be a dict"),
        ({"text": ["a"], "metadata": ["x"]}, "metadata 0 must be a dict"),
        ({"text": ["a", "b"], "metadata": [{}]}, "metadata has 1 elements for 2 texts"),
        ({"text": "a", "metadata": {"when": datetime(2026, 1, 1, tzinfo=timezone.utc)}}, "when"),
        ({"text": "a", "metadata": {"x": float("nan")}}, "nan"),
        ({"text": "x" * (16 * 2**20 + 1)}, "16 MiB"),
    ],
)
def test_bad_arguments_are_refused_in_words(client, arguments, words):
    """A wrong argument is InvalidRequest that names it, before anything is embedded or written."""

    def never(texts):
        raise AssertionError("embedded")

    memory = Memory("assistant", embedder=as_embedder(never, dimension=3), client=client)
    with pytest.raises(InvalidRequest, match=words):
        memory.remember(**arguments)
    assert client.known == {}


@pytest.mark.parametrize(("query", "words"), [("\ud800", "lone surrogate"), (None, "be a str"), (["a"], "be a str")])
def test_a_bad_query_is_refused(memory, query, words):
    """recall takes one str that UTF-8 can carry, also with on_failure="empty"."""
    with pytest.raises(InvalidRequest, match=words):
        memory.recall(query)


def test_bad_construction_is_refused(client):
    """Wrong names, namespaces, embedders and on_failure are refused at once."""
    for arguments, words in [
        ({"name": ""}, "name"),
        ({"name": "a", "namespace": ["x"]}, "namespace"),
        ({"name": "a", "namespace": ""}, "namespace"),
        ({"name": "a", "on_failure": "ignore"}, 'expected "raise" or "empty"'),
        ({"name": "a", "embedder": 7}, "expected a callable"),
    ]:
        with pytest.raises(InvalidRequest, match=words):
            Memory(client=client, **arguments)


def test_metadata_is_not_changed_or_kept(memory):
    """The caller's dict stays the caller's."""
    mine = {"a": [1]}
    memory.remember("x", metadata=mine)
    mine["a"].append(2)
    assert memory.recall("x")[0].metadata == {"a": [1]}
    assert mine == {"a": [1, 2]}


@pytest.mark.parametrize("error", [SidecarUnavailable("away"), KalosTimeout("late"), RecallTimeout("late")])
def test_on_failure_empty(client, caplog, error):
    """recall is then an empty Recall that says why, with one warning for each outage; it works again afterwards."""
    memory = Memory("assistant", embedder=EMBEDDER, client=client, on_failure="empty")
    memory.remember("tea")
    for _ in range(2):
        client.fail = error
        caplog.clear()
        for _ in range(3):
            found = memory.recall("tea")
            assert (len(found), found.text, found.error, found.query) == (0, "", error, "tea")
            assert found.timings.embed > 0
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        client.fail = None
        assert len(memory.recall("tea")) == 1
    client.fail = error
    for write in (lambda: memory.remember("x"), lambda: memory.forget("x"), memory.count):
        with pytest.raises(type(error)):
            write()


def test_on_failure_empty_covers_opening_only_of_the_sidecar(client, caplog):
    """A sidecar that is away from the start gives empty recalls too; other errors are raised all the same."""
    memory = Memory("assistant", embedder=EMBEDDER, client=client, on_failure="empty")
    client.fail = SidecarUnavailable("none runs")
    assert memory.recall("tea").error is client.fail
    client.fail = StoreError("disk full")
    with pytest.raises(StoreError):
        memory.recall("tea")


def test_failures_raise_by_default(memory, client):
    """Without on_failure="empty" a recall that cannot be answered raises."""
    client.fail = SidecarUnavailable("away")
    with pytest.raises(SidecarUnavailable):
        memory.recall("tea")


def test_the_embedder_is_kept_with_the_collection(memory, client):
    """The collection gets the embedder's name, fingerprint and dimension; another of either is CollectionMismatch."""
    memory.remember("tea")
    kept = client.known["assistant"]
    assert kept.embedder == {"name": "letters", "fingerprint": "letters-1"}
    assert kept.dimension == 32
    other = as_embedder(embed, name="other", fingerprint="other-1")
    with pytest.raises(CollectionMismatch):
        Memory("assistant", embedder=other, client=client).recall("tea")
    short = as_embedder(lambda texts: embed(texts)[:, :8], name="short")
    with pytest.raises(CollectionMismatch):
        Memory("assistant", embedder=short, client=client).remember("tea")


def test_an_unknown_fingerprint_warns_once(client, caplog, monkeypatch):
    """Where the embedder has no fingerprint only the dimension is checked, and one warning says so."""
    monkeypatch.setattr(_memory, "_warned_unknown", set())
    for _ in range(2):
        memory = Memory("assistant", embedder=embed, client=client)
        memory.remember("tea")
        assert len(memory.recall("tea")) > 0
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "no fingerprint" in caplog.text


def test_forget_and_count_need_no_embedder(memory, client):
    """They work with an embedder that would fail."""

    def broken(texts):
        raise RuntimeError("no model here")

    memory.remember("tea", id="1")
    other = Memory("assistant", namespace="alice", embedder=broken, client=client)
    assert other.count() == 1
    assert other.forget("1") == 1


def test_an_embedder_that_fails_writes_nothing(memory, client):
    """The embedder's own error comes through, and no part of the list is written."""
    memory.remember("first")
    calls = []

    def fails_later(texts):
        calls.append(len(texts))
        if len(calls) > 1:
            raise RuntimeError("quota")
        return embed(texts)

    with pytest.raises(RuntimeError, match="quota"):
        Memory("assistant", namespace="alice", embedder=fails_later, client=client).remember(["x"] * 1000)
    assert memory.count() == 1


def test_a_dropped_collection_is_made_again(memory, client):
    """When somebody drops the collection, the next call goes on with a new one."""
    memory.remember("tea")
    client.drop_collection("assistant", confirm="assistant")
    assert len(memory.recall("tea")) == 0
    client.drop_collection("assistant", confirm="assistant")
    memory.remember("coffee")
    assert memory.count() == 1


def test_async_twins(client):
    """aremember, arecall, aforget and acount do what their twins do."""

    async def use():
        async with Memory("assistant", embedder=EMBEDDER, client=client, on_failure="empty") as memory:
            assert await memory.acount() == 0
            id = await memory.aremember("green tea", metadata={"a": 1}, ttl=60)
            ids = await memory.aremember(["x", "y"], id=["1", "2"])
            found = await memory.arecall("tea", k=1, filter={"a": 1})
            assert ([hit.id for hit in found], ids) == ([id], ["1", "2"])
            assert found.timings.search == 2.0
            client.drop_collection("assistant", confirm="assistant")
            assert len(await memory.arecall("tea")) == 0
            await memory.aremember("z", id="3")
            assert await memory.aforget(["3"]) == 1
            client.fail = SidecarUnavailable("away")
            assert (await memory.arecall("tea")).error is client.fail
            client.fail = None
            with pytest.raises(InvalidRequest):
                await memory.aforget()
            with pytest.raises(InvalidRequest):
                await memory.aremember("\ud800")

    asyncio.run(asyncio.wait_for(use(), 30))
    assert client.closed is False


def test_a_given_client_stays_open_and_an_own_one_is_closed(client, monkeypatch):
    """close ends only the connection that Memory made; after it, calls are refused in words."""
    memory = Memory("assistant", embedder=EMBEDDER, client=client)
    with memory:
        memory.remember("tea")
    assert not client.closed
    memory.close()
    with pytest.raises(InvalidRequest, match="is closed"):
        memory.count()


def test_threads_share_a_memory(memory):
    """Concurrent remembers and recalls lose nothing."""
    errors = []

    def work(n):
        try:
            for i in range(20):
                memory.remember(f"thread {n} note {i}")
                memory.recall("note")
        except Exception as error:  # carried to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    assert memory.count() == 80


def test_importing_memory_imports_no_model():
    """The import stays light: neither torch nor sentence-transformers nor a framework comes with it."""
    heavy = ("torch", "sentence_transformers", "transformers", "langchain_core", "llama_index", "huggingface_hub")
    code = f"import sys, kalos_memory._memory, kalos_memory._ingest; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# ---- the same against the real thing ---------------------------------------------------------------------------------


def have_kalosd():
    try:
        _sidecar.find_kalosd()
    except SidecarUnavailable:
        return False
    return True


@pytest.fixture(scope="module")
def shared():
    with kalos.connect(":memory:", timeout=20) as client:
        yield client


@pytest.mark.skipif(not have_kalosd(), reason="kalosd is not built")
class TestWithKalosd:
    """Memory and ingest over a private kalosd."""

    @pytest.fixture
    def memory(self, shared, request):
        return Memory(request.node.name, namespace=("alice", "work"), embedder=EMBEDDER, client=shared)

    def test_remember_recall_forget(self, memory):
        """What was remembered comes back, filtered, bounded by score, rendered and timed; then it is forgotten."""
        texts = ["green tea", "black tea", "a\x00b 😀", ""]
        ids = memory.remember(texts, metadata=[{"c": "g"}, {"c": "b"}, None, {"deep": {"list": [1, None, "ü"]}}])
        assert [memory.recall(text, k=1)[0].id for text in texts] == ids
        assert [hit.text for hit in memory.recall("tea", filter={"c": "b"})] == ["black tea"]
        assert {hit.text for hit in memory.recall("tea", min_score=0.6)} == {"green tea", "black tea"}
        assert memory.recall("", k=1)[0].metadata == {"deep": {"list": [1, None, "ü"]}}
        found = memory.recall("green tea", k=1)
        assert '<memory id="' in found.text
        assert 'date="20' in found.text
        assert found[0].score == pytest.approx(1, abs=1e-6)
        assert found.timings.search > 0
        assert found.timings.transport > 0
        assert sum(found.timings[name] for name in found.timings if name != "total") <= found.timings.total
        assert memory.forget(ids[0]) == 1
        assert memory.forget(filter={"c": "b"}) == 1
        assert memory.forget(everything=True) == 2
        assert memory.count() == 0

    def test_async(self, memory):
        """The async twins work over the same sidecar."""

        async def use():
            ids = await asyncio.gather(*(memory.aremember(f"note {i}") for i in range(10)))
            found = await asyncio.gather(*(memory.arecall(f"note {i}", k=10) for i in range(10)))
            assert all({hit.id for hit in each} == set(ids) for each in found)
            assert await memory.aforget(everything=True) == 10
            assert await memory.acount() == 0

        asyncio.run(asyncio.wait_for(use(), 60))

    def test_ttl(self, memory):
        """A memory with a ttl is recalled until then and not afterwards."""
        memory.remember("soon gone", id="1", ttl=1.5)
        memory.remember("stays", id="2", ttl=3600)
        assert len(memory.recall("x")) == 2
        watchdog = time.monotonic() + 60
        while {hit.id for hit in memory.recall("x")} != {"2"}:
            assert time.monotonic() < watchdog
            time.sleep(0.1)

    def test_another_embedder(self, memory, shared):
        """Another fingerprint or dimension than the collection's is CollectionMismatch; an unknown one is not."""
        memory.remember("tea")
        for other in (
            as_embedder(embed, name="letters", fingerprint="letters-2"),
            as_embedder(lambda texts: embed(texts)[:, :8], name="short"),
        ):
            with pytest.raises(CollectionMismatch):
                Memory(memory.name, embedder=other, client=shared).recall("tea")
        assert len(Memory(memory.name, namespace=memory.namespace, embedder=embed, client=shared).recall("tea")) == 1

    def test_a_dropped_collection(self, memory, shared):
        """A drop by somebody else does not break this Memory."""
        memory.remember("tea")
        shared.drop_collection(memory.name, confirm=memory.name)
        assert len(memory.recall("tea")) == 0
        memory.remember("coffee")
        assert memory.count() == 1

    def test_ingest(self, memory, tmp_path):
        """Documents are brought up to date: added, left alone, moved, removed."""
        (tmp_path / "a.md").write_text("# A\n\naa\n\n# B\n\nbb\n")
        (tmp_path / "b.txt").write_text("zz")

        def run():
            done = ingest(memory, read_documents([tmp_path]))
            return done.added, done.moved, done.unchanged, done.removed

        assert run() == (3, 0, 0, 0)
        assert run() == (0, 0, 3, 0)
        (tmp_path / "a.md").write_text("# C\n\ncc\n\n# D\n\ndd\n\n# B\n\nbb\n")
        (tmp_path / "b.txt").unlink()
        assert run() == (2, 1, 0, 2)
        assert run() == (0, 0, 3, 0)
        assert memory.recall("# B\n\nbb", k=1)[0].metadata["position"] == 2

    def test_large_and_many(self, memory):
        """A megabyte of text and a thousand memories in one list come back whole."""
        big = "long text " * 100_000
        memory.remember(big, id="big")
        ids = memory.remember([f"note number {i}" for i in range(1000)])
        assert len(set(ids)) == 1000
        assert memory.count() == 1001
        assert memory.recall(big, k=1)[0].text == big

    def test_an_own_connection(self, monkeypatch, tmp_path):
        """Without a client Memory starts kalosd when first needed, finds its memories again, closes after itself."""
        monkeypatch.setenv("KALOS_DATA_DIR", str(tmp_path))
        monkeypatch.delenv("KALOS_SOCKET", raising=False)
        monkeypatch.setenv("KALOS_IDLE_S", "1")
        with Memory("assistant", embedder=EMBEDDER) as memory:
            memory.remember("tea", id="1")
        with pytest.raises(InvalidRequest, match="is closed"):
            memory.recall("tea")
        with Memory("assistant", embedder=EMBEDDER) as memory:
            assert [hit.id for hit in memory.recall("tea")] == ["1"]

    def test_a_sidecar_that_died(self, caplog):
        """After kill -9 recall raises SidecarUnavailable, or is empty where that was asked for; remember raises."""
        client = kalos.connect(":memory:", timeout=5)
        strict = Memory("assistant", embedder=EMBEDDER, client=client)
        lenient = Memory("assistant", embedder=EMBEDDER, client=client, on_failure="empty")
        strict.remember("tea")
        assert len(lenient.recall("tea")) == 1
        os.kill(client.stats()["kalosd"]["pid"], signal.SIGKILL)
        with pytest.raises(SidecarUnavailable):
            strict.recall("tea")
        assert isinstance(lenient.recall("tea").error, SidecarUnavailable)
        assert isinstance(asyncio.run(lenient.arecall("tea")).error, SidecarUnavailable)
        assert sum("is empty until further notice" in record.getMessage() for record in caplog.records) == 1
        with pytest.raises(SidecarUnavailable):
            lenient.remember("tea")
        client.close()
