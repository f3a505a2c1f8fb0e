"""A client and collections in memory, with the part of their interface that Memory and ingest rest on.

Searches by brute force and keeps the rules that matter to its callers: namespaces are walls, a collection remembers its
dimension and embedder, an unknown name without a dimension is NotFound. `fail` makes the next calls raise.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

import numpy as np

from kalos_memory._errors import CollectionMismatch, InvalidRequest, NotFound
from kalos_memory._types import Hit, Timings


def embed(texts):
    """A deterministic embedding of dimension 32: counts of letters, hashed pairwise; equal texts, equal vectors."""
    rows = np.full((len(texts), 32), 0.01, dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row[sum(word.encode()) % 32] += 1
    return rows


def matches(metadata, where):
    if not where:
        return True
    for key, wanted in where.items():
        value = metadata.get(key) if metadata else None
        tests = wanted if isinstance(wanted, dict) else {"$eq": wanted}
        for operator, operand in tests.items():
            ok = {
                "$eq": lambda v, o: v == o,
                "$in": lambda v, o: v in o,
                "$exists": lambda v, o: (v is not None) == o,
            }[operator](value, operand)
            if not ok:
                return False
    return True


class FakeCollection:
    def __init__(self, client, name, dimension, embedder):
        self.client, self.name, self.dimension, self.embedder = client, name, dimension, embedder
        self.rows = {}
        self.writes = []

    def _check(self):
        if self.client.fail is not None:
            raise self.client.fail
        if self.client.known.get(self.name) is not self:
            raise NotFound(f"the collection {self.name!r} was dropped")

    def upsert(self, ids, vectors, *, texts=None, metadatas=None, namespace=(), expires_at=None, durability=None):
        self._check()
        matrix = np.asarray(vectors, dtype=np.float32)
        if matrix.shape != (len(ids), self.dimension):
            raise InvalidRequest(f"vectors has shape {matrix.shape}")
        self.writes.append(len(ids))
        now = datetime.now(timezone.utc)
        for i, id in enumerate(ids):
            metadata = json.loads(json.dumps(metadatas[i])) if metadatas and metadatas[i] is not None else {}
            created = self.rows[namespace, id]["created_at"] if (namespace, id) in self.rows else now
            self.rows[namespace, id] = {
                "text": texts[i] if texts else None,
                "metadata": metadata,
                "vector": matrix[i].copy(),
                "created_at": created,
                "updated_at": now,
                "expires_at": expires_at,
            }
        return len(self.writes)

    def _hit(self, key, score, include):
        row = self.rows[key]
        fields = {name: row[name] for name in include}
        return Hit(
            key[1], score, namespace=key[0], created_at=row["created_at"], updated_at=row["updated_at"], **fields
        )

    def _keys(self, namespace, filter):
        return [key for key, row in self.rows.items() if key[0] == namespace and matches(row["metadata"], filter)]

    def _search_timed(
        self, vector, k, *, namespace=(), filter=None, min_score=None, include=("text", "metadata"), timeout=None
    ):
        self._check()
        vector = np.asarray(vector, dtype=np.float32)
        if vector.shape != (self.dimension,):
            raise InvalidRequest(f"the query has shape {vector.shape}")
        scored = []
        for key in self._keys(namespace, filter):
            stored = self.rows[key]["vector"]
            norm = float(np.linalg.norm(stored) * np.linalg.norm(vector))
            score = float(stored @ vector) / norm if norm else 0.0
            if min_score is None or score >= min_score:
                scored.append((score, key))
        scored.sort(key=lambda pair: -pair[0])
        return [self._hit(key, score, include) for score, key in scored[:k]], Timings(1.0, 2.0, 3.0, 4.0)

    async def _asearch_timed(self, vector, k, **options):
        return self._search_timed(vector, k, **options)

    def get(self, ids, *, namespace=(), include=("text", "metadata")):
        self._check()
        return [self._hit((namespace, id), None, include) if (namespace, id) in self.rows else None for id in ids]

    def delete(self, ids=None, *, filter=None, namespace=(), subtree=False, everything=False):
        self._check()
        if ids is None and filter is None and not everything:
            raise InvalidRequest("nothing to delete was named")
        keys = self._keys(namespace, filter)
        gone = [key for key in keys if ids is None or key[1] in ids]
        for key in gone:
            del self.rows[key]
        return len(gone)

    def count(self, *, namespace=(), subtree=False, filter=None):
        self._check()
        return len(self._keys(namespace, filter))

    def scan(self, *, namespace=(), filter=None, include=("text", "metadata"), **_):
        self._check()
        return iter([self._hit(key, None, include) for key in self._keys(namespace, filter)])

    async def aupsert(self, *args, **kwargs):
        return self.upsert(*args, **kwargs)

    async def adelete(self, *args, **kwargs):
        return self.delete(*args, **kwargs)

    async def acount(self, *args, **kwargs):
        return self.count(*args, **kwargs)


class FakeClient:
    def __init__(self):
        self.known = {}
        self.fail = None
        self.closed = False

    def collection(self, name, dimension=None, metric=None, *, embedder=None):
        if self.fail is not None:
            raise self.fail
        found = self.known.get(name)
        if found is None:
            if dimension is None:
                raise NotFound(f"no collection {name!r}")
            found = self.known[name] = FakeCollection(self, name, dimension, embedder)
        if dimension is not None and dimension != found.dimension:
            raise CollectionMismatch(f"{name!r} has dimension {found.dimension}, not {dimension}")
        theirs, ours = (found.embedder or {}).get("fingerprint"), (embedder or {}).get("fingerprint")
        if theirs and ours and theirs != ours:
            raise CollectionMismatch(f"{name!r} has the embedder {theirs}, not {ours}")
        return found

    def drop_collection(self, name, *, confirm):
        assert confirm == name
        del self.known[name]

    def close(self):
        self.closed = True
