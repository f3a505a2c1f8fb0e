"""kalos bench: the benchmark, as tables or JSON."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kalos_memory.bench._plot import check_plot, draw
from kalos_memory.cli._exit_codes import ExitCode
from kalos_memory.cli._options import JsonOutput
from kalos_memory.cli._output import complain, console, emit_json, error_console
from kalos_memory.cli._running import verb


def register(app: typer.Typer) -> None:
    """Adds the verb of this file."""
    app.command()(bench)


@verb
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="About 20 s: 1,000 and 10,000 rows, shorter series.")] = False,
    rows: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Size of the collection; repeat it. Default: 1000, 10000, 100000.", show_default=False
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.01, help="For each measured series. Default: 3, with --quick 0.5.", show_default=False),
    ] = None,
    dimension: Annotated[int, typer.Option(min=1, max=8192, help="Of the vectors.")] = 384,
    k: Annotated[int, typer.Option("-k", min=1, max=1024, help="Hits asked for.")] = 10,
    text: Annotated[bool, typer.Option("--text/--no-text", help="Recall by text; needs the embedding model.")] = True,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Where durable writes are measured, in a directory made and removed there. Default: a temporary "
            "one on a disk.",
            show_default=False,
        ),
    ] = None,
    transport: Annotated[
        bool,
        typer.Option(
            "--transport",
            help="Only the way between processes: 1, 2, 4 and 16 client processes, closed loop, sleeping, computing.",
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Only Kalos beside other vector stores, those that are installed: numpy, FAISS, usearch, Chroma, "
            "sqlite-vec, LanceDB, LangGraph.",
        ),
    ] = False,
    texts: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="With --peers: embeds the .txt, .md, .json and .jsonl files below. Default: Python's manual.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="With --peers: a picture, .svg or .png.", show_default=False),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Measure Kalos on this machine.

    Recall by vector beside numpy, recall by text, durable writes. Sidecars and data are the run's own and are removed.

    Latencies are given closed loop and paced, p50 and p99. The answers are compared with the exact ones: where they
    differ, the exit code is 1.
    """
    from kalos_memory.bench._run import Settings, run, run_peers, run_transport, wrong_answers

    if peers and transport:
        raise typer.BadParameter("--peers and --transport are runs of their own")
    if not peers and (texts or plot):
        raise typer.BadParameter("--texts and --plot belong to --peers")
    if plot:
        check_plot(plot)
    default = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
    settings = Settings(
        rows=tuple(sorted(set(rows))) if rows else default,
        seconds=seconds if seconds is not None else 0.5 if quick else 3.0,
        dimension=dimension,
        k=k,
        text=text,
        ingest_rows=20_000 if quick else 200_000,
        directory=directory,
    )
    screen = error_console()
    measure = run_transport if transport else partial(run_peers, texts=texts) if peers else run
    if screen.is_terminal and not json_output:
        with screen.status("starting") as status:
            result = measure(settings, progress=status.update)
    else:
        result = measure(settings)
    if json_output:
        emit_json(result)
    else:
        from kalos_memory.bench._report import show, show_peers, show_transport

        (show_transport if transport else show_peers if peers else show)(result, console())
    if plot:
        draw(result, plot)
    if transport or peers:
        return
    wrong = wrong_answers(result)
    if wrong:
        complain("wrong answers, please report them: " + "; ".join(wrong))
        raise typer.Exit(ExitCode.ERROR)
