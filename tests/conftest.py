"""Shared fixtures: sidecars in temporary directories, collections in them, and the checks that nothing stays behind."""

from __future__ import annotations

import itertools
import multiprocessing.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

# Before anything is imported: no test reaches a real data directory, nor the network, and a kalosd that outlives its
# session (which somebody killed) ends by itself.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["KALOS_IDLE_S"] = "30"
os.environ.pop("KALOS_SOCKET", None)
os.environ["KALOS_DATA_DIR"] = str(Path(tempfile.gettempdir()) / "kalos-tests-must-not-use-the-default")

import kalos_memory as kalos
from kalos_memory import _sidecar

# A shell ignores SIGINT in what it starts in the background, and every child inherits that: Ctrl-C could not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

NAMES = ("kl.", "sem.kl.")
_numbers = itertools.count(1)


def names_in_dev_shm() -> set[str]:
    """Names that Kalos gives to shared memory and semaphores."""
    try:
        return {name for name in os.listdir("/dev/shm") if name.startswith(NAMES)}
    except FileNotFoundError:
        return set()


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Waits for a condition, and fails in words when it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain until {what}"
        time.sleep(0.005)


def kalosd_left(*places: str | os.PathLike[str]) -> dict[int, str]:
    """Processes that serve a data directory below one of these places: pid -> data directory."""
    below = tuple(os.path.join(os.path.realpath(place), "") for place in places)
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):  # not glob(): it fails when one ends while it looks
        with suppress(OSError):
            words = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "--data-dir" in words[:-1]:
                data_dir = words[words.index("--data-dir") + 1]
                if os.path.join(os.path.realpath(data_dir), "").startswith(below):
                    found[int(pid)] = data_dir
    return found


def skip_under_sanitizers(kalosd: str) -> None:
    """Their shadow memory is neither small nor to be had under a limit on the address space."""
    with open(kalosd, "rb") as program:
        content = program.read()
        if b"__asan_init" in content or b"__tsan_init" in content:
            pytest.skip("kalosd is built with a sanitizer, whose own memory is what this test would measure")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process, all its threads, and lets it go on afterwards (if it still lives)."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        states = []
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            states.append(path.read_text().rsplit(")", 1)[1].split()[0])
        return set(states) == {"T"}

    wait_until(stands, f"process {pid} stands still")
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_in_dev_shm() -> Iterator[None]:
    """Promise: whatever was killed, /dev/shm holds no name of ours afterwards. (A name lives for milliseconds while a
    lane is attached, so those of sidecars that others run meanwhile are waited out.)"""
    before = names_in_dev_shm()
    yield
    left = names_in_dev_shm() - before
    end = time.monotonic() + 10
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left &= names_in_dev_shm()
    assert not left, f"left in /dev/shm: {sorted(left)}"


@pytest.fixture(scope="session", autouse=True)
def no_kalosd_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Promise: whatever was killed, no kalosd of this session runs afterwards, but one whose end is under way. All data
    directories lie in one place for that, or among pytest's own."""
    multiprocessing.util.get_temp_dir()  # it removes it when the process ends, after this place is gone
    mine = tempfile.mkdtemp(prefix="kalos-")
    places = (tmp_path_factory.getbasetemp(), mine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", mine)
        patch.setattr(tempfile, "tempdir", mine)
        yield
    end = time.monotonic() + 10
    while (left := kalosd_left(*places)) and time.monotonic() < end:
        time.sleep(0.05)
    shutil.rmtree(mine, ignore_errors=True)
    assert not left, "left running: " + ", ".join(f"kalosd (pid {pid}) on {path}" for pid, path in left.items())


@pytest.fixture(scope="session")
def kalosd() -> str:
    """The program under test. Skips where it was not built."""
    try:
        return _sidecar.find_kalosd()
    except kalos.SidecarUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def data_dir(kalosd: str) -> Iterator[str]:
    """A data directory with a short path; whatever serves it is stopped in the end."""
    path = tempfile.mkdtemp(prefix="kalos-test-")
    yield path
    try:
        _sidecar.stop(path, timeout=60)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def client(data_dir: str) -> Iterator[kalos.Client]:
    """A client of a sidecar of its own, which the test may kill. Patient, since the machine may be busy."""
    with kalos.connect(data_dir, timeout=30.0) as connected:
        yield connected


@pytest.fixture(scope="session")
def shared(kalosd: str) -> Iterator[kalos.Client]:
    """A client of one private sidecar for all tests that only use it."""
    with kalos.connect(":memory:", timeout=30.0) as connected:
        yield connected


@pytest.fixture
def collection(shared: kalos.Client) -> Iterator[kalos.Collection]:
    """An empty collection of dimension 4, cosine."""
    name = f"test-{next(_numbers)}"
    yield shared.collection(name, dimension=4)
    shared.drop_collection(name, confirm=name)


@pytest.fixture
def sidecar_pid() -> Callable[[kalos.Client], int]:
    return lambda client: int(client.stats()["kalosd"]["pid"])
