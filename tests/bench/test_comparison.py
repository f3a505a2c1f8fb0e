"""Kalos beside other vector stores: each that is installed, and the run as a whole with those that are there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import kalos_memory as kalos
from kalos_memory.bench import _comparison, _plot, _report, _run, _stores, _vectors
from kalos_memory.cli import main  # noqa: F401 - the app below is registered by it
from kalos_memory.cli._app import app


@pytest.mark.parametrize("store", _stores.STORES, ids=lambda store: store.name)
def test_a_store_finds_the_exact_rows(store: _stores.Store) -> None:
    """At a size where an approximate index looks at everything, all give the exact answer, best first."""
    if why := store.left_out(300):
        pytest.skip(f"{store.name}: {why}")
    vectors = _vectors.unit_vectors(300, 16, seed=1)
    query = _vectors.unit_vectors(1, 16, seed=2)[0]
    search, close = store.build(vectors, 7)
    try:
        expected, scores = _vectors.exact_top(vectors, query, 7)
        assert _vectors.same_answer(search(query), expected, scores, 1e-6)
    finally:
        close()


def test_stores_that_cannot_be_measured_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, too slow at that size, or without the means: named with the reason, not passed over."""
    numpy, slow = _stores.STORES[0], _stores.STORES[-1]
    assert numpy.left_out(1_000_000) is None
    if slow.left_out(1) is None:
        assert slow.left_out(20_001) == "measured up to 20,000 rows"
    monkeypatch.setattr(_stores.util, "find_spec", lambda name: None)
    assert numpy.left_out(1) == "not installed"


def test_clustered_vectors_have_topics() -> None:
    """Rows of one centre are close, others are not, and a seed always gives the same."""
    vectors = _vectors.clustered_vectors(400, 384, seed=3)
    cosines = np.sort(vectors[:50] @ vectors.T, axis=1)[:, ::-1]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert 0.7 < cosines[:, 5].mean() < 0.85
    assert abs(cosines[:, 200].mean()) < 0.1
    assert (vectors == _vectors.clustered_vectors(400, 384, seed=3)).all()


def test_texts_are_cut_into_different_passages(tmp_path: Path) -> None:
    """From text, Markdown, JSON and JSON lines, whatever their nesting; other files are left alone."""
    sentence = "Passage number {} says something that is long enough to be counted. "
    (tmp_path / "a.txt").write_text("\n\n".join(sentence.format(i) for i in range(150)))
    (tmp_path / "b.md").write_text(sentence.format("long") * 20)
    nested = {"deep": [{"text": sentence.format(f"json {i}")} for i in range(100)], "short": "no"}
    (tmp_path / "c.json").write_text(json.dumps(nested))
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(sentence.format(f"line {i}")) for i in range(100)))
    (tmp_path / "e.bin").write_text(sentence * 50)
    texts = _comparison.texts_below(tmp_path)
    assert len(texts) == len(set(texts)) > 350
    assert all(40 <= len(text) <= 400 for text in texts)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(kalos.InvalidRequest, match="expected 300 at least"):
        _comparison.texts_below(tmp_path)


def test_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kalos and numpy at 500 rows: both exact, everything measured, printed and ready for JSON."""
    monkeypatch.setattr(_comparison, "STORES", _stores.STORES[:1])
    result = _run.run_peers(_run.Settings(rows=(500,), seconds=0.01, dimension=32, text=False))
    (size,) = json.loads(json.dumps(result))["sizes"]
    assert (size["family"], size["rows"], size["dimension"]) == ("clustered", 500, 32)
    assert [(store["name"], store["recall"]) for store in size["stores"]] == [("Kalos", 1.0), ("numpy", 1.0)]
    for store in size["stores"]:
        assert 0 < store["closed"]["p50_us"] <= store["closed"]["p95_us"] <= store["closed"]["p99_us"]
        assert store["paced"]["n"] >= 10
    console = Console(record=True, width=160)
    _report.show_peers(result, console)
    assert "clustered: 500 x 32" in console.export_text()


def test_a_picture_is_refused_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, its directory, the package that draws it."""
    with pytest.raises(kalos.InvalidRequest, match=r"ends in \.svg or \.png"):
        _plot.check_plot(tmp_path / "plot.pdf")
    with pytest.raises(kalos.InvalidRequest, match="there is no directory"):
        _plot.check_plot(tmp_path / "missing" / "plot.svg")
    monkeypatch.setattr(_plot.util, "find_spec", lambda name: None)
    with pytest.raises(kalos.InvalidRequest, match=r"kalos-memory\[peers\]"):
        _plot.check_plot(tmp_path / "plot.svg")


def test_a_picture(tmp_path: Path) -> None:
    """One line for each store, one panel for each family."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    store = {"name": "Kalos", "recall": 1.0, "closed": {"p50_us": 20.0}}
    sizes = [{"family": family, "rows": rows, "stores": [store]} for family in ("a", "b") for rows in (10, 100)]
    _plot.draw({"sizes": sizes}, tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--peers", "--transport"], "runs of their own"),
        (["--plot", "a.svg"], "belong to --peers"),
        (["--peers", "--plot", "a.pdf"], "ends in .svg"),
        (["--peers", "--texts", "/no/such/directory"], "does not exist"),
    ],
)
def test_options_that_do_not_fit(options: list[str], words: str) -> None:
    """Refused in words, before anything is measured."""
    result = CliRunner().invoke(app, ["bench", *options])
    assert result.exit_code != 0
    assert words in " ".join(result.output.replace("│", " ").split())
