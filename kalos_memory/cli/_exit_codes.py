"""The exit codes of every verb, in one table that the help prints and the tests check."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a verb says to the shell. 3 and 4 agree with kalosd's own, because `kalos serve` becomes kalosd."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NO_SIDECAR = 3
    STORE = 4
    TRY_AGAIN = 5
    NO_MODEL = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; also when nothing matched or nothing ran",
    ExitCode.ERROR: "an error, said in words on stderr",
    ExitCode.USAGE: "the command line or the request breaks a rule",
    ExitCode.NO_SIDECAR: "no sidecar runs, can be started or is ready (serve: another one already runs)",
    ExitCode.STORE: "the data directory, the disk or the memory limit refused",
    ExitCode.TRY_AGAIN: "timed out or overloaded: the same command may work later",
    ExitCode.NO_MODEL: "the embedding model is not installed",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.PIPE_CLOSED: "the reader of the output went away",
}


def table() -> str:
    """The table as lines of text, one code a line."""
    return "\n".join(f"{int(code):>5}  {meaning}" for code, meaning in MEANINGS.items())
