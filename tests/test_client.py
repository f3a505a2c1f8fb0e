"""Client: connecting, closing, sharing, pickling, batches, and living through the death of its sidecar."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from datetime import datetime, timezone

import numpy as np
import pytest
from conftest import stopped, wait_until

import kalos_memory as kalos
from kalos_memory import _abi, _calls, _client, _sidecar
from kalos_memory._lane import LaneLost, exchange

V = [1.0, 0.0, 0.0, 0.0]


def kill(client, data_dir):
    """Kills the sidecar as the kernel would, and waits until it is dead."""
    pid = client.stats()["kalosd"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _sidecar.is_locked(data_dir), "the killed sidecar is gone")
    return pid


# ----------------------------------------------------------------------------------------- connecting ----------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"durability": "fsync"}, "durability"),
        ({"load_timeout": float("nan")}, "load_timeout"),
    ],
)
def test_connect_checks_its_arguments(options, words, tmp_path):
    with pytest.raises(kalos.InvalidRequest, match=words):
        kalos.connect(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_closed_client(data_dir):
    """close() twice is once; use after it is an error in words; so is use of its collections."""
    client = kalos.connect(data_dir)
    collection = client.collection("c", dimension=4)
    client.close()
    client.close()
    for use in (client.collections, client.health, client._noop, lambda: collection.search(V)):
        with pytest.raises(kalos.SidecarUnavailable, match="closed"):
            use()
    assert "closed" in repr(client)


def test_close_ends_calls_that_wait(client, data_dir):
    """Another thread's wait ends with words, at once. A write that was posted may be done, and is not called undone."""
    collection = client.collection("c", dimension=4)
    pid = client.stats()["kalosd"]["pid"]
    with stopped(pid):
        failed = []

        def wait(call):
            try:
                call()
            except kalos.KalosError as error:
                failed.append(error)

        calls = [collection.count, lambda: collection.upsert(["a"], [V])]
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        wait_until(lambda: client._connection.lane.in_use == 2, "the calls are posted")
        client.close()
        for thread in threads:
            thread.join(30)
        assert {type(error) for error in failed} == {kalos.SidecarUnavailable, kalos.WriteOutcomeUnknown}
        assert all("closed" in str(error) for error in failed)


