"""Collection: what an application talks to. Sends operations (_operations.py) through a Transport.

It knows the small Transport protocol below, not the client, so that tests can put something else in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Protocol, TypeVar

from kalos_memory._calls import Operation
from kalos_memory._checks import ORDERS as _ORDERS
from kalos_memory._checks import choice, integer
from kalos_memory._codec import HitsPage
from kalos_memory._operations import DEFAULT_INCLUDE, Operations
from kalos_memory._types import Hit, Timings

T = TypeVar("T")
Namespace = str | tuple[str, ...]

_PAGE_ROWS = 1000
_UINT64_MAX = (1 << 64) - 1


class Transport(Protocol):
    """How operations get to a sidecar and results back."""

    durability: str

    def _perform(self, operation: Operation[T], timeout: float | None = None) -> T: ...
    def _perform_timed(self, operation: Operation[T], timeout: float | None = None) -> tuple[T, Timings]: ...
    async def _aperform(self, operation: Operation[T], timeout: float | None = None) -> T: ...
    async def _aperform_timed(self, operation: Operation[T], timeout: float | None = None) -> tuple[T, Timings]: ...


class Collection:
    """Rows of one dimension and metric: an id, a vector, a text, metadata, a namespace. Made by Client.collection().

    Threads and event loops may share one. Every method that goes to the sidecar has an async twin with the prefix `a`.

    Attributes:
        name: str.
        dimension: int, the length of every vector.
        metric: "cosine", "dot" (higher scores are better) or "l2" (the distance, lower is better).
        embedder: {"name", "fingerprint"} of what makes its vectors, or None where nobody has said.
        op: the same operations, not sent but returned, for Client.batch().

    Arguments that many methods share:
        namespace: a str or a tuple of at most 16 str, () being the root. It is a hard wall: a method sees exactly the
            rows of the one it is given, unless subtree=True adds all namespaces below it.
        filter: a dict of operators over metadata, for example {"lang": "en", "year": {"$gte": 2020}}. Known:
            $eq $ne $gt $gte $lt $lte $in $nin $exists $contains $icontains $subset, $and $or $not.
        include: what hits carry besides id, score, namespace and times, of "text", "metadata", "vector".
        min_sequence: a commit sequence that some write returned: the answer includes that write.
        timeout: seconds for this call, instead of the client's.

    Errors of all methods: InvalidRequest, NotFound (the collection was dropped), SidecarUnavailable, KalosTimeout,
    Overloaded; of writes also StoreError and WriteOutcomeUnknown.
    """

    def __init__(self, transport: Transport, described: dict[str, Any]) -> None:
        self._transport = transport
        self._described = described
        self.name: str = described["name"]
        self.dimension: int = described["dimension"]
        self.metric: str = described["metric"]
        self.embedder: dict[str, str] | None = described.get("embedder")
        self.op = Operations(described["id"], self.dimension, self.metric, transport.durability)

    def __repr__(self) -> str:
        return f"<Collection {self.name!r}, dimension {self.dimension}, {self.metric}>"

    def __reduce__(self) -> tuple[type[Collection], tuple[Transport, dict[str, Any]]]:
        return (type(self), (self._transport, self._described))

    # ------------------------------------------------------------------------------------------- search --------------

    def search(
        self,
        vectors: Any,
        k: int = 10,
        *,
        namespace: Namespace = (),
        subtree: bool = False,
        filter: Any = None,
        min_score: float | None = None,
        max_distance: float | None = None,
        offset: int = 0,
        include: Any = DEFAULT_INCLUDE,
        group_by: str | None = None,
        min_sequence: int | None = None,
        timeout: float | None = None,
        explain: bool = False,
    ) -> list[Any]:
        """The k best rows, exactly: by score, ties by the order of insertion.

        Args:
            vectors: one vector, array-like (dimension,), or a matrix (n, dimension). float32 arrays are copied once and
                cheaply; other dtypes are narrowed to float32, a list of Python floats costs more than the search.
            k: 0 to 1,024 (with offset). Fewer matching rows than k is a normal answer.
            min_score: cosine, dot: leaves out lower scores.
            max_distance: l2: leaves out larger distances.
            offset: leaves out that many of the best rows.
            group_by: a metadata key or path: of the rows with the same value there only the best one is kept.
            explain: every hit's `explain` says how the answer was found.

        Returns:
            For one vector a list of Hit, for a matrix a list of n such lists.

        Raises:
            RecallTimeout: no answer within the timeout. Others: see Collection.

        Example:
            >>> hits = notes.search(vector, k=3, filter={"lang": "en"})
            >>> [(hit.id, hit.score, hit.text) for hit in hits]
        """
        operation = self.op.search(
            vectors,
            k,
            namespace=namespace,
            subtree=subtree,
            filter=filter,
            min_score=min_score,
            max_distance=max_distance,
            offset=offset,
            include=include,
            group_by=group_by,
            min_sequence=min_sequence,
            explain=explain,
        )
        hits: list[Any] = self._transport._perform(operation, timeout)
        return hits

    async def asearch(
        self,
        vectors: Any,
        k: int = 10,
        *,
        namespace: Namespace = (),
        subtree: bool = False,
        filter: Any = None,
        min_score: float | None = None,
        max_distance: float | None = None,
        offset: int = 0,
        include: Any = DEFAULT_INCLUDE,
        group_by: str | None = None,
        min_sequence: int | None = None,
        timeout: float | None = None,
        explain: bool = False,
    ) -> list[Any]:
        """`search` for asyncio."""
        operation = self.op.search(
            vectors,
            k,
            namespace=namespace,
            subtree=subtree,
            filter=filter,
            min_score=min_score,
            max_distance=max_distance,
            offset=offset,
            include=include,
            group_by=group_by,
            min_sequence=min_sequence,
            explain=explain,
        )
        hits: list[Any] = await self._transport._aperform(operation, timeout)
        return hits

    def _search_timed(
        self, vectors: Any, k: int = 10, *, timeout: float | None = None, **options: Any
    ) -> tuple[list[Any], Timings]:
        """`search`, and where its time went."""
        return self._transport._perform_timed(self.op.search(vectors, k, **options), timeout)

    async def _asearch_timed(
        self, vectors: Any, k: int = 10, *, timeout: float | None = None, **options: Any
    ) -> tuple[list[Any], Timings]:
        return await self._transport._aperform_timed(self.op.search(vectors, k, **options), timeout)

    # -------------------------------------------------------------------------------------- other reads --------------

    def get(
        self,
        ids: Any,
        *,
        namespace: Namespace = (),
        include: Any = DEFAULT_INCLUDE,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> list[Hit | None]:
        """Rows by id. Returns a list aligned with ids: a Hit (without a score), or None where there is no such row."""
        operation = self.op.get(ids, namespace=namespace, include=include, min_sequence=min_sequence)
        return self._transport._perform(operation, timeout)

    async def aget(
        self,
        ids: Any,
        *,
        namespace: Namespace = (),
        include: Any = DEFAULT_INCLUDE,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> list[Hit | None]:
        """`get` for asyncio."""
        operation = self.op.get(ids, namespace=namespace, include=include, min_sequence=min_sequence)
        return await self._transport._aperform(operation, timeout)

    def count(
        self,
        *,
        namespace: Namespace = (),
        subtree: bool = False,
        filter: Any = None,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """How many rows the namespace holds, of those that match the filter when one is given."""
        operation = self.op.count(namespace=namespace, subtree=subtree, filter=filter, min_sequence=min_sequence)
        return self._transport._perform(operation, timeout)

    async def acount(
        self,
        *,
        namespace: Namespace = (),
        subtree: bool = False,
        filter: Any = None,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """`count` for asyncio."""
        operation = self.op.count(namespace=namespace, subtree=subtree, filter=filter, min_sequence=min_sequence)
        return await self._transport._aperform(operation, timeout)

    def scan(
        self,
        *,
        namespace: Namespace = (),
        subtree: bool = False,
        filter: Any = None,
        order: str = "insertion",
        offset: int = 0,
        limit: int | None = None,
        include: Any = DEFAULT_INCLUDE,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[Hit]:
        """All rows, one after the other, fetched in pages while you iterate.

        Args:
            order: "insertion", oldest first, or "updated", the row that was upserted last first.
            offset: leaves out that many rows. limit: stops after that many; None goes on to the end.
            timeout: of each page.

        Rows that are written while you iterate may or may not come; those that stay untouched come exactly once.
        """
        # Checked here, not when the first row is asked for, which is why this function is no generator itself.
        pages = self._pages(namespace, subtree, filter, order, offset, limit, include, min_sequence)
        return self._scanned(pages, timeout)

    def _scanned(self, pages: Pages, timeout: float | None) -> Iterator[Hit]:
        step = next(pages, None)
        while step is not None:
            page = self._transport._perform(step, timeout)
            yield from page.hits(0, page.row_count)
            try:
                step = pages.send(page)
            except StopIteration:
                return

    def ascan(
        self,
        *,
        namespace: Namespace = (),
        subtree: bool = False,
        filter: Any = None,
        order: str = "insertion",
        offset: int = 0,
        limit: int | None = None,
        include: Any = DEFAULT_INCLUDE,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Hit]:
        """`scan` for asyncio: `async for hit in collection.ascan()`."""
        pages = self._pages(namespace, subtree, filter, order, offset, limit, include, min_sequence)
        return self._ascanned(pages, timeout)

    async def _ascanned(self, pages: Pages, timeout: float | None) -> AsyncIterator[Hit]:
        step = next(pages, None)
        while step is not None:
            page = await self._transport._aperform(step, timeout)
            for hit in page.hits(0, page.row_count):
                yield hit
            try:
                step = pages.send(page)
            except StopIteration:
                return

    def _pages(
        self,
        namespace: Namespace,
        subtree: bool,
        filter: Any,
        order: str,
        offset: int,
        limit: int | None,
        include: Any,
        min_sequence: int | None,
    ) -> Pages:
        """Checks, then gives a generator of the pages to ask for, which is sent each page in turn."""
        skip = integer(offset, "offset", 0, _UINT64_MAX)
        left = None if limit is None else integer(limit, "limit", 0, _UINT64_MAX)
        choice(order, "order", _ORDERS)

        def page(skip: int, rows: int, cursor: tuple[int, int] | None) -> Operation[HitsPage]:
            return self.op.scan_page(
                namespace=namespace,
                subtree=subtree,
                filter=filter,
                order=order,
                skip=skip,
                page_limit=rows,
                cursor=cursor,
                include=include,
                min_sequence=min_sequence,
            )

        first = page(skip, _PAGE_ROWS if left is None else max(1, min(left, _PAGE_ROWS)), None)

        def generate() -> Pages:
            remaining = left
            step = first
            while remaining is None or remaining > 0:
                answer = yield step
                if remaining is not None:
                    remaining -= answer.row_count
                if answer.cursor is None:
                    return
                rows = _PAGE_ROWS if remaining is None else min(remaining, _PAGE_ROWS)
                if rows > 0:
                    step = page(0, rows, answer.cursor)

        return generate()

    def namespaces(
        self,
        prefix: Namespace = (),
        suffix: Namespace = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
        *,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> list[tuple[str, ...]]:
        """The namespaces that hold at least one row, sorted by their keys.

        Args:
            prefix, suffix: only those whose first or last segments are these.
            max_depth: cuts them to so many segments and drops duplicates.
        """
        operation = self.op.namespaces(prefix, suffix, max_depth, limit, offset, min_sequence=min_sequence)
        return self._transport._perform(operation, timeout)

    async def anamespaces(
        self,
        prefix: Namespace = (),
        suffix: Namespace = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
        *,
        min_sequence: int | None = None,
        timeout: float | None = None,
    ) -> list[tuple[str, ...]]:
        """`namespaces` for asyncio."""
        operation = self.op.namespaces(prefix, suffix, max_depth, limit, offset, min_sequence=min_sequence)
        return await self._transport._aperform(operation, timeout)

    # ------------------------------------------------------------------------------------------- writes --------------

    def upsert(
        self,
        ids: Any,
        vectors: Any,
        *,
        texts: Any = None,
        metadatas: Any = None,
        namespace: Namespace = (),
        expires_at: Any = None,
        durability: str | None = None,
    ) -> int:
        """Inserts rows, or replaces them as a whole where the id exists. All or nothing, at most 256 MiB at once.

        Args:
            ids: list of n str of 1 to 1,024 bytes of UTF-8. Of two equal ones the first's place and the last's value
                count.
            vectors: array-like (n, dimension), or a list with None for rows without a vector (they are listed, filtered
                and counted, but never found by a search), or None for none at all.
            texts: list of n str (at most 16 MiB of UTF-8) or None. metadatas: list of n dicts or None: JSON objects of
                at most 1 MiB; anything that is not JSON is refused.
            expires_at: an aware datetime after which the rows are gone, or a list of n with None for never.
            durability: "commit" (on disk before this returns) or "relaxed" (a power cut may lose the last commits);
                the client's by default.

        Returns:
            The commit sequence, once the rows are on disk and every process's next search sees them. It is an
            acknowledgement: searches elsewhere may ask for it with min_sequence.

        Raises:
            WriteOutcomeUnknown: the write was sent and no answer came. A write waits at least 10 s, plus 1 s for every
                8 MiB, whatever the client's timeout. Others: see Collection.

        Example:
            >>> notes.upsert(["n1"], [vector], texts=["tea at five"], metadatas=[{"lang": "en"}], namespace="alice")
            17
        """
        return self._transport._perform(
            self.op.upsert(
                ids,
                vectors,
                texts=texts,
                metadatas=metadatas,
                namespace=namespace,
                expires_at=expires_at,
                durability=durability,
            )
        )

    async def aupsert(
        self,
        ids: Any,
        vectors: Any,
        *,
        texts: Any = None,
        metadatas: Any = None,
        namespace: Namespace = (),
        expires_at: Any = None,
        durability: str | None = None,
    ) -> int:
        """`upsert` for asyncio. Cancelling it stops the waiting, not a write that was sent as a whole."""
        return await self._transport._aperform(
            self.op.upsert(
                ids,
                vectors,
                texts=texts,
                metadatas=metadatas,
                namespace=namespace,
                expires_at=expires_at,
                durability=durability,
            )
        )

    def delete(
        self,
        ids: Any = None,
        *,
        filter: Any = None,
        namespace: Namespace = (),
        subtree: bool = False,
        everything: bool = False,
        durability: str | None = None,
    ) -> int:
        """Deletes rows by ids, by filter, by both (rows that satisfy both), or all of them with everything=True.

        Returns how many there were. They cannot be read from then on, and their bytes are overwritten on disk within a
        minute. Nothing given is InvalidRequest, never "everything".
        """
        operation = self.op.delete(
            ids, filter=filter, namespace=namespace, subtree=subtree, everything=everything, durability=durability
        )
        return self._transport._perform(operation)

    async def adelete(
        self,
        ids: Any = None,
        *,
        filter: Any = None,
        namespace: Namespace = (),
        subtree: bool = False,
        everything: bool = False,
        durability: str | None = None,
    ) -> int:
        """`delete` for asyncio."""
        operation = self.op.delete(
            ids, filter=filter, namespace=namespace, subtree=subtree, everything=everything, durability=durability
        )
        return await self._transport._aperform(operation)


Pages = Generator[Operation[HitsPage], HitsPage, None]
