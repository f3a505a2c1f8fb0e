"""Memory: text in, text out. Embeds in this process and keeps the vectors in a collection of the sidecar."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from kalos_memory import _checks
from kalos_memory._errors import InvalidRequest, KalosError, KalosTimeout, NotFound, SidecarUnavailable
from kalos_memory._fork_lock import ForkLock
from kalos_memory._recall import Recall, RecallTimings
from kalos_memory._records import Records, Ttl
from kalos_memory.embed import CheckedEmbedder, as_embedder, default_embedder
from kalos_memory.embed._base import FloatMatrix

if TYPE_CHECKING:
    from kalos_memory._client import Client
    from kalos_memory._collection import Collection
    from kalos_memory._types import Hit, Timings

T = TypeVar("T")

_INCLUDE = ("text", "metadata")
_EMBED_BATCH = 256  # texts handed to the embedder at once
_log = logging.getLogger("kalos_memory")
_warned_unknown: set[tuple[str, str]] = set()


class Memory:
    """What an agent remembers, in one collection and one namespace of it.

    Args:
        name: the collection (1 to 255 bytes of UTF-8); made at the first `remember` or `recall`, with metric cosine.
        namespace: the hard wall around this memory, such as a user: a str or a tuple of str; () is the root.
        embedder: anything `kalos_memory.embed.as_embedder` accepts. None is all-MiniLM-L6-v2 by sentence-transformers,
            loaded when it is first needed.
        client: a Client to share. None connects when first needed, starting kalosd if none runs; `close` ends it.
        on_failure: "raise", or "empty": then a `recall` that finds no sidecar or no answer in time returns an empty
            Recall (its `error` says why), with one WARNING of the logger `kalos_memory` for each outage. `remember`
            and `forget` always raise.

    The embedder's name, dimension and fingerprint are kept with the collection: another fingerprint or dimension is
    CollectionMismatch. Where the fingerprint is unknown only the dimension is checked, with one WARNING.

    A text longer than the embedder reads is kept whole but found by its beginning only; cut long documents first.
    Safe to use from several threads. The methods that begin with `a` are the same for asyncio.

    Example:
        >>> memory = Memory("assistant", namespace="alice")
        >>> memory.remember("Alice prefers green tea", metadata={"source": "chat"})
        '1c7e0e0e6a8f4a4f9d0f1f6f6f1c2b3a'
        >>> memory.recall("what does she drink?", k=1).text
        '<memories>…'
    """

    def __init__(
        self,
        name: str,
        *,
        namespace: str | tuple[str, ...] = (),
        embedder: Any = None,
        client: Client | None = None,
        on_failure: Literal["raise", "empty"] = "raise",
    ) -> None:
        if on_failure not in ("raise", "empty"):
            raise InvalidRequest(f'on_failure is {on_failure!r}, expected "raise" or "empty"')
        _checks.namespace_key(namespace)
        self._name = _checks.collection_name(name)
        self._namespace = (namespace,) if isinstance(namespace, str) else namespace
        self._embedder = None if embedder is None else as_embedder(embedder)
        self._client = client
        self._owns_client = client is None
        self._on_failure = on_failure
        self._closed = False
        self._away = False  # an outage was reported and has not ended yet
        self._collection: Collection | None = None
        self._lock = ForkLock()

    @property
    def name(self) -> str:
        """The collection's name."""
        return self._name

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace as a tuple."""
        return self._namespace

    @property
    def embedder(self) -> CheckedEmbedder:
        """What embeds: `embed_queries` and `embed_documents`, list[str] -> float32 (n, dimension). Made when needed."""
        if self._embedder is None:
            self._embedder = default_embedder()
        return self._embedder

    @overload
    def remember(  # type: ignore[overload-overlap]  # a str is an iterable of str too: it is one text
        self, text: str, *, id: str | None = None, metadata: Mapping[str, Any] | None = None, ttl: Ttl | None = None
    ) -> str: ...

    @overload
    def remember(
        self,
        text: Iterable[str],
        *,
        id: Sequence[str | None] | None = None,
        metadata: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        ttl: Ttl | None = None,
    ) -> list[str]: ...

    def remember(self, text: Any, *, id: Any = None, metadata: Any = None, ttl: Ttl | None = None) -> Any:
        """Keeps a text, or a list of them, and returns its id, or the list of ids, once it is on disk and visible.

        Args:
            text: str of at most 16 MiB, or a list of them.
            id: str (1 to 1,024 bytes), for a list a list; an id that exists is overwritten. None makes a new random
                one, so the same text twice makes two memories.
            metadata: a JSON object; for a list one for all or a list with one (or None) each.
            ttl: seconds or a timedelta, more than 0, after which the memory is gone. None keeps it.

        A list is one transaction up to 32 MiB; a larger one is committed in parts, in order. Everything is checked and
        embedded before the first write. Raises InvalidRequest, CollectionMismatch, StoreError, SidecarUnavailable,
        KalosTimeout, WriteOutcomeUnknown.
        """
        records = Records.of(text, id, metadata, ttl)
        self._store(records, self._embed_batch(records))
        return records.answer()

    async def aremember(self, text: Any, *, id: Any = None, metadata: Any = None, ttl: Ttl | None = None) -> Any:
        """`remember` for asyncio: embeds in a thread."""
        records = Records.of(text, id, metadata, ttl)
        vectors = await asyncio.to_thread(self._embed_batch, records)
        for part in records.parts(vectors.shape[1]):
            columns = {"vectors": vectors[part], **records.columns(part, self._namespace)}
            await self._aon_collection(vectors.shape[1], functools.partial(_aupsert, columns=columns))
        return records.answer()

    def recall(
        self, query: str, k: int = 5, *, filter: Mapping[str, Any] | None = None, min_score: float | None = None
    ) -> Recall:
        """The k memories nearest to `query` by cosine, best first.

        Args:
            query: str; "" is allowed.
            k: 0 to 1,024. Fewer hits than k is a normal answer.
            filter: a dict of operators over the metadata (see Collection.search), applied before the best k are taken.
            min_score: leaves out hits with a lower cosine (-1 to 1).

        Raises InvalidRequest, CollectionMismatch, and SidecarUnavailable or KalosTimeout unless on_failure="empty".
        """
        start = time.perf_counter_ns()
        vectors, tokenize_us, embed_us = self.embedder.embed_query_timed(query)

        def search(collection: Collection) -> tuple[list[Hit], Timings]:
            return collection._search_timed(
                vectors[0], k, namespace=self._namespace, filter=filter, min_score=min_score, include=_INCLUDE
            )

        try:
            hits, timings = self._on_collection(vectors.shape[1], search)
        except (SidecarUnavailable, KalosTimeout) as error:
            return self._nothing(query, error, RecallTimings.of(start, tokenize_us, embed_us))
        self._away = False
        return Recall(query, hits, RecallTimings.of(start, tokenize_us, embed_us, timings))

    async def arecall(
        self, query: str, k: int = 5, *, filter: Mapping[str, Any] | None = None, min_score: float | None = None
    ) -> Recall:
        """`recall` for asyncio: embeds in a thread."""
        start = time.perf_counter_ns()
        vectors, tokenize_us, embed_us = await asyncio.to_thread(lambda: self.embedder.embed_query_timed(query))

        async def search(collection: Collection) -> tuple[list[Hit], Timings]:
            return await collection._asearch_timed(
                vectors[0], k, namespace=self._namespace, filter=filter, min_score=min_score, include=_INCLUDE
            )

        try:
            hits, timings = await self._aon_collection(vectors.shape[1], search)
        except (SidecarUnavailable, KalosTimeout) as error:
            return self._nothing(query, error, RecallTimings.of(start, tokenize_us, embed_us))
        self._away = False
        return Recall(query, hits, RecallTimings.of(start, tokenize_us, embed_us, timings))

    def forget(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        everything: bool = False,
    ) -> int:
        """Deletes memories of this namespace and returns how many there were; they cannot be read from then on.

        Give exactly one: `ids` (a str or a list; unknown ones count 0), `filter`, or everything=True. Nothing given is
        InvalidRequest, never "everything". Needs no embedder.
        """
        given = _forget_arguments(ids, filter, everything)
        collection = self._existing()
        return 0 if collection is None else collection.delete(namespace=self._namespace, **given)

    async def aforget(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        everything: bool = False,
    ) -> int:
        """`forget` for asyncio."""
        given = _forget_arguments(ids, filter, everything)
        collection = await asyncio.to_thread(self._existing)
        return 0 if collection is None else await collection.adelete(namespace=self._namespace, **given)

    def count(self, *, filter: Mapping[str, Any] | None = None) -> int:
        """How many memories this namespace holds, of those that match `filter` when given. Needs no embedder."""
        collection = self._existing()
        return 0 if collection is None else collection.count(namespace=self._namespace, filter=filter)

    async def acount(self, *, filter: Mapping[str, Any] | None = None) -> int:
        """`count` for asyncio."""
        collection = await asyncio.to_thread(self._existing)
        return 0 if collection is None else await collection.acount(namespace=self._namespace, filter=filter)

    def close(self) -> None:
        """Ends the connection that this Memory made itself; a client that was given stays open. Twice is once."""
        with self._lock:
            client, self._client, self._collection, self._closed = self._client, None, None, True
        if client is not None and self._owns_client:
            client.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Memory:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        return f"Memory({self._name!r}, namespace={self._namespace!r}, embedder={self._embedder!r})"

    # ---- opening ----------------------------------------------------------------------------------------------------

    def _connected(self) -> Client:
        with self._lock:
            if self._closed:
                raise InvalidRequest(f"the Memory {self._name!r} is closed: make a new one")
            if self._client is None:
                from kalos_memory._client import connect  # not needed where a client is given

                self._client = connect()
            return self._client

    def _open(self, dimension: int) -> Collection:
        """The collection, made if need be, known to fit this embedder."""
        with self._lock:
            client = self._connected()
            if self._collection is None:
                embedder = self.embedder
                identity = {"name": embedder.name, "fingerprint": embedder.fingerprint}
                self._collection = client.collection(
                    self._name, dimension=dimension, metric="cosine", embedder=identity
                )
                _warn_unknown(self._name, embedder)
            return self._collection

    def _existing(self) -> Collection | None:
        """The collection if it exists, whatever its dimension and embedder; None where nothing was ever remembered."""
        with self._lock:
            client = self._connected()
            if self._collection is not None:
                return self._collection
            try:
                return client.collection(self._name)
            except NotFound:
                return None

    def _on_collection(self, dimension: int, use: Callable[[Collection], T]) -> T:
        """Calls `use`, once more with the collection made anew when somebody dropped it meanwhile."""
        try:
            return use(self._open(dimension))
        except NotFound:
            self._collection = None
            return use(self._open(dimension))

    async def _aon_collection(self, dimension: int, use: Callable[[Collection], Awaitable[T]]) -> T:
        try:
            collection = self._collection  # read once: another thread may put it back to None
            return await use(collection if collection is not None else await asyncio.to_thread(self._open, dimension))
        except NotFound:
            self._collection = None
            return await use(await asyncio.to_thread(self._open, dimension))

    # ---- writing and failing ----------------------------------------------------------------------------------------

    def _embed_batch(self, records: Records) -> FloatMatrix:
        embedder = self.embedder
        slices = [records.texts[i : i + _EMBED_BATCH] for i in range(0, len(records.texts), _EMBED_BATCH)]
        parts = [embedder.embed_documents(texts) for texts in slices]
        return np.concatenate(parts) if parts else np.empty((0, embedder.dimension or 0), dtype=np.float32)

    def _store(self, records: Records, vectors: FloatMatrix) -> None:
        for part in records.parts(vectors.shape[1]):
            columns = {"vectors": vectors[part], **records.columns(part, self._namespace)}
            self._on_collection(vectors.shape[1], functools.partial(_upsert, columns=columns))

    def _nothing(self, query: str, error: KalosError, timings: RecallTimings) -> Recall:
        """The empty answer of on_failure="empty"; raises `error` otherwise."""
        if self._on_failure == "raise":
            raise error
        if not self._away:
            self._away = True
            _log.warning(
                'recall from %r is empty until further notice, as on_failure="empty" asks: %s', self._name, error
            )
        return Recall(query, [], timings, error)


def _upsert(collection: Collection, columns: dict[str, Any]) -> int:
    return collection.upsert(**columns)


async def _aupsert(collection: Collection, columns: dict[str, Any]) -> int:
    return await collection.aupsert(**columns)


def _forget_arguments(
    ids: str | Iterable[str] | None, filter: Mapping[str, Any] | None, everything: bool
) -> dict[str, Any]:
    given = [name for name, is_given in (("ids", ids is not None), ("filter", filter is not None)) if is_given]
    given += ["everything=True"] if everything else []
    if len(given) != 1:
        raise InvalidRequest(
            f"forget was given {' and '.join(given) or 'nothing'}, expected one of ids, filter and everything=True"
        )
    if isinstance(ids, str):
        ids = [ids]
    elif ids is not None and not isinstance(ids, Iterable):
        raise InvalidRequest(f"ids must be a str or several, not a {type(ids).__name__}: {ids!r:.80}")
    return {"ids": None if ids is None else list(ids), "filter": filter, "everything": everything}


def _warn_unknown(collection: str, embedder: CheckedEmbedder) -> None:
    """One WARNING for a collection and an embedder without a fingerprint."""
    key = (collection, embedder.name)
    if embedder.fingerprint is None and key not in _warned_unknown:
        _warned_unknown.add(key)
        _log.warning(
            "the embedder %s has no fingerprint: collection %r checks its dimension only, so another model of the same "
            "dimension would go unnoticed; give it an attribute fingerprint, or use as_embedder(…, fingerprint=…)",
            embedder.name,
            collection,
        )
