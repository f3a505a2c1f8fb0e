"""What can be asked of a collection, as operations: checked, encoded, not yet sent.

    collection.search(v)                            sends one and waits
    client.batch([collection.op.search(v), ...])    sends several as one message

Arguments, results and errors are those of the methods of Collection, which are built on these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from kalos_memory import _abi, _checks, _codec
from kalos_memory._calls import Operation
from kalos_memory._checks import FLOAT32, choice, include_bits, integer, namespace_key, number
from kalos_memory._errors import InvalidRequest
from kalos_memory._filters import encode_filter, matches_everything
from kalos_memory._types import Hit

DEFAULT_INCLUDE = ("text", "metadata")
_MOST_HEADS = 512
_NUMBER_OR_NONE = frozenset({float, int, type(None)})
_UINT32_MAX = (1 << 32) - 1
_UINT64_MAX = (1 << 64) - 1


class Operations:
    """The operations of one collection.

    durability: the default of its writes ("commit" or "relaxed")."""

    def __init__(self, collection_id: int, dimension: int, metric: str, durability: str) -> None:
        self._id = collection_id
        self._dimension = dimension
        self._metric = metric
        self._durability = _checks.DURABILITIES[durability]
        self._heads: dict[Any, bytes] = {}  # search messages without their vectors, by the arguments that made them

    # -------------------------------------------------------------------------------------------- reads --------------

    def search(
        self,
        vectors: Any,
        k: int = 10,
        *,
        namespace: str | tuple[str, ...] = (),
        subtree: bool = False,
        filter: Any = None,
        min_score: float | None = None,
        max_distance: float | None = None,
        offset: int = 0,
        include: Any = DEFAULT_INCLUDE,
        group_by: str | None = None,
        min_sequence: int | None = None,
        explain: bool = False,
    ) -> Operation[Any]:
        """One vector (1-D) -> list[Hit]; a matrix (2-D) -> list[list[Hit]]."""
        if (
            type(vectors) is np.ndarray
            and vectors.dtype is FLOAT32
            and vectors.shape == (self._dimension,)
            and vectors.flags.c_contiguous
        ):
            single, count = True, 1
        else:
            vectors, single = _checks.query_matrix(vectors, self._dimension)
            count = vectors.shape[0]
        # Kept by arguments that can be told apart: True and 1.0 are equal to 1, but are no offsets, nor True a score.
        if (
            filter is None
            and type(k) is int
            and type(offset) is int
            and type(include) is tuple
            and type(min_score) in _NUMBER_OR_NONE
            and type(max_distance) in _NUMBER_OR_NONE
        ):
            key: Any = (k, namespace, include, min_score, max_distance, subtree, offset, group_by, explain, count)
            try:
                head = self._heads.get(key) if min_sequence is None else None
            except TypeError:  # something that cannot be hashed: the checks below say what
                head = key = None
        else:
            head = key = None
        if head is None:
            head = self._search_head(
                count,
                k,
                namespace,
                subtree,
                filter,
                min_score,
                max_distance,
                offset,
                include,
                group_by,
                min_sequence,
                explain,
            )
            if key is not None and min_sequence is None:
                if len(self._heads) >= _MOST_HEADS:
                    self._heads.clear()
                self._heads[key] = head
        decode = _decode_single if single else _decode_groups
        return Operation(_abi.OP_SEARCH, _codec.search_message(head, vectors), decode, what="the search")

    def _search_head(
        self,
        count: int,
        k: Any,
        namespace: Any,
        subtree: Any,
        filter: Any,
        min_score: Any,
        max_distance: Any,
        offset: Any,
        include: Any,
        group_by: Any,
        min_sequence: Any,
        explain: Any,
    ) -> bytes:
        k = integer(k, "k", 0, _abi.MAX_K)
        skip = integer(offset, "offset", 0, _abi.MAX_K)
        if skip + k > _abi.MAX_K:
            raise InvalidRequest(f"offset + k is {skip + k}: at most {_abi.MAX_K} are possible; scan() lists all rows")
        flags = _scope(subtree) | (_abi.SCOPE_EXPLAIN if explain else 0)
        if min_score is not None:
            if self._metric == "l2":
                raise InvalidRequest(
                    "min_score has no meaning with the metric l2, whose scores are distances (lower is better): use"
                    " max_distance"
                )
            flags |= _abi.SCOPE_MIN_SCORE
        if max_distance is not None:
            if self._metric != "l2":
                raise InvalidRequest(
                    f"max_distance has no meaning with the metric {self._metric}, whose scores are similarities (higher"
                    " is better): use min_score"
                )
            flags |= _abi.SCOPE_MAX_DISTANCE
        return _codec.search_head(
            collection_id=self._id,
            flags=flags,
            include=include_bits(include),
            query_count=count,
            dimension=self._dimension,
            k=k,
            skip=skip,
            min_score=0.0 if min_score is None else number(min_score, "min_score"),
            max_distance=0.0 if max_distance is None else number(max_distance, "max_distance"),
            min_sequence=_sequence(min_sequence),
            namespace=namespace_key(namespace),
            filter=_filter(filter),
            group_by=None if group_by is None else _key(group_by),
        )

    def get(
        self,
        ids: Any,
        *,
        namespace: str | tuple[str, ...] = (),
        include: Any = DEFAULT_INCLUDE,
        min_sequence: int | None = None,
    ) -> Operation[list[Hit | None]]:
        """-> one element for each id, in order: the hit, or None."""
        message = _codec.get_message(
            collection_id=self._id,
            include=include_bits(include),
            min_sequence=_sequence(min_sequence),
            namespace=namespace_key(namespace),
            ids=_checks.encode_ids(ids),
        )
        return Operation(_abi.OP_GET, message, _decode_found, what="the get")

    def count(
        self,
        *,
        namespace: str | tuple[str, ...] = (),
        subtree: bool = False,
        filter: Any = None,
        min_sequence: int | None = None,
    ) -> Operation[int]:
        """-> how many rows."""
        message = _codec.count_message(
            collection_id=self._id,
            flags=_scope(subtree),
            min_sequence=_sequence(min_sequence),
            namespace=namespace_key(namespace),
            filter=_filter(filter),
        )
        return Operation(_abi.OP_COUNT, message, _decode_second_of(_codec.decode_count), what="the count")

    def scan_page(
        self,
        *,
        namespace: str | tuple[str, ...] = (),
        subtree: bool = False,
        filter: Any = None,
        order: str = "insertion",
        skip: int = 0,
        page_limit: int,
        cursor: tuple[int, int] | None = None,
        include: Any = DEFAULT_INCLUDE,
        min_sequence: int | None = None,
    ) -> Operation[_codec.HitsPage]:
        """-> one page of a scan, with the cursor of the next."""
        message = _codec.scan_message(
            collection_id=self._id,
            flags=_scope(subtree),
            include=include_bits(include),
            order=choice(order, "order", _checks.ORDERS),
            page_limit=page_limit,
            skip=skip,
            cursor=cursor,
            min_sequence=_sequence(min_sequence),
            namespace=namespace_key(namespace),
            filter=_filter(filter),
        )
        return Operation(_abi.OP_SCAN, message, _codec.HitsPage, what="the scan")

    def namespaces(
        self,
        prefix: str | tuple[str, ...] = (),
        suffix: str | tuple[str, ...] = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
        *,
        min_sequence: int | None = None,
    ) -> Operation[list[tuple[str, ...]]]:
        """-> the namespaces that hold rows, sorted."""
        message = _codec.namespaces_message(
            collection_id=self._id,
            max_depth=0 if max_depth is None else integer(max_depth, "max_depth", 1, _abi.MAX_NAMESPACE_SEGMENTS),
            # On the wire 0 is "no bound"; nobody needs a page of none, so it is asked for as one and dropped.
            limit=0 if limit is None else max(1, integer(limit, "limit", 0, _UINT32_MAX)),
            skip=integer(offset, "offset", 0, _UINT64_MAX),
            min_sequence=_sequence(min_sequence),
            prefix=namespace_key(prefix, "prefix"),
            suffix=namespace_key(suffix, "suffix"),
        )
        decode: Callable[[bytes], list[tuple[str, ...]]] = _decode_none if limit == 0 else _codec.decode_namespaces
        return Operation(_abi.OP_NAMESPACES, message, decode, what="the listing of namespaces")

    # ------------------------------------------------------------------------------------------- writes --------------

    def upsert(
        self,
        ids: Any,
        vectors: Any,
        *,
        texts: Any = None,
        metadatas: Any = None,
        namespace: str | tuple[str, ...] = (),
        expires_at: Any = None,
        durability: str | None = None,
    ) -> Operation[int]:
        """-> the commit sequence."""
        id_bytes = _checks.encode_ids(ids)
        rows = len(id_bytes)
        matrix, mask = _checks.row_matrix(vectors, rows, self._dimension)
        write_id = os.urandom(16)
        message = _codec.upsert_message(
            collection_id=self._id,
            write_id=write_id,
            durability=self._durable(durability),
            namespace=namespace_key(namespace),
            ids=id_bytes,
            texts=_checks.encode_texts(texts, rows),
            metadatas=_checks.encode_metadatas(metadatas, rows),
            expires_us=_checks.expiry_column(expires_at, rows),
            has_vector=mask,
            vectors=matrix,
        )
        return Operation(
            _abi.OP_UPSERT, message, _decode_first_of(_codec.decode_write), what="the upsert", write_id=write_id
        )

    def delete(
        self,
        ids: Any = None,
        *,
        filter: Any = None,
        namespace: str | tuple[str, ...] = (),
        subtree: bool = False,
        everything: bool = False,
        durability: str | None = None,
    ) -> Operation[int]:
        """-> how many rows were deleted."""
        if ids is None and filter is None and not everything:
            raise InvalidRequest(
                "delete() was told nothing to delete: give ids, a filter, or everything=True for all rows of the"
                " namespace"
            )
        if everything and (ids is not None or filter is not None):
            raise InvalidRequest("everything=True contradicts ids or filter: give one or the other")
        if ids is None and isinstance(filter, Mapping) and matches_everything(filter):
            raise InvalidRequest("an empty filter matches every row: to delete all of them say everything=True")
        write_id = os.urandom(16)
        message = _codec.delete_message(
            collection_id=self._id,
            write_id=write_id,
            durability=self._durable(durability),
            flags=_scope(subtree) | (_abi.SCOPE_EVERYTHING if everything else 0),
            namespace=namespace_key(namespace),
            ids=None if ids is None else _checks.encode_ids(ids),
            filter=_filter(filter),
        )
        return Operation(
            _abi.OP_DELETE, message, _decode_second_of(_codec.decode_write), what="the delete", write_id=write_id
        )

    def _durable(self, durability: Any) -> int:
        return self._durability if durability is None else choice(durability, "durability", _checks.DURABILITIES)


def batch(operations: Any, durability: int) -> Operation[list[Any]]:
    """Several operations as one message. -> the results, in order."""
    listed = list(operations)
    for index, operation in enumerate(listed):
        if not isinstance(operation, Operation) or operation.opcode == _abi.OP_SCAN:
            raise InvalidRequest(
                f"element {index} of the batch is {operation!r:.80}: operations such as collection.op.search(...) are"
                " expected"
            )
    if len(listed) > _abi.MAX_BATCH_OPERATIONS:
        raise InvalidRequest(
            f"the batch has {len(listed):,} operations: at most {_abi.MAX_BATCH_OPERATIONS:,} are possible"
        )
    write_id = os.urandom(16) if any(operation.is_write for operation in listed) else None
    message = _codec.batch_message(
        write_id=write_id or bytes(16),
        durability=durability,
        operations=[(operation.opcode, operation.message) for operation in listed],
    )
    return Operation(_abi.OP_BATCH, message, partial(_decode_batch, listed), what="the batch", write_id=write_id)


# ---------------------------------------------------------------------------------------------- helpers --------------


def _scope(subtree: Any) -> int:
    return _abi.SCOPE_SUBTREE if subtree else 0


def _sequence(min_sequence: Any) -> int:
    return 0 if min_sequence is None else integer(min_sequence, "min_sequence", 0, _UINT64_MAX)


def _filter(filter: Any) -> bytes | None:
    return None if filter is None else encode_filter(filter)


def _key(group_by: Any) -> bytes:
    data = _checks.utf8(group_by, "group_by")
    if not data:
        raise InvalidRequest("group_by is empty: a metadata key or path is expected")
    if len(data) > _abi.MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"group_by has {len(data):,} bytes: at most {_abi.MAX_METADATA_BYTES:,} are possible, as in any metadata"
        )
    return data


def _decode_single(data: bytes) -> list[Hit]:
    page = _codec.HitsPage(data)
    if page.group_count != 1:
        raise _codec.broken_reply(f"{page.group_count} groups for one query")
    return page.hits(0, page.row_count)


def _decode_groups(data: bytes) -> list[list[Hit]]:
    return _codec.HitsPage(data).group_lists()


def _decode_found(data: bytes) -> list[Hit | None]:
    return _codec.HitsPage(data).found()


def _decode_none(data: bytes) -> list[tuple[str, ...]]:
    return []


def _decode_first_of(decode: Callable[[bytes], tuple[int, int]]) -> Callable[[bytes], int]:
    return lambda data: decode(data)[0]


def _decode_second_of(decode: Callable[[bytes], tuple[int, int]]) -> Callable[[bytes], int]:
    return lambda data: decode(data)[1]


def _decode_batch(operations: list[Operation[Any]], data: bytes) -> list[Any]:
    replies = _codec.decode_batch(data)
    if len(replies) != len(operations):
        raise _codec.broken_reply(f"{len(replies)} replies for {len(operations)} operations")
    return [operation.decode(reply) for operation, reply in zip(operations, replies, strict=True)]
