"""The vector stores that people run today, each used as its documentation says, over the same vectors.

All of them run inside this process, and most keep neither text nor anything on a disk; those that are stores get ids
and texts as Kalos does. A store that cannot be measured is named, with the reason.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from typing import Any

from kalos_memory.bench._peers import Search, numpy_search
from kalos_memory.bench._vectors import Floats, record_text

BATCH = 1000  # rows inserted at a time, where a store takes batches


@dataclass(frozen=True)
class Store:
    """One way to keep vectors.

    Attributes:
        name: as it is reported.
        package: the module that it needs.
        build: (vectors float32 (n, d) of unit length, k) -> (search: query float32 (d,) -> row numbers, close).
        most_rows: beyond that it is left out, because one search takes so long.
    """

    name: str
    package: str
    build: Callable[[Floats, int], tuple[Search, Callable[[], None]]]
    most_rows: int = 10_000_000

    def left_out(self, rows: int) -> str | None:
        """Why it cannot be measured here over so many rows; None: it can."""
        if util.find_spec(self.package) is None:
            return "not installed"
        if self.package == "sqlite_vec" and not hasattr(_sqlite().Connection, "enable_load_extension"):
            return "this Python's sqlite3 loads no extensions; with pysqlite3-binary installed it is measured"
        return None if rows <= self.most_rows else f"measured up to {self.most_rows:,} rows"


def _nothing() -> None:
    pass


def _numpy(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    return numpy_search(vectors, k), _nothing


def _faiss(vectors: Floats, k: int, index: Any) -> tuple[Search, Callable[[], None]]:
    index.add(vectors)

    def search(query: Floats) -> list[int]:
        _, rows = index.search(query.reshape(1, -1), k)
        return [int(row) for row in rows[0] if row >= 0]

    return search, _nothing


def _faiss_flat(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    import faiss

    return _faiss(vectors, k, faiss.IndexFlatIP(vectors.shape[1]))


def _faiss_hnsw(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    import faiss

    index: Any = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    index.hnsw.efSearch = 128
    return _faiss(vectors, k, index)


def _usearch(vectors: Floats, k: int, exact: bool) -> tuple[Search, Callable[[], None]]:
    import numpy as np
    from usearch.index import Index

    index: Any = Index(ndim=vectors.shape[1], metric="cos", dtype="f32", connectivity=32, expansion_search=128)
    index.add(np.arange(len(vectors)), vectors)
    return lambda query: [int(row) for row in index.search(query, k, exact=exact).keys], _nothing


def _usearch_hnsw(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    return _usearch(vectors, k, exact=False)


def _usearch_exact(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    return _usearch(vectors, k, exact=True)


def _chroma(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    import chromadb
    from chromadb.config import Settings

    client = chromadb.EphemeralClient(settings=Settings(anonymized_telemetry=False))
    name = f"bench-{len(vectors)}"
    collection = client.create_collection(name, configuration={"hnsw": {"space": "cosine"}}, embedding_function=None)
    for start in range(0, len(vectors), BATCH):
        rows = range(start, min(start + BATCH, len(vectors)))
        collection.add(
            ids=[str(row) for row in rows],
            embeddings=vectors[start : rows.stop],
            documents=[record_text(row) for row in rows],
        )

    def search(query: Floats) -> list[int]:
        return [int(row) for row in collection.query(query_embeddings=[query], n_results=k)["ids"][0]]

    return search, lambda: client.delete_collection(name)


def _sqlite() -> Any:
    return import_module("pysqlite3" if util.find_spec("pysqlite3") else "sqlite3")


def _sqlite_vec(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    import sqlite_vec

    database = _sqlite().connect(":memory:")
    database.enable_load_extension(True)
    sqlite_vec.load(database)
    database.execute(
        f"CREATE VIRTUAL TABLE rows USING vec0(embedding float[{vectors.shape[1]}] distance_metric=cosine, +text text)"
    )
    with database:
        database.executemany(
            "INSERT INTO rows(rowid, embedding, text) VALUES (?, ?, ?)",
            ((row, vector.tobytes(), record_text(row)) for row, vector in enumerate(vectors)),
        )
    statement = "SELECT rowid FROM rows WHERE embedding MATCH ? AND k = ? ORDER BY distance"
    return lambda query: [row for (row,) in database.execute(statement, (query.tobytes(), k))], database.close


def _lancedb(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    import lancedb
    import pyarrow

    directory = tempfile.mkdtemp(prefix="kalos-bench-")
    flat = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), vectors.shape[1])
    texts = [record_text(row) for row in range(len(vectors))]
    data = pyarrow.table({"row": pyarrow.array(range(len(vectors))), "vector": flat, "text": texts})
    table = lancedb.connect(directory).create_table("rows", data)

    def search(query: Floats) -> list[int]:
        return [int(row["row"]) for row in table.search(query).distance_type("cosine").limit(k).to_list()]

    return search, lambda: shutil.rmtree(directory, ignore_errors=True)


def _langgraph(vectors: Floats, k: int) -> tuple[Search, Callable[[], None]]:
    from langgraph.store.memory import InMemoryStore

    known = {record_text(row): vector for row, vector in enumerate(vectors)}
    asked: dict[str, Floats] = {}

    def embed(texts: list[str]) -> list[list[float]]:
        # What an embedding model would give: its time is not the store's.
        return [(asked[text] if text in asked else known[text]).tolist() for text in texts]

    store: Any = InMemoryStore(index={"dims": vectors.shape[1], "embed": embed, "fields": ["text"]})
    for row in range(len(vectors)):
        store.put(("bench",), str(row), {"text": record_text(row)})

    def search(query: Floats) -> list[int]:
        asked["query"] = query
        return [int(found.key) for found in store.search(("bench",), query="query", limit=k)]

    return search, _nothing


STORES = (
    Store("numpy", "numpy", _numpy),
    Store("FAISS IndexFlatIP", "faiss", _faiss_flat),
    Store("FAISS HNSW (M 32, ef 128)", "faiss", _faiss_hnsw),
    Store("usearch HNSW (M 32, ef 128)", "usearch", _usearch_hnsw),
    Store("usearch exact", "usearch", _usearch_exact),
    Store("Chroma", "chromadb", _chroma),
    Store("sqlite-vec", "sqlite_vec", _sqlite_vec),
    Store("LanceDB, no index", "lancedb", _lancedb),
    Store("LangGraph InMemoryStore", "langgraph", _langgraph, most_rows=20_000),
)
