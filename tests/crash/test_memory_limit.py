"""The memory limit, from the client's side: met by a write, and met at the start."""

from __future__ import annotations

import re

import pytest

import kalos_memory as kalos
from kalos_memory import _sidecar

VECTOR = [1.0, 0.0, 0.0, 0.0]


def test_met_by_a_write_and_at_the_start(data_dir, monkeypatch):
    """Promise: a write beyond the limit is refused with need, limit and flag, and changes nothing; a delete frees room.
    At a start with less, what does not fit is cold and says so while the rest serves; with more it is back, whole."""
    monkeypatch.setenv("KALOS_MEMORY", "8M")
    with kalos.connect(data_dir, timeout=30.0) as client:
        client.collection("small", dimension=4).upsert(["a"], [VECTOR], texts=["kept"])
        notes = client.collection("large", dimension=4)
        stored = 0
        words = ""
        for stored in range(1000):
            try:
                notes.upsert([f"{stored}-{row}" for row in range(4)], [VECTOR] * 4, texts=["t" * 50_000] * 4)
            except kalos.StoreError as error:
                words = str(error)
                break
        assert re.search("the write needs .* more memory, of the limit of .* are left.*--memory", words), words
        assert stored > 10
        assert notes.count() == 4 * stored
        notes.delete([f"{batch}-{row}" for batch in (0, 1) for row in range(4)])
        notes.upsert([f"again-{row}" for row in range(4)], [VECTOR] * 4, texts=["t" * 50_000] * 4)
        ids = {hit.id for hit in notes.scan(include=())}
        assert len(ids) == 4 * (stored - 1)
    assert _sidecar.stop(data_dir, timeout=60) is not None

    monkeypatch.setenv("KALOS_MEMORY", "2M")
    with kalos.connect(data_dir, timeout=30.0) as client:
        assert client.collection("small").get(["a"])[0].text == "kept"
        large = client.collection("large")
        with pytest.raises(kalos.StoreError, match=r"\"large\".*--memory"):
            large.search(VECTOR)
        with pytest.raises(kalos.StoreError, match="--memory"):
            large.upsert(["x"], [VECTOR])
        health = str(client.health())
        assert "degraded" in health, health
        assert "large" in health, health
    assert _sidecar.stop(data_dir, timeout=60) is not None

    monkeypatch.setenv("KALOS_MEMORY", "64M")
    with kalos.connect(data_dir, timeout=30.0) as client:
        assert {hit.id for hit in client.collection("large").scan(include=())} == ids
