"""The parts of the benchmark that need no sidecar: statistics, loops, vectors, peers, the machine, the report."""

from __future__ import annotations

import gc
import itertools
import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kalos_memory.bench import _loops, _machine, _peers, _report, _run, _stats, _vectors, _writes

latencies = st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=300)


@given(latencies, st.floats(min_value=0.001, max_value=1.0))
def test_percentile_is_the_smallest_measured_value_with_the_fraction_at_or_below(
    values: list[int], fraction: float
) -> None:
    """A percentile is a latency that was measured, and as small as its definition allows."""
    ordered = sorted(values)
    found = _stats.percentile(ordered, fraction)
    assert found in values
    at_or_below = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert at_or_below >= fraction * len(values) - 1e-6
    assert below < fraction * len(values) + 1e-6


def test_percentiles_of_known_values() -> None:
    """p50 and p99 of 1..100 are 50 and 99, of one value that value."""
    hundred = list(range(1, 101))
    assert _stats.percentile(hundred, 0.50) == 50
    assert _stats.percentile(hundred, 0.99) == 99
    assert _stats.percentile(hundred, 1.0) == 100
    assert _stats.percentile([7], 0.01) == 7


@pytest.mark.parametrize(("values", "fraction"), [([], 0.5), ([1], 0.0), ([1], 1.5)])
def test_percentile_refuses_what_has_none(values: list[int], fraction: float) -> None:
    """No values and fractions outside (0, 1] are errors, not numbers."""
    with pytest.raises(ValueError, match=r"at least one|expected above 0"):
        _stats.percentile(values, fraction)


def test_summary_is_in_microseconds_and_does_not_need_sorted_input() -> None:
    """Nanoseconds go in, in any order; microseconds come out."""
    summary = _stats.summarize([3000, 1000, 2000])
    assert summary == _stats.Summary(n=3, p50_us=2.0, p99_us=3.0, mean_us=2.0, min_us=1.0, max_us=3.0)


@given(latencies)
def test_histogram_counts_every_latency_once_in_the_bucket_it_belongs_to(values: list[int]) -> None:
    """Nothing is lost, edges meet, and no latency lies outside its bucket (but for rounding of an edge)."""
    buckets = _stats.histogram(values)
    assert sum(bucket.count for bucket in buckets) == len(values)
    assert len(buckets) <= 16
    for left, right in itertools.pairwise(buckets):
        assert left.high_us == pytest.approx(right.low_us)
    for bucket in buckets:
        inside = sum(bucket.low_us * (1 - 1e-9) <= value / 1000 <= bucket.high_us * (1 + 1e-9) for value in values)
        assert inside >= bucket.count


def test_histogram_of_nothing_is_empty() -> None:
    """No latency, no bucket, no line."""
    assert _stats.histogram([]) == []
    assert _stats.render_histogram([]) == []


def test_rendered_histogram_is_proportional_and_shows_the_rare_bucket() -> None:
    """The largest bucket fills the width, half of it half; one in a thousand is still visible."""
    lines = _stats.render_histogram(
        [_stats.Bucket(1, 2, 1000), _stats.Bucket(2, 4, 500), _stats.Bucket(4, 8, 1), _stats.Bucket(8, 16, 0)], width=20
    )
    assert [line.count("█") for line in lines] == [20, 10, 0, 0]
    assert "▏" in lines[2]
    assert "▏" not in lines[3]
    assert [line.split()[-1] for line in lines] == ["1,000", "500", "1", "0"]


def test_loops_leave_the_pause_out_of_the_latency() -> None:
    """The paced loop pauses before a call; what it reports is the call alone."""
    series = [_loops.Series("call", "paced", lambda _: None)]
    _loops.measure(series, _loops.Budget(seconds=0.0, least=9, pause_s=0.02, rounds=3, warm_up_s=0.0))
    assert len(series[0].latencies_ns) == 9
    assert sorted(series[0].latencies_ns)[4] < 20_000_000  # the median of nothing is below the pause


def test_loops_ask_every_query_in_turn_and_take_turns() -> None:
    """Each call gets rising query numbers, and series alternate in rounds."""
    order: list[tuple[str, int]] = []
    series = [
        _loops.Series("a", "closed", lambda query: order.append(("a", query))),
        _loops.Series("b", "closed", lambda query: order.append(("b", query))),
    ]
    _loops.measure(series, _loops.Budget(seconds=0.0, least=4, rounds=2, warm_up_s=0.0))
    assert order == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2), ("a", 3), ("b", 2), ("b", 3)]


