"""What `Memory.recall` returns: the hits, where the time went, and the text for a prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from kalos_memory._render import render

if TYPE_CHECKING:
    from kalos_memory._errors import KalosError
    from kalos_memory._types import Hit, Timings


class RecallTimings(Mapping[str, float]):
    """Where the time of one recall went, in microseconds, as attributes and as a mapping.

    Attributes:
        tokenize: cutting the query into tokens; 0 where the embedder does not tell (then `embed` covers both).
        embed: from tokens to the vector.
        transport: to the sidecar and back: shared memory, waking, copying.
        queue: waiting in the sidecar for other requests.
        search: filter, scan and selection.
        fetch: ids, texts and metadata of the hits.
        total: the whole call by the clock; what is over the sum of the others is Python, and connecting the first time.

    Example:
        >>> timings = memory.recall("tea").timings
        >>> timings.search, timings["search"], dict(timings)
    """

    __slots__ = ("embed", "fetch", "queue", "search", "tokenize", "total", "transport")
    _NAMES = ("tokenize", "embed", "transport", "queue", "search", "fetch", "total")

    def __init__(
        self,
        *,
        tokenize: float,
        embed: float,
        transport: float,
        queue: float,
        search: float,
        fetch: float,
        total: float,
    ) -> None:
        self.tokenize = tokenize
        self.embed = embed
        self.transport = transport
        self.queue = queue
        self.search = search
        self.fetch = fetch
        self.total = total

    @classmethod
    def of(cls, start_ns: int, tokenize: float, embed: float, call: Timings | None = None) -> RecallTimings:
        """The timings of a recall that began at `start_ns` (perf_counter_ns); `call` None where no answer came."""
        return cls(
            tokenize=tokenize,
            embed=embed,
            transport=call.transport_us if call else 0.0,
            queue=call.queue_us if call else 0.0,
            search=call.search_us if call else 0.0,
            fetch=call.fetch_us if call else 0.0,
            total=(time.perf_counter_ns() - start_ns) / 1000,
        )

    def __getitem__(self, name: str) -> float:
        if name not in self._NAMES:
            raise KeyError(name)
        value: float = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._NAMES)

    def __len__(self) -> int:
        return len(self._NAMES)

    def __repr__(self) -> str:
        return f"RecallTimings({', '.join(f'{name}={self[name]:.1f}' for name in self._NAMES)}; us)"


class Recall(Sequence["Hit"]):
    """The memories nearest to a query, best first: a sequence of Hit.

    Attributes:
        query: str, as it was asked.
        timings: RecallTimings, microseconds.
        text: str, the hits as delimited, attributed, dated data for a prompt; "" when there are none.
        error: why this is empty, where on_failure="empty" swallowed a failure; else None.
    """

    __slots__ = ("_hits", "error", "query", "timings")

    def __init__(
        self, query: str, hits: Sequence[Hit], timings: RecallTimings, error: KalosError | None = None
    ) -> None:
        self.query = query
        self.timings = timings
        self.error = error
        self._hits = list(hits)

    @property
    def text(self) -> str:
        """The hits as text for a prompt, escaped so that none can pose as instructions (see `render`)."""
        return render(self._hits)

    @overload
    def __getitem__(self, index: int) -> Hit: ...

    @overload
    def __getitem__(self, index: slice) -> list[Hit]: ...

    def __getitem__(self, index: Any) -> Any:
        return self._hits[index]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __repr__(self) -> str:
        failed = f", error={self.error!r}" if self.error else ""
        return f"Recall({self.query!r}, {len(self)} hits, {self.timings.total:.0f} us{failed})"
