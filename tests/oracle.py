"""Exact, simple and slow: what a search and a filter must answer, written from their descriptions alone.

Scores: the canonical arithmetic. Components i = j mod 32 go into partial sum j in rising i, in double; then 32 partial
sums are folded 16, 8, 4, 2, 1. l2 accumulates fma(e, e, sum) with one rounding. So scores can be compared bit by bit.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

MISSING = object()


def _fma(a: float, b: float, c: float) -> float:
    """a * b + c with one rounding: exact rational arithmetic, rounded to nearest even when it becomes a float."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def _fold(sums: list[float]) -> float:
    width = 16
    while width:
        sums = [sums[j] + sums[j + width] for j in range(width)]
        width //= 2
    return sums[0]


def dot(x: Any, y: Any) -> float:
    sums = [0.0] * 32
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        sums[i % 32] += float(a) * float(b)
    return _fold(sums)


def l2(x: Any, q: Any) -> float:
    sums = [0.0] * 32
    for i, (a, b) in enumerate(zip(x, q, strict=True)):
        e = float(a) - float(b)
        sums[i % 32] = _fma(e, e, sums[i % 32])
    return math.sqrt(_fold(sums))


def score(metric: str, q: Any, x: Any) -> float:
    q, x = np.asarray(q, np.float32), np.asarray(x, np.float32)
    if metric == "dot":
        return dot(x, q)
    if metric == "l2":
        return l2(x, q)
    q_norm, x_norm = math.sqrt(dot(q, q)), math.sqrt(dot(x, x))
    return 0.0 if q_norm == 0 or x_norm == 0 else dot(x, q) / (q_norm * x_norm)


def scores(metric: str, q: Any, matrix: Any) -> np.ndarray:
    """`score` of every row of a float32 matrix at once, the same bits.

    l2 only to within a few roundings (numpy has no fma): its best rows have to be scored again one by one.
    """
    q, matrix = np.asarray(q, np.float32).astype(float), np.asarray(matrix, np.float32).astype(float)

    def sum32(terms: np.ndarray) -> np.ndarray:
        sums = np.zeros((len(terms), 32))
        for i in range(0, terms.shape[1], 32):
            part = terms[:, i : i + 32]
            sums[:, : part.shape[1]] += part
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        return sums[:, 0]

    if metric == "l2":
        return np.sqrt(sum32((matrix - q) ** 2))
    dots = sum32(matrix * q)
    if metric == "dot":
        return dots
    norms = np.sqrt(sum32(matrix * matrix)) * np.sqrt(sum32(q[None] * q[None])[0])
    return np.divide(dots, norms, out=np.zeros(len(dots)), where=norms != 0)


def search_matrix(metric: str, q: Any, matrix: Any, k: int) -> list[tuple[int, float]]:
    """The k best (row, score) of a matrix; ties by row."""
    rough = scores(metric, q, matrix)
    best_first = np.lexsort((np.arange(len(rough)), rough if metric == "l2" else -rough))
    if metric == "l2" and len(rough) > k:
        # Whatever a few roundings could bring among the best is scored exactly.
        edge = rough[best_first[k - 1]] * (1 + 1e-13) if k else 0.0
        best_first = best_first[rough[best_first] <= edge]
    if metric == "l2":
        exact = sorted((l2(np.asarray(matrix[row], np.float32), np.asarray(q, np.float32)), row) for row in best_first)
        return [(int(row), value) for value, row in exact[:k]]
    return [(int(row), float(rough[row])) for row in best_first[:k]]


def search(metric: str, q: Any, rows: list[tuple[str, Any]], k: int) -> list[tuple[str, float]]:
    """rows: (id, vector or None) in the order of insertion. -> the k best (id, score); ties in that order."""
    scored = [(score(metric, q, x), place, id) for place, (id, x) in enumerate(rows) if x is not None]
    sign = 1 if metric == "l2" else -1
    scored.sort(key=lambda row: (sign * row[0], row[1]))
    return [(id, value) for value, _, id in scored[:k]]


# ---------------------------------------------------------------------------------------------- filters --------------


def matches(filter: dict[str, Any], metadata: dict[str, Any] | None) -> bool:
    metadata = metadata or {}
    return all(_member(key, value, metadata) for key, value in filter.items())


def _member(key: str, value: Any, metadata: dict[str, Any]) -> bool:
    if key == "$and":
        return all(matches(one, metadata) for one in value)
    if key == "$or":
        return any(matches(one, metadata) for one in value)
    if key == "$not":
        return not matches(value, metadata)
    found = look_up(metadata, key)
    if isinstance(value, dict) and any(name.startswith("$") for name in value):
        return all(_operator(name, operand, found) for name, operand in value.items())
    return equal(found, value)


def look_up(metadata: Any, key: str) -> Any:
    """First a literal key, then a path."""
    if key in metadata:
        return metadata[key]
    found = metadata
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            return MISSING
        found = found[part]
    return found


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def equal(a: Any, b: Any) -> bool:
    """Exact equality of JSON values."""
    if a is MISSING or b is MISSING:
        return False
    if is_number(a) and is_number(b):
        return a == b  # Python compares int and float exactly
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _ordered(found: Any, operand: Any) -> int | None:
    if is_number(found) and is_number(operand):
        return (found > operand) - (found < operand)
    if isinstance(found, str) and isinstance(operand, str):
        return (found > operand) - (found < operand)  # by code points
    return None


def _subset(part: Any, whole: Any) -> bool:
    if not isinstance(part, dict):
        return equal(part, whole)
    return isinstance(whole, dict) and all(key in whole and _subset(part[key], whole[key]) for key in part)


def _operator(name: str, operand: Any, found: Any) -> bool:
    order = _ordered(found, operand)
    if name == "$eq":
        return equal(found, operand)
    if name == "$ne":
        return not equal(found, operand)
    if name == "$gt":
        return order is not None and order > 0
    if name == "$gte":
        return order is not None and order >= 0
    if name == "$lt":
        return order is not None and order < 0
    if name == "$lte":
        return order is not None and order <= 0
    if name == "$in":
        return any(equal(found, one) for one in operand)
    if name == "$nin":
        return not any(equal(found, one) for one in operand)
    if name == "$exists":
        return (found is not MISSING) == operand
    if name == "$contains":
        if isinstance(found, list):
            return any(equal(one, operand) for one in found)
        return isinstance(found, str) and isinstance(operand, str) and operand in found
    if name == "$icontains":
        if isinstance(found, list):
            return any(isinstance(one, str) and one.lower() == operand.lower() for one in found)
        return isinstance(found, str) and operand.lower() in found.lower()
    if name == "$subset":
        return isinstance(found, dict) and _subset(operand, found)
    assert name == "$not"
    return not all(_operator(inner, value, found) for inner, value in operand.items())