def test_loops_run_for_their_seconds_and_not_only_for_the_least_calls() -> None:
    """A quick call is measured many times within the budget."""
    series = [_loops.Series("call", "closed", lambda _: None)]
    start = time.monotonic()
    _loops.measure(series, _loops.Budget(seconds=0.03, least=1, rounds=1, warm_up_s=0.0))
    assert len(series[0].latencies_ns) > 100
    assert time.monotonic() - start >= 0.03


def test_loops_turn_the_garbage_collector_on_again_when_a_call_fails() -> None:
    """A failing call does not leave the host without a collector."""
    series = [_loops.Series("call", "closed", lambda _: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        _loops.measure(series, _loops.Budget(seconds=0.0, least=1))
    assert gc.isenabled()


def test_vectors_are_seeded_float32_of_unit_length() -> None:
    """The same seed gives the same vectors; another one others."""
    vectors = _vectors.unit_vectors(50, 8, seed=3)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert np.array_equal(vectors, _vectors.unit_vectors(50, 8, seed=3))
    assert not np.array_equal(vectors, _vectors.unit_vectors(50, 8, seed=4))


@pytest.mark.parametrize("row", [0, 1, 99_999])
def test_records_have_the_size_that_the_report_names(row: int) -> None:
    """A text of 200 bytes and three keys, as the report says."""
    assert len(_vectors.record_text(row).encode()) == 200
    assert len(_vectors.record_metadata(row)) == 3
    assert _vectors.record_text(row) != _vectors.record_text(row + 1)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 1000))
def test_peers_agree_with_the_exact_answer(rows: int, k: int, seed: int) -> None:
    """numpy's argpartition gives the exact top k also where k is beyond the rows."""
    vectors = _vectors.unit_vectors(rows, 16, seed)
    query = _vectors.unit_vectors(1, 16, seed + 1)[0]
    expected, scores = _vectors.exact_top(vectors, query, k, block=7)
    assert len(expected) == min(k, rows)
    assert _vectors.same_answer(_peers.numpy_search(vectors, k)(query), expected, scores, 1e-6)


def test_exact_answer_breaks_ties_by_row() -> None:
    """Equal scores rank by row, as Kalos ranks them by row sequence."""
    vectors = np.ones((5, 4), dtype=np.float32)
    assert _vectors.exact_top(vectors, vectors[0], 3)[0] == [0, 1, 2]


def test_same_answer_tells_a_wrong_row_a_missing_row_and_a_tie_apart() -> None:
    """Only rows whose exact scores tie may change places."""
    scores = np.array([0.9, 0.5, 0.5, 0.1])
    assert _vectors.same_answer([0, 1, 2], [0, 1, 2], scores, 1e-12)
    assert _vectors.same_answer([0, 2, 1], [0, 1, 2], scores, 1e-12)
    assert not _vectors.same_answer([1, 0, 2], [0, 1, 2], scores, 1e-12)
    assert not _vectors.same_answer([0, 1], [0, 1, 2], scores, 1e-12)
    assert not _vectors.same_answer([0, 1, 1], [0, 1, 2], scores, 1e-12)
    assert not _vectors.same_answer([0, 1, 3], [0, 1, 2], scores, 1e-12)


def test_machine_names_what_a_figure_depends_on() -> None:
    """CPU, cores, kernel, Python, numpy, Kalos and the load are named, and the whole is JSON."""
    machine = _machine.describe()
    for key in ("cpu", "usable_cores", "kernel", "python", "numpy", "kalos", "load_average", "date", "memory_bytes"):
        assert machine[key], key
    assert json.loads(json.dumps(machine)) == machine
    text = "\n".join(_machine.words(machine))
    assert machine["cpu"] in text
    assert machine["numpy"] in text


