"""The result of a run as tables and histograms for a terminal. Adds no figure that the result does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kalos_memory.bench import _machine
from kalos_memory.bench._cases import BARE
from kalos_memory.bench._stats import Bucket, render_histogram

if TYPE_CHECKING:
    from rich.console import Console


def show(result: dict[str, Any], console: Console) -> None:
    """Prints the whole report."""
    settings = result["settings"]
    for line in _machine.words(result["machine"]):
        console.print(Text(line, style="dim"))
    console.print(
        Text(
            f"d = {settings['dimension']}, k = {settings['k']}, cosine; closed loop, and paced with a pause of "
            f"{settings['pause_s'] * 1000:g} ms before each call; {settings['seconds']:g} s each; latencies in us",
            style="dim",
        )
    )
    console.print(_latency_table("The lane (no operation)", [("", result["lane"])]))
    console.print(
        _latency_table(
            "Recall by vector",
            [(f"{size['rows']:,}", size["measurements"]) for size in result["recall_by_vector"]],
            first_column="rows",
        )
    )
    for size in result["recall_by_vector"]:
        console.print(answers_in_words(size))
    if result["recall_by_text"] is not None:
        by_text = result["recall_by_text"]
        console.print(_latency_table(f"Recall by text ({by_text['embedder']}, {by_text['rows']:,} rows)",
                                     [("", by_text["measurements"])]))  # fmt: skip
        for series in by_text["measurements"]:
            console.print(f"  {series['loop']}, p50 of each stage: {stages_in_words(series['stages_p50_us'])}")
    _show_writes(result["writes"], console)
    _show_histograms(result, console)
    for why, names in _left_out(result["not_measured"]).items():
        console.print(Text(f"not measured: {', '.join(names)} ({why})", style="dim"))


def show_transport(result: dict[str, Any], console: Console) -> None:
    """Prints the report of a transport run."""
    for line in _machine.words(result["machine"]):
        console.print(Text(line, style="dim"))
    transport = result["transport"]
    table = Table(
        title="The way between processes, over the work (latencies in us)", title_justify="left", title_style="bold"
    )
    for name in ("what", "rhythm"):
        table.add_column(name)
    for name in ("clients", "p50", "p99", "max", "n"):
        table.add_column(name, justify="right")
    previous = None
    for one in transport["measurements"]:
        head = (one["call"], one["rhythm"])
        if previous is not None and head != previous:
            table.add_section()
        figures = [_number(one[f"{name}_us"]) for name in ("p50", "p99", "max")]
        table.add_row(*(head if head != previous else ("", "")), str(one["clients"]), *figures, f"{one['n']:,}")
        previous = head
    console.print(table)
    console.print(
        f"  closed: call after call; sleeping: {transport['pause_s'] * 1000:g} ms of sleep before each; computing: "
        f"{transport['compute_us']:g} us of Python before each. search: over {transport['rows']:,} x "
        f"{transport['dimension']}, without the time in the engine. {transport['passes']:,} passes; "
        f"{transport['combined']:,} searches shared one."
    )


def show_peers(result: dict[str, Any], console: Console) -> None:
    """Prints the report of a run beside peers."""
    settings = result["settings"]
    for line in _machine.words(result["machine"]):
        console.print(Text(line, style="dim"))
    for size in result["sizes"]:
        table = Table(
            title=f"{size['family']}: {size['rows']:,} x {size['dimension']}, k = {size['k']} (latencies in us; paced: "
            f"{settings['pause_s'] * 1000:g} ms before each call)",
            title_justify="left",
            title_style="bold",
        )
        table.add_column("store")
        for name in ("recall", "p50", "p95", "p99", "paced p50", "p99", "built in s", "memory MB"):
            table.add_column(name, justify="right")
        for store in size["stores"]:
            closed, paced = store["closed"], store["paced"]
            figures = [closed["p50_us"], closed["p95_us"], closed["p99_us"], paced["p50_us"], paced["p99_us"]]
            table.add_row(
                store["name"],
                f"{store['recall']:.3f}",
                *map(_number, figures),
                f"{store['build_s']:.2f}",
                f"{store['memory_bytes'] / 1e6:,.1f}",
            )
        console.print(table)
        for why, names in _left_out(size["not_measured"]).items():
            console.print(Text(f"not measured: {', '.join(names)} ({why})", style="dim"))
    for why, names in _left_out(result["not_measured"]).items():
        console.print(Text(f"not measured: {', '.join(names)} ({why})", style="dim"))
    console.print(
        "  memory: what this process, and for Kalos its sidecar, grew by; texts included where a store keeps them"
    )


def _left_out(not_measured: list[dict[str, str]]) -> dict[str, list[str]]:
    """What was not measured, by the reason."""
    reasons: dict[str, list[str]] = {}
    for missing in not_measured:
        reasons.setdefault(missing["why"], []).append(missing["what"])
    return reasons


def answers_in_words(size: dict[str, Any]) -> str:
    """Whether the answers at one size were the exact ones, and the engine's share of a search."""
    answers = size["answers"]
    equal = ", ".join(f"{name} {right} of {answers['checked']}" for name, right in answers["equal"].items())
    stages = size["stages_p50_us"]
    return (
        f"  {size['rows']:,} rows: answers equal to the exact ones: {equal}; "
        f"inside kalosd p50: search {_number(stages['search'])}, fetch {_number(stages['fetch'])} us"
    )


def stages_in_words(stages: dict[str, float]) -> str:
    """tokenize 12.0, embed 2,310, … in the order in which they happen."""
    return ", ".join(f"{stage} {_number(value)}" for stage, value in stages.items()) + " us"


def _latency_table(title: str, groups: list[tuple[str, list[dict[str, Any]]]], first_column: str = "") -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    if first_column:
        table.add_column(first_column, justify="right")
    table.add_column("what")
    table.add_column("loop")
    for name in ("p50", "p99", "mean", "n"):
        table.add_column(name, justify="right")
    for label, series in groups:
        for index, one in enumerate(series):
            cells = [one["name"], one["loop"], *(_number(one[f"{name}_us"]) for name in ("p50", "p99", "mean"))]
            cells.append(f"{one['n']:,}")
            table.add_row(*([label if index == 0 else ""] if first_column else []), *cells)
        table.add_section()
    return table


def _number(value_us: float) -> str:
    return f"{value_us:.1f}" if value_us < 100 else f"{value_us:,.0f}"


def _show_writes(writes: dict[str, Any], console: Console) -> None:
    ingest = writes["ingest"]
    console.print(_latency_table(f"Writes (flushed to disk, {writes['file_system']})", [("", writes["measurements"])]))
    console.print(
        f"  durable ingest: {ingest['rows_per_second']:,.0f} rows/s ({ingest['rows']:,} rows of {ingest['dimension']} "
        f"dimensions, {ingest['text_bytes']} bytes of text, {ingest['metadata_keys']} keys, in batches of "
        f"{ingest['batch_rows']:,})"
    )
    if writes["file_system"] in ("tmpfs", "ramfs"):
        console.print("  this file system lies in memory: flushing costs nothing there; use --directory on a disk")


def _show_histograms(result: dict[str, Any], console: Console) -> None:
    for size in result["recall_by_vector"][-1:]:
        for series in size["measurements"]:
            if series["name"] != BARE:
                continue
            console.print(Text(f"{size['rows']:,} rows, {series['name']}, {series['loop']}", style="bold"))
            buckets = [Bucket(low, high, int(count)) for low, high, count in series["histogram"]]
            for line in render_histogram(buckets):
                console.print(f"  {line}")
