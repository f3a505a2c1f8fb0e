"""kalos add, recall, forget: a memory from the shell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalos_memory.cli import _session
from kalos_memory.cli._exit_codes import ExitCode
from kalos_memory.cli._options import DataDir, Filter, JsonOutput, MemoryName, Namespace, filter_of, namespace_of
from kalos_memory.cli._output import (
    complain,
    console,
    counted,
    emit_json,
    microseconds_in_words,
    printable,
    snippet,
)
from kalos_memory.cli._running import verb

if TYPE_CHECKING:
    from kalos_memory import Memory

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

    with _session.memory(memory_name, namespace_of(namespace), data_dir, existing=False) as memory:
        done = _adding.add(memory, paths, quiet=json_output)
        count = memory.count()
    _complain_of_skipped(done["skipped"])
    if json_output:
        emit_json({"memory": memory_name, **done, "count": count})
    else:
        console().print(f"{_adding.in_words(done)}; {memory_name} holds {count:,}", markup=False)
    named = {os.path.abspath(path) for path in paths if path != "-"} | {"stdin"}
    if any(os.path.abspath(one["path"]) in named or one["path"] in named for one in done["skipped"]):
        raise typer.Exit(ExitCode.ERROR)  # a file inside a folder may be left out, one that was asked for may not


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
    with _session.memory(memory_name, namespace_of(namespace), data_dir, existing=True) as memory:
        memory.embedder.embed_queries([""])  # loads the model, which is no part of a recall
        found = memory.recall(query, k, filter=where, min_score=min_score)
        hits = [hit_as_json(hit) for hit in found]
        timings = dict(found.timings)
        elsewhere = "" if hits or json_output else _elsewhere(memory)
    if json_output:
        emit_json({"query": query, "memory": memory_name, "hits": hits, "timings_us": timings})
        return
    out = console()
    for hit in hits:
        show_hit(out, hit)
    if not hits:
        out.print("nothing found" + elsewhere, markup=False)
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
    with _session.memory(memory_name, scope, data_dir, existing=True) as memory:
        gone = _forget(memory, ids, where, everything)
        elsewhere = "" if gone or json_output else _elsewhere(memory)
    if json_output:
        emit_json({"memory": memory_name, "forgotten": gone})
    else:
        forgot = counted(gone, "memory", "memories")
        console().print(f"forgot {forgot} of {memory_name}{elsewhere}", markup=False)


def _elsewhere(memory: Memory) -> str:
    """After an empty answer: that other namespaces hold something, since nothing else would tell."""
    collection = memory._existing()
    others = [] if collection is None else [key for key in collection.namespaces(limit=6) if key != memory.namespace]
    if not others:
        return ""
    names = ", ".join(printable("/".join(key)) or "(root)" for key in others[:5]) + (", …" if len(others) > 5 else "")
    here = printable("/".join(memory.namespace)) or "(root)"
    return f" in namespace {here}; there are memories in: {names} (--namespace)"


def _complain_of_skipped(skipped: list[dict[str, str]], most: int = 10) -> None:
    for left_out in skipped[:most]:
        complain(f"left out {left_out['path']}: {left_out['reason']}")
    if len(skipped) > most:
        complain(f"left out {len(skipped) - most:,} more; --json lists them all")


def _forget(memory: Memory, ids: list[str] | None, where: dict[str, Any] | None, everything: bool) -> int:
    """With ids and a filter, only what satisfies both. Needs no embedding model."""
    if ids and where is not None:
        collection = memory._existing()
        return 0 if collection is None else collection.delete(ids, filter=where, namespace=memory.namespace)
    return memory.forget(ids or None, filter=where, everything=everything)


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
    """tokenize 80.0 us, embed 9.12 ms, … in the order in which they happen; what they leave of the total is "other"."""
    shown = {stage: value for stage, value in timings.items() if stage != "total"}
    if "total" in timings:  # the rest is Python's, and connecting the first time
        shown["other"] = max(0.0, timings["total"] - sum(shown.values()))
        shown["total"] = timings["total"]
    return ", ".join(f"{stage} {microseconds_in_words(value)}" for stage, value in shown.items())
