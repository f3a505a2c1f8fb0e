"""What Kalos is measured beside: numpy's exact brute force, and FAISS's where it is installed.

Peers run inside this process: no other process, no store, no text, no filter. That is what they are good at, and what
the comparison has to say.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from typing import Any

import numpy as np

from kalos_memory.bench._vectors import Floats

# From a float32 query to row numbers, best first.
Search = Callable[[Floats], list[int]]


def numpy_search(vectors: Floats, k: int) -> Search:
    """Exact brute force in float32 over unit vectors: product, argpartition, sort of the k kept."""
    k = min(k, len(vectors))

    def search(query: Floats) -> list[int]:
        scores = vectors @ query
        first = len(scores) - k
        kept = np.argpartition(scores, first)[first:] if first else np.arange(len(scores))
        return kept[np.argsort(-scores[kept], kind="stable")].tolist()  # type: ignore[no-any-return]

    return search


def faiss_search(vectors: Floats, k: int) -> Search | None:
    """FAISS's flat inner product index (exact, float32). None where FAISS is not installed."""
    if util.find_spec("faiss") is None:
        return None
    import faiss

    index: Any = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)

    def search(query: Floats) -> list[int]:
        _, rows = index.search(query.reshape(1, -1), k)
        return [int(row) for row in rows[0] if row >= 0]

    return search


def peers(vectors: Floats, k: int) -> dict[str, Search]:
    """The peers at hand, by name."""
    found = {"numpy": numpy_search(vectors, k)}
    faiss = faiss_search(vectors, k)
    if faiss is not None:
        found["FAISS flat"] = faiss
    return found


def not_measured() -> list[dict[str, str]]:
    """Peers that this run leaves out, each with the reason."""
    left_out = []
    if util.find_spec("faiss") is None:
        left_out.append({"what": "FAISS", "why": "not installed"})
    others = "HNSW indexes, Chroma, sqlite-vec, LanceDB, LangGraph"
    return [*left_out, {"what": others, "why": "a run of its own: kalos bench --peers"}]
