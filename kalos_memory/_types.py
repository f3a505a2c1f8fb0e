"""What the client hands out: Hit and Timings.

A Hit of a search points into the reply that it came in and decodes a field when it is first read, so that a search pays
only for what its caller looks at. It keeps that reply alive; a copy or a pickle of it holds the decoded fields only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

FIELDS = ("id", "score", "text", "metadata", "namespace", "vector", "created_at", "updated_at", "explain")


class Hit:
    """One row that a search, get or scan found.

    Attributes:
        id: str.
        score: float (float64): cosine and dot, higher is better; l2, the distance. None from get and scan.
        text: str, or None where the row has none or "text" was not included.
        metadata: dict, empty where the row has none; None where "metadata" was not included. Yours to change.
        namespace: tuple of str; () is the root.
        vector: float32 (dimension,), read-only, bit for bit what was written; None where the row has none or "vector"
            was not included.
        created_at, updated_at: aware datetimes in UTC, to the microsecond; None in a Hit made by hand.
        explain: dict about the whole search when explain=True was asked for, else None:
            plan ("code scan", or "canonical scan" where all rows were scored), threads ("one thread", "all threads"),
            expected_us (what each of the two was expected to take; 0: not tried yet), device; rows_in_scope,
            rows_matched (by the filter), and of all queries together rows_scanned (high 4 bits), rows_narrowed (low 4
            bits too), rows_scored (whole vectors); filter_us, scan_us, score_us (float, microseconds).

    Example:
        >>> hit = Hit("note-1", 0.93, text="Alice likes tea", metadata={"source": "chat"})
        >>> hit.text
        'Alice likes tea'
    """

    # Those of a reply are decoded by descriptors that _codec puts here: it knows the layout.
    id: str
    score: float | None
    text: str | None
    metadata: dict[str, Any] | None
    namespace: tuple[str, ...]
    vector: Any
    created_at: datetime | None
    updated_at: datetime | None
    explain: dict[str, Any] | None

    def __init__(
        self,
        id: str,
        score: float | None = None,
        text: str | None = None,
        metadata: dict[str, Any] | None = None,
        namespace: tuple[str, ...] = (),
        vector: Any = None,
        created_at: datetime | None = None,
        updated_at: datetime | None = None,
        explain: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.score = score
        self.text = text
        self.metadata = metadata
        self.namespace = namespace
        self.vector = vector
        self.created_at = created_at
        self.updated_at = updated_at
        self.explain = explain

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hit):
            return NotImplemented
        for name in FIELDS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "vector":
                if (mine is None) != (theirs is None):
                    return False
                if mine is not None and (len(mine) != len(theirs) or not bool((mine == theirs).all())):
                    return False
            elif mine != theirs:
                return False
        return True

    def __hash__(self) -> int:
        return hash((self.namespace, self.id))

    def __repr__(self) -> str:
        parts = [f"id={self.id!r}"]
        if self.score is not None:
            parts.append(f"score={self.score:.6g}")
        if self.text is not None:
            parts.append(f"text={self.text if len(self.text) <= 60 else self.text[:57] + '...'!r}")
        if self.metadata:
            words = repr(self.metadata)
            parts.append(f"metadata={words if len(words) <= 60 else words[:57] + '...'}")
        if self.namespace:
            parts.append(f"namespace={self.namespace!r}")
        return f"Hit({', '.join(parts)})"

    def __reduce__(self) -> tuple[type[Hit], tuple[Any, ...]]:
        return (Hit, tuple(getattr(self, name) for name in FIELDS))


class Timings:
    """Where the time of one call went, in microseconds (float).

    Attributes:
        queue_us: from kalosd seeing the request to starting on it.
        search_us: in the engine: filter, scan, selection. Of a write: until it was on disk and visible.
        fetch_us: completing the reply: ids, texts, metadata.
        transport_us: all the rest between sending and having the reply: shared memory, waking, copying.
        total_us: the sum.
    """

    __slots__ = ("fetch_us", "queue_us", "search_us", "transport_us")

    def __init__(self, queue_us: float, search_us: float, fetch_us: float, transport_us: float) -> None:
        self.queue_us = queue_us
        self.search_us = search_us
        self.fetch_us = fetch_us
        self.transport_us = transport_us

    @property
    def total_us(self) -> float:
        return self.queue_us + self.search_us + self.fetch_us + self.transport_us

    def __repr__(self) -> str:
        return (
            f"Timings(queue_us={self.queue_us:.1f}, search_us={self.search_us:.1f}, fetch_us={self.fetch_us:.1f}, "
            f"transport_us={self.transport_us:.1f})"
        )
