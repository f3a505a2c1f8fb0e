"""Checks what an embedder returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from kalos_memory._errors import InvalidRequest
from kalos_memory.embed._base import FloatMatrix

MAX_DIMENSION = 8192


def check_vectors(raw: Any, rows: int, dimension: int | None, embedder: str) -> FloatMatrix:
    """Returns an embedder's output as a C-contiguous float32 array of shape (rows, dimension).

    Accepts arrays, lists of lists, and tensors on any device. `dimension` None accepts any. Raises InvalidRequest that
    names `embedder` for a wrong type, shape, row count or dimension and for a number that is not finite in float32.
    """
    array = _to_array(raw, embedder)
    if array.ndim == 1 and rows == 1 and array.size > 0:
        array = array.reshape(1, -1)
    if rows == 0 and array.size == 0:
        return np.empty((0, dimension or 0), dtype=np.float32)
    if array.ndim != 2 or array.shape[0] != rows:
        raise InvalidRequest(
            f"The embedder {embedder} returned an array of shape {array.shape} for {rows} text(s), "
            f"expected ({rows}, {dimension or 'dimension'}): one row for each text, in order."
        )
    found = int(array.shape[1])
    if not 1 <= found <= MAX_DIMENSION:
        raise InvalidRequest(
            f"The embedder {embedder} returned vectors of dimension {found}, expected 1 to {MAX_DIMENSION}."
        )
    if dimension is not None and found != dimension:
        raise InvalidRequest(
            f"The embedder {embedder} returned vectors of dimension {found}, expected {dimension} as declared or as "
            "returned before. One embedder must always give the same dimension."
        )
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(vectors).all():
        row, column = np.argwhere(~np.isfinite(vectors))[0]
        raise InvalidRequest(
            f"The embedder {embedder} returned {vectors[row, column]} for text {row} at position {column}, expected "
            "finite numbers that fit float32. Check the model's precision and its input."
        )
    return vectors


def _to_array(raw: Any, embedder: str) -> np.ndarray[Any, np.dtype[Any]]:
    if inspect.isawaitable(raw):
        close = getattr(raw, "close", None)
        if callable(close):
            close()  # otherwise Python warns about a coroutine that nobody awaited
        raise InvalidRequest(
            f"The embedder {embedder} is asynchronous, expected a plain function that returns vectors. "
            "Pass its synchronous form; the async methods of Memory run it in a thread."
        )
    try:
        if isinstance(raw, Iterator):
            raw = list(raw)
        if isinstance(raw, Sequence) and not isinstance(raw, (str, bytes)) and any(hasattr(r, "detach") for r in raw):
            raw = [_from_tensor(row) for row in raw]
        array = np.asarray(_from_tensor(raw))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InvalidRequest(
            f"The embedder {embedder} returned a {type(raw).__name__} that does not form an array ({error}), "
            "expected a float32 array of shape (texts, dimension)."
        ) from error
    if array.dtype.kind not in "fiu":
        raise InvalidRequest(
            f"The embedder {embedder} returned {type(raw).__name__} of dtype {array.dtype}, "
            "expected real numbers (float32) of shape (texts, dimension)."
        )
    return array


def _from_tensor(value: Any) -> Any:
    """A torch tensor on any device as a numpy array; anything else unchanged."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu()
        return cast(Any, tensor.float() if hasattr(tensor, "float") else tensor).numpy()
    return value
