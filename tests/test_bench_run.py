"""Whole runs of the benchmark with tiny sizes: its JSON is whole, its answers are the exact ones, nothing is left."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_tools import MODEL_IS_THERE, ended, environment, kalos, kalos_command, needs_kalosd, wait_until

from kalos_memory.bench import _cases, _transport
from kalos_memory.bench._run import Settings, run, run_transport, wrong_answers
from kalos_memory.cli._exit_codes import ExitCode

pytestmark = needs_kalosd
TINY = {"seconds": 0.05, "dimension": 16, "k": 5, "ingest_rows": 1500, "least": 6}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary directory of its own for whatever a run makes there; it must be empty in the end."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(name)
        assert [one for one in os.listdir(name) if one.startswith("kalos")] == []  # torch leaves a folder of its own
    monkeypatch.setattr(tempfile, "tempdir", None)


def check_measurement(one: dict[str, Any]) -> None:
    """A series has its loop, its size, both percentiles in order, and a histogram of all its calls."""
    assert one["loop"] in ("closed", "paced")
    assert one["n"] >= TINY["least"]
    assert 0 < one["min_us"] <= one["p50_us"] <= one["p99_us"] <= one["max_us"]
    assert one["min_us"] <= one["mean_us"] <= one["max_us"]
    assert sum(count for _, _, count in one["histogram"]) == one["n"]


def test_a_tiny_run_is_whole_and_right(temporary: Path) -> None:
    """Every part is there, closed and paced each, and all answers equal the exact ones; nothing is left behind."""
    result = run(Settings(rows=(3, 700), text=False, directory=temporary, **TINY))  # type: ignore[arg-type]
    assert json.loads(json.dumps(result, allow_nan=False)) == json.loads(json.dumps(result))
    assert result["benchmark"] == "kalos"
    assert result["machine"]["cpu"]
    assert result["sidecar"]["version"]
    loops = ["closed", "paced"]
    assert [one["loop"] for one in result["lane"]] == loops
    assert [size["rows"] for size in result["recall_by_vector"]] == [3, 700]
    for size in result["recall_by_vector"]:
        names = {one["name"] for one in size["measurements"]}
        assert {_cases.BARE, _cases.FIELDS, "numpy"} <= names
        for name in names:
            assert [one["loop"] for one in size["measurements"] if one["name"] == name] == loops
        answers = size["answers"]
        assert answers["checked"] > 0
        assert answers["equal"]["kalos"] == answers["checked"]
        assert answers["equal"]["numpy"] == answers["checked"]
        assert answers["largest_score_difference"] < 1e-12
        assert size["stages_p50_us"]["search"] > 0
    assert wrong_answers(result) == []
    assert result["recall_by_text"] is None
    assert {"what": "recall by text", "why": "left out with --no-text"} in result["not_measured"]
    writes = result["writes"]
    assert writes["durability"] == "commit"
    assert writes["ingest"]["rows_per_second"] > 0
    assert 1000 <= writes["ingest"]["rows"] <= 1500
    assert [one["loop"] for one in writes["measurements"]] == loops
    for one in [*result["lane"], *writes["measurements"]]:
        check_measurement(one)
    for size in result["recall_by_vector"]:
        for one in size["measurements"]:
            check_measurement(one)


@pytest.mark.skipif(not MODEL_IS_THERE, reason="the extra `minilm` is not installed")
def test_recall_by_text_tells_the_embedding_apart(temporary: Path) -> None:
    """Recall by text has its own section, with the whole and its stages."""
    result = run(Settings(rows=(50,), text=True, directory=temporary, **TINY))  # type: ignore[arg-type]
    by_text = result["recall_by_text"]
    assert by_text["rows"] == 64
    for one in by_text["measurements"]:
        check_measurement(one)
        stages = one["stages_p50_us"]
        assert 0 < stages["search"] < stages["embed"]
        assert stages["embed"] < one["max_us"]
    assert all(missing["what"] != "recall by text" for missing in result["not_measured"])


def test_the_command_prints_tables_and_json(temporary: Path) -> None:
    """The same run for people and for programs; a pipe carries nothing else."""
    small = [
        "bench",
        "--rows",
        "40",
        "--seconds",
        "0.01",
        "--dimension",
        "8",
        "--no-text",
        "--directory",
        str(temporary),
    ]
    text = kalos(*small)
    assert text.returncode == 0, text.stderr
    assert text.stderr == ""
    for words in (
        "Recall by vector",
        "closed",
        "paced",
        "numpy",
        "p50",
        "p99",
        "durable ingest",
        "not measured: FAISS",
    ):
        assert words in text.stdout or (words.endswith("FAISS") and "FAISS flat" in text.stdout), words
    said = json.loads(kalos(*small, "--json").stdout)
    assert said["settings"]["rows"] == [40]
    assert said["recall_by_vector"][0]["answers"]["equal"]["kalos"] > 0


def test_wrong_answers_fail_the_run(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were Kalos not exact, the bench would notice: here the oracle is bent, so that every answer is "wrong"."""
    from kalos_memory.bench import _vectors

    true_top = _vectors.exact_top

    def bent(vectors: Any, query: Any, k: int) -> Any:
        rows, scores = true_top(vectors, -query, k)
        return rows, -scores

    monkeypatch.setattr(_vectors, "exact_top", bent)
    result = run(Settings(rows=(100,), text=False, directory=temporary, **TINY))  # type: ignore[arg-type]
    assert len(wrong_answers(result)) == 1


def test_ctrl_c_leaves_nothing(temporary: Path) -> None:
    """An interrupted bench removes its directories and ends its sidecars; code 130, one line."""
    with subprocess.Popen(
        kalos_command("bench", "--rows", "1000", "--seconds", "30", "--no-text", "--directory", str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(temporary)),
    ) as process:
        try:
            wait_until(lambda: any(temporary.iterdir()), "the bench makes a directory")
            process.send_signal(signal.SIGINT)
            _, stderr = ended(process)
        finally:
            process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert stderr == "kalos: interrupted\n"
    wait_until(lambda: not any(temporary.iterdir()), "the bench's directories are gone")


def test_a_tiny_transport_run_is_whole(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Each call in each rhythm from each number of client processes, beside a Unix socket; no process is left."""
    from rich.console import Console

    from kalos_memory.bench import _report

    monkeypatch.setattr(_transport, "CLIENTS", (1, 2))
    result = run_transport(Settings(rows=(50,), seconds=0.03))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    cells = {(one["call"], one["rhythm"], one["clients"]) for one in result["transport"]["measurements"]}
    rhythms = ("closed", "sleeping", "computing")
    assert cells == {(call, rhythm, count) for call in ("lane", "search") for rhythm in rhythms for count in (1, 2)} | {
        ("Unix socket", rhythm, 1) for rhythm in rhythms
    }
    for one in result["transport"]["measurements"]:
        assert one["n"] > 0
        assert 0 <= one["p50_us"] <= one["p99_us"] <= one["max_us"]
    assert result["transport"]["passes"] > 0
    assert not multiprocessing.active_children()
    _report.show_transport(result, Console())
    assert "Unix socket" in capfd.readouterr().out
