"""kalos add, recall, forget: a memory from the shell."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kalos_memory.cli import _session
from kalos_memory.cli._options import DataDir, Filter, JsonOutput, MemoryName, Namespace, filter_of, namespace_of
from kalos_memory.cli._output import (
    console,
    emit_json,
    microseconds_in_words,
    printable,
    snippet,
)
from kalos_memory.cli._running import verb

DEFAULT_MEMORY = "notes"


def register(app: typer.Typer) -> None:
    """Adds the verbs of this file."""
    app.command()(add)
    app.command()(recall)
    app.command()(forget)


@verb
def add(
    paths: Annotated[list[str], typer.Argument(metavar="PATH… | -", help="Files and folders; - reads stdin.")],
    memory_name: MemoryName = DEFAULT_MEMORY,
    namespace: Namespace = None,
    data_dir: DataDir = None,
    json_output: JsonOutput = False,
) -> None:
    """Remember files, folders or stdin. Only passages that changed are embedded again."""
    from kalos_memory.cli import _adding

    _adding.add(paths, memory_name, namespace_of(namespace), data_dir, json_output)


@verb
def recall(
    query: Annotated[str, typer.Argument(help="What to look for, in words.")],
    k: Annotated[int, typer.Option("-k", min=0, max=1024, help="Hits at most.")] = 5,
    memory_name: MemoryName = DEFAULT_MEMORY,
    namespace: Namespace = None,
    filter_json: Filter = None,
    min_score: Annotated[float | None, typer.Option(help="Leave out hits that score lower (cosine, -1 to 1).")] = None,
    data_dir: DataDir = None,
    json_output: JsonOutput = False,
) -> None:
    """Find what was remembered, the nearest in meaning first."""
    where = filter_of(filter_json)
    with _session.memory(memory_name, namespace_of(namespace), data_dir) as memory:
        found = memory.recall(query, k, filter=where, min_score=min_score)
        hits = [hit_as_json(hit) for hit in found]
        timings = _session.stage_times(found.timings)
    if json_output:
        emit_json({"query": query, "memory": memory_name, "hits": hits, "timings_us": timings})
        return
    out = console()
    for hit in hits:
        show_hit(out, hit)
    if not hits:
        out.print("nothing found", markup=False)
    out.print(timings_in_words(timings), markup=False, style="dim")


@verb
def forget(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Ids, as recall prints them.")] = None,
    memory_name: MemoryName = DEFAULT_MEMORY,
    namespace: Namespace = None,
    filter_json: Filter = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Everything in the namespace; needs --yes or an answer.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    json_output: JsonOutput = False,
) -> None:
    """Delete by id, by filter, or everything. What is forgotten is gone from the disk too."""
    where = filter_of(filter_json)
    if not ids and where is None and not everything:
        raise typer.BadParameter("nothing to forget: give ids, --filter or --everything")
    if everything and (ids or where is not None):
        raise typer.BadParameter("--everything goes with neither ids nor --filter")
    scope = namespace_of(namespace)
    if everything and not yes:
        _session.confirm(f"Forget everything in memory {memory_name!r}, namespace {'/'.join(scope) or '(root)'}?")
    with _session.client(data_dir) as client:
        gone = _session.forget(client, memory_name, scope, ids=ids, filter=where, everything=everything)
    if json_output:
        emit_json({"memory": memory_name, "forgotten": gone})
    else:
        console().print(f"forgot {gone:,} {'memory' if gone == 1 else 'memories'} of {memory_name}", markup=False)


def hit_as_json(hit: Any) -> dict[str, Any]:
    """A hit with everything that the verbs show, ready for JSON."""
    return {
        "id": hit.id,
        "score": hit.score,
        "text": hit.text,
        "metadata": hit.metadata,
        "namespace": list(hit.namespace),
        "created_at": hit.created_at.isoformat() if hit.created_at else None,
        "updated_at": hit.updated_at.isoformat() if hit.updated_at else None,
    }


def show_hit(out: Any, hit: dict[str, Any], indent: str = "") -> None:
    """Two lines: score, source and id; then the text, shortened."""
    from rich.text import Text

    source = source_of(hit["metadata"])
    head = Text(f"{indent}{hit['score']:.3f}", style="bold")
    if source:
        head.append(f"  {printable(source)}", style="cyan")
    head.append(f"  {printable(hit['id'])}", style="dim")
    out.print(head)
    out.print(f"{indent}       {snippet(hit['text'])}", markup=False)


def source_of(metadata: dict[str, Any] | None) -> str:
    """Where a passage came from, as the ingestion wrote it, in one piece; empty where nothing says so."""
    if not metadata:
        return ""
    parts = [metadata.get(key) for key in ("source", "topic", "heading", "title")]
    unique = [str(part) for index, part in enumerate(parts) if part and part not in parts[:index]]
    return " > ".join(unique)


def timings_in_words(timings: dict[str, float]) -> str:
    """tokenize 80 us, embed 9,120 us, … in the order in which they happen."""
    return ", ".join(f"{stage} {microseconds_in_words(value)}" for stage, value in timings.items())
