"""Real sentences for recall by text: the manual that every CPython carries."""

from __future__ import annotations


def passages(count: int, length: int = 400) -> list[str]:
    """Up to `count` passages of at most `length` characters, one from each topic in the order of their names."""
    from pydoc_data.topics import topics

    cut = []
    for name in sorted(topics):
        words = " ".join(topics[name].split())
        if len(words) > 80:
            cut.append(words[:length].rsplit(" ", 1)[0])
    return cut[:count]
