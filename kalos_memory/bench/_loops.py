"""Closed loop and paced measurement of calls, several calls taking turns.

    closed    the next call starts when the last one returned: everything is hot
    paced     a pause before every call: caches cool down and waiting threads sleep, as between an agent's questions

Calls that are compared take turns in rounds, so that a disturbance of the machine meets all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Loop = Literal["closed", "paced"]
LOOPS: tuple[Loop, ...] = ("closed", "paced")

# A call gets the number of the query, so that no two calls in a row ask the same.
Call = Callable[[int], object]


@dataclass
class Series:
    """The latencies of one call in one loop."""

    name: str
    loop: Loop
    call: Call
    latencies_ns: list[int] = field(default_factory=list)
    next_query: int = 0


@dataclass(frozen=True)
class Budget:
    """How long to measure: seconds for each series in all, at least `least` calls; the pause of the paced loop."""

    seconds: float
    least: int = 20
    pause_s: float = 0.002
    rounds: int = 3
    warm_up_s: float = 0.1


def measure(series: Sequence[Series], budget: Budget, progress: Callable[[str], None] | None = None) -> None:
    """Fills the series' latencies, in rounds. The pause of the paced loop is not part of a latency.

    The garbage collector is off meanwhile, as timeit has it, so that its pauses are not counted as the calls'.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(budget.rounds):
            for one in series:
                if progress is not None:
                    progress(f"{one.name}, {one.loop}")
                _measure_round(one, budget)
    finally:
        if collecting:
            gc.enable()


def _measure_round(series: Series, budget: Budget) -> None:
    call, latencies, query = series.call, series.latencies_ns, series.next_query
    clock, sleep = time.perf_counter_ns, time.sleep
    pause = budget.pause_s if series.loop == "paced" else 0.0
    warm_until = clock() + int(budget.warm_up_s * 1e9)
    while clock() < warm_until:
        call(query)
        query += 1
    least, done = -(-budget.least // budget.rounds), 0
    end = clock() + int(budget.seconds / budget.rounds * 1e9)
    while done < least or clock() < end:
        if pause:
            sleep(pause)
        start = clock()
        call(query)
        latencies.append(clock() - start)
        query += 1
        done += 1
    series.next_query = query
