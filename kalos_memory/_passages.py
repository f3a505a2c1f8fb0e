"""Cuts a text into passages that an embedding model can read whole, at the places where a reader would.

A heading always begins a passage (a heading without text of its own goes with the next one). Inside a section the cut
is at the last blank line, else the last end of a sentence, else the last line break, else the last space before the
target length; between CJK characters when there is no space; never inside a word, so one endless word stays whole.
Nothing is lost: the passages, in order, hold every character of the text that is not white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TARGET = 1000  # characters; all-MiniLM-L6-v2 reads 256 tokens, about as much English
_SLACK = 1.2  # a section up to this much over the target is not cut: better than a last passage of a few words
_EARLIEST = 0.4  # a blank line or sentence end before this part of the target makes too short a passage

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = re.compile(r"""[.!?…]["')\]»”’]*(?=\s)|[。！？｡]["'）」』”’]*""")
_LINE_BREAK = re.compile(r"\n")
_SPACE = re.compile(r"\s")
_CJK = "[\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_CJK_GAP = re.compile(f"(?<={_CJK})(?={_CJK})")
_ANY_GAP = re.compile(rf"\s|{_CJK_GAP.pattern}")

_MARKDOWN_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_MARKDOWN_UNDERLINE = re.compile(r" {0,3}(={2,}|-{2,})[ \t]*$")
_MARKDOWN_NO_PARAGRAPH = re.compile(r"\s*$|\t| {4}|\s*(?:[>*+|-]|\d+[.)]\s)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_RST_UNDERLINE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*$")
_PYTHON_HEADING = re.compile(r"(?:async[ \t]+def|def|class)[ \t]+(\w+)")


class Passage(NamedTuple):
    """A stretch of a text: `text` is `source[start:end]`; `headings` is the path to it, outermost first."""

    text: str
    headings: tuple[str, ...]
    start: int
    end: int


class _Heading(NamedTuple):
    start: int
    end: int
    level: int
    title: str


def cut(text: str, markup: str = "plain", target: int = TARGET) -> list[Passage]:
    """The passages of `text`. `markup` ("plain", "markdown", "rst", "python") says how headings look.

    Passages have at most 1.2 times `target` characters, unless a single word is longer. Raises ValueError for an
    unknown markup or a target below 1.

    Example:
        >>> [p.headings for p in cut("# Tea\\n\\nGreen.\\n\\n## Cups\\n\\nBlue.", "markdown")]
        [('Tea',), ('Tea', 'Cups')]
    """
    finders = {"plain": None, "markdown": _markdown_headings, "rst": _rst_headings, "python": _python_headings}
    if markup not in finders:
        raise ValueError(f"markup is {markup!r}, expected one of {', '.join(finders)}")
    if target < 1:
        raise ValueError(f"target is {target}, expected at least 1 character")
    finder = finders[markup]
    headings = list(finder(text)) if finder else []
    passages: list[Passage] = []
    for start, end, path in _sections(text, headings):
        for piece_start, piece_end in _pieces(text, start, end, target):
            passages.append(Passage(text[piece_start:piece_end], path, piece_start, piece_end))
    return passages


def _sections(text: str, headings: list[_Heading]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Spans between headings with the path of headings; a heading without text joins the section after it."""
    path: list[_Heading] = []
    start = body = 0
    for heading in headings:
        if text[body : heading.start].strip():
            yield start, heading.start, tuple(h.title for h in path)
            start = heading.start
        body = heading.end
        path = [h for h in path if h.level < heading.level] + [heading]
    if text[start:].strip():
        yield start, len(text), tuple(h.title for h in path)


def _pieces(text: str, start: int, end: int, target: int) -> Iterator[tuple[int, int]]:
    """Spans of at most `target` (with slack) inside [start, end), without white space around them."""
    start, end = _trim(text, start, end)
    while end - start > target * _SLACK:
        at = _cut_at(text, start, end, target)
        if at >= end:
            break
        yield _trim(text, start, at)
        start, end = _trim(text, at, end)
    if start < end:
        yield start, end


def _cut_at(text: str, start: int, end: int, target: int) -> int:
    """Where the passage that begins at `start` should end."""
    earliest, latest = start + max(1, int(target * _EARLIEST)), start + target
    for boundary, first in (
        (_BLANK_LINE, earliest),
        (_SENTENCE_END, earliest),
        (_LINE_BREAK, earliest),
        (_SPACE, start + 1),
        (_CJK_GAP, start + 1),
    ):
        # One character more than may be cut, for the patterns that look ahead.
        matches = boundary.finditer(text, first, latest + 1)
        found = [m.end() if boundary is _SENTENCE_END else m.start() for m in matches]
        found = [at for at in found if at <= latest]
        if found:
            return found[-1]
    later = _ANY_GAP.search(text, latest + 1, end)
    return later.start() if later else end


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(position, line without its break) for lines that end in a line feed, with or without a carriage return."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        yield start, text[start:stop].rstrip("\r")
        start = stop + 1


def _markdown_headings(text: str) -> Iterator[_Heading]:
    fence = ""
    paragraph: list[tuple[int, str]] = []  # the lines above that an underline would make a heading
    for start, line in _lines(text):
        mark = _FENCE.match(line)
        if fence:
            closes = mark and mark[1].startswith(fence) and not line[mark.end() :].strip()
            fence = "" if closes else fence
            continue
        heading, underline = _MARKDOWN_HEADING.match(line), _MARKDOWN_UNDERLINE.match(line)
        end = start + len(line)
        if mark:
            fence = mark[1]
        elif heading:
            yield _Heading(start, end, len(heading[1]), (heading[2] or "").strip())
        elif underline and 1 <= len(paragraph) <= 2:  # longer ones are text above a line across the page
            level = 1 if underline[1][0] == "=" else 2
            yield _Heading(paragraph[0][0], end, level, " ".join(above.strip() for _, above in paragraph))
        elif not underline and not _MARKDOWN_NO_PARAGRAPH.match(line):
            paragraph.append((start, line))
            continue
        paragraph = []


def _rst_headings(text: str) -> Iterator[_Heading]:
    """Titles with a line of punctuation below (and perhaps above); the order in which styles appear is their level."""
    lines = list(_lines(text))
    styles: list[str] = []
    for i, (start, line) in enumerate(lines[:-1]):
        underline = _RST_UNDERLINE.match(lines[i + 1][1])
        title = line.strip()
        if not underline or not title or _RST_UNDERLINE.match(line) or len(lines[i + 1][1].rstrip()) < len(title):
            continue
        above = lines[i - 1][1] if i else ""
        over = _RST_UNDERLINE.match(above)
        overlined = bool(over and over[1] == underline[1])
        if above.strip() and not overlined:
            continue  # the last line of a paragraph above a table or a transition
        style = underline[1] + ("over" if overlined else "")
        if style not in styles:
            styles.append(style)
        end = lines[i + 1][0] + len(lines[i + 1][1])
        yield _Heading(lines[i - 1][0] if overlined else start, end, styles.index(style) + 1, title)


def _python_headings(text: str) -> Iterator[_Heading]:
    for start, line in _lines(text):
        found = _PYTHON_HEADING.match(line)
        if found:
            yield _Heading(start, start, 1, found[1])  # its line is text too: a definition is worth finding