@pytest.mark.parametrize(("load", "busy"), [(0.1, False), (7.5, True)])
def test_a_busy_machine_is_said_to_be_busy(load: float, busy: bool) -> None:
    """A load above half the cores is named where the figures are."""
    machine = {**_machine.describe(), "usable_cores": 4, "load_average": [load, 0.0, 0.0]}
    assert (_machine.BUSY in _machine.words(machine)) is busy


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 7763\nprocessor\t: 1\nmodel name\t: other\n", "AMD EPYC 7763"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "implementer 0x41 part 0xd0c"),
    ],
)
def test_cpu_model_is_read_on_x86_and_on_arm(cpuinfo: str, name: str) -> None:
    """The name where /proc/cpuinfo has one, the part number where it has not."""
    assert name in _machine.cpu_model(cpuinfo)


def test_durable_writes_are_not_measured_in_memory_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary directory on tmpfs is passed over for one on a disk, if there is any."""
    kinds = {"/tmp": "tmpfs", "/var/tmp": "ext4"}
    monkeypatch.setattr(_writes, "file_system", lambda path: kinds.get(str(path), "ext4"))
    monkeypatch.setattr(_writes.tempfile, "gettempdir", lambda: "/tmp")
    assert str(_writes.disk_directory()) == "/var/tmp"


def made_up_result() -> dict[str, object]:
    """A result of the right shape with recognisable figures, for the report alone."""

    def series(name: str, loop: str, p50: float) -> dict[str, object]:
        return {"name": name, "loop": loop, "n": 1234, "p50_us": p50, "p99_us": p50 * 2, "mean_us": p50, "min_us": 1.0,
                "max_us": p50 * 3, "histogram": [[1.0, 2.0, 10], [2.0, 4.0, 5]]}  # fmt: skip

    def both(name: str, p50: float) -> list[dict[str, object]]:
        return [series(name, "closed", p50), series(name, "paced", p50 + 1)]

    stages = dict.fromkeys(("tokenize", "embed", "transport", "search", "fetch"), 7.0)
    return {
        "machine": _machine.describe(),
        "settings": {"dimension": 384, "k": 10, "pause_s": 0.002, "seconds": 0.5},
        "lane": both("lane, no operation", 3.25),
        "recall_by_vector": [
            {
                "rows": 1000,
                "k": 10,
                "answers": {"checked": 8, "equal": {"kalos": 7, "numpy": 8}, "largest_score_difference": 0.0},
                "stages_p50_us": {"search": 5.5, "fetch": 1.5},
                "measurements": both("kalos, include=()", 21.75) + both("numpy", 81.5),
            }
        ],
        "recall_by_text": {
            "rows": 64,
            "k": 10,
            "embedder": "test-model",
            "measurements": [{**one, "stages_p50_us": stages} for one in both("kalos, recall by text", 4321.0)],
        },
        "writes": {
            "file_system": "tmpfs",
            "ingest": {"rows": 5000, "rows_per_second": 12345.0, "dimension": 384, "text_bytes": 200,
                       "metadata_keys": 3, "batch_rows": 1000},
            "measurements": both("one acknowledged write", 777.0),
        },
        "not_measured": [{"what": "FAISS", "why": "not installed"}],
    }  # fmt: skip


def test_report_shows_every_figure_and_both_loops() -> None:
    """p50 and p99, closed and paced, by vector and by text, the answers, what was not measured."""
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        _report.show(made_up_result(), console)
    text = console.export_text()
    for figure in ("3.2", "6.5", "21.8", "43.5", "22.8", "81.5", "163", "4,321", "8,642", "777", "12,345", "1,234"):
        assert figure in text, figure
    for words in ("closed", "paced", "Recall by vector", "Recall by text", "test-model", "kalos 7 of 8", "FAISS",
                  "not installed", "flushing costs nothing", "█"):  # fmt: skip
        assert words in text, words


def test_wrong_answers_are_found_by_size() -> None:
    """One answer of eight that differs is named; none is silence."""
    result = made_up_result()
    assert _run.wrong_answers(result) == ["1,000 rows: 1 of 8 answers differ from the exact top 10"]
    result["recall_by_vector"][0]["answers"]["equal"]["kalos"] = 8  # type: ignore[index]
    assert _run.wrong_answers(result) == []


def test_bar_is_monotonic() -> None:
    """A larger share never draws a shorter bar."""
    cells = " ▏▎▍▌▋▊▉█"
    widths = [sum(cells.index(cell) for cell in _stats.bar(share / 97, 13)) for share in range(98)]
    assert widths == sorted(widths)
    assert widths[0] == 0
    assert widths[-1] == 13 * 8
    assert not math.isnan(_stats.summarize([1]).mean_us)
