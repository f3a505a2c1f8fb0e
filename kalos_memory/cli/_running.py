"""What every verb runs in: errors become words on stderr and an exit code, Ctrl-C one line and 130.

No traceback reaches a user; `kalos --traceback VERB …` shows it to who wants to report a fault.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from kalos_memory.cli._exit_codes import ExitCode
from kalos_memory.cli._output import complain, emit_json, silence_stdout

Verb = TypeVar("Verb", bound=Callable[..., Any])


NO_EMBEDDER = "No embedder:"  # how the embedders' words begin when package or model is missing


class _State:
    """Of this process: whether tracebacks are wanted and whether Ctrl-C was pressed."""

    tracebacks = False
    interrupted = False


def show_tracebacks(wanted: bool) -> None:
    """Set by the top-level --traceback."""
    _State.tracebacks = wanted


def watch_interrupts() -> None:
    """Remembers a Ctrl-C, because libraries turn a KeyboardInterrupt in the middle of an import into other errors."""

    def on_interrupt(number: int, frame: object) -> None:
        _State.interrupted = True
        raise KeyboardInterrupt

    # A shell without job control starts background commands with SIGINT ignored; that stays so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, on_interrupt)


class CommandError(Exception):
    """A verb's own error: words for stderr and the code to exit with."""

    def __init__(self, words: str, code: ExitCode = ExitCode.ERROR) -> None:
        super().__init__(words)
        self.code = code


def verb(function: Verb) -> Verb:
    """Wraps a verb. With json_output among its arguments, an error is written to stdout as JSON as well."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        json_output = bool(kwargs.get("json_output"))
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(ExitCode.PIPE_CLOSED) from None
        except KeyboardInterrupt:
            _fail("interrupted", "KeyboardInterrupt", ExitCode.INTERRUPTED, json_output)
        except Exception as error:
            if _State.interrupted:
                _fail("interrupted", "KeyboardInterrupt", ExitCode.INTERRUPTED, json_output)
            if _State.tracebacks or isinstance(error, (typer.Exit, typer.Abort, typer.BadParameter)):
                raise
            _fail(_words(error), type(error).__name__, exit_code_of(error), json_output)

    return wrapper  # type: ignore[return-value]


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error, by its kind."""
    if isinstance(error, CommandError):
        return error.code
    from kalos_memory import _errors

    if isinstance(error, _errors.InvalidRequest) and str(error).startswith(NO_EMBEDDER):
        return ExitCode.NO_MODEL
    kinds: tuple[tuple[type[BaseException], ExitCode], ...] = (
        (_errors.SidecarUnavailable, ExitCode.NO_SIDECAR),
        (_errors.KalosTimeout, ExitCode.TRY_AGAIN),
        (_errors.Overloaded, ExitCode.TRY_AGAIN),
        (_errors.StoreError, ExitCode.STORE),
        (_errors.InvalidRequest, ExitCode.USAGE),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), ExitCode.ERROR)


def _words(error: BaseException) -> str:
    if isinstance(error, CommandError):
        return str(error)
    from kalos_memory import _errors

    if isinstance(error, _errors.KalosError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    kind = type(error).__name__
    return f"an unexpected fault, {kind}: {error}\nplease report it with what `kalos --traceback …` prints"


def _fail(words: str, kind: str, code: ExitCode, json_output: bool) -> None:
    complain(words)
    if json_output:
        try:
            emit_json({"error": {"type": kind, "message": words}, "exit_code": int(code)})
        except BrokenPipeError:
            silence_stdout()
    raise typer.Exit(int(code))
