"""Messages of the lane: requests to bytes, replies to values. The layouts are those of _abi (abi.h).

A request is a Message: a run of segments (bytes and arrays) that are copied straight into the slot, without being
joined first. A reply is one bytes object; hits decode from it when they are looked at.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalos_memory import _abi
from kalos_memory._checks import EPOCH, encode_json
from kalos_memory._errors import InvalidRequest, KalosError
from kalos_memory._types import Hit

_SPAN = Struct("<II")
_SPAN_AT = _SPAN.unpack_from
# What json.loads() comes down to, without its questions about types and encodings.
_first_value = json.JSONDecoder().raw_decode
_SEARCH = _abi.layout("kalos_search_request")
_GET = _abi.layout("kalos_get_request")
_COUNT = _abi.layout("kalos_count_request")
_COUNT_REPLY = _abi.layout("kalos_count_reply")
_SCAN = _abi.layout("kalos_scan_request")
_HITS = _abi.layout("kalos_hits_reply")
_FIELDS_BYTES = _abi.layout("kalos_hit_fields").size
_NAMESPACES = _abi.layout("kalos_namespaces_request")
_NAMESPACES_REPLY = _abi.layout("kalos_namespaces_reply")
_UPSERT = _abi.layout("kalos_upsert_request")
_DELETE = _abi.layout("kalos_delete_request")
_WRITE_REPLY = _abi.layout("kalos_write_reply")
_BATCH = _abi.layout("kalos_batch_request")
_OPERATION = _abi.layout("kalos_batch_operation")
_BATCH_REPLY = _abi.layout("kalos_batch_reply")

_ABSENT = (0, 0)
_MAX_MESSAGE_BYTES = _abi.MAX_MESSAGE_BYTES
Span = tuple[int, int]
Segment = Any  # bytes, or a C-contiguous numpy array; anything that gives a contiguous buffer


class Message:
    """One request message: its segments in order, with their sizes, and the sum."""

    __slots__ = ("_ends", "nbytes", "segments")

    def __init__(self, segments: list[tuple[Segment, int]], nbytes: int) -> None:
        self.segments = segments
        self.nbytes = nbytes
        self._ends: list[int] | None = None  # where each segment ends, once it is asked for

    def copy_into(self, target: Any, at: int, first: int, last: int) -> None:
        """Copies bytes [first, last) of the message to target[at:], which takes slices (an mmap)."""
        if first == 0 and last == self.nbytes:
            for segment, size in self.segments:
                end = at + size
                target[at:end] = segment
                at = end
            return
        # Part after part of many segments: looked for from the beginning each time, they would take squared time.
        ends = self._ends
        if ends is None:
            ends = self._ends = list(accumulate(size for _, size in self.segments))
        index = bisect_right(ends, first)
        while first < last:
            segment, size = self.segments[index]
            begin = first - (ends[index] - size)
            end = min(last - first + begin, size)
            target[at : at + end - begin] = memoryview(segment).cast("B")[begin:end]
            at += end - begin
            first += end - begin
            index += 1

    def to_bytes(self) -> bytes:
        return b"".join(segment for segment, size in self.segments if size)


class _Layout:
    """A message under construction: a header that is packed last, then runs of bytes and where they lie."""

    def __init__(self, header_bytes: int) -> None:
        self.segments: list[tuple[Segment, int]] = [(b"", 0)]
        self.offset = header_bytes

    def add(self, data: Segment, nbytes: int) -> Span:
        span = (self.offset, nbytes)
        if nbytes:
            self.offset += nbytes
            if self.offset > _abi.MAX_MESSAGE_BYTES:
                raise InvalidRequest(
                    f"the request has more than {_abi.MAX_MESSAGE_BYTES:,} bytes (256 MiB), the most that one message"
                    " may have: send it in several batches"
                )
            self.segments.append((data, nbytes))
        return span

    def optional(self, data: bytes | None) -> Span:
        return _ABSENT if data is None else self.add(data, len(data))

    def array(self, data: NDArray[Any]) -> Span:
        self.align()
        return self.add(data, data.nbytes)

    def align(self) -> None:
        if gap := -self.offset % 8:
            self.add(bytes(gap), gap)

    def column(self, items: Sequence[bytes | None]) -> Span:
        """A table of spans, and what they point at."""
        self.align()
        sizes = np.fromiter((0 if item is None else len(item) for item in items), np.uint64, len(items))
        table = np.empty((len(items), 2), "<u4")
        start = self.offset + table.nbytes
        total = int(sizes.sum())
        if start + total > _abi.MAX_MESSAGE_BYTES:
            self.add(b"", _abi.MAX_MESSAGE_BYTES + 1)  # raises in words
        table[:, 0] = np.cumsum(sizes) - sizes + np.uint64(start)
        table[:, 1] = sizes
        if None in items:
            table[[index for index, item in enumerate(items) if item is None]] = 0
        span = self.add(table, table.nbytes)
        self.add(b"".join(item for item in items if item), total)
        return span

    def finish(self, header: bytes) -> Message:
        self.segments[0] = (header, len(header))
        return Message(self.segments, self.offset)


# --------------------------------------------------------------------------------------------- requests --------------


def search_head(
    *,
    collection_id: int,
    flags: int,
    include: int,
    query_count: int,
    dimension: int,
    k: int,
    skip: int,
    min_score: float,
    max_distance: float,
    min_sequence: int,
    namespace: bytes,
    filter: bytes | None,
    group_by: bytes | None,
) -> bytes:
    """All of a search message but its vectors, which follow at once: the same for every search that differs only in
    its vectors, so worth keeping."""
    out = _Layout(_SEARCH.size)
    name_space, filter_span, group = out.optional(namespace or None), out.optional(filter), out.optional(group_by)
    out.align()
    header = _SEARCH.pack(
        collection_id,
        flags,
        include,
        query_count,
        dimension,
        k,
        skip,
        min_score,
        max_distance,
        min_sequence,
        *name_space,
        *filter_span,
        *group,
        out.offset,
        query_count * dimension * 4,
    )
    return out.finish(header).to_bytes()


def search_message(head: bytes, vectors: NDArray[np.float32]) -> Message:
    """head: from search_head(). vectors: C-contiguous float32 of query_count x dimension numbers."""
    start, size = len(head), vectors.nbytes
    total = start + size
    if total > _MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"the queries have {size:,} bytes: at most 256 MiB are possible; send them in several calls"
        )
    return Message([(head, start), (vectors, size)] if size else [(head, start)], total)


def get_message(
    *, collection_id: int, include: int, min_sequence: int, namespace: bytes, ids: Sequence[bytes]
) -> Message:
    out = _Layout(_GET.size)
    name_space, id_span = out.optional(namespace or None), out.column(ids)
    return out.finish(_GET.pack(collection_id, include, len(ids), min_sequence, *name_space, *id_span))


def count_message(
    *, collection_id: int, flags: int, min_sequence: int, namespace: bytes, filter: bytes | None
) -> Message:
    out = _Layout(_COUNT.size)
    name_space, filter_span = out.optional(namespace or None), out.optional(filter)
    return out.finish(_COUNT.pack(collection_id, flags, min_sequence, *name_space, *filter_span))


def scan_message(
    *,
    collection_id: int,
    flags: int,
    include: int,
    order: int,
    page_limit: int,
    skip: int,
    cursor: tuple[int, int] | None,
    min_sequence: int,
    namespace: bytes,
    filter: bytes | None,
) -> Message:
    out = _Layout(_SCAN.size)
    name_space, filter_span = out.optional(namespace or None), out.optional(filter)
    sequence, updated_us = cursor or (0, 0)
    header = _SCAN.pack(
        collection_id,
        flags,
        include,
        order,
        page_limit,
        skip,
        0,
        sequence,
        updated_us,
        min_sequence,
        *name_space,
        *filter_span,
        int(cursor is not None),
    )
    return out.finish(header)


def namespaces_message(
    *, collection_id: int, max_depth: int, limit: int, skip: int, min_sequence: int, prefix: bytes, suffix: bytes
) -> Message:
    out = _Layout(_NAMESPACES.size)
    first, last = out.optional(prefix or None), out.optional(suffix or None)
    return out.finish(_NAMESPACES.pack(collection_id, max_depth, limit, skip, min_sequence, *first, *last))


def upsert_message(
    *,
    collection_id: int,
    write_id: bytes,
    durability: int,
    namespace: bytes,
    ids: Sequence[bytes],
    texts: Sequence[bytes | None] | None,
    metadatas: Sequence[bytes | None] | None,
    expires_us: Sequence[int] | None,
    has_vector: NDArray[np.uint8] | None,
    vectors: NDArray[np.float32] | None,
) -> Message:
    out = _Layout(_UPSERT.size)
    # The largest column first: a batch that is too large is refused before the others are laid out.
    vector_span = _ABSENT if vectors is None else out.array(vectors)
    name_space, id_span = out.optional(namespace or None), out.column(ids)
    text_span = _ABSENT if texts is None else out.column(texts)
    metadata_span = _ABSENT if metadatas is None else out.column(metadatas)
    expires_span = _ABSENT if expires_us is None else out.array(np.array(expires_us, "<i8"))
    has_span = _ABSENT if has_vector is None else out.array(has_vector)
    header = _UPSERT.pack(
        collection_id,
        write_id,
        durability,
        len(ids),
        0 if vectors is None else vectors.shape[1],
        *name_space,
        *id_span,
        *text_span,
        *metadata_span,
        *expires_span,
        *has_span,
        *vector_span,
    )
    return out.finish(header)


def delete_message(
    *,
    collection_id: int,
    write_id: bytes,
    durability: int,
    flags: int,
    namespace: bytes,
    ids: Sequence[bytes] | None,
    filter: bytes | None,
) -> Message:
    out = _Layout(_DELETE.size)
    name_space = out.optional(namespace or None)
    id_span = _ABSENT if ids is None else out.column(ids)
    filter_span = out.optional(filter)
    header = _DELETE.pack(
        collection_id, write_id, durability, flags, 0 if ids is None else len(ids), *name_space, *id_span, *filter_span
    )
    return out.finish(header)


def batch_message(*, write_id: bytes, durability: int, operations: Sequence[tuple[int, Message]]) -> Message:
    """operations: (opcode, message) of each."""
    out = _Layout(_BATCH.size)
    starts = []
    at = out.offset + _OPERATION.size * len(operations)
    for _, message in operations:
        at += -at % 8
        starts.append(at)
        at += message.nbytes
    table = b"".join(
        _OPERATION.pack(opcode, start, message.nbytes)
        for (opcode, message), start in zip(operations, starts, strict=True)
    )
    span = out.add(table, len(table))
    for _, message in operations:
        out.align()
        for segment, nbytes in message.segments:
            out.add(segment, nbytes)
    return out.finish(_BATCH.pack(write_id, durability, len(operations), *span))


def json_message(value: dict[str, Any]) -> Message:
    data = encode_json(value).encode()
    return Message([(data, len(data))], len(data))


# ---------------------------------------------------------------------------------------------- replies --------------


def broken_reply(why: str) -> KalosError:
    return KalosError(
        f"kalosd's reply makes no sense ({why}): client and sidecar are out of step; end the sidecar with `kalos stop`"
        " and report it if that does not help"
    )


# Positions in the unpacked head of a hits reply: the scalars, then each span as two numbers.
_ROW_COUNT, _GROUPS, _SCORES, _CREATED, _UPDATED, _FIELDS = 1, 8, 10, 12, 14, 16
_EXPLAIN_AT = _abi.offset_of("kalos_hits_reply", "explain")


@lru_cache(maxsize=2048)
def _doubles(count: int) -> Struct:
    return Struct(f"<{count}d")


class HitsPage:
    """The reply of SEARCH, GET and SCAN. Hits refer to it by row and decode from it."""

    __slots__ = ("_explain", "_head", "data", "fields", "row_count", "scores")

    def __init__(self, data: bytes) -> None:
        # Only what every reply needs is looked at here; the rest is taken from the head when it is asked for.
        self.data = data
        try:
            self._head = head = _HITS.unpack_from(data)
            self.row_count: int = head[_ROW_COUNT]
            self.fields: int = head[_FIELDS]
            scores_at = head[_SCORES]
            self.scores: tuple[float, ...] | None = (
                _doubles(self.row_count).unpack_from(data, scores_at) if scores_at else None
            )
        except struct.error as error:
            raise broken_reply(str(error)) from None
        rows, end = self.row_count, len(data)
        column = end - 8 * rows
        if self.fields + _FIELDS_BYTES * rows > end or head[_CREATED] > column or head[_UPDATED] > column:
            raise broken_reply("its columns end beyond the message")
        self._explain: dict[str, Any] | None = None

    @property
    def commit_sequence(self) -> int:
        return int(self._head[0])

    @property
    def group_count(self) -> int:
        return int(self._head[2])

    @property
    def include(self) -> int:
        return int(self._head[3])

    @property
    def cursor(self) -> tuple[int, int] | None:
        """Where the next page of a scan begins; None where there is none."""
        _, _, _, _, _, has_cursor, sequence, updated_us, *_ = self._head
        return (sequence, updated_us) if has_cursor else None

    @property
    def groups(self) -> tuple[int, ...]:
        """Rows of query g are groups[g] up to groups[g + 1]."""
        at, nbytes = self._head[_GROUPS], self._head[_GROUPS + 1]
        try:
            return Struct(f"<{nbytes // 4}I").unpack_from(self.data, at) if at else (0, self.row_count)
        except struct.error as error:
            raise broken_reply(str(error)) from None

    def span(self, at: int) -> bytes | None:
        """What the span at this offset points at."""
        data = self.data
        offset, size = _SPAN_AT(data, at)
        if not offset:
            return None
        end = offset + size
        if end > len(data):
            raise broken_reply("a span ends beyond the message")
        return data[offset:end]

    def field(self, row: int, offset: int) -> bytes | None:
        return self.span(self.fields + _FIELDS_BYTES * row + offset)

    def hit(self, row: int) -> Hit:
        return self.hits(row, row + 1)[0]

    def hits(self, first: int, last: int) -> list[Hit]:
        """Rows [first, last) as hits whose other fields decode when they are read."""
        new, kind, scores = object.__new__, Hit, self.scores
        hits = []
        for row in range(first, last):
            hit = new(kind)
            hit._page = self  # type: ignore[attr-defined]
            hit._row = row  # type: ignore[attr-defined]
            if scores is not None:
                hit.score = scores[row]
            hits.append(hit)
        return hits

    def group_lists(self) -> list[list[Hit]]:
        """One list of hits for each query."""
        groups = self.groups
        if len(groups) != self.group_count + 1 or groups[-1] > self.row_count or list(groups) != sorted(groups):
            raise broken_reply("its groups do not cover its rows")
        return [self.hits(groups[i], groups[i + 1]) for i in range(self.group_count)]

    def found(self) -> list[Hit | None]:
        """One element for each row: the hit, or None where the id was not found."""
        return [self.hit(row) if self.field(row, 0) is not None else None for row in range(self.row_count)]

    def explain(self) -> dict[str, Any] | None:
        if self._explain is None:
            data = self.span(_EXPLAIN_AT)
            self._explain = None if data is None else json.loads(data)
        return self._explain


_INT64 = Struct("<q")
_ID_AT = _abi.offset_of("kalos_hit_fields", "id")
_NAMESPACE_AT = _abi.offset_of("kalos_hit_fields", "name_space")
_TEXT_AT = _abi.offset_of("kalos_hit_fields", "text")
_METADATA_AT = _abi.offset_of("kalos_hit_fields", "metadata")
_VECTOR_AT = _abi.offset_of("kalos_hit_fields", "vector")


def _decode_id(page: HitsPage, row: int) -> str:
    return (page.field(row, _ID_AT) or b"").decode()


def _decode_score(page: HitsPage, row: int) -> float | None:
    return None if page.scores is None else page.scores[row]


def _decode_text(page: HitsPage, row: int) -> str | None:
    data = page.span(page.fields + _FIELDS_BYTES * row + _TEXT_AT)
    return None if data is None else data.decode()


def _decode_metadata(page: HitsPage, row: int) -> Any:
    data = page.span(page.fields + _FIELDS_BYTES * row + _METADATA_AT)
    if data is None:
        return {} if page.include & _abi.INCLUDE_METADATA else None
    text = data.decode()
    try:
        value, end = _first_value(text)
        if end == len(text):
            return value
    except ValueError:
        pass
    return json.loads(text)  # there is white space around it, or it is no JSON


def _decode_namespace(page: HitsPage, row: int) -> tuple[str, ...]:
    return decode_namespace(page.field(row, _NAMESPACE_AT) or b"")


def _decode_vector(page: HitsPage, row: int) -> NDArray[np.float32] | None:
    data = page.field(row, _VECTOR_AT)
    return None if data is None else np.frombuffer(data, "<f4")


def datetime_of(microseconds: int) -> datetime:
    """Microseconds since 1970 UTC as an aware datetime."""
    return EPOCH + timedelta(microseconds=microseconds)


def _decode_created(page: HitsPage, row: int) -> datetime:
    return datetime_of(_INT64.unpack_from(page.data, page._head[_CREATED] + 8 * row)[0])


def _decode_updated(page: HitsPage, row: int) -> datetime:
    return datetime_of(_INT64.unpack_from(page.data, page._head[_UPDATED] + 8 * row)[0])


def _decode_explain(page: HitsPage, row: int) -> dict[str, Any] | None:
    explain = page.explain()
    return None if explain is None else dict(explain)


class _LazyField:
    """A field of a Hit that is decoded from the reply when it is first read.

    Once decoded it lies in the hit's own dict, which Python looks into before it asks a descriptor like this one: the
    first reading costs one call, every other is an ordinary attribute."""

    __slots__ = ("_decode", "_name")

    def __init__(self, name: str, decode: Callable[[HitsPage, int], Any]) -> None:
        self._name = name
        self._decode = decode

    def __get__(self, hit: Any, owner: type | None = None) -> Any:
        if hit is None:
            return self
        try:
            value = self._decode(hit._page, hit._row)
        except (ValueError, OverflowError, struct.error) as error:
            raise broken_reply(f"the {self._name} of a hit: {error}") from None
        setattr(hit, self._name, value)
        return value


for _name, _decode in {
    "id": _decode_id,
    "score": _decode_score,
    "text": _decode_text,
    "metadata": _decode_metadata,
    "namespace": _decode_namespace,
    "vector": _decode_vector,
    "created_at": _decode_created,
    "updated_at": _decode_updated,
    "explain": _decode_explain,
}.items():
    setattr(Hit, _name, _LazyField(_name, _decode))


def decode_namespace(key: bytes) -> tuple[str, ...]:
    segments = []
    at = 0
    while at < len(key):
        size = int.from_bytes(key[at : at + 2], "big")
        if at + 2 + size > len(key):
            raise broken_reply("a namespace key is cut short")
        segments.append(key[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return tuple(segments)


def decode_count(data: bytes) -> tuple[int, int]:
    """-> (commit sequence, count)"""
    return _unpack(_COUNT_REPLY, data)


def decode_write(data: bytes) -> tuple[int, int]:
    """-> (commit sequence, rows upserted or deleted)"""
    return _unpack(_WRITE_REPLY, data)


def decode_namespaces(data: bytes) -> list[tuple[str, ...]]:
    _, count, keys, _ = _unpack(_NAMESPACES_REPLY, data)
    return [decode_namespace(_slice(data, *_span_at(data, keys + 8 * index))) for index in range(count)]


def decode_batch(data: bytes) -> list[bytes]:
    """-> the reply message of each operation"""
    _, count, replies, _ = _unpack(_BATCH_REPLY, data)
    return [_slice(data, *_span_at(data, replies + 8 * index)) for index in range(count)]


def decode_json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise broken_reply(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise broken_reply("no JSON object")
    return value


def _unpack(layout: Struct, data: bytes) -> tuple[Any, ...]:
    try:
        return layout.unpack_from(data)
    except struct.error as error:
        raise broken_reply(str(error)) from None


def _span_at(data: bytes, at: int) -> Span:
    if at + _SPAN.size > len(data):
        raise broken_reply("a table ends beyond the message")
    offset, size = _SPAN.unpack_from(data, at)
    return offset, size


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise broken_reply("a span ends beyond the message")
    return data[offset : offset + size]
