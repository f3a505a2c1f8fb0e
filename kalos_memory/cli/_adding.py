"""What `kalos add` and `kalos demo` share: ingestion with a progress bar, and its result in words.

Imported inside the verbs, because the ingestion brings the client along.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kalos_memory.cli._output import counted, error_console

if TYPE_CHECKING:
    from kalos_memory import Memory
    from kalos_memory._documents import Document

BATCH = 16  # passages committed together: the bar moves every second or so on a slow machine
Advance = Callable[[int, int], None]


@contextmanager
def progress(quiet: bool, words: str) -> Iterator[Advance]:
    """A callback (done, total) that draws a bar on stderr, where that is a terminal; else one that draws nothing."""
    screen = error_console()
    if quiet or not screen.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def add(memory: Memory, paths: list[str], quiet: bool) -> dict[str, Any]:
    """Brings a memory up to date with files, folders and stdin ("-")."""
    from kalos_memory._documents import read_documents
    from kalos_memory._ingest import ingest

    if "-" in paths and sys.stdin.isatty():
        sys.stderr.write("kalos: reading from the terminal, end with Ctrl-D\n")
    reading = read_documents(paths)
    with progress(quiet, "remembering") as advance:
        return as_json(ingest(memory, reading, batch_size=BATCH, progress=advance))


def add_manual(memory: Memory, quiet: bool) -> dict[str, Any]:
    """Brings a memory up to date with the manual that this Python carries, each text of it once."""
    from kalos_memory import _documents
    from kalos_memory._ingest import ingest

    reading = _documents.pydoc_topics()
    reading.documents = without_repeats(reading.documents)
    with progress(quiet, "remembering the manual") as advance:
        return as_json(ingest(memory, reading, batch_size=BATCH, progress=advance))


def without_repeats(documents: list[Document]) -> list[Document]:
    """The documents without the passages that an earlier one has word for word: many topics include one another."""
    seen: set[str] = set()
    kept = []
    for document in documents:
        rows = [row for row, text in enumerate(document.texts) if text not in seen]
        seen.update(document.texts)
        texts = [document.texts[row] for row in rows]
        kept.append(replace(document, texts=texts, metadatas=[document.metadatas[row] for row in rows]))
    return kept


def as_json(report: Any) -> dict[str, Any]:
    """An IngestReport as JSON."""
    return {
        "added": report.added,
        "moved": report.moved,
        "unchanged": report.unchanged,
        "removed": report.removed,
        "skipped": [{"path": path, "reason": reason} for path, reason in report.skipped],
    }


def in_words(done: dict[str, Any]) -> str:
    """How many passages were added, unchanged, removed; those that only moved where there are any."""
    moved = f"{done['moved']:,} moved, " if done["moved"] else ""
    added = counted(done["added"], "passage")
    return f"{added} added, {moved}{done['unchanged']:,} unchanged, {done['removed']:,} removed"
