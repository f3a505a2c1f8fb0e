"""Percentiles and histograms of latencies.

Percentiles are nearest-rank: always a latency that was really measured, never one between two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Latencies in microseconds; n of them."""

    n: int
    p50_us: float
    p99_us: float
    mean_us: float
    min_us: float
    max_us: float


def percentile(ordered: Sequence[int], fraction: float) -> int:
    """The nearest-rank percentile of a sorted sequence: the smallest value with at least `fraction` of all at or below.

    >>> percentile([1, 2, 3, 4], 0.5)
    2
    """
    if not ordered:
        raise ValueError("no values: a percentile needs at least one")
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"fraction is {fraction}; expected above 0 and at most 1")
    # The product is rounded first, because 0.07 * 100 is a little above 7 in binary.
    rank = math.ceil(round(fraction * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


def summarize(latencies_ns: Sequence[int]) -> Summary:
    """The summary of at least one latency in nanoseconds."""
    ordered = sorted(latencies_ns)
    return Summary(
        n=len(ordered),
        p50_us=percentile(ordered, 0.50) / 1000,
        p99_us=percentile(ordered, 0.99) / 1000,
        mean_us=sum(ordered) / len(ordered) / 1000 if ordered else 0.0,
        min_us=ordered[0] / 1000,
        max_us=ordered[-1] / 1000,
    )


@dataclass(frozen=True)
class Bucket:
    """Latencies from low_us up to, not including, high_us."""

    low_us: float
    high_us: float
    count: int


def histogram(latencies_ns: Sequence[int], per_octave: int = 2, most: int = 16) -> list[Bucket]:
    """Buckets whose edges grow by a constant factor, from the smallest to the largest latency, each counted once.

    Args:
        latencies_ns: nanoseconds, any order.
        per_octave: buckets between a latency and its double; fewer are used where more than `most` would be needed.
        most: buckets at most.
    """
    if not latencies_ns:
        return []
    step = 1.0 / per_octave
    low, high = max(min(latencies_ns), 1), max(max(latencies_ns), 1)
    while True:
        first = math.floor(math.log2(low) / step)
        last = math.floor(math.log2(high) / step)
        if last - first < most:
            break
        step *= 2
    counts = [0] * (last - first + 1)
    for latency in latencies_ns:
        index = math.floor(math.log2(max(latency, 1)) / step) - first
        counts[min(max(index, 0), len(counts) - 1)] += 1
    return [
        Bucket(2 ** ((first + index) * step) / 1000, 2 ** ((first + index + 1) * step) / 1000, count)
        for index, count in enumerate(counts)
    ]


_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """A horizontal bar of share (0 to 1) of `width` cells, in eighths of a cell; what is not zero shows."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def render_histogram(buckets: Sequence[Bucket], width: int = 40) -> list[str]:
    """One line a bucket: its lower edge, a bar, the count."""
    if not buckets:
        return []
    largest = max(bucket.count for bucket in buckets)
    return [
        f"{_edge(bucket.low_us):>9} us  {bar(bucket.count / largest, width):<{width}}  {bucket.count:,}"
        for bucket in buckets
    ]


def _edge(value_us: float) -> str:
    return f"{value_us:.1f}" if value_us < 100 else f"{value_us:,.0f}"
