"""What people and programs read: consoles that respect NO_COLOR and pipes, JSON on stdout, errors on stderr.

With --json a verb writes exactly one JSON object to stdout, also when it fails. Progress goes to stderr and only to a
terminal, so that a pipe carries nothing but the answer.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 1000  # a pipe has no edge: lines are not wrapped there


def console() -> Console:
    """A console on stdout. In a pipe it writes plain text and never wraps."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


def error_console() -> Console:
    """A console on stderr, for progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def emit_json(value: dict[str, Any]) -> None:
    """Writes one JSON object and a newline to stdout. Bytes of a path that are not UTF-8 are lone surrogates here, as
    everywhere in Python; in JSON their escapes stand for them."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def complain(words: str) -> None:
    """Writes words to stderr. Several lines stay several; control characters cannot drive the terminal."""
    cleaned = "\n".join(printable(line) for line in words.splitlines())
    sys.stderr.write(f"kalos: {cleaned}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """The text with control characters (escape sequences of a stored text among them) made visible."""
    return "".join(character if character.isprintable() else _visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\t\n\r":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def snippet(text: str | None, limit: int = 200) -> str:
    """One printable line of at most `limit` characters for a text of any length."""
    if not text:
        return ""
    words = " ".join(text[: 4 * limit].split())
    words = printable(words)
    return words if len(words) <= limit else words[: limit - 1].rstrip() + "…"


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 row, 2,000 rows."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bytes_in_words(count: float) -> str:
    """A size with a binary unit: 512 B, 1.5 KiB, 3.0 GiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    value, unit = float(count), 0
    while value >= 1024 and unit < len(units) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {units[unit]}"


def seconds_in_words(seconds: float) -> str:
    """A duration for people: 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h."""
    whole = int(seconds)
    for size, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // below} {below_name}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"


def microseconds_in_words(value: float) -> str:
    """A latency: 12.3 us, 480 us, 9.24 ms, 1,234 ms."""
    if value < 1000:
        return f"{value:.1f} us" if value < 100 else f"{value:.0f} us"
    return f"{value / 1e3:.3g} ms" if value < 1e6 else f"{value / 1e3:,.0f} ms"


def silence_stdout() -> None:
    """Points stdout at /dev/null, so that closing it at exit cannot fail once the reader went away."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
    except (OSError, ValueError):
        pass
