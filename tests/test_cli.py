"""The command line without a sidecar: help, usage, exit codes, words, pipes, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kalos_memory import _errors
from kalos_memory.cli import _exit_codes, _memory, _options, _output, _running
from kalos_memory.cli._app import app
from kalos_memory.cli._exit_codes import ExitCode
from kalos_memory.cli._version import version

VERBS = ("serve", "status", "stop", "add", "recall", "forget", "demo", "bench")
runner = CliRunner()


def run_kalos(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own."""
    command = [sys.executable, "-m", "kalos_memory.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def run_script(body: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python program in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(body), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_help_lists_every_verb_and_every_exit_code() -> None:
    """`kalos --help` is the table of contents and the table of exit codes."""
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in result.output
    for code, meaning in _exit_codes.MEANINGS.items():
        assert f"{int(code)}  {meaning}" in result.output
    assert set(_exit_codes.MEANINGS) == set(ExitCode)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_json_and_one_sentence(verb: str) -> None:
    """Each verb explains itself and offers --json; its summary is not cut off in the list."""
    result = runner.invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output
    assert verb == "bench" or "--data-dir" in result.output
    line = next(line for line in runner.invoke(app, ["--help"]).output.splitlines() if line.startswith(f"  {verb} "))
    assert not line.endswith("...")


def test_help_imports_nothing_heavy() -> None:
    """The help needs no numpy, torch, rich or posix_ipc, so it is there at once."""
    result = run_script(
        """
        import sys
        sys.argv = ["kalos", "--help"]
        from kalos_memory.cli import main
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        heavy = {"numpy", "torch", "rich", "posix_ipc", "sentence_transformers", "asyncio"} & set(sys.modules)
        print("heavy:", sorted(heavy))
        """
    )
    assert result.returncode == 0, result.stderr
    assert "heavy: []" in result.stdout


def test_no_arguments_show_the_help_and_are_a_usage_error() -> None:
    """`kalos` alone says what there is."""
    result = run_kalos()
    assert result.returncode == ExitCode.USAGE
    assert "serve" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-verb"],
        ["recall"],
        ["recall", "x", "--filter", "{not json"],
        ["recall", "x", "--filter", "[1]"],
        ["recall", "x", "-k", "1025"],
        ["forget"],
        ["forget", "id", "--everything", "--yes"],
        ["bench", "--rows", "0"],
        ["add"],
    ],
)
def test_a_bad_command_line_is_a_usage_error_in_words(arguments: list[str]) -> None:
    """Code 2, nothing on stdout, no traceback."""
    result = run_kalos(*arguments)
    assert result.returncode == ExitCode.USAGE
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (_errors.KalosError("words"), 1),
        (_errors.NotFound("words"), 1),
        (_errors.CollectionMismatch("words"), 1),
        (_errors.WriteOutcomeUnknown("words"), 1),
        (_errors.InvalidRequest("words"), 2),
        (_errors.InvalidRequest("No embedder: words"), 6),
        (_errors.SidecarUnavailable("words"), 3),
        (_errors.StoreError("words"), 4),
        (_errors.KalosTimeout("words"), 5),
        (_errors.RecallTimeout("words"), 5),
        (_errors.Overloaded("words"), 5),
        (_running.CommandError("words", ExitCode.NO_MODEL), 6),
        (PermissionError(13, "Permission denied", "/nowhere"), 1),
        (RuntimeError("words"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_error_is_words_on_stderr_and_its_code(error: BaseException, code: int, as_json: bool) -> None:
    """Each kind of error has its documented code; with --json stdout holds it as one object."""
    failing = typer.Typer()

    @failing.command()
    @_running.verb
    def fail(json_output: _options.JsonOutput = False) -> None:
        raise error

    result = runner.invoke(failing, ["--json"] if as_json else [])
    assert result.exit_code == code
    assert result.stderr.startswith("kalos: ")
    assert len(result.stderr.splitlines()) <= 2
    assert "Traceback" not in result.output
    if as_json:
        said = json.loads(result.stdout)
        assert said["exit_code"] == code
        assert said["error"]["type"] == type(error).__name__
    else:
        assert result.stdout == ""


def test_traceback_is_shown_to_who_asks() -> None:
    """--traceback lets an unexpected fault through, for a report."""
    failing = typer.Typer(pretty_exceptions_enable=False)

    @failing.command()
    @_running.verb
    def fail() -> None:
        raise RuntimeError("words")

    _running.show_tracebacks(True)
    try:
        result = runner.invoke(failing, [])
    finally:
        _running.show_tracebacks(False)
    assert isinstance(result.exception, RuntimeError)


SLEEPING_VERB = """
import sys, time, typer
from kalos_memory.cli import _running
app = typer.Typer()

@app.command()
@_running.verb
def sleep() -> None:
    print("sleeping", flush=True)
    try:
        time.sleep(50)
    except KeyboardInterrupt:
        if "swallow" in sys.argv[1:]:
            raise ImportError("a library's own words") from None
        raise

_running.watch_interrupts()
app(args=[])
"""


@pytest.mark.parametrize("how", ["plain", "swallow"])
def test_ctrl_c_prints_one_line_and_exits_with_130(how: str) -> None:
    """Also where a library turned the interrupt into an error of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPING_VERB, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "sleeping\n"
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert stderr == "kalos: interrupted\n"


def test_a_closed_pipe_is_no_error_in_words() -> None:
    """`kalos … | head` ends quietly with the documented code."""
    script = """
    import sys, typer
    from kalos_memory.cli import _running
    app = typer.Typer()

    @app.command()
    @_running.verb
    def talk() -> None:
        for _ in range(100000):
            sys.stdout.write("a line that nobody reads\\n")

    app(args=[])
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            stderr = process.stderr.read()
            process.wait(timeout=30)
        finally:
            process.kill()
    assert process.returncode == ExitCode.PIPE_CLOSED
    assert stderr == ""


def test_a_pipe_gets_plain_text_that_is_not_wrapped() -> None:
    """No escape sequence and no line break that the text did not have."""
    result = run_script(
        """
        from kalos_memory.cli._output import console
        console().print("word " * 100, style="bold")
        """,
        env={**os.environ, "FORCE_COLOR": "", "TERM": "xterm"},
    )
    assert result.stdout == "word " * 100 + "\n"


def test_no_color_is_respected_on_a_terminal() -> None:
    """NO_COLOR leaves no colour even where rich believes in a terminal."""
    script = "from kalos_memory.cli._output import console\nconsole().print('hit', style='cyan')\n"
    coloured = run_script(script, env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"})
    plain = run_script(script, env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b[36m" in coloured.stdout
    assert "\x1b[36m" not in plain.stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("nul\x00", "nul\\x00"),
        ("bidi\u202eevil", "bidi\\u202eevil"),
        ("العربية 😀", "العربية 😀"),
        ("tab\tline\nend", "tab line end"),
        ("tag\U000e0001", "tag\\U000e0001"),
    ],
)
def test_a_stored_text_cannot_drive_the_terminal(text: str, shown: str) -> None:
    """Control characters of what was remembered are made visible, everything else is left alone."""
    assert _output.printable(text) == shown


def test_a_snippet_is_one_short_line() -> None:
    """Any text becomes one line of at most the limit."""
    assert _output.snippet("word " * 1000, 50) == "word " * 9 + "word…"
    assert _output.snippet("a\n\n  b\tc") == "a b c"
    assert _output.snippet(None) == ""


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (2**43, "8.0 TiB")]
)
def test_sizes_in_words(count: int, words: str) -> None:
    """Binary units, one decimal."""
    assert _output.bytes_in_words(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.2 s"), (12.7, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (4 * 86400 + 3 * 3600 + 5, "4 d 3 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    """The two largest units."""
    assert _output.seconds_in_words(seconds) == words


def test_the_source_of_a_hit_is_named_once() -> None:
    """Source, topic and heading in one piece, nothing twice."""
    assert _memory.source_of({"source": "a.md", "heading": "Intro"}) == "a.md > Intro"
    assert _memory.source_of({"source": "x", "title": "x"}) == "x"
    assert _memory.source_of({"other": 1}) == ""
    assert _memory.source_of(None) == ""


def test_version_is_the_package_s() -> None:
    """`kalos --version` says what is installed."""
    assert runner.invoke(app, ["--version"]).output == f"kalos {version()}\n"
