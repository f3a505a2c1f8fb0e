"""Remembers documents: only passages that are new or changed are embedded, what is gone is forgotten.

A passage's id is `doc-` + 16 hex of sha256 of its source + `-` + 24 hex of sha256 of its text (+ `-2`, `-3`, … when a
source has the same text again). So a second run over the same files finds every passage and embeds none, a changed
paragraph costs one embedding, and a run that was interrupted goes on where it stopped: batches commit as they go.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kalos_memory._documents import Document, Reading

if TYPE_CHECKING:
    from kalos_memory._memory import Memory

Progress = Callable[[int, int], None]

_LOOKUP = 1000  # ids named in one request
_MOST_SOURCES = 1000  # named in one filter; with more, every passage is looked at
_ID = re.compile(r"doc-[0-9a-f]{16}-[0-9a-f]{24}(-\d+)?")


@dataclass
class IngestReport:
    """What a run did, in passages: `added` were embedded, `moved` got new metadata, `unchanged` were there, `removed`
    were outdated. `skipped` lists (path, reason) of files that were not read."""

    added: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Passage:
    id: str
    text: str
    metadata: dict[str, Any]


def ingest(memory: Memory, reading: Reading, *, batch_size: int = 64, progress: Progress | None = None) -> IngestReport:
    """Brings `memory` up to date with what was read (`read_documents`, `pydoc_topics`).

    Args:
        batch_size: passages that are embedded and committed together; an interruption loses at most one batch.
        progress: called with (embedded so far, to embed in all) before the first and after every batch.

    Outdated passages of a source are removed after its new ones are on disk, and those of files that have vanished
    from the folders that were read. Memories that did not come from documents are never touched.

    Example:
        >>> ingest(memory, read_documents(["docs/"])).added
        132
    """
    report = IngestReport(skipped=list(reading.skipped))
    plans = [_passages(document) for document in reading.documents]
    known = _known(memory, [passage.id for plan in plans for passage in plan])
    new, moved = [], []
    for passage in (p for plan in plans for p in plan):
        if passage.id not in known:
            new.append(passage)
        elif known[passage.id] != passage.metadata:
            moved.append(passage)
    report.moved = len(moved)
    report.unchanged = sum(map(len, plans)) - len(new) - len(moved)
    if progress:
        progress(0, len(new))
    for batch in _chunks(new, batch_size):
        memory.remember([p.text for p in batch], id=[p.id for p in batch], metadata=[p.metadata for p in batch])
        report.added += len(batch)
        if progress:
            progress(report.added, len(new))
    for batch in _chunks(moved, batch_size):
        _move(memory, batch)
    report.removed = _prune(memory, reading, plans)
    return report


def _passages(document: Document) -> list[_Passage]:
    prefix = f"doc-{hashlib.sha256(document.key.encode()).hexdigest()[:16]}-"
    seen: dict[str, int] = {}
    passages = []
    for text, metadata in zip(document.texts, document.metadatas, strict=True):
        id = prefix + hashlib.sha256(text.encode()).hexdigest()[:24]
        seen[id] = seen.get(id, 0) + 1
        passages.append(_Passage(id if seen[id] == 1 else f"{id}-{seen[id]}", text, metadata))
    return passages


def _known(memory: Memory, ids: list[str]) -> dict[str, dict[str, Any] | None]:
    """id -> metadata of those that are there."""
    collection = memory._existing()
    if collection is None:
        return {}
    known = {}
    for asked in _chunks(ids, _LOOKUP):
        for hit in collection.get(asked, namespace=memory.namespace, include=("metadata",)):
            if hit is not None:
                known[hit.id] = hit.metadata
    return known


def _move(memory: Memory, passages: list[_Passage]) -> None:
    """New metadata for the same texts: their vectors are read back, not computed again."""
    collection = memory._existing()
    if collection is None:
        return
    ids = [p.id for p in passages]
    hits = collection.get(ids, namespace=memory.namespace, include=("vector",))
    found = [(p, hit.vector) for p, hit in zip(passages, hits, strict=True) if hit is not None]
    if found:
        collection.upsert(
            [p.id for p, _ in found],
            [vector for _, vector in found],
            texts=[p.text for p, _ in found],
            metadatas=[p.metadata for p, _ in found],
            namespace=memory.namespace,
        )


def _prune(memory: Memory, reading: Reading, plans: list[list[_Passage]]) -> int:
    """Forgets passages that their source no longer has, and those of files that are gone from the folders read."""
    collection = memory._existing()
    if collection is None:
        return 0
    sources = {document.source for document in reading.documents if document.complete}
    current = {passage.id for plan in plans for passage in plan}
    folders = tuple(os.path.join(folder, "") for folder in reading.folders)
    if folders or len(sources) > _MOST_SOURCES:
        where: dict[str, Any] = {"source": {"$exists": True}, "position": {"$exists": True}}
    else:
        where = {"source": {"$in": sorted(sources)}}
    outdated = []
    for hit in collection.scan(namespace=memory.namespace, filter=where, include=("metadata",)):
        source = (hit.metadata or {}).get("source")
        if not _ID.fullmatch(hit.id) or not isinstance(source, str) or hit.id in current:
            continue
        if source in sources or (source.startswith(folders) and not os.path.lexists(source)):
            outdated.append(hit.id)
    return sum(memory.forget(ids) for ids in _chunks(outdated, _LOOKUP))


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
