"""The command line, `kalos`. One file per group of verbs; what is heavy is imported inside the verbs.

    _app        the verbs put together
    _exit_codes what each verb says to the shell
    _session    where the verbs meet the library
    _running    what every verb runs in: errors become words and exit codes
    _output     people's output and --json, on a terminal or in a pipe
    _options    options that several verbs share
    _sidecar    serve, status, stop
    _memory     add, recall, forget
    _demo       demo
    _bench      bench

Nothing in the library imports this package.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Runs the command line with `sys.argv` and exits with one of the codes that `kalos --help` lists."""
    try:
        from kalos_memory.cli._app import run

        run()
    except KeyboardInterrupt:  # Ctrl-C while modules were still being imported
        import os
        import sys

        sys.stderr.write("kalos: interrupted\n")
        sys.stderr.flush()
        os._exit(130)
