"""A process that is killed when it has started kalosd, and before kalosd has taken the lock: what it leaves is at most
one kalosd, which serves whoever comes and ends by itself; a private one ends at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import kalosd_left, wait_until

import kalos_memory as kalos
from kalos_memory import _sidecar

STARTERS = 4


@pytest.fixture
def open_gate(kalosd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Kalosd is started through a gate, and has done nothing yet until it is opened. The gate is a pipe that nobody
    writes to: the shell waits in its open() without any process of its own, which would be counted for one more."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = tmp_path / "slow-kalosd"
    slow.write_text(f'#!/bin/sh\n: < {gate}\nexec {kalosd} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("KALOSD", str(slow))
    monkeypatch.setenv("KALOS_IDLE_S", "1")
    with ExitStack() as until_the_end:

        def open_gate() -> None:
            until_the_end.callback(os.close, os.open(gate, os.O_RDWR))

        yield open_gate
        open_gate()  # also for a test that failed: nothing may wait there for ever


def kill_starters(where: str, started: Callable[[], int], count: int) -> None:
    """Each is killed as soon as it has started its own, which is still before the gate."""
    code = "import sys, kalos_memory as kalos; kalos.connect(sys.argv[1])"
    for number in range(count):
        with subprocess.Popen([sys.executable, "-c", code, where]) as process:
            try:
                wait_until(lambda wanted=number + 1: started() == wanted, "kalosd is started")  # type: ignore[misc]
            finally:
                process.kill()


@pytest.mark.parametrize("used", [False, True], ids=["nobody comes", "a client comes"])
def test_starters_are_killed(open_gate: Callable[[], None], data_dir: str, used: bool) -> None:
    """Several in a row, each of which finds nobody there. Whoever comes gets the one that is left, and while it is used
    it does not end."""
    kill_starters(data_dir, lambda: len(kalosd_left(data_dir)), STARTERS)
    assert _sidecar.lock_holder(data_dir) is None
    open_gate()
    if used:
        with kalos.connect(data_dir, timeout=30) as client:
            wait_until(lambda: len(kalosd_left(data_dir)) == 1, "all but one have ended")
            report = client.stats()["kalosd"]
            assert set(kalosd_left(data_dir)) == {report["pid"]}
            assert report["autostarted"] is True
            assert client.collection("notes", dimension=1).upsert(["a"], [[1.0]]) > 0
    wait_until(lambda: not kalosd_left(data_dir), "the last of them ends")
    assert _sidecar.lock_holder(data_dir) is None
    log = Path(data_dir, "kalosd.log").read_text()
    assert (log.count(" serves "), log.count("idle for 1 s")) == (1 + log.count("serves " + data_dir + " already"), 1)
    with kalos.connect(data_dir, timeout=30) as client:
        assert [found["name"] for found in client.collections()] == (["notes"] if used else [])


def test_the_starter_of_a_private_sidecar_is_killed(open_gate: Callable[[], None]) -> None:
    """Nobody can ever connect to it: it ends without having waited for anyone, and its directory goes with it."""
    place = os.environ["TMPDIR"]
    before = set(kalosd_left(place))

    def started() -> dict[int, str]:
        return {pid: path for pid, path in kalosd_left(place).items() if pid not in before}

    kill_starters(":memory:", lambda: len(started()), 1)
    (directory,) = started().values()
    assert os.path.isdir(directory)
    open_gate()
    wait_until(lambda: not started(), "it ends")
    assert not os.path.exists(directory)
