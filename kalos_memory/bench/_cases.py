"""Recall, measured: the bare lane, recall by vector beside its peers, recall by text with the embedding told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kalos_memory.bench import _vectors
from kalos_memory.bench._loops import LOOPS, Budget, Series, measure
from kalos_memory.bench._peers import peers
from kalos_memory.bench._stats import histogram, percentile, summarize

if TYPE_CHECKING:
    from kalos_memory import Client, Collection, Memory

Progress = Callable[[str], None]

QUERIES = 256  # different questions, asked in turn
INSERT_BATCH = 2000
FIELDS = "kalos, text and metadata"
BARE = "kalos, include=()"


def report(series: Series, **more: Any) -> dict[str, Any]:
    """One measured series as JSON: who, which loop, the summary in microseconds, calls a second, the histogram."""
    summary = summarize(series.latencies_ns)
    return {
        "name": series.name,
        "loop": series.loop,
        "n": summary.n,
        "p50_us": summary.p50_us,
        "p99_us": summary.p99_us,
        "mean_us": summary.mean_us,
        "min_us": summary.min_us,
        "max_us": summary.max_us,
        "histogram": [[bucket.low_us, bucket.high_us, bucket.count] for bucket in histogram(series.latencies_ns)],
        **more,
    }


def measure_lane(client: Client, budget: Budget, progress: Progress) -> list[dict[str, Any]]:
    """A request that asks nothing: what every call pays for crossing into another process and back."""
    series = [Series("lane, no operation", loop, lambda _: client._noop()) for loop in LOOPS]
    measure(series, budget, progress)
    return [report(one) for one in series]


def fill(collection: Collection, vectors: _vectors.Floats, durability: str, progress: Progress) -> None:
    """Inserts the vectors with ids, texts of 200 bytes and metadata of three keys, in batches."""
    ids = _vectors.record_ids(len(vectors))
    for start in range(0, len(vectors), INSERT_BATCH):
        rows = range(start, min(start + INSERT_BATCH, len(vectors)))
        collection.upsert(
            ids[start : rows.stop],
            vectors[start : rows.stop],
            texts=[_vectors.record_text(row) for row in rows],
            metadatas=[_vectors.record_metadata(row) for row in rows],
            durability=durability,
        )
        progress(f"inserting {rows.stop:,} of {len(vectors):,} rows")


def measure_vectors(
    client: Client, rows: int, dimension: int, k: int, seed: int, budget: Budget, progress: Progress
) -> dict[str, Any]:
    """Recall by vector at one size: Kalos and its peers over the same vectors and the same queries, in turns."""
    vectors = _vectors.unit_vectors(rows, dimension, seed)
    queries = _vectors.unit_vectors(QUERIES, dimension, seed + 1)
    name = f"bench-{rows}"
    collection = client.collection(name, dimension=dimension, metric="cosine")
    try:
        fill(collection, vectors, "relaxed", progress)
        asked = list(queries)  # rows as arrays of their own: making them is not part of a search
        stages: dict[str, list[int]] = {"search": [], "fetch": []}

        def bare(query: int) -> object:
            return collection.search(asked[query % QUERIES], k, include=())

        def with_fields(query: int) -> object:
            # Text and metadata decode when they are read, so they are read here.
            hits = collection.search(asked[query % QUERIES], k)
            return [(hit.text, hit.metadata) for hit in hits]

        calls: dict[str, Callable[[int], object]] = {BARE: bare, FIELDS: with_fields}
        found = peers(vectors, k)
        for peer, search in found.items():
            calls[peer] = lambda query, search=search: search(asked[query % QUERIES])  # type: ignore[misc]
        series = [Series(call_name, loop, call) for call_name, call in calls.items() for loop in LOOPS]
        progress("comparing answers")
        answers = compare_answers(collection, vectors, queries[: 32 if rows <= 10_000 else 8], k, found)
        measure(series, budget, lambda words: progress(f"{rows:,} rows: {words}"))
        for query in range(min(QUERIES, 200)):
            _, timings = collection._search_timed(asked[query], k, include=())
            stages["search"].append(round(timings.search_us * 1000))
            stages["fetch"].append(round(timings.fetch_us * 1000))
    finally:
        client.drop_collection(name, confirm=name)
    return {
        "rows": rows,
        "dimension": dimension,
        "k": k,
        "metric": "cosine",
        "answers": answers,
        "stages_p50_us": {stage: percentile(sorted(times), 0.5) / 1000 for stage, times in stages.items()},
        "measurements": [report(one) for one in series],
    }


def compare_answers(
    collection: Collection, vectors: _vectors.Floats, queries: _vectors.Floats, k: int, found: dict[str, Any]
) -> dict[str, Any]:
    """Holds everybody's ids to the exact answer in float64. "equal" counts queries with the right ids in order."""
    number = {record: row for row, record in enumerate(_vectors.record_ids(len(vectors)))}
    equal = dict.fromkeys(["kalos", *found], 0)
    worst = 0.0
    for query in queries:
        expected, scores = _vectors.exact_top(vectors, query, k)
        hits = collection.search(query, k, include=())
        rows = [number[hit.id] for hit in hits]
        equal["kalos"] += _vectors.same_answer(rows, expected, scores, 1e-12)
        worst = max([worst, *(abs(hit.score - float(scores[row])) for hit, row in zip(hits, rows, strict=True))])
        for peer, search in found.items():
            equal[peer] += _vectors.same_answer(search(query), expected, scores, 1e-6)
    return {"checked": len(queries), "equal": equal, "largest_score_difference": worst}


def measure_text(memory: Memory, questions: list[str], k: int, budget: Budget, progress: Progress) -> dict[str, Any]:
    """Recall by text: the whole call, and of it the stages that the recall itself reports."""
    stages: dict[str, dict[str, list[float]]] = {loop: {} for loop in LOOPS}
    series = []
    for loop in LOOPS:

        def ask(query: int, into: dict[str, list[float]] = stages[loop]) -> object:
            recall = memory.recall(questions[query % len(questions)], k)
            for stage, value in recall.timings.items():
                into.setdefault(stage, []).append(value)
            return recall

        series.append(Series("kalos, recall by text", loop, ask))
    measure(series, budget, lambda words: progress(words))
    return {
        "rows": memory.count(),
        "k": k,
        "embedder": memory.embedder.name,
        "measurements": [
            report(one, stages_p50_us={stage: float(np.median(values)) for stage, values in stages[one.loop].items()})
            for one in series
        ],
    }
