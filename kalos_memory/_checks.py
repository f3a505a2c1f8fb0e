"""Checks of what callers pass in, with words that name the argument and the element.

Everything here either returns the value in the form that the codec wants or raises InvalidRequest. Nothing is coerced
in silence: an int is no id, a tuple no JSON list, a naive datetime no time.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from json import JSONEncoder
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kalos_memory import _abi
from kalos_memory._errors import InvalidRequest

FLOAT32 = np.dtype(np.float32)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)
INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1

METRICS = {"cosine": _abi.METRIC_COSINE, "dot": _abi.METRIC_DOT, "l2": _abi.METRIC_L2}
DURABILITIES = {"commit": _abi.DURABILITY_COMMIT, "relaxed": _abi.DURABILITY_RELAXED}
INCLUDES = {"text": _abi.INCLUDE_TEXT, "metadata": _abi.INCLUDE_METADATA, "vector": _abi.INCLUDE_VECTOR}
ORDERS = {"insertion": _abi.ORDER_INSERTION, "updated": _abi.ORDER_UPDATED}

encode_json = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _is(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"


def shown(value: object) -> str:
    """The value for a message, whatever it is: also an int of 5,000 digits, or what cannot say what it is."""
    try:
        text = repr(value)
    except Exception:  # a ValueError of such an int, or anything of a __repr__ that is not ours
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def utf8(text: object, what: str) -> bytes:
    """A str as UTF-8. NUL, emoji and right-to-left are fine; half a surrogate pair is not."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} must be a str, not {_is(text)}: {shown(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}), which UTF-8"
            " cannot carry: decode the source with the right encoding, or replace it with text.encode(errors='replace')"
        ) from None


_ONLY_STR: frozenset[type] = frozenset({str})
_STR_OR_NONE: frozenset[type] = frozenset({str, type(None)})


def _encode_plain(items: list[Any], kinds: frozenset[type]) -> list[Any] | None:
    """The common case, at a fraction of the price of looking at each element: all of these types, all good UTF-8.
    None where that does not hold, and the elements must be looked at."""
    if not kinds.issuperset(map(type, items)):
        return None
    try:
        return [None if item is None else item.encode() for item in items]
    except UnicodeEncodeError:
        return None


def _longest(encoded: list[Any]) -> int:
    return max((len(item) for item in encoded if item), default=0)


def encode_ids(ids: object, what: str = "ids") -> list[bytes]:
    """ids: an iterable of str of 1 to 1,024 bytes of UTF-8 -> their bytes."""
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable):
        raise InvalidRequest(f"{what} must be a list of str, not {_is(ids)}: write [{shown(ids)}] for a single one")
    items = list(ids)
    encoded = _encode_plain(items, _ONLY_STR)
    if encoded is not None and (not encoded or (min(map(len, encoded)) > 0 and _longest(encoded) <= _abi.MAX_ID_BYTES)):
        return encoded
    encoded = []
    for index, item in enumerate(items):
        data = utf8(item, f"{what}[{index}]")
        if not 0 < len(data) <= _abi.MAX_ID_BYTES:
            raise InvalidRequest(
                f"{what}[{index}] is empty: an id has 1 to {_abi.MAX_ID_BYTES} bytes"
                if not data
                else f"{what}[{index}] has {len(data)} bytes of UTF-8: an id has at most {_abi.MAX_ID_BYTES}"
            )
        encoded.append(data)
    return encoded


@lru_cache(maxsize=4096)
def _namespace_key(namespace: str | tuple[str, ...], what: str) -> bytes:
    segments = (namespace,) if isinstance(namespace, str) else namespace
    if len(segments) > _abi.MAX_NAMESPACE_SEGMENTS:
        raise InvalidRequest(f"{what} has {len(segments)} segments: at most {_abi.MAX_NAMESPACE_SEGMENTS} are possible")
    key = b""
    for index, segment in enumerate(segments):
        data = utf8(segment, f"segment {index} of {what}")
        if not 0 < len(data) <= _abi.MAX_NAMESPACE_SEGMENT_BYTES:
            raise InvalidRequest(
                f"segment {index} of {what} has {len(data)} bytes: 1 to {_abi.MAX_NAMESPACE_SEGMENT_BYTES} are possible"
            )
        key += len(data).to_bytes(2, "big") + data
    return key


