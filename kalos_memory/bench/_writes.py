"""Writes, measured on a real directory: durable ingest, and one acknowledged write.

Every acknowledgement here means flushed to disk (durability "commit"), on a file system that has a disk under it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalos_memory.bench import _vectors
from kalos_memory.bench._cases import report
from kalos_memory.bench._loops import LOOPS, Budget, Series, measure
from kalos_memory.bench._machine import file_system

if TYPE_CHECKING:
    from kalos_memory import Client

INGEST_BATCH = 1000
TEXT_BYTES = 200
IN_MEMORY = ("tmpfs", "ramfs")


def disk_directory(wanted: Path | None = None) -> Path:
    """Where temporary data meets a disk: the wanted directory, else the first of the usual ones that is not in RAM."""
    if wanted is not None:
        return wanted
    usual = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.home()]
    for directory in usual:
        if directory.is_dir() and os.access(directory, os.W_OK) and file_system(directory) not in IN_MEMORY:
            return directory
    return usual[0]


def measure_writes(
    client: Client, data_dir: Path, dimension: int, seed: int, most_rows: int, budget: Budget,
    progress: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Ingests in batches for four times the budget's seconds or until most_rows, then writes single records."""
    collection = client.collection("bench-writes", dimension=dimension, metric="cosine")
    vectors = _vectors.unit_vectors(min(most_rows, 20_000), dimension, seed)

    def batch(first: int, size: int) -> tuple[list[str], _vectors.Floats, list[str], list[dict[str, Any]]]:
        rows = range(first, first + size)
        source = first % max(len(vectors) - size, 1)
        return (
            [f"ingest-{row}" for row in rows],
            vectors[source : source + size],
            [_vectors.record_text(row, TEXT_BYTES) for row in rows],
            [_vectors.record_metadata(row) for row in rows],
        )

    done, spent_ns = 0, 0
    times_ns: list[int] = []
    while done < most_rows and (spent_ns < 4 * budget.seconds * 1e9 or not times_ns):
        size = min(INGEST_BATCH, most_rows - done)
        ids, part, texts, metadatas = batch(done, size)  # the bench's own work is not the ingest's
        start = time.perf_counter_ns()
        collection.upsert(ids, part, texts=texts, metadatas=metadatas, durability="commit")
        times_ns.append(time.perf_counter_ns() - start)
        spent_ns += times_ns[-1]
        done += size
        progress(f"durable ingest, {done:,} rows")

    def write(number: int) -> object:
        row = number % len(vectors)
        return collection.upsert(
            [f"one-{number}"],
            vectors[row : row + 1],
            texts=[_vectors.record_text(row, TEXT_BYTES)],
            metadatas=[_vectors.record_metadata(row)],
            durability="commit",
        )

    series = [Series("one acknowledged write", LOOPS[0], write), Series("one acknowledged write", LOOPS[1], write)]
    series[1].next_query = 1_000_000_000  # ids of its own
    measure(series, budget, progress)
    return {
        "durability": "commit",
        "file_system": file_system(data_dir),
        "ingest": {
            "rows": done,
            "dimension": dimension,
            "text_bytes": TEXT_BYTES,
            "metadata_keys": 3,
            "batch_rows": INGEST_BATCH,
            "seconds": spent_ns / 1e9,
            "rows_per_second": done / (spent_ns / 1e9),
        },
        "measurements": [report(one) for one in series],
    }
