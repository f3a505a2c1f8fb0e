"""Promises of ingestion: texts are found with their source, a second run embeds nothing, what is gone is forgotten."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from fake_collection import FakeClient, embed

from kalos_memory._documents import html_text, pydoc_topics, read_documents
from kalos_memory._errors import InvalidRequest
from kalos_memory._ingest import ingest
from kalos_memory._memory import Memory
from kalos_memory.embed import as_embedder


class Counting:
    """Embeds, and remembers what it was asked to embed."""

    dimension, name, fingerprint = 32, "letters", "letters-1"

    def __init__(self):
        self.texts = []

    def embed_documents(self, texts):
        self.texts += texts
        return embed(texts)

    def embed_queries(self, texts):
        return embed(texts)


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
def memory(client, counting):
    return Memory("notes", namespace="docs", embedder=as_embedder(counting), client=client)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "notes"
    (root / "sub").mkdir(parents=True)
    (root / "tea.md").write_text("# Tea\n\nGreen tea.\n\n## Cups\n\nBlue cups.\n", encoding="utf-8")
    (root / "sub" / "plain.txt").write_text("The train leaves at nine.", encoding="utf-8")
    return root


def kept(client):
    return {row["text"]: row["metadata"] for row in client.known["notes"].rows.values()}


def test_a_folder(memory, client, folder):
    """Each passage is remembered with its source, heading path and position."""
    report = ingest(memory, read_documents([folder]))
    assert (report.added, report.unchanged, report.removed, report.skipped) == (3, 0, 0, [])
    tea, plain = str(folder / "tea.md"), str(folder / "sub" / "plain.txt")
    assert kept(client) == {
        "# Tea\n\nGreen tea.": {"source": tea, "heading": "Tea", "position": 0},
        "## Cups\n\nBlue cups.": {"source": tea, "heading": "Tea > Cups", "position": 1},
        "The train leaves at nine.": {"source": plain, "position": 0},
    }
    assert memory.recall("blue cups", k=1)[0].metadata["source"] == tea


def test_a_second_run_embeds_nothing(memory, counting, folder):
    """What is there is found by its id."""
    ingest(memory, read_documents([folder]))
    counting.texts.clear()
    report = ingest(memory, read_documents([folder]))
    assert (report.added, report.moved, report.unchanged, report.removed) == (0, 0, 3, 0)
    assert counting.texts == []


def test_only_what_changed_is_embedded(memory, client, counting, folder):
    """A changed passage is embedded and its old form removed; one that only moved gets its new position alone."""
    ingest(memory, read_documents([folder]))
    counting.texts.clear()
    vectors = {row["text"]: row["vector"] for row in client.known["notes"].rows.values()}
    changed = "# News\n\nBlack tea.\n\n# Tea\n\nOolong.\n\n## Cups\n\nBlue cups.\n"
    (folder / "tea.md").write_text(changed, encoding="utf-8")
    report = ingest(memory, read_documents([folder]))
    assert (report.added, report.moved, report.unchanged, report.removed) == (2, 1, 1, 1)
    assert counting.texts == ["# News\n\nBlack tea.", "# Tea\n\nOolong."]
    assert kept(client)["## Cups\n\nBlue cups."]["position"] == 2
    moved = next(r for r in client.known["notes"].rows.values() if r["text"].startswith("## Cups"))
    np.testing.assert_array_equal(moved["vector"], vectors["## Cups\n\nBlue cups."])
    assert "# Tea\n\nGreen tea." not in kept(client)


def test_files_that_vanish_or_empty_are_forgotten(memory, client, folder):
    """A file deleted from a folder that is read again, and one that became empty, take their passages with them."""
    ingest(memory, read_documents([folder]))
    (folder / "sub" / "plain.txt").unlink()
    (folder / "tea.md").write_text("", encoding="utf-8")
    assert ingest(memory, read_documents([folder])).removed == 3
    assert memory.count() == 0


def test_others_memories_are_never_touched(memory, client, folder):
    """Memories made by hand, other files and other namespaces stay, whatever their metadata says."""
    source = str(folder / "tea.md")
    memory.remember("by hand", id="mine", metadata={"source": source, "position": 0})
    other = Memory("notes", namespace="else", embedder=embed, client=client)
    ingest(other, read_documents([folder]))
    ingest(memory, read_documents([folder]))
    (folder / "tea.md").write_text("New.", encoding="utf-8")
    assert ingest(memory, read_documents([folder / "tea.md"])).removed == 2
    assert other.count() == 3
    assert memory.count() == 3  # by hand, New., the train
    assert "by hand" in kept(client)


def test_a_file_that_cannot_be_read_now_keeps_its_passages(memory, folder):
    """A file that is still there but was left out is not taken for gone."""
    ingest(memory, read_documents([folder]))
    (folder / "tea.md").write_bytes(b"\0binary")
    report = ingest(memory, read_documents([folder]))
    assert report.skipped == [(str(folder / "tea.md"), "binary")]
    assert report.removed == 0
    assert memory.count() == 3


def test_the_same_text_twice_in_a_source(memory, folder):
    """Repeated passages are each kept, under ids of their own, and found again."""
    (folder / "tea.md").write_text("# A\n\nsame\n\n# A\n\nsame\n", encoding="utf-8")
    assert ingest(memory, read_documents([folder / "tea.md"])).added == 2
    assert ingest(memory, read_documents([folder / "tea.md"])).unchanged == 2


def test_an_interrupted_run_goes_on(memory, counting, tmp_path):
    """Ctrl-C loses the batch at hand only: what was committed is not embedded again, and nothing is left out."""
    path = tmp_path / "long.txt"
    path.write_text("\n\n".join(f"Paragraph {i}. " + "word " * 150 for i in range(20)), encoding="utf-8")
    seen = []

    def interrupt(done, total):
        seen.append((done, total))
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(memory, read_documents([path]), batch_size=5, progress=interrupt)
    assert seen == [(0, 20), (5, 20), (10, 20)]
    counting.texts.clear()
    report = ingest(memory, read_documents([path]), batch_size=5, progress=lambda *counts: seen.append(counts))
    assert (report.added, report.unchanged) == (10, 10)
    assert len(counting.texts) == 10
    assert seen[3:] == [(0, 10), (5, 10), (10, 10)]
    assert memory.count() == 20


def test_standard_input_adds(memory):
    """What comes over standard input is kept beside what came before, under the source "stdin"."""
    for text in (b"first note", b"second note", b"first note"):
        ingest(memory, read_documents(["-"], stdin=io.BytesIO(text)))
    assert memory.count() == 2
    assert memory.count(filter={"source": "stdin"}) == 2


def test_pydoc_topics(memory, client):
    """The manual inside CPython is read whole, each passage with its topic; a second run embeds nothing."""
    from pydoc_data.topics import topics

    report = ingest(memory, pydoc_topics())
    assert report.added > 400
    metadatas = [row["metadata"] for row in client.known["notes"].rows.values()]
    assert {m["topic"] for m in metadatas} == set(topics)
    assert {m["source"] for m in metadatas} == {"pydoc topics"}
    (document,) = (d for d in pydoc_topics().documents if d.key == "pydoc topics/with")
    assert " ".join(document.texts).split() == topics["with"].split()
    assert ingest(memory, pydoc_topics()).unchanged == report.added


def test_what_is_left_out_and_why(folder):
    """Hidden names and other suffixes are passed over; binary, foreign encodings and large files are reported."""
    (folder / ".hidden.txt").write_text("x")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.txt").write_text("x")
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "readme.md").write_text("x")
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    (folder / "binary.txt").write_bytes(b"a\0b")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "large.txt").write_text("x" * 2000)
    (folder / "locked.txt").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    os.mkfifo(folder / "pipe.txt")
    reading = read_documents([folder], max_bytes=1000)
    assert sorted(os.path.basename(d.source) for d in reading.documents) == ["plain.txt", "tea.md"]
    assert {os.path.basename(path): why for path, why in reading.skipped} == {
        "binary.txt": "binary",
        "latin.txt": "not UTF-8 (byte 0)",
        "large.txt": "larger than 1,000 bytes",
        "locked.txt": "No such file or directory",
        "pipe.txt": "not a regular file",
    }


def test_a_named_file_is_read_whatever_its_suffix(folder):
    """A file given by name needs no known suffix, may be hidden, and is read once even if named twice."""
    path = folder / ".notes.org"
    path.write_bytes("Übung".encode("utf-16"))
    reading = read_documents([path, folder, str(path), folder / "tea.md"])
    assert [d.texts for d in reading.documents if d.source == str(path)] == [["Übung"]]
    assert len(reading.documents) == 3


def test_a_path_that_does_not_exist(folder):
    """A wrong path is refused in words before anything is read."""
    with pytest.raises(InvalidRequest, match="nowhere does not exist: expected a file, a folder, or -"):
        read_documents([folder, folder / "nowhere"])


def test_html_is_read_as_text(memory, client, tmp_path):
    """The visible text of a page, with its headings as path, and none of its scripts."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><html><head><title>Shop</title><style>p{}</style></head><body><h1>Tea &amp; cups</h1>"
        "<p>Green   <b>tea</b>\n is\tgood.<script>alert('no')</script></p><h2>Price</h2><table><tr><td>1</td><td>2</td>"
        "</tr></table><pre>a\n  b</pre><script src=x /></script>end</body></html>",
        encoding="utf-8",
    )
    ingest(memory, read_documents([page]))
    assert {m.get("heading") for m in kept(client).values()} == {None, "Tea & cups", "Tea & cups > Price"}
    text = "\n".join(kept(client))
    assert "Green tea is good." in text
    assert "a\n  b" in text
    assert "end" in text
    assert "alert" not in text


def test_html_text_loses_no_visible_word():
    """Broken markup is read as far as it goes; an unclosed tag or a stray end tag hides nothing."""
    assert html_text("<p>a<b>b</i> &lt;c&gt; </pre></script>d<br>e <svg/>f").split() == ["ab", "<c>", "d", "e", "f"]
