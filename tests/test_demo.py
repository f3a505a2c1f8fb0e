"""kalos demo: what it keeps, what it survives. Small runs in this process, whole runs as processes with the model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_tools import (
    MODEL_IS_THERE,
    WordsEmbedder,
    data_dir,
    ended,
    environment,
    kalos,
    kalos_command,
    needs_kalosd,
    small_manual,
    wait_until,
    without_the_model,
    words,
)
from typer.testing import CliRunner

import kalos_memory
from kalos_memory.cli import _demo, _session
from kalos_memory.cli._app import app
from kalos_memory.cli._exit_codes import ExitCode

pytestmark = needs_kalosd
needs_model = pytest.mark.skipif(not MODEL_IS_THERE, reason="the extra `minilm` is not installed")
__all__ = ["data_dir", "words"]

runner = CliRunner()
FACTS = {"memory", "data_dir", "embedder", "model_ready_s", "remembered", "answers", "count", "sidecar", "snippet"}


def run_demo(*arguments: str) -> dict[str, Any]:
    """The demo in this process, as JSON."""
    result = runner.invoke(app, ["demo", "--json", *arguments])
    assert result.exit_code == 0, result.stderr
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def test_the_second_run_embeds_nothing_and_gives_the_same_answers(data_dir: Path, words: WordsEmbedder) -> None:
    """What the first run remembered is kept; answers do not change."""
    first = run_demo()
    assert set(first) == FACTS
    assert first["remembered"]["added"] == first["count"] > 300
    embedded = words.embedded
    assert embedded == first["count"]
    second = run_demo()
    assert words.embedded == embedded
    assert second["remembered"]["added"] == 0
    assert second["remembered"]["unchanged"] == second["count"] == first["count"]
    assert [answer["hits"] for answer in second["answers"]] == [answer["hits"] for answer in first["answers"]]


def test_json_has_every_fact(data_dir: Path, words: WordsEmbedder) -> None:
    """Questions, hits with scores in order, times of each stage, the count, the sidecar: pid, rows, memory, device."""
    said = run_demo()
    assert [answer["question"] for answer in said["answers"]] == list(_demo.QUESTIONS)
    for answer in said["answers"]:
        scores = [hit["score"] for hit in answer["hits"]]
        assert len(scores) == _demo.HITS
        assert scores == sorted(scores, reverse=True)
        assert {"tokenize", "embed", "transport", "search", "fetch"} <= set(answer["timings_us"])
        assert answer["timings_us"]["search"] > 0
    sidecar = said["sidecar"]
    assert sidecar["health"]["status"] == "ready"
    assert sidecar["kalosd"]["pid"] > 0
    assert sidecar["kalosd"]["device"]
    assert sidecar["database"]["rows"] == said["count"]
    assert sidecar["database"]["bytes"] > 0


def test_text_shows_the_same_facts(data_dir: Path, words: WordsEmbedder) -> None:
    """What --json has is on the screen too."""
    said = run_demo()
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    for answer in said["answers"]:
        assert f"> {answer['question']}" in text
        for hit in answer["hits"]:
            assert f"{hit['score']:.3f}" in text
            assert hit["id"] in text
    assert f"{said['count']:,} passages are in kalos-demo" in text
    assert f"pid {said['sidecar']['kalosd']['pid']}" in text
    assert text.count(" fetch ") == len(_demo.QUESTIONS)
    assert _demo.snippet(None) in text


def test_an_interrupted_run_keeps_what_was_acknowledged(
    data_dir: Path, words: WordsEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle: one line, code 130; the next run embeds only the rest."""
    embed = words.embed_documents

    def interrupted(texts: list[str]) -> Any:
        if words.embedded > 100:
            raise KeyboardInterrupt
        return embed(texts)

    monkeypatch.setattr(words, "embed_documents", interrupted)
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr == "kalos: interrupted\n"
    kept = words.embedded
    assert kept > 100
    monkeypatch.setattr(words, "embed_documents", embed)
    said = run_demo()
    assert said["remembered"]["unchanged"] == kept
    assert said["remembered"]["added"] == said["count"] - kept


def test_a_sidecar_killed_between_two_questions_comes_back(data_dir: Path, words: WordsEmbedder) -> None:
    """The client reconnects, the store is loaded again, the answers are the same."""
    expected = run_demo()["answers"]
    with _session.memory(_demo.MEMORY, (), data_dir, existing=True) as memory:
        killed: list[int] = []

        def kill(answer: dict[str, Any]) -> None:
            pid = _session.report(data_dir)["kalosd"]["pid"]
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

        answers = _demo.ask_all(memory, _demo.QUESTIONS, kill)
    assert len(set(killed)) == len(_demo.QUESTIONS)
    assert [answer["hits"] for answer in answers] == [answer["hits"] for answer in expected]


