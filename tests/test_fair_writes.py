"""A client with a backlog of writes does not keep another one's waiting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from conftest import wait_until

import kalos_memory as kalos


def test_a_backlog_of_one_client_keeps_no_other_waiting(data_dir, tmp_path, monkeypatch):
    """Promise: clients take turns at the writer. One that posts much more than a group holds, and then another one that
    posts a little: the little is committed with the first of the much."""
    gate = tmp_path / "gate"
    monkeypatch.setenv("KALOS_FAILPOINT", f"mid_transaction@{gate}")
    with kalos.connect(data_dir, timeout=300) as greedy, kalos.connect(data_dir, timeout=300) as modest:
        monkeypatch.delenv("KALOS_FAILPOINT")
        notes, few = greedy.collection("notes", dimension=1), modest.collection("notes")
        texts = ["t" * 12_000_000]  # five of them are a group
        with ThreadPoolExecutor(16) as pool:
            gate.touch()
            first = pool.submit(notes.upsert, ["first"], None)
            wait_until(lambda: in_flight(modest) == 1, "the writer has come to the gate")
            much = [pool.submit(notes.upsert, [f"much {i}"], None, texts=texts) for i in range(7)]
            wait_until(lambda: in_flight(modest) == 8, "the backlog waits")
            little = pool.submit(few.upsert, ["little"], None)
            wait_until(lambda: in_flight(modest) == 9, "the little waits behind it")
            gate.unlink()
            sequences = sorted(write.result(300) for write in much)
            assert first.result(300) < sequences[0]
            assert little.result(300) == sequences[0] < sequences[-1]
        assert notes.count() == 9


def in_flight(client: kalos.Client) -> int:
    """Requests whose last part has arrived and that are not answered. (Parts before it are answered at once.)"""
    requests = client.stats()["requests"]
    return int(requests["in_flight"]) if requests["staged_bytes"] == 0 else -1