def namespace_key(namespace: object, what: str = "namespace") -> bytes:
    """A namespace (tuple of str, or a str for a single segment) as its key; () is b""."""
    if namespace == () and isinstance(namespace, tuple):
        return b""
    if not isinstance(namespace, (str, tuple)):
        raise InvalidRequest(f"{what} must be a str or a tuple of str, not {_is(namespace)}: {shown(namespace)}")
    try:
        return _namespace_key(namespace, what)
    except TypeError:  # a segment that cannot be hashed, so surely not a str
        raise InvalidRequest(f"{what} must be a str or a tuple of str, not {shown(namespace)}") from None


def collection_name(name: object) -> str:
    data = utf8(name, "the collection's name")
    if not 0 < len(data) <= _abi.MAX_COLLECTION_NAME_BYTES:
        raise InvalidRequest(
            f"the collection's name has {len(data)} bytes: 1 to {_abi.MAX_COLLECTION_NAME_BYTES} are possible"
        )
    return str(name)


def integer(value: object, what: str, low: int, high: int) -> int:
    """An int (numpy's too, not a bool) within [low, high]."""
    if isinstance(value, (bool, np.bool_)):
        raise InvalidRequest(f"{what} must be an int, not {_is(value)}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(f"{what} must be an int, not {_is(value)}: {shown(value)}") from None
    if not low <= number <= high:
        raise InvalidRequest(f"{what} is {shown(number)}: {low} to {high} are possible")
    return number


def number(value: object, what: str) -> float:
    """A finite real number as float."""
    if isinstance(value, (bool, np.bool_, str, bytes)) or (isinstance(value, np.ndarray) and value.ndim > 0):
        raise InvalidRequest(f"{what} must be a number, not {_is(value)}: {shown(value)}")
    try:
        result = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidRequest(f"{what} is {shown(value)}: that is beyond any float") from None
    except (TypeError, ValueError):
        raise InvalidRequest(f"{what} must be a number, not {_is(value)}: {shown(value)}") from None
    if not math.isfinite(result):
        raise InvalidRequest(f"{what} is {result}: a finite number is expected")
    return result


def timeout_seconds(value: object, what: str = "timeout") -> float:
    seconds = number(value, what)
    if not 0 < seconds <= 1e6:
        raise InvalidRequest(f"{what} is {seconds} s: more than 0 and at most 1,000,000 s are possible")
    return seconds


def choice(value: object, what: str, known: Mapping[str, int]) -> int:
    code = known.get(value) if isinstance(value, str) else None
    if code is None:
        raise InvalidRequest(f"{what} is {shown(value)}: one of {', '.join(map(repr, known))} is expected")
    return code


def include_bits(include: object) -> int:
    """include: an iterable of "text", "metadata", "vector" -> bits of the ABI."""
    if isinstance(include, str) or not isinstance(include, Iterable):
        raise InvalidRequest(
            f'include must be a tuple of names, not {shown(include)}: for example include=("text", "metadata")'
        )
    bits = 0
    for name in include:
        bits |= choice(name, "an element of include", INCLUDES)
    return bits


def timestamp_us(value: object, what: str) -> int:
    """An aware datetime as microseconds since 1970 UTC, never 0 (which means "never" on the wire)."""
    if not isinstance(value, datetime) or value != value:  # pandas.NaT is a datetime, and no time
        raise InvalidRequest(f"{what} must be an aware datetime or None, not {_is(value)}: {shown(value)}")
    if value.utcoffset() is None:
        raise InvalidRequest(
            f"{what} is a naive datetime ({value}), whose moment is a guess: give it a zone,"
            " for example datetime.now(timezone.utc) + timedelta(days=1)"
        )
    return max(1, (value - EPOCH) // MICROSECOND)


def expiry_column(expires_at: object, rows: int) -> list[int] | None:
    """None, one aware datetime for all rows, or a list with one (or None) for each -> microseconds, 0 for never."""
    if expires_at is None:
        return None
    if isinstance(expires_at, datetime):
        return [timestamp_us(expires_at, "expires_at")] * rows
    items = aligned(expires_at, "expires_at", rows, "an aware datetime, or ")
    return [0 if item is None else timestamp_us(item, f"expires_at[{i}]") for i, item in enumerate(items)]


def aligned(items: object, what: str, rows: int, instead: str = "") -> list[Any]:
    """A sequence with one element for each row. instead: what else it might have been, for the words."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidRequest(f"{what} must be {instead}a list with one element for each id, not {_is(items)}")
    values = list(items)
    if len(values) != rows:
        raise InvalidRequest(f"{what} has {len(values)} elements for {rows} ids: one for each is expected")
    return values


def encode_texts(texts: object, rows: int) -> list[bytes | None] | None:
    if texts is None:
        return None
    items = aligned(texts, "texts", rows)
    encoded: list[bytes | None] | None = _encode_plain(items, _STR_OR_NONE)
    if encoded is not None and _longest(encoded) <= _abi.MAX_TEXT_BYTES:
        return encoded
    encoded = []
    for index, text in enumerate(items):
        if text is None:
            encoded.append(None)
            continue
        data = utf8(text, f"texts[{index}]")
        if len(data) > _abi.MAX_TEXT_BYTES:
            raise InvalidRequest(
                f"texts[{index}] has {len(data):,} bytes: at most {_abi.MAX_TEXT_BYTES:,} (16 MiB) are possible;"
                " cut it into passages"
            )
        encoded.append(data)
    return encoded


# ------------------------------------------------------------------------------------------------- JSON --------------


def check_json(value: object, path: str, depth: int, deepest: int) -> None:
    """Raises unless value is plain JSON: dict with str keys, list, str, int64, finite float, bool, None."""
    if isinstance(value, (str, bool)) or value is None:
        return
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise InvalidRequest(f"{path} is {shown(value)}, beyond int64: write it as a str or a float")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRequest(f"{path} is {value}, which JSON cannot carry: leave it out, or use None")
    elif isinstance(value, dict):
        if depth >= deepest:
            raise InvalidRequest(f"{path} is nested deeper than {deepest} levels")
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidRequest(f"{path} has a key that is {_is(key)}: {shown(key)}; JSON keys are str")
            check_json(item, f"{path}[{shown(key)}]", depth + 1, deepest)
    elif isinstance(value, list):
        if depth >= deepest:
            raise InvalidRequest(f"{path} is nested deeper than {deepest} levels")
        for index, item in enumerate(value):
            check_json(item, f"{path}[{index}]", depth + 1, deepest)
    else:
        raise InvalidRequest(
            f"{path} is {_is(value)}, which is not JSON: {shown(value)}; convert it to"
            " a str, int, float, bool, None, list or dict"
        )


_PLAIN = (str, int, bool, float, type(None))


def encode_metadata(metadata: object, column: str, index: int) -> bytes:
    """A dict as the JSON that is stored, byte for byte; checked first, so that the words can name the key."""
    if not isinstance(metadata, dict):
        what = f"{column}[{index}]"
        raise InvalidRequest(f"{what} must be a dict or None, not {_is(metadata)}: {shown(metadata)}")
    for key, value in metadata.items():
        # Nearly all metadata is flat: the common types are let through here at a tenth of the price of the walk.
        kind = type(value)
        if type(key) is str and (
            kind is str
            or (kind is int and INT64_MIN <= value <= INT64_MAX)
            or (kind is float and -math.inf < value < math.inf)
            or kind is bool
            or value is None
        ):
            continue
        check_json(metadata, f"{column}[{index}]", 0, _abi.MAX_METADATA_DEPTH)
        break
    try:
        data = encode_json(metadata).encode()
    except UnicodeEncodeError:
        data = utf8(encode_json(metadata), f"{column}[{index}]")
    if len(data) > _abi.MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"{column}[{index}] has {len(data):,} bytes as JSON: at most {_abi.MAX_METADATA_BYTES:,} (1 MiB) are"
            " possible; long text belongs into texts"
        )
    return data


def encode_metadatas(metadatas: object, rows: int) -> list[bytes | None] | None:
    if metadatas is None:
        return None
    return [
        None if item is None else encode_metadata(item, "metadatas", index)
        for index, item in enumerate(aligned(metadatas, "metadatas", rows))
    ]


# ---------------------------------------------------------------------------------------------- vectors --------------


def _to_array(value: Any, what: str) -> NDArray[Any]:
    """Anything array-like in host memory, or a device array through one copy, as a numpy array of its own dtype."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidRequest(
            f"{what} is a masked array, whose masked numbers mean nothing: fill them first (array.filled(0.0))"
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        device = value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else 1
    except Exception:  # an exporter that refuses, such as a tensor that requires grad: let numpy say why
        device = 1
    if hasattr(value, "__cuda_array_interface__") or device not in (1, 3):
        try:
            import cupy
        except ImportError:
            raise InvalidRequest(
                f"{what} lies on a device ({_is(value)}) and cupy is not installed: copy it to the host first"
                " (tensor.cpu(), numpy.asarray(...)), or pip install 'kalos-memory[gpu]'"
            ) from None
        array: NDArray[Any] = cupy.asnumpy(cupy.asarray(value))
        return array
    try:
        return np.asarray(value)
    except Exception as error:  # whatever an exotic array type raises, the caller gets one kind with its words
        raise InvalidRequest(f"{what} cannot be read as an array of numbers: {error}") from None


def float32_array(value: Any, what: str) -> NDArray[np.float32]:
    """Array-like numbers as contiguous float32. Wider floats are narrowed; what is no longer finite then is refused
    by finite_rows() or by kalosd."""
    array = _to_array(value, what)
    if array.dtype.kind not in "fiu":
        if array.size == 0:
            return np.zeros(array.shape, FLOAT32)
        raise InvalidRequest(
            f"{what} must hold real numbers (float32, or what narrows to it), not dtype {array.dtype}"
            + (": are the rows of equal length?" if array.dtype.kind == "O" else "")
        )
    if array.dtype is not FLOAT32 or not array.flags.c_contiguous:
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.ascontiguousarray(array, dtype=FLOAT32).reshape(array.shape)
    return array


def check_dimension(found: int, dimension: int, what: str) -> None:
    if found != dimension:
        raise InvalidRequest(f"{what} has {found} components, the collection has dimension {dimension}")


def query_matrix(vectors: Any, dimension: int) -> tuple[NDArray[np.float32], bool]:
    """Query vectors -> (float32 (n, dimension), whether a single vector was given)."""
    array = float32_array(vectors, "vectors")
    if array.ndim == 1:
        if isinstance(vectors, (list, tuple)) and not vectors:
            return array.reshape(0, dimension), False  # no queries
        single = True
        check_dimension(array.shape[0], dimension, "the query vector")
        array = array.reshape(1, dimension)
    elif array.ndim == 2:
        single = False
        if array.shape[0] or array.shape[1]:
            check_dimension(array.shape[1], dimension, "each query vector")
    else:
        raise InvalidRequest(f"vectors has {array.ndim} axes: one vector (1-D) or a matrix (2-D) is expected")
    return array, single


def finite_rows(matrix: NDArray[np.float32], what: str, rows: Sequence[int] | None = None) -> None:
    """Raises where a component is NaN or infinite, naming the row and the component."""
    good = np.isfinite(matrix)
    if good.all():
        return
    row, component = (int(i) for i in np.argwhere(~good)[0])
    raise InvalidRequest(
        f"{what}[{row if rows is None else rows[row]}] has the component {matrix[row, component]} at {component}:"
        " NaN and infinity, also those that arise when narrowing to float32, cannot be stored or compared"
    )


def row_matrix(vectors: Any, rows: int, dimension: int) -> tuple[NDArray[np.float32] | None, NDArray[np.uint8] | None]:
    """Vectors to store -> (float32 (rows, dimension), u8 mask of rows that have one); None where all or none have."""
    if vectors is None:
        return None, None
    if isinstance(vectors, (list, tuple)) and any(vector is None for vector in vectors):
        if len(vectors) != rows:
            raise InvalidRequest(f"vectors has {len(vectors)} elements for {rows} ids: one for each is expected")
        given = [index for index, vector in enumerate(vectors) if vector is not None]
        if not given:
            return None, None
        mask = np.zeros(rows, np.uint8)
        mask[given] = 1
        matrix = np.zeros((rows, dimension), FLOAT32)
        for index in given:
            vector = float32_array(vectors[index], f"vectors[{index}]")
            if vector.ndim != 1:
                raise InvalidRequest(f"vectors[{index}] has {vector.ndim} axes: one vector is expected")
            check_dimension(vector.shape[0], dimension, f"vectors[{index}]")
            matrix[index] = vector
        finite_rows(matrix, "vectors")
        return matrix, mask
    matrix = float32_array(vectors, "vectors")
    if rows == 0 and matrix.size == 0:
        return None, None
    if matrix.ndim != 2:
        raise InvalidRequest(
            f"vectors has {matrix.ndim} axes: a matrix with one row for each id is expected"
            + (" (for one row: vectors[None, :] or [vector])" if matrix.ndim == 1 else "")
        )
    if matrix.shape[0] != rows:
        raise InvalidRequest(f"vectors has {matrix.shape[0]} rows for {rows} ids: one for each is expected")
    check_dimension(matrix.shape[1], dimension, "each vector")
    finite_rows(matrix, "vectors")
    return matrix, None
