"""The whole benchmark as one JSON-ready dict. Starts sidecars of its own and leaves nothing behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalos_memory.bench import _cases, _machine, _peers, _writes
from kalos_memory.bench._loops import Budget

if TYPE_CHECKING:
    from kalos_memory import Client

FORMAT = 1  # of the JSON; grows when a key changes its meaning

QUESTIONS = [
    "How do I write a for loop?",
    "What does the with statement do?",
    "When is a generator finalized?",
    "How are operators ranked by precedence?",
    "What happens when an exception is not caught?",
    "How can a class customise attribute access?",
    "Which literals can be written with underscores?",
    "How do I set a breakpoint in the debugger?",
]


@dataclass(frozen=True)
class Settings:
    """What a run measures.

    Attributes:
        rows: sizes of the collections, ascending.
        seconds: for each measured series.
        dimension: of the vectors.
        k: hits asked for.
        pause_s: before each call of the paced loop.
        seed: of the vectors.
        text: whether to measure recall by text (needs an embedding model).
        ingest_rows: durable ingest ends after as many rows or after four times `seconds`.
        directory: where the durable writes go; None: a temporary directory on a disk.
        least: calls in each series at least.
    """

    rows: tuple[int, ...] = (1_000, 10_000, 100_000)
    seconds: float = 3.0
    dimension: int = 384
    k: int = 10
    pause_s: float = 0.002
    seed: int = 20_240_229
    text: bool = True
    ingest_rows: int = 200_000
    directory: Path | None = None
    least: int = 20


def run(settings: Settings, progress: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """Measures everything and returns it. Sidecars and directories of the run are gone afterwards, also on Ctrl-C.

    Raises KalosError when the sidecar cannot be started or refuses.
    """
    import kalos_memory as kalos

    machine = _machine.describe()
    budget = Budget(
        settings.seconds, least=settings.least, pause_s=settings.pause_s, warm_up_s=min(0.1, settings.seconds / 5)
    )
    with kalos.connect(":memory:", timeout=30.0) as client:
        sidecar = client.stats()
        lane = _cases.measure_lane(client, budget, progress)
        by_vector = [
            _cases.measure_vectors(client, rows, settings.dimension, settings.k, settings.seed, budget, progress)
            for rows in settings.rows
        ]
        by_text, no_text = _recall_by_text(client, settings, budget, progress)
    writes = _durable_writes(settings, budget, progress)
    machine["load_average_after"] = _machine.load_average()
    return {
        "benchmark": "kalos",
        "format": FORMAT,
        "machine": machine,
        "sidecar": _about(sidecar),
        "settings": {**asdict(settings), "directory": str(settings.directory) if settings.directory else None},
        "lane": lane,
        "recall_by_vector": by_vector,
        "recall_by_text": by_text,
        "writes": writes,
        "not_measured": ([{"what": "recall by text", "why": no_text}] if no_text else []) + _peers.not_measured(),
    }


def run_transport(settings: Settings, progress: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """Measures the way between processes only: see _transport. rows: those of the collection searched, the first size.

    Raises KalosError when the sidecar cannot be started or refuses."""
    import kalos_memory as kalos
    from kalos_memory.bench import _transport

    machine = _machine.describe()
    with kalos.connect(":memory:", timeout=30.0) as client:
        sidecar = client.stats()
        transport = _transport.measure_transport(
            client, settings.rows[0], settings.dimension, settings.seed, settings.seconds, progress
        )
    machine["load_average_after"] = _machine.load_average()
    return {
        "benchmark": "kalos transport",
        "format": FORMAT,
        "machine": machine,
        "sidecar": _about(sidecar),
        "settings": {"seconds": settings.seconds, "seed": settings.seed},
        "transport": transport,
    }


def run_peers(
    settings: Settings, texts: Path | None = None, progress: Callable[[str], None] = lambda words: None
) -> dict[str, Any]:
    """Measures Kalos beside other vector stores only: see _comparison. texts: a directory, for real embeddings.

    Raises KalosError when the sidecar cannot be started or refuses."""
    import kalos_memory as kalos
    from kalos_memory.bench import _comparison, _vectors

    machine = _machine.describe()
    budget = Budget(settings.seconds, least=10, pause_s=settings.pause_s, warm_up_s=min(0.1, settings.seconds / 5))
    sizes, no_text = [], None
    with kalos.connect(":memory:", timeout=60.0) as client:
        sidecar = client.stats()
        if settings.text:
            try:
                vectors = _comparison.embedded_texts(client, texts, progress)
                sizes.append(_comparison.compare(client, "MiniLM", vectors, settings.k, budget, progress))
            except ImportError as error:
                no_text = str(error)
        for rows in settings.rows:
            vectors = _vectors.clustered_vectors(rows + _comparison.QUERIES, settings.dimension, settings.seed)
            sizes.append(_comparison.compare(client, "clustered", vectors, settings.k, budget, progress))
    machine["load_average_after"] = _machine.load_average()
    return {
        "benchmark": "kalos peers",
        "format": FORMAT,
        "machine": machine,
        "sidecar": _about(sidecar),
        "settings": {
            "seconds": settings.seconds,
            "seed": settings.seed,
            "k": settings.k,
            "pause_s": settings.pause_s,
            "texts": str(texts) if texts else None,
        },
        "sizes": sizes,
        "not_measured": [{"what": "MiniLM embeddings", "why": no_text}] if no_text else [],
    }


def _about(sidecar: dict[str, Any]) -> dict[str, Any]:
    return {name: sidecar.get("kalosd", {}).get(name) for name in ("version", "abi", "device", "cpus")}


def _recall_by_text(
    client: Client, settings: Settings, budget: Budget, progress: Callable[[str], None]
) -> tuple[dict[str, Any] | None, str | None]:
    """The measurement, or None and why there is none."""
    import kalos_memory as kalos
    from kalos_memory.bench._text import passages

    if not settings.text:
        return None, "left out with --no-text"
    progress("loading the embedding model")
    try:
        memory = kalos.Memory("bench-text", client=client)
        embedder = memory.embedder
        embedder.embed_queries(["warm up"])
    except (kalos.KalosError, ImportError) as error:
        return None, str(error)
    progress("remembering passages")
    memory.remember(passages(64))
    return _cases.measure_text(memory, QUESTIONS, settings.k, budget, progress), None


def _durable_writes(settings: Settings, budget: Budget, progress: Callable[[str], None]) -> dict[str, Any]:
    import kalos_memory as kalos
    from kalos_memory import _sidecar

    root = Path(tempfile.mkdtemp(prefix="kalos-bench-", dir=_writes.disk_directory(settings.directory)))
    try:
        with kalos.connect(root, timeout=30.0) as client:
            return _writes.measure_writes(
                client, root, settings.dimension, settings.seed, settings.ingest_rows, budget, progress
            )
    finally:
        try:
            _sidecar.stop(str(root))
        finally:
            shutil.rmtree(root, ignore_errors=True)


def wrong_answers(result: dict[str, Any]) -> list[str]:
    """Words for every size at which Kalos's answers were not the exact ones. Empty: all were."""
    words = []
    for size in result["recall_by_vector"]:
        checked, right = size["answers"]["checked"], size["answers"]["equal"]["kalos"]
        if right != checked:
            words.append(
                f"{size['rows']:,} rows: {checked - right} of {checked} answers differ from the exact top {size['k']}"
            )
    return words
