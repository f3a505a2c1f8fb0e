"""Recalled memories as text for a prompt: delimited, attributed, dated data that cannot pose as anything else.

    <memories>
    <memory id="n1" score="0.8312" date="2026-05-01T12:00:00Z" source="notes.md">
    Alice prefers tea &lt;green&gt;.
    </memory>
    </memories>

Promises: `<`, `>` and `&` of a text, and quotes and line breaks in attributes too, are escaped, so no text can close
its element, open another or forge an attribute; chat-template tokens written with angle brackets are broken by the same
escape. Control characters, bidirectional overrides and the invisible tag characters are removed, lone surrogates
become U+FFFD, and every line break becomes a line feed. The result depends on the hits alone and is never cut.

Not promised: that a model resists what the words of a memory say. Put the block into a user message, as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalos_memory._types import Hit

_LINE_BREAK = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# C0 but tab and line feed, DEL, C1; bidirectional marks, overrides and isolates; zero-width characters that join
# nothing (ZWJ and ZWNJ stay: emoji and Persian need them); interlinear anchors; the tag characters.
_REMOVED = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def render(hits: Iterable[Hit]) -> str:
    """The hits, best first as given, as one block of text (see the module for the form and what it promises).

    Each memory carries its id, its score (four decimals), its date (UTC, when the text was last written) and its
    source (`metadata["source"]`), each only where known. No hits give the empty string.

    Example:
        >>> prompt = f"{render(hits)}\\n\\nQuestion: {question}"
    """
    elements = [_element(hit) for hit in hits]
    return "\n".join(["<memories>", *elements, "</memories>"]) if elements else ""


def _element(hit: Hit) -> str:
    source = hit.metadata.get("source") if hit.metadata else None
    attributes = {
        "id": hit.id,
        "score": None if hit.score is None else f"{hit.score + 0.0:.4f}",
        "date": _date(hit.updated_at or hit.created_at),
        "source": source if isinstance(source, str) else None,
    }
    shown = "".join(f' {name}="{_attribute(value)}"' for name, value in attributes.items() if value is not None)
    return f"<memory{shown}>\n{_escape(hit.text or '')}\n</memory>"


def _date(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _escape(text: str) -> str:
    text = _REMOVED.sub("", _LINE_BREAK.sub("\n", text))
    text = _SURROGATE.sub("\ufffd", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(value: str) -> str:
    escaped = _escape(value).replace('"', "&quot;").replace("'", "&#39;")
    return " ".join(escaped.split())