def test_a_forgotten_client_warns_nobody(data_dir):
    """No ResourceWarning, no message from __del__."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client = kalos.connect(data_dir)
        client.collection("c", dimension=4)
        del client
        gc.collect()
    assert not caught
    code = "import sys, kalos_memory as k; c = k.connect(sys.argv[1]); n = c.collection('c', dimension=4); n.count()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", code, data_dir], capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_socket_from_argument_and_environment(client, data_dir, monkeypatch, sidecar_pid):
    """KALOS_SOCKET is used where no data directory is given, and an argument beats it."""
    path = _sidecar.lock_holder(data_dir)["socket"]
    with kalos.connect(socket=path) as other:
        assert sidecar_pid(other) == sidecar_pid(client)
    monkeypatch.setenv("KALOS_SOCKET", path)
    with kalos.connect() as other:
        assert sidecar_pid(other) == sidecar_pid(client)
    with kalos.connect(os.path.join(data_dir, "other")) as other:
        assert sidecar_pid(other) != sidecar_pid(client)
    _sidecar.stop(os.path.join(data_dir, "other"))


def test_health_and_stats(client, data_dir):
    assert client.health() == {"status": "ready", "words": ""}
    report = client.stats()
    assert report["kalosd"]["data_dir"] == os.path.realpath(data_dir)
    assert report["lanes"]["clients"][0]["pid"] == os.getpid()
    assert report["requests"]["total"] >= 0


def test_threads_share_a_client(collection):
    """More threads than slots, all right."""
    rows = np.eye(4, dtype=np.float32)
    collection.upsert(list("abcd"), rows)
    wrong = []

    def work(i):
        for _ in range(40):
            hits = collection.search(rows[i % 4], k=1)
            if [hit.id for hit in hits] != ["abcd"[i % 4]]:
                wrong.append(hits)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fork_registry_does_not_keep_clients_alive(data_dir):
    before = len(_client._clients)
    client = kalos.connect(data_dir)
    client.close()
    del client
    gc.collect()
    assert len(_client._clients) == before


# ------------------------------------------------------------------------------------------- pickling ----------------


def test_pickle_carries_where_and_how_and_nothing_else(data_dir):
    with kalos.connect(data_dir, timeout=7, durability="relaxed", load_timeout=3) as client:
        notes = client.collection("notes", dimension=4)
        notes.upsert(["a"], [V])
        copy, copied_notes = pickle.loads(pickle.dumps((client, notes)))
        with copy:
            assert copied_notes.count() == 1
            assert copied_notes._transport is copy
            assert copy.timeout_s == 7
            assert (copy.durability, copy.load_timeout_s) == ("commit", 30.0)
            assert copy._target.data_dir == data_dir
            assert copied_notes.name == "notes"


def test_a_private_client_cannot_be_pickled(shared):
    with pytest.raises(kalos.InvalidRequest, match="cannot be pickled"):
        pickle.dumps(shared)


# ---------------------------------------------------------------------------------------- collections ----------------


def test_collection_is_created_opened_and_compared(client):
    """A mismatch names both sides; the metric is cosine by default; opening needs no dimension."""
    made = client.collection("notes", dimension=4)
    assert (made.name, made.dimension, made.metric, made.embedder) == ("notes", 4, "cosine", None)
    again = client.collection("notes")
    assert (again.dimension, again.metric) == (4, "cosine")
    with pytest.raises(kalos.CollectionMismatch, match=r"4.*5|5.*4"):
        client.collection("notes", dimension=5)
    with pytest.raises(kalos.CollectionMismatch, match=r"cosine.*dot|dot.*cosine"):
        client.collection("notes", metric="dot")
    with pytest.raises(kalos.NotFound, match="other"):
        client.collection("other")


def test_embedder_is_kept_and_compared(client):
    first = client.collection("notes", dimension=4, embedder={"name": "m", "fingerprint": "f1"})
    assert first.embedder == {"name": "m", "fingerprint": "f1"}
    assert client.collection("notes").embedder == {"name": "m", "fingerprint": "f1"}
    assert client.collection("notes", embedder={"name": "m", "fingerprint": None}).embedder["fingerprint"] == "f1"
    with pytest.raises(kalos.CollectionMismatch, match="f2"):
        client.collection("notes", embedder={"name": "m", "fingerprint": "f2"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("",), "name"),
        ((b"notes",), "name"),
        ((None,), "name"),
        (("x" * 256,), "255"),
        (("\ud800",), "surrogate"),
        (("n", 0), "dimension"),
        (("n", 8193), "8192"),
        (("n", 4.0), "dimension"),
        (("n", True), "dimension"),
        (("n", 4, "euclid"), "metric"),
    ],
)
def test_collection_checks_its_arguments(shared, arguments, words):
    with pytest.raises(kalos.InvalidRequest, match=words):
        shared.collection(*arguments)


@pytest.mark.parametrize("embedder", ["minilm", {"model": "x"}, {"name": 3}, {"name": "\ud800"}])
def test_embedder_must_be_a_description(shared, embedder):
    with pytest.raises(kalos.InvalidRequest, match="embedder"):
        shared.collection("n", 4, embedder=embedder)


@pytest.mark.parametrize("name", ["x", "ü" * 127, "a b/c:\n😀\0", "x" * 255])
def test_any_text_may_be_a_name(shared, name):
    shared.collection(name, dimension=1)
    assert name in [described["name"] for described in shared.collections()]
    shared.drop_collection(name, confirm=name)
    assert name not in [described["name"] for described in shared.collections()]


def test_collections_are_described_and_sorted(client):
    for name, metric in (("b", "l2"), ("a", "dot")):
        client.collection(name, dimension=3, metric=metric)
    a, b = client.collections()
    assert (a["name"], a["dimension"], a["metric"], a["embedder"]) == ("a", 3, "dot", None)
    assert b["name"] == "b"
    assert abs((datetime.now(timezone.utc) - a["created_at"]).total_seconds()) < 600


def test_drop_needs_the_name_twice(client):
    notes = client.collection("notes", dimension=4)
    notes.upsert(["a"], [V])
    for confirm in ("", "note", None, True):
        with pytest.raises(kalos.InvalidRequest, match="confirm"):
            client.drop_collection("notes", confirm=confirm)
    client.drop_collection("notes", confirm="notes")
    with pytest.raises(kalos.NotFound):
        client.drop_collection("notes", confirm="notes")
    with pytest.raises(kalos.NotFound):
        notes.search(V)
    again = client.collection("notes", dimension=2)
    assert again.count() == 0
    with pytest.raises(kalos.NotFound):
        notes.upsert(["a"], [V])


# -------------------------------------------------------------------------------------------- batches ----------------


def test_batch_reads_before_it_writes(shared, collection):
    """All reads see the state before the batch; results come in the order of the operations."""
    other = shared.collection("batch-other", dimension=2, metric="dot")
    collection.upsert(["a", "b"], [V, [0, 1, 0, 0]], texts=["ta", "tb"])
    results = shared.batch(
        [
            collection.op.count(),
            collection.op.upsert(["c"], [V], texts=["tc"]),
            collection.op.search([V, V], k=1),
            other.op.upsert(["o"], [[1, 2]]),
            collection.op.get(["a", "c"]),
            collection.op.delete(["a"]),
            collection.op.namespaces(),
            other.op.search([1, 1], k=3),
        ]
    )
    assert results[0] == 2
    assert [[hit.id for hit in hits] for hits in results[2]] == [["a"], ["a"]]
    assert [hit and hit.text for hit in results[4]] == ["ta", None]
    assert results[5] == 1
    assert results[6] == [()]
    assert results[7] == []
    assert results[1] == results[3]
    assert [hit and hit.id for hit in collection.get(["a", "b", "c"])] == [None, "b", "c"]
    assert other.search([1, 1])[0].score == 3
    shared.drop_collection("batch-other", confirm="batch-other")


def test_batch_is_all_or_nothing(shared, collection):
    """One operation that fails fails the batch with its words, and nothing is changed."""
    gone = shared.collection("batch-gone", dimension=4)
    shared.drop_collection("batch-gone", confirm="batch-gone")
    with pytest.raises(kalos.NotFound):
        shared.batch([collection.op.upsert(["a"], [V]), gone.op.upsert(["a"], [V])])
    assert collection.count() == 0


def test_batch_of_reads_only_and_empty_batch(shared, collection):
    assert shared.batch([collection.op.count(), collection.op.get([])]) == [0, []]
    assert shared.batch([]) == []


@pytest.mark.parametrize("bad", [[1], ["search"], [None]])
def test_batch_refuses_what_is_no_operation(shared, bad):
    with pytest.raises(kalos.InvalidRequest, match="element 0"):
        shared.batch(bad)


# ----------------------------------------------------------------------------------------- bad weather ---------------


def test_reads_survive_the_death_of_the_sidecar(client, data_dir):
    """kill -9 between two calls, and a start from the store: the next read answers, and so does everything after it."""
    notes = client.collection("notes", dimension=4)
    notes.upsert(["a"], [V], texts=["t"])
    dead = kill(client, data_dir)
    assert [hit.text for hit in notes.search(V)] == ["t"]
    assert client.stats()["kalosd"]["pid"] != dead
    kill(client, data_dir)
    assert client.collections()[0]["name"] == "notes"
    kill(client, data_dir)
    assert client.health()["status"] in ("ready", "loading")
    assert notes.upsert(["b"], [V]) > 0


def test_writes_survive_the_death_of_the_sidecar(client, data_dir):
    """A write that meets a dead sidecar is done once by the next one."""
    notes = client.collection("notes", dimension=4)
    sequences = []
    for i in range(5):
        sequences.append(notes.upsert([f"a{i}"], [V]))
        kill(client, data_dir)
    assert notes.count() == 5
    assert sequences == sorted(set(sequences))


def test_a_write_whose_answer_was_lost_gets_the_first_answer(client, data_dir, monkeypatch):
    """Resent under the same write id: a delete that was done says how many it deleted, not 0."""
    notes = client.collection("notes", dimension=4)
    notes.upsert(["a", "b"], [V, V])
    operation = notes.op.delete(["a", "b"])
    lost = []

    def exchange_and_lose(lane, opcode, message, deadline_ns, patience_ns=0):
        run = exchange(lane, opcode, message, deadline_ns, patience_ns)
        if opcode == _abi.OP_DELETE and not lost:
            lost.append(run)
            error = LaneLost()
            error.committed = run.committed
            raise error
        return run

    monkeypatch.setattr(_calls, "exchange", exchange_and_lose)
    assert client._perform(operation) == 2
    assert lost
    assert notes.count() == 0


def test_no_way_back_is_write_outcome_unknown(data_dir, monkeypatch):
    """The sidecar dies with the write and cannot be started again: the caller is told that nobody knows."""
    with kalos.connect(data_dir, timeout=1) as client:
        notes = client.collection("notes", dimension=4)
        pid = client.stats()["kalosd"]["pid"]
        outcome = []

        def write():
            try:
                notes.upsert(["a"], [V])
            except kalos.KalosError as error:
                outcome.append(error)

        thread = threading.Thread(target=write)
        with stopped(pid):
            thread.start()
            wait_until(lambda: client._connection.lane.in_use == 1, "the write is posted")
            time.sleep(0.05)
            monkeypatch.setenv("KALOSD", os.path.join(data_dir, "no-such-program"))
            os.kill(pid, signal.SIGKILL)
        thread.join(60)
        assert type(outcome[0]) is kalos.WriteOutcomeUnknown, outcome
        assert len(outcome[0].write_id) == 16
        with pytest.raises(kalos.SidecarUnavailable, match="no-such-program"):
            notes.count()
        monkeypatch.undo()


def test_a_stopped_sidecar_times_out_then_overloads_then_recovers(data_dir):
    """Reads time out in time, slots that were given up are not reused, and all comes back with the sidecar."""
    with kalos.connect(data_dir) as client:
        notes = client.collection("notes", dimension=4)
        notes.upsert(["a"], [V])
        pid = client.stats()["kalosd"]["pid"]
        with stopped(pid):
            with pytest.raises(kalos.RecallTimeout, match=r"within 0\.0"):
                notes.search(V, timeout=0.03)
            with pytest.raises(kalos.KalosTimeout) as caught:
                notes.count(timeout=0.03)
            assert type(caught.value) is kalos.KalosTimeout
            for _ in range(_abi.DEFAULT_SLOT_COUNT - 2):
                with pytest.raises(kalos.RecallTimeout):
                    notes.search(V, timeout=0.01)
            with pytest.raises(kalos.Overloaded, match="given up"):
                notes.search(V, timeout=0.01)

        def recovered():
            try:
                return [hit.id for hit in notes.search(V, timeout=20)] == ["a"]
            except kalos.Overloaded:
                return False

        wait_until(recovered, "the slots come back")
        for _ in range(20):
            assert notes.count(timeout=20) == 1


def test_drain_is_followed_to_the_next_sidecar(client, data_dir):
    """Calls go on while the sidecar is stopped again and again; none fails, none is lost."""
    notes = client.collection("notes", dimension=4)
    stop = threading.Event()
    done, failed = [], []

    def write(worker):
        i = 0
        while not stop.is_set():
            try:
                notes.upsert([f"{worker}-{i}"], [V], durability="relaxed")
                assert notes.search(V, k=1)
                done.append((worker, i))
            except Exception as error:
                failed.append(error)
                return
            i += 1

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        wanted = len(done) + 6
        wait_until(lambda: len(done) >= wanted or failed, "writes go on")  # noqa: B023
        _sidecar.stop(data_dir, timeout=60)
    wanted = len(done) + 6
    wait_until(lambda: len(done) >= wanted or failed, "writes go on after the last stop")
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert notes.count() == len(done)


def test_the_end_of_a_private_sidecar_is_told(kalosd):
    """Its data is gone: no new one is started in its place in silence."""
    with kalos.connect(":memory:", timeout=30) as client:
        notes = client.collection("notes", dimension=4)
        os.kill(client.stats()["kalosd"]["pid"], signal.SIGKILL)
        with pytest.raises(kalos.SidecarUnavailable, match="data with it"):
            notes.count()


def test_ctrl_c_in_a_wait(data_dir):
    """KeyboardInterrupt comes at once, and the client works on."""
    with kalos.connect(data_dir, timeout=120) as client:
        notes = client.collection("notes", dimension=4)
        notes.upsert(["a"], [V])
        pid = client.stats()["kalosd"]["pid"]
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        with stopped(pid):
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                notes.search(V)
            timer.join()
        assert notes.count() == 1


def test_min_sequence_sees_the_write_and_a_future_one_times_out(shared, collection):
    sequence = collection.upsert(["a"], [V])
    assert collection.count(min_sequence=sequence) == 1
    with pytest.raises(kalos.RecallTimeout):
        collection.search(V, min_sequence=sequence + 1000, timeout=0.05)
