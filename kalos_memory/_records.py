"""The arguments of `Memory.remember`, checked and turned into columns, before anything is embedded or written."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from kalos_memory import _checks
from kalos_memory._errors import InvalidRequest

Ttl = float | timedelta

WRITE_BYTES = 32 << 20  # a write is cut above this, far below what kalosd stages for one batch


@dataclass(frozen=True)
class Records:
    """Texts with their ids and metadata, aligned; `single` when one str was given, not a list."""

    ids: list[str]
    texts: list[str]
    metadatas: list[dict[str, Any] | None] | None
    expires_at: datetime | None
    sizes: list[int]  # bytes of text and metadata
    single: bool

    @classmethod
    def of(cls, text: Any, id: Any, metadata: Any, ttl: Ttl | None) -> Records:
        single = isinstance(text, str)
        if single:
            text, id = [text], None if id is None else [id]
        elif isinstance(text, (bytes, Mapping)) or not isinstance(text, Iterable):
            raise InvalidRequest(f"text must be a str or a list of str, not a {type(text).__name__}")
        texts = list(text)
        if metadata is None or isinstance(metadata, Mapping):
            metadata = [metadata] * len(texts)
        elif single:
            raise InvalidRequest(f"metadata must be a dict or None, not a {type(metadata).__name__}")
        given = [None] * len(texts) if id is None else _aligned(id, "id", len(texts))
        ids: list[str] = [uuid.uuid4().hex if each is None else each for each in given]
        metadatas = [None if m is None else dict(m) for m in _mappings(_aligned(metadata, "metadata", len(texts)))]
        # The core checks again when it encodes; here it saves the embedding of what will be refused.
        _checks.encode_ids(ids, "id")
        encoded = _checks.encode_texts(texts, len(texts)) or []
        for i, data in enumerate(encoded):
            if data is None:
                raise InvalidRequest(f"text {i} is None, expected a str")
        described = _checks.encode_metadatas(metadatas, len(texts)) or []
        sizes = [len(t or b"") + len(m or b"") for t, m in zip(encoded, described, strict=True)]
        has_metadata = any(m is not None for m in metadatas)
        return cls(ids, texts, metadatas if has_metadata else None, _expiry(ttl), sizes, single)

    def parts(self, dimension: int) -> list[slice]:
        """Slices to write one after another, each of about WRITE_BYTES at most."""
        parts: list[slice] = []
        start = weight = 0
        for i, size in enumerate(self.sizes):
            row = size + 4 * dimension + len(self.ids[i]) * 4
            if i > start and weight + row > WRITE_BYTES:
                parts.append(slice(start, i))
                start, weight = i, 0
            weight += row
        return [*parts, slice(start, len(self.sizes))] if self.sizes else []

    def columns(self, part: slice, namespace: tuple[str, ...]) -> dict[str, Any]:
        """The keyword arguments of `Collection.upsert`, but the vectors."""
        return {
            "ids": self.ids[part],
            "texts": self.texts[part],
            "metadatas": None if self.metadatas is None else self.metadatas[part],
            "namespace": namespace,
            "expires_at": self.expires_at,
        }

    def answer(self) -> str | list[str]:
        return self.ids[0] if self.single else self.ids


def _aligned(items: Any, what: str, rows: int) -> list[Any]:
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidRequest(f"{what} must be a list with one element for each text, not a {type(items).__name__}")
    values = list(items)
    if len(values) != rows:
        raise InvalidRequest(f"{what} has {len(values)} elements for {rows} texts, expected one for each")
    return values


def _mappings(metadatas: list[Any]) -> list[Mapping[str, Any] | None]:
    for i, metadata in enumerate(metadatas):
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidRequest(f"metadata {i} must be a dict or None, not a {type(metadata).__name__}")
    return metadatas


def _expiry(ttl: Ttl | None) -> datetime | None:
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else _checks.number(ttl, "ttl")
    if seconds <= 0:
        raise InvalidRequest(f"ttl is {seconds:g} s, expected more than 0; use forget to delete, None to keep for ever")
    try:
        return datetime.now(timezone.utc) + timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidRequest(f"ttl is {seconds:g} s, beyond the year 9999; use None to keep for ever") from None
