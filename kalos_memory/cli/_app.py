"""The verbs put together. Imports nothing heavy: `kalos --help` must answer at once."""

from __future__ import annotations

from typing import Annotated

import typer

from kalos_memory.cli import _bench, _demo, _memory, _sidecar
from kalos_memory.cli._exit_codes import table
from kalos_memory.cli._running import show_tracebacks, watch_interrupts

app = typer.Typer(
    name="kalos",
    help="The memory of an LLM agent: remember, recall, forget, from a sidecar on this host.",
    epilog="\b\nExit codes:\n" + table(),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich's costs as much time as all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kalos_memory.cli._version import version

        typer.echo(f"kalos {version()}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an unexpected fault, for a report.")
    ] = False,
) -> None:
    show_tracebacks(traceback)


_sidecar.register(app)
_memory.register(app)
_demo.register(app)
_bench.register(app)


def run() -> None:
    """Runs the command line of this process and exits."""
    watch_interrupts()
    app(prog_name="kalos")
