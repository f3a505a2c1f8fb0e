"""add, recall, forget: against a real sidecar, in this process with a small embedder and once with the real model."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_tools import (
    MODEL_IS_THERE,
    WordsEmbedder,
    data_dir,
    environment,
    kalos,
    kalos_command,
    needs_kalosd,
    without_the_model,
    words,
)
from typer.testing import CliRunner

from kalos_memory.cli import _session
from kalos_memory.cli._app import app
from kalos_memory.cli._exit_codes import ExitCode

pytestmark = needs_kalosd
__all__ = ["data_dir", "words"]

runner = CliRunner()
TEA = "Green tea is brewed with water that does not boil any more."
CUPS = "The blue cups stand in the upper cupboard."


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with two files."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "tea.md").write_text(f"# Tea\n\n{TEA}\n")
    (folder / "cups.txt").write_text(CUPS)
    return folder


def run(*arguments: str, **options: Any) -> Any:
    """A verb in this process."""
    return runner.invoke(app, list(arguments), **options)


def run_json(*arguments: str, **options: Any) -> dict[str, Any]:
    """A verb's JSON; the verb must succeed."""
    result = run(*arguments, "--json", **options)
    assert result.exit_code == 0, result.stderr
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def test_only_what_changed_is_embedded_again(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """Added once, unchanged the second time; a changed file costs its passage, a removed one is forgotten."""
    first = run_json("add", str(notes))
    assert (first["added"], first["unchanged"], first["removed"], first["count"]) == (2, 0, 0, 2)
    assert words.embedded == 2
    second = run_json("add", str(notes))
    assert (second["added"], second["unchanged"], second["removed"], second["count"]) == (0, 2, 0, 2)
    assert words.embedded == 2
    (notes / "cups.txt").write_text("The blue cups were given away.")
    third = run_json("add", str(notes))
    assert (third["added"], third["unchanged"], third["removed"], third["count"]) == (1, 1, 1, 2)
    assert words.embedded == 3
    (notes / "tea.md").unlink()
    assert run_json("add", str(notes))["removed"] == 1
    text = run("add", str(notes)).stdout
    assert text == "0 passages added, 1 unchanged, 0 removed; notes holds 1\n"


def test_recall_prints_score_source_text_and_timings(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """The nearest comes first, with what a person needs to trust it."""
    run_json("add", str(notes))
    found = run_json("recall", "how is green tea brewed", "-k", "1")
    (hit,) = found["hits"]
    assert TEA in hit["text"]
    assert hit["metadata"]["source"] == str(notes / "tea.md")
    assert 0.2 < hit["score"] <= 1.0
    assert {"tokenize", "embed", "transport", "search", "fetch"} <= set(found["timings_us"])
    assert all(value >= 0 for value in found["timings_us"].values())
    text = run("recall", "how is green tea brewed").stdout
    assert f"{hit['score']:.3f}  {notes / 'tea.md'} > Tea  {hit['id']}" in text
    assert TEA in text
    assert text.index(TEA) < text.index(CUPS)
    assert "embed" in text.splitlines()[-1]


def test_recall_filters_and_cuts_by_score(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """--filter and --min-score leave hits out; nothing left is no error."""
    run_json("add", str(notes))
    cups = json.dumps({"source": {"$contains": "cups"}})
    assert [hit["text"] for hit in run_json("recall", "green tea", "--filter", cups)["hits"]] == [CUPS]
    assert run_json("recall", "green tea", "--min-score", "0.99")["hits"] == []
    nothing = run("recall", "green tea", "--min-score", "0.99")
    assert nothing.exit_code == 0
    assert "nothing found" in nothing.stdout


def test_a_bad_filter_is_a_usage_error_in_words(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """An unknown operator is named, with code 2."""
    run_json("add", str(notes))
    result = run("recall", "tea", "--filter", '{"source": {"$near": 1}}')
    assert result.exit_code == ExitCode.USAGE
    assert "$near" in result.stderr


def test_namespaces_are_walls(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """What was added under one namespace is not seen from another, and not forgotten from there."""
    run_json("add", str(notes / "tea.md"), "--namespace", "alice", "--namespace", "work")
    assert run_json("recall", "tea", "--namespace", "bob")["hits"] == []
    assert run_json("recall", "tea")["hits"] == []
    assert run_json("forget", "--everything", "--yes")["forgotten"] == 0
    found = run_json("recall", "tea", "--namespace", "alice", "--namespace", "work")["hits"]
    assert [hit["namespace"] for hit in found] == [["alice", "work"]]


def test_stdin_is_remembered(data_dir: Path, words: WordsEmbedder) -> None:
    """`… | kalos add -`."""
    assert run_json("add", "-", input=CUPS)["added"] == 1
    (hit,) = run_json("recall", "blue cups")["hits"]
    assert hit["text"] == CUPS
    assert hit["metadata"]["source"] == "stdin"


def test_forget_by_id_by_filter_and_everything(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """Each way deletes exactly what it names and says how many."""
    run_json("add", str(notes))
    run_json("add", "-", input="Something else entirely.")
    (tea,) = run_json("recall", "green tea brewed", "-k", "1")["hits"]
    cups = json.dumps({"source": {"$contains": "cups"}})
    assert run_json("forget", tea["id"], "--filter", cups)["forgotten"] == 0
    assert run("forget", tea["id"], "unknown-id").stdout == "forgot 1 memory of notes\n"
    assert run_json("forget", "--filter", cups)["forgotten"] == 1
    assert len(run_json("recall", "anything")["hits"]) == 1
    assert run_json("forget", "--everything", "--yes")["forgotten"] == 1
    assert run_json("recall", "anything")["hits"] == []


def test_an_empty_answer_tells_of_other_namespaces(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """Namespaces are hard walls; whoever stands before the wrong one is told where the memories are."""
    run_json("add", str(notes), "--namespace", "alice")
    assert run("recall", "tea").stdout.startswith("nothing found in namespace (root); there are memories in: alice")
    forgot = run("forget", "--everything", "--yes").stdout
    assert forgot == "forgot 0 memories of notes in namespace (root); there are memories in: alice (--namespace)\n"
    assert len(run_json("recall", "tea", "--namespace", "alice")["hits"]) == 2


def test_forget_everything_needs_a_yes(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """Without a terminal and without --yes nothing is deleted."""
    run_json("add", str(notes))
    result = run("forget", "--everything")
    assert result.exit_code == ExitCode.USAGE
    assert "--yes" in result.stderr
    assert len(run_json("recall", "anything")["hits"]) == 2


@pytest.mark.parametrize("verb", [["recall", "tea"], ["forget", "id"]])
def test_a_misspelled_memory_is_not_created(data_dir: Path, words: WordsEmbedder, notes: Path, verb: list[str]) -> None:
    """The words name the memories that exist; afterwards there is none more."""
    run_json("add", str(notes))
    result = run(*verb, "-m", "note")
    assert result.exit_code == ExitCode.ERROR
    assert "'note'" in result.stderr
    assert "notes" in result.stderr
    with _session.client(data_dir) as client:
        assert [collection["name"] for collection in client.collections()] == ["notes"]


def test_a_missing_path_is_a_usage_error_at_once(data_dir: Path, words: WordsEmbedder, notes: Path) -> None:
    """One wrong path among right ones remembers nothing."""
    result = run("add", str(notes), str(notes / "missing"))
    assert result.exit_code == ExitCode.USAGE
    assert "missing" in result.stderr
    assert words.embedded == 0


def test_a_named_file_that_cannot_be_read_is_an_error_one_in_a_folder_is_not(
    data_dir: Path, words: WordsEmbedder, notes: Path
) -> None:
    """Binary files are left out in words; asked for by name, the exit code is 1 though the rest was remembered."""
    (notes / "picture.txt").write_bytes(b"\0\1\2")
    folder = run("add", str(notes))
    assert folder.exit_code == 0
    assert "picture.txt: binary" in folder.stderr
    named = run("add", str(notes / "picture.txt"), str(notes / "tea.md"))
    assert named.exit_code == ExitCode.ERROR
    assert "picture.txt: binary" in named.stderr


def test_a_stored_text_cannot_drive_the_terminal(data_dir: Path, words: WordsEmbedder) -> None:
    """Escape sequences in what was remembered are shown, not sent."""
    run_json("add", "-", input="danger \x1b[2J\x1b]0;title\x07 here")
    text = run("recall", "danger here").stdout
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


@pytest.mark.skipif(not MODEL_IS_THERE, reason="the extra `minilm` is not installed")
def test_add_and_recall_as_processes_with_the_real_model(data_dir: Path, notes: Path) -> None:
    """The whole way of a user: two processes, real embeddings, meaning instead of words."""
    added = kalos("add", str(notes), env=environment(HF_HUB_OFFLINE="1"))
    assert added.returncode == 0, added.stderr
    assert added.stdout == "2 passages added, 0 unchanged, 0 removed; notes holds 2\n"
    found = kalos("recall", "a hot drink", "-k", "1", "--json", env=environment(HF_HUB_OFFLINE="1"))
    assert found.returncode == 0, found.stderr
    assert TEA in json.loads(found.stdout)["hits"][0]["text"]
    assert found.stderr == ""


def test_without_the_model_package_the_words_name_both_ways_out(data_dir: Path, notes: Path, tmp_path: Path) -> None:
    """Code 6, no traceback, `pip install` and embedder= both named."""
    result = kalos("add", str(notes), env=environment(**without_the_model(tmp_path)))
    assert result.returncode == ExitCode.NO_MODEL
    assert "kalos-memory[minilm]" in result.stderr
    assert "embedder=" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    assert result.stdout == ""


def test_output_into_a_closed_pipe_is_quiet(data_dir: Path) -> None:
    """`kalos … | true` says nothing on stderr."""
    command = f"{shlex.join(kalos_command('stop', '--json'))} | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr == ""