def test_the_snippet_has_six_lines(data_dir: Path) -> None:
    """It is short enough to paste."""
    for where in (None, data_dir):
        assert len(_demo.snippet(where).splitlines()) == 6


def demo_command(*arguments: str) -> list[str]:
    """The demo with the real model over a small part of the manual."""
    return [sys.executable, "-c", small_manual(), "demo", *arguments]


def demo_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """That command, run to its end."""
    return subprocess.run(
        demo_command(*arguments),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=environment(HF_HUB_OFFLINE="1"),
    )


@needs_model
def test_runs_with_the_model(data_dir: Path) -> None:
    """Cold, then warm; `kalos recall -m kalos-demo` works afterwards; the answers are about what was asked."""
    first = demo_process("--json")
    assert first.returncode == 0, first.stderr
    said = json.loads(first.stdout)
    assert said["remembered"]["added"] == said["count"]
    default, identity, precedence = (answer["hits"][0]["text"] for answer in said["answers"])
    assert "Default parameter values are evaluated" in default
    assert "identity" in identity
    assert "precedence" in precedence
    second = demo_process()
    assert second.returncode == 0, second.stderr
    assert second.stderr == ""
    assert f"0 passages added, {said['count']:,} unchanged" in second.stdout
    asked = kalos("recall", "-m", "kalos-demo", said["answers"][0]["question"], "-k", "3", "--json")
    ids = [hit["id"] for hit in json.loads(asked.stdout)["hits"]]
    assert ids == [hit["id"] for hit in said["answers"][0]["hits"]]


@needs_model
def test_the_snippet_runs_as_printed(data_dir: Path) -> None:
    """Pasted into a Python it finds what it remembered, with and without a directory in it."""
    for where in (None, data_dir):
        pasted = subprocess.run(
            [sys.executable, "-c", _demo.snippet(where)],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
            env=environment(HF_HUB_OFFLINE="1"),
        )
        assert pasted.returncode == 0, pasted.stderr
        assert "blue-7" in pasted.stdout
        assert "embed" in pasted.stdout


@needs_model
def test_twice_at_once(data_dir: Path) -> None:
    """Two demos that start together on an empty data directory both succeed and leave each passage once."""
    runs = [
        subprocess.Popen(
            demo_command("--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"),
        )
        for _ in range(2)
    ]
    try:
        outputs = [ended(run) for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    for run, (_, stderr) in zip(runs, outputs, strict=True):
        assert run.returncode == 0, stderr
    first, second = (json.loads(stdout) for stdout, _ in outputs)
    assert first["count"] == second["count"]
    assert first["sidecar"]["kalosd"]["pid"] == second["sidecar"]["kalosd"]["pid"]
    assert [[hit["id"] for hit in one["hits"]] for one in first["answers"]] == [
        [hit["id"] for hit in one["hits"]] for one in second["answers"]
    ]


@needs_model
def test_ctrl_c_as_a_signal(data_dir: Path) -> None:
    """A real SIGINT while passages are embedded: one line, 130, and what was acknowledged is there."""
    with subprocess.Popen(
        kalos_command("demo"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1"),
    ) as process:
        try:
            with kalos_memory.connect(data_dir) as client:
                memory = kalos_memory.Memory(_demo.MEMORY, client=client)
                wait_until(lambda: memory.count() > 0 or process.poll() is not None, "the first passages")
            process.send_signal(signal.SIGINT)
            _, stderr = ended(process)
        finally:
            process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert stderr == "kalos: interrupted\n"
    with kalos_memory.connect(data_dir) as client:
        assert client.collection(_demo.MEMORY).count() > 0


def test_without_the_model_package(data_dir: Path, tmp_path: Path) -> None:
    """Both ways out in words, code 6, no traceback; with --json the same on stdout."""
    result = kalos("demo", "--json", env=environment(**without_the_model(tmp_path)))
    assert result.returncode == ExitCode.NO_MODEL
    assert "kalos-memory[minilm]" in result.stderr
    assert "embedder=" in result.stderr
    assert "Traceback" not in result.stderr
    said = json.loads(result.stdout)
    assert said["exit_code"] == ExitCode.NO_MODEL
    assert "kalos-memory[minilm]" in said["error"]["message"]
