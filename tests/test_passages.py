"""Promises of `cut`: nothing lost, never inside a word, about the target length, headings known."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kalos_memory._passages import Passage, cut

PIECES = st.sampled_from(
    [
        *("word ", "longer-word ", "End. ", "Why? ", "\n", "\n\n", "\t", "\r\n", "\u2028", "é", "x" * 40),
        *("# Title\n", "## Sub\n", "```\n", "Title\n=====\n", "- item\n", "def f():\n", "    code()\n"),
        *("漢字の文。", "かな", "👩\u200d💻 "),
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=300))
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no test asserts a maximum time
MARKUPS = st.sampled_from(["plain", "markdown", "rst", "python"])


@unhurried
@given(TEXTS, MARKUPS, st.integers(1, 80))
def test_nothing_is_lost(text, markup, target):
    """The passages in order hold every character that is not white space, each is the slice that it says."""
    passages = cut(text, markup, target)
    assert "".join("".join(p.text for p in passages).split()) == "".join(text.split())
    assert all(p.text == text[p.start : p.end] and p.text.strip() == p.text != "" for p in passages)
    assert all(before.end <= after.start for before, after in itertools.pairwise(passages))


@unhurried
@given(TEXTS, MARKUPS, st.integers(1, 80))
def test_never_inside_a_word(text, markup, target):
    """Between two passages there is white space, the end of a CJK sentence or two CJK characters."""
    for before, after in itertools.pairwise(cut(text, markup, target)):
        if before.end == after.start:
            assert re.match("[。！？｡\"'）」』”’\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]", before.text[-1])


@unhurried
@given(TEXTS, st.integers(1, 80))
def test_length(text, target):
    """A passage is at most 1.2 times the target long, unless one word alone is longer."""
    for passage in cut(text, "plain", target):
        assert len(passage.text) <= target * 1.2 or len(passage.text.split()) == 1


def test_prose_is_cut_at_sentences_near_the_target():
    """Long prose gives passages that end with a sentence and are not much shorter than the target."""
    sentence = "The quick brown fox jumps over the lazy dog again. "
    passages = cut(sentence * 200, target=1000)
    assert all(p.text.endswith("again.") for p in passages)
    assert all(900 <= len(p.text) <= 1000 for p in passages[:-1])


def test_paragraphs_before_sentences():
    """A blank line is a better place than a sentence's end."""
    first, second = "One. " * 12, "Two. " * 20
    assert cut(f"{first}\n\n{second}", target=100)[0].text == first.strip()


def test_hard_wrapped_text_is_not_cut_at_every_line():
    """A text with short lines is packed up to the target."""
    assert len(cut("\n".join(["seven words are on this one line"] * 60), target=1000)) == 2


def test_markdown_headings_make_a_path():
    """Headings of both forms nest; a heading without text goes with the next; fenced code has none."""
    text = (
        "intro\n\n# Tea\n\n## Green\n\nGreen tea.\n\n```python\n# not a heading\n```\n\n"
        "Cups\n----\n\nBlue cups.\n\n# End ##\nbye"
    )
    assert [(p.headings, p.text.split("\n")[0]) for p in cut(text, "markdown")] == [
        ((), "intro"),
        (("Tea", "Green"), "# Tea"),
        (("Tea", "Cups"), "Cups"),
        (("End",), "# End ##"),
    ]


def test_rst_headings_make_a_path():
    """The order in which underlines first appear is their level, as docutils has it."""
    text = "=====\nTitle\n=====\n\nlead\n\nPart\n****\n\na\n\nDeep\n----\n\nb\n\nOther\n*****\n\nc\n"
    assert [p.headings for p in cut(text, "rst")] == [
        ("Title",),
        ("Title", "Part"),
        ("Title", "Part", "Deep"),
        ("Title", "Other"),
    ]


def test_python_is_cut_at_definitions():
    """Top-level definitions begin passages that carry their name."""
    text = (
        '"""Doc."""\nimport os\n\n\ndef f():\n    def inner(): ...\n\n\nasync def g(): ...\n\n\nclass C:\n    x = 1\n'
    )
    assert [p.headings for p in cut(text, "python")] == [(), ("f",), ("g",), ("C",)]


def test_chinese_without_spaces_is_cut():
    """Sentences end at 。 without a space, and a sentence that never ends is cut between characters."""
    assert all(len(p.text) <= 120 for p in cut("漢字仮名交じり文。" * 100, target=100))
    assert all(p.text.endswith("。") for p in cut("漢字仮名交じり文。" * 100, target=100))
    assert all(len(p.text) <= 120 for p in cut("漢" * 1000, target=100))


def test_an_endless_word_stays_whole():
    """A million characters without a gap are one passage, found in linear time."""
    assert cut("x" * 1_000_000) == [Passage("x" * 1_000_000, (), 0, 1_000_000)]


@pytest.mark.parametrize("text", ["", " \n\t ", "\u2028"])
def test_no_text_no_passages(text):
    """White space alone gives nothing."""
    assert cut(text) == []


def test_wrong_arguments_are_refused():
    """Unknown markup and an impossible target are errors with words."""
    with pytest.raises(ValueError, match=r"markup is 'docx', expected one of plain, markdown"):
        cut("x", "docx")
    with pytest.raises(ValueError, match="at least 1"):
        cut("x", target=0)
