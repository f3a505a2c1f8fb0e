"""kalos serve, status, stop: the sidecar itself."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from kalos_memory.cli import _session
from kalos_memory.cli._exit_codes import ExitCode
from kalos_memory.cli._options import DataDir, JsonOutput
from kalos_memory.cli._output import (
    bytes_in_words,
    complain,
    console,
    counted,
    emit_json,
    printable,
    seconds_in_words,
)
from kalos_memory.cli._running import verb


def register(app: typer.Typer) -> None:
    """Adds the verbs of this file."""
    app.command()(serve)
    app.command()(status)
    app.command()(stop)


@verb
def serve(
    data_dir: DataDir = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory limit in bytes or as 4G. Default: 70 % of the machine's or the cgroup's."),
    ] = None,
    idle_s: Annotated[
        int | None, typer.Option(min=0, help="End after so many seconds without a client. 0, the default: never.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Where texts lie: memory, or file (mapped from a derived file).")
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Run the sidecar in the foreground.

    It runs until Ctrl-C or `kalos stop`. The process becomes kalosd: its exit codes are kalosd's, 3 where another one
    already serves the data directory.
    """
    program = _session.kalosd()
    arguments = [str(program), "--data-dir", str(_session.directory(data_dir))]
    for flag, value in (("--memory", memory), ("--idle-s", idle_s), ("--text", text)):
        if value is not None:
            arguments += [flag, str(value)]
    if json_output:
        # One line, because what follows on stdout is kalosd's own.
        sys.stdout.write(json.dumps({"pid": os.getpid(), "command": arguments}) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, arguments)


@verb
def status(
    data_dir: DataDir = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Exit with 0 only if every collection is served: a readiness probe.")
    ] = False,
    json_output: JsonOutput = False,
) -> None:
    """Show the sidecar's health and counters. Never starts one."""
    report = _session.report(data_dir)
    state = report["health"]["status"]
    if json_output:
        emit_json({"running": report["running"], "where": _session.place(data_dir), **report})
    elif report["running"] and state != "starting":
        _show_report(report)
    else:
        complain(report["health"]["words"])
    answers = report["running"] and state != "starting"
    if not answers or (ready and state != "ready"):
        if answers and not json_output:
            complain(f"not ready: {state}" + _reason(report))
        raise typer.Exit(ExitCode.NO_SIDECAR)


def _reason(report: dict[str, Any]) -> str:
    words = report["health"].get("words")
    return f" ({words})" if words else ""


def _show_report(report: dict[str, Any]) -> None:
    out = console()
    database = report.get("database", {})
    out.print(f"{report['health']['status']}{_reason(report)}", markup=False)
    for line in sidecar_lines(report):
        out.print(f"  {line}", markup=False)
    if limits := report.get("limits", {}).get("contract"):
        out.print(f"  {_limits_line(limits)}", markup=False)
    for collection in database.get("collections", []):
        state = collection.get("state", "")
        percent = f" {collection['percent']} %" if state == "loading" and "percent" in collection else ""
        words = f" ({collection['words']})" if collection.get("words") else ""
        out.print(
            f"  {printable(str(collection.get('name')))}: {counted(collection.get('rows') or 0, 'row')}, "
            f"d {collection.get('dimension')}, {collection.get('metric')}, "
            f"{bytes_in_words(collection.get('bytes', 0))}, {state}{percent}{words}",
            markup=False,
        )


def _limits_line(limits: dict[str, int]) -> str:
    """The limits that people meet; --json has them all."""
    return (
        f"at most: text {bytes_in_words(limits['KALOS_MAX_TEXT_BYTES'])}, metadata "
        f"{bytes_in_words(limits['KALOS_MAX_METADATA_BYTES'])}, {limits['KALOS_MAX_DIMENSION']:,} dimensions, "
        f"k {limits['KALOS_MAX_K']:,}, one request or reply {bytes_in_words(limits['KALOS_MAX_MESSAGE_BYTES'])}"
    )


def sidecar_lines(report: dict[str, Any]) -> list[str]:
    """Who the sidecar is and what it did, a few lines for people."""
    sidecar, database = report.get("kalosd", {}), report.get("database", {})
    requests, lanes = report.get("requests", {}), report.get("lanes", {})
    if not database:  # it drains, and says no more than who it is
        return [f"kalosd {sidecar.get('version')} (pid {sidecar.get('pid')})"]
    limit = database.get("memory_limit") or 0
    used = bytes_in_words(database.get("bytes", 0)) + (f" of {bytes_in_words(limit)}" if limit else "")
    started = ", started by a client" if sidecar.get("autostarted") else ""
    collections = counted(len(database.get("collections", [])), "collection")
    uptime = seconds_in_words(sidecar.get("uptime_s", 0))
    return [
        f"kalosd {sidecar.get('version')} (pid {sidecar.get('pid')}), up {uptime}{started}",
        f"data directory {printable(str(sidecar.get('data_dir')))}, device {sidecar.get('device')}",
        f"{counted(database.get('rows', 0), 'row')} in {collections}, {used} in memory",
        (
            f"{counted(len(lanes.get('clients', [])), 'client')} connected, {requests.get('total', 0):,} requests, "
            f"{requests.get('errors', 0):,} refused, {requests.get('expired', 0):,} expired"
        ),
    ]


@verb
def stop(
    data_dir: DataDir = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the end.")] = 30.0,
    json_output: JsonOutput = False,
) -> None:
    """Drain the sidecar and wait for its end.

    What it took is finished first. Where none runs there is nothing to do, and the exit code is 0.
    """
    where = _session.place(data_dir)
    stopped = _session.stop(data_dir, timeout)
    if json_output:
        emit_json({"stopped": stopped is not None, "where": where, "kalosd": stopped})
    elif stopped is None:
        console().print(f"no sidecar runs in {printable(where)}: nothing to stop", markup=False)
    else:
        console().print(
            f"stopped kalosd {stopped.get('version')} (pid {stopped.get('pid')}) in {printable(where)}",
            markup=False,
        )
