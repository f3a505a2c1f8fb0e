"""kalos demo: real input remembered, three questions answered, nothing made up.

The input is the manual that every CPython carries (pydoc_data.topics). It stays in the user's data directory as the
memory "kalos-demo", so the second run is quick and `kalos recall -m kalos-demo …` works afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kalos_memory.cli import _session
from kalos_memory.cli._memory import hit_as_json, show_hit, timings_in_words
from kalos_memory.cli._options import DataDir, JsonOutput
from kalos_memory.cli._output import console, emit_json, printable
from kalos_memory.cli._running import verb

if TYPE_CHECKING:
    from kalos_memory import Memory

MEMORY = "kalos-demo"
QUESTIONS = (
    "Why is my default argument shared between calls?",
    "What is the difference between is and ==?",
    "Which operator binds more tightly, not or and?",
)
HITS = 3


def register(app: typer.Typer) -> None:
    """Adds the verb of this file."""
    app.command()(demo)


@verb
def demo(data_dir: DataDir = None, json_output: JsonOutput = False) -> None:
    """Remember real text, ask it three questions.

    The text is the manual that every Python carries. It stays as the memory "kalos-demo"; `kalos forget -m kalos-demo
    --everything` removes it.
    """
    where = _session.directory(data_dir)
    out = None if json_output else console()
    if out is not None:
        out.print(
            f"Input: the manual in this Python (pydoc_data.topics), as memory {MEMORY!r} in {printable(str(where))}",
            markup=False,
        )
    with _session.memory(MEMORY, (), data_dir, existing=False) as memory:
        warm_s = warm_up(memory)
        if out is not None:
            out.print(f"Embedding model {memory.embedder.name}, ready after {warm_s:.1f} s", markup=False)
        kept = remember_manual(memory, quiet=json_output)
        if out is not None:
            out.print(f"{kept['words']}\n", markup=False)
        answers = ask_all(memory, QUESTIONS, None if out is None else lambda answer: show_answer(out, answer))
        count = memory.count()
    report = _session.report(data_dir)
    health = report["health"]
    code = snippet(None if data_dir is None else where)
    if out is None:
        emit_json(
            {
                "memory": MEMORY,
                "data_dir": str(where),
                "embedder": memory.embedder.name,
                "model_ready_s": warm_s,
                "remembered": kept,
                "answers": answers,
                "count": count,
                "sidecar": report,
                "snippet": code,
            }
        )
        return
    from kalos_memory.cli._sidecar import sidecar_lines

    out.print(f"{count:,} passages are in {MEMORY}. The sidecar ({health['status']}):", markup=False)
    for line in sidecar_lines(report):
        out.print(f"  {line}", markup=False)
    out.print('\nAsk it more with: kalos recall -m kalos-demo "…", or from Python:\n', markup=False)
    out.print(code, markup=False, soft_wrap=True)
    out.print("Stop the sidecar with: kalos stop", markup=False)


def warm_up(memory: Memory) -> float:
    """Loads the model, so that no question pays for it; the seconds that took. Words when there is no model."""
    start = time.monotonic()
    memory.embedder.embed_queries([QUESTIONS[0]])
    return time.monotonic() - start


def remember_manual(memory: Memory, quiet: bool) -> dict[str, Any]:
    """Remembers what is not yet there. Interrupted, it keeps what was acknowledged; the next run goes on."""
    from kalos_memory.cli import _adding

    start = time.monotonic()
    done = _adding.add_manual(memory, quiet)
    spent = time.monotonic() - start
    words = f"{_adding.in_words(done)} in {spent:.1f} s"
    return {**done, "seconds": spent, "words": words}


def ask_all(
    memory: Memory, questions: tuple[str, ...], on_answer: Callable[[dict[str, Any]], None] | None = None
) -> list[dict[str, Any]]:
    """Asks each question once; hits, scores and stage times as JSON. on_answer sees each as it comes."""
    answers = []
    for question in questions:
        recall = memory.recall(question, HITS)
        answer = {
            "question": question,
            "hits": [hit_as_json(hit) for hit in recall],
            "timings_us": dict(recall.timings),
        }
        answers.append(answer)
        if on_answer is not None:
            on_answer(answer)
    return answers


def show_answer(out: Any, answer: dict[str, Any]) -> None:
    """The question, its hits, what each stage took."""
    out.print(f"> {answer['question']}", markup=False, style="bold")
    for hit in answer["hits"]:
        show_hit(out, hit, indent="  ")
    out.print(f"  {timings_in_words(answer['timings_us'])}\n", markup=False, style="dim")


def snippet(data_dir: Path | None) -> str:
    """Six lines to paste that run as printed, against the data directory that the demo used."""
    client = "kalos.connect()" if data_dir is None else f"kalos.connect({str(data_dir)!r})"
    return "\n".join(
        (
            "import kalos_memory as kalos",
            f'memory = kalos.Memory("my-notes", client={client})',
            'memory.remember("The staging database moved to host blue-7 in March.", id="staging")',
            'found = memory.recall("Where does staging live?", k=3)',
            'print(*(f"{hit.score:.3f}  {hit.text}" for hit in found), sep="\\n")',
            "print(found.timings)",
        )
    )
