"""What can be remembered in bulk: files, folders, standard input and Python's own manual, each cut into passages.

    .txt .text .log      plain text                       .md .markdown   by its headings
    .rst                 by its underlined headings       .py             by its top-level definitions
    .html .htm .xhtml    its text, by h1 to h6

In a folder only these are read, without hidden names, `node_modules` and `__pycache__`; symbolic links to folders are
not followed. A file that is named is read whatever its suffix. Text is UTF-8, or UTF-16 with its mark.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, BinaryIO

from kalos_memory._errors import InvalidRequest
from kalos_memory._passages import cut

MAX_FILE_BYTES = 4 << 20
PYDOC_TOPICS = "pydoc topics"
STDIN = "stdin"

_MARKUP = {
    ".txt": "plain",
    ".text": "plain",
    ".log": "plain",
    ".md": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    ".py": "python",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
}
_SKIPPED_FOLDERS = {"node_modules", "__pycache__"}


@dataclass(frozen=True)
class Document:
    """One text cut into passages: `texts[i]` with `metadatas[i]`, which always has "source" and "position".

    `source` is the absolute path, or a name; `key` tells the documents of one source apart. Where `complete`, what was
    read is all there is of the source, so that whatever else is kept of it is outdated; what came over standard input
    adds to what came before.
    """

    source: str
    key: str
    texts: list[str]
    metadatas: list[dict[str, Any]]
    complete: bool = True


@dataclass
class Reading:
    """What was read: the documents, the folders they were found in, and what was left out and why."""

    documents: list[Document] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


def read_documents(
    paths: Iterable[str | os.PathLike[str]], *, stdin: BinaryIO | None = None, max_bytes: int = MAX_FILE_BYTES
) -> Reading:
    """Reads files, folders (recursively) and "-", standard input (`stdin` replaces it).

    Raises InvalidRequest for a path that does not exist, before anything is read. What cannot be read as text is left
    out and listed in `skipped` with the reason.
    """
    named = [os.fspath(path) for path in paths]
    for path in named:
        if path != "-" and not os.path.exists(path):
            raise InvalidRequest(f"{path} does not exist: expected a file, a folder, or - for standard input")
    reading = Reading()
    for path in dict.fromkeys(named):
        if path == "-":
            data = (stdin or sys.stdin.buffer).read()
            _add(reading, STDIN, data, "plain", complete=False)
        elif os.path.isdir(path):
            reading.folders.append(os.path.abspath(path))
            for found in _walk(path):
                _read_file(reading, found, max_bytes)
        else:
            _read_file(reading, path, max_bytes)
    return reading


def pydoc_topics() -> Reading:
    """The language manual that every CPython carries (about 470 KB): metadata has "source" and "topic"."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    reading = Reading()
    for topic, text in sorted(topics.items()):
        passages = cut(text, "rst")
        metadatas = [_metadata(PYDOC_TOPICS, i, p.headings, topic=topic) for i, p in enumerate(passages)]
        reading.documents.append(
            Document(PYDOC_TOPICS, f"{PYDOC_TOPICS}/{topic}", [p.text for p in passages], metadatas)
        )
    return reading


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in _MARKUP:
                yield os.path.join(parent, name)


def _read_file(reading: Reading, path: str, max_bytes: int) -> None:
    if os.path.abspath(path) in reading.seen:
        return None  # named twice, or in a folder that is named too
    reading.seen.add(os.path.abspath(path))
    try:
        # Not blocking, so that a pipe with no writer cannot hold us; checked after opening, so that it is this file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return reading.skipped.append((path, "not a regular file"))
            data = file.read(max_bytes + 1)
    except OSError as error:
        return reading.skipped.append((path, error.strerror or str(error)))
    if len(data) > max_bytes:
        return reading.skipped.append((path, f"larger than {max_bytes:,} bytes"))
    suffix = os.path.splitext(path)[1].lower()
    return _add(reading, os.path.abspath(path), data, _MARKUP.get(suffix, "plain"), complete=True)


def _add(reading: Reading, source: str, data: bytes, markup: str, *, complete: bool) -> None:
    try:
        source.encode()
    except UnicodeEncodeError:
        return reading.skipped.append((source, "its name is not UTF-8"))
    text = _decode(data)
    if isinstance(text, _Unreadable):
        return reading.skipped.append((source, text.reason))
    if markup == "html":
        text, markup = html_text(text), "markdown"
    passages = cut(text, markup)
    metadatas = [_metadata(source, i, p.headings) for i, p in enumerate(passages)]
    return reading.documents.append(Document(source, source, [p.text for p in passages], metadatas, complete))


def _metadata(source: str, position: int, headings: tuple[str, ...], **more: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"source": source, **more, "position": position}
    if headings:
        metadata["heading"] = " > ".join(headings)
    return metadata


@dataclass(frozen=True)
class _Unreadable:
    reason: str


def _decode(data: bytes) -> str | _Unreadable:
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16")
        if b"\0" in data[:8192]:
            return _Unreadable("binary")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _Unreadable(f"not UTF-8 (byte {error.start})")


class _HtmlText(HTMLParser):
    """Collects text; headings become Markdown ones, so that the passages know where they stand."""

    _HIDDEN = frozenset({"script", "style", "template", "svg"})
    _BLOCKS = frozenset(
        [
            *("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "div", "dl", "dt"),
            *(
                "fieldset",
                "figcaption",
                "figure",
                "footer",
                "form",
                "h1",
                "h2",
                "h3",
                "h4",
                "h5",
                "h6",
                "head",
                "header",
            ),
            *("hr", "html", "legend", "li", "main", "nav", "ol", "option", "p", "pre", "section", "summary", "table"),
            *("tbody", "td", "tfoot", "th", "thead", "title", "tr", "ul"),
        ]
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden = 0
        self._preformatted = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in self._HIDDEN:
            self._hidden += 1
        elif tag in self._BLOCKS:
            self._preformatted += tag == "pre"
            self._break(tag)
            if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
                self._parts.append("#" * int(tag[1]) + " ")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in self._BLOCKS:  # <script/> hides nothing that follows
            self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in self._BLOCKS:
            self._preformatted = max(0, self._preformatted - (tag == "pre"))
            self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(data if self._preformatted else _joined(data))

    def _break(self, tag: str) -> None:
        self._parts.append("\n" if tag in {"br", "td", "th", "tr", "li", "option", "dd", "dt"} else "\n\n")

    def text(self) -> str:
        return "".join(self._parts)


def _joined(data: str) -> str:
    """White space as HTML reads it: any run is one space."""
    words = " ".join(data.split())
    before, after = data[:1].isspace(), data[-1:].isspace()
    return (" " if before else "") + words + (" " if after and words else "")


def html_text(html: str) -> str:
    """The visible text of an HTML page, headings as Markdown headings."""
    parser = _HtmlText()
    parser.feed(html)
    parser.close()
    return parser.text()
