"""Kalos beside the stores of _stores, on the same vectors in one run: recall, latency, time to build, memory."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kalos_memory._errors import InvalidRequest
from kalos_memory.bench import _cases, _vectors
from kalos_memory.bench._loops import LOOPS, Budget, Series, measure
from kalos_memory.bench._stats import percentile
from kalos_memory.bench._stores import STORES, Store
from kalos_memory.bench._text import passages

if TYPE_CHECKING:
    from kalos_memory import Client

QUERIES = 200
CHECKED = 50  # of them, held to the exact answer
KALOS = "Kalos"
_MOST_TEXTS = 20_000
_PASSAGE = 400  # characters


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def texts_below(directory: Path) -> list[str]:
    """Different passages of 40 to 400 characters from the .txt, .md, .json and .jsonl files below a directory.

    Raises InvalidRequest where there are fewer than 300."""

    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from strings(part)

    def read(path: Path) -> Iterator[str]:
        text = path.read_text(errors="replace")
        if path.suffix == ".json":
            yield from strings(json.loads(text))
        elif path.suffix == ".jsonl":
            for line in text.splitlines():
                yield from strings(json.loads(line))
        else:
            yield from text.split("\n\n")

    found: dict[str, None] = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix not in (".txt", ".md", ".json", ".jsonl") or not path.is_file():
            continue
        for part in read(path):
            words = " ".join(part.split())
            for start in range(0, len(words), _PASSAGE):
                passage = words[start : start + _PASSAGE]
                if len(passage) >= 40:
                    found[passage] = None
            if len(found) >= _MOST_TEXTS:
                return list(found)[:_MOST_TEXTS]
    if len(found) < 300:
        raise InvalidRequest(
            f"--texts {directory}: {len(found)} passages of 40 characters or more; expected 300 at least"
        )
    return list(found)


def embedded_texts(client: Client, directory: Path | None, progress: Callable[[str], None]) -> _vectors.Floats:
    """float32 (n, d) of unit length: texts of the directory, or of Python's manual, by the default embedder."""
    import kalos_memory as kalos

    texts = texts_below(directory) if directory else passages(2_000)
    embedder = kalos.Memory("bench-embeds", client=client).embedder
    parts = []
    for start in range(0, len(texts), 256):
        progress(f"embedding text {start:,} of {len(texts):,}")
        parts.append(np.asarray(embedder.embed_documents(texts[start : start + 256]), dtype=np.float32))
    vectors = np.concatenate(parts)
    vectors = vectors[np.random.default_rng(1).permutation(len(vectors))]
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def compare(
    client: Client, family: str, vectors: _vectors.Floats, k: int, budget: Budget, progress: Callable[[str], None]
) -> dict[str, Any]:
    """All stores that are installed, over all vectors but the last QUERIES, which are asked for."""
    stored, queries = np.ascontiguousarray(vectors[:-QUERIES]), list(vectors[-QUERIES:])
    rows = len(stored)
    exact = [set(_vectors.exact_top(stored, query, k)[0]) for query in queries[:CHECKED]]
    results: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    series: list[Series] = []

    def built(name: str, pid: int, build: Callable[[], Callable[[_vectors.Floats], list[int]]]) -> None:
        progress(f"{family}, {rows:,} rows: building {name}")
        gc.collect()
        before, start = _resident_bytes(pid), time.perf_counter()
        search = build()
        seconds = time.perf_counter() - start
        gc.collect()
        memory = max(0, _resident_bytes(pid) - before)
        hits = [len(exact[i] & set(search(queries[i]))) for i in range(CHECKED)]
        results.append(
            {
                "name": name,
                "build_s": seconds,
                "memory_bytes": memory,
                "recall": sum(hits) / sum(len(one) for one in exact),
            }
        )
        series.extend(Series(name, loop, lambda query: search(queries[query % QUERIES])) for loop in LOOPS)

    with ExitStack() as until_the_end:
        name = f"bench-{family}-{rows}"
        collection = client.collection(name, dimension=stored.shape[1], metric="cosine")
        until_the_end.callback(client.drop_collection, name, confirm=name)

        def build_kalos() -> Callable[[_vectors.Floats], list[int]]:
            _cases.fill(collection, stored, "relaxed", lambda words: None)
            number = {record: row for row, record in enumerate(_vectors.record_ids(rows))}
            return lambda query: [number[hit.id] for hit in collection.search(query, k, include=())]

        built(KALOS, client.stats()["kalosd"]["pid"], build_kalos)

        def build(store: Store) -> Callable[[_vectors.Floats], list[int]]:
            search, close = store.build(stored, k)
            until_the_end.callback(close)
            return search

        for store in STORES:
            if why := store.left_out(rows):
                left_out.append({"what": store.name, "why": why})
            else:
                built(store.name, os.getpid(), lambda store=store: build(store))  # type: ignore[misc]
        measure(series, budget, lambda words: progress(f"{family}, {rows:,} rows: {words}"))
    for result in results:
        for one in series:
            if one.name == result["name"]:
                ordered = sorted(one.latencies_ns)
                result[one.loop] = {
                    "n": len(ordered),
                    **{f"p{percent}_us": percentile(ordered, percent / 100) / 1000 for percent in (50, 95, 99)},
                }
    return {
        "family": family,
        "rows": rows,
        "dimension": stored.shape[1],
        "k": k,
        "stores": results,
        "not_measured": left_out,
    }
