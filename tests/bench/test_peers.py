"""Peers of the benchmark that are measured only where they are installed."""

from __future__ import annotations

import pytest

from kalos_memory.bench import _peers, _vectors


def test_faiss_gives_the_exact_answer_and_is_named() -> None:
    """FAISS's flat index answers as the exact oracle does, and then is not listed among what was not measured."""
    pytest.importorskip("faiss", reason="FAISS is not installed")
    vectors = _vectors.unit_vectors(300, 16, seed=1)
    query = _vectors.unit_vectors(1, 16, seed=2)[0]
    for rows in (300, 3):
        search = _peers.peers(vectors[:rows], 7)["FAISS flat"]
        expected, scores = _vectors.exact_top(vectors[:rows], query, 7)
        assert _vectors.same_answer(search(query), expected, scores, 1e-6)
    assert all(left_out["what"] != "FAISS" for left_out in _peers.not_measured())


def test_a_missing_peer_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not installed is said, not passed over."""
    monkeypatch.setattr(_peers.util, "find_spec", lambda name: None)
    assert list(_peers.peers(_vectors.unit_vectors(3, 4, seed=1), 2)) == ["numpy"]
    assert {"what": "FAISS", "why": "not installed"} in _peers.not_measured()
