"""The waiting policy: it returns for the right reply only, keeps its deadline, spins within bounds."""

import os
import signal
import threading
import time

import posix_ipc
import pytest

from kalos_memory import _wait
from kalos_memory._wait import DeadlinePassed, SpinThenBlock


@pytest.fixture
def semaphore():
    name = f"/kl.test.{os.getpid()}.{os.urandom(4).hex()}"
    made = posix_ipc.Semaphore(name, posix_ipc.O_CREX)
    made.unlink()
    yield made
    made.close()


def after(seconds):
    return time.monotonic_ns() + int(seconds * 1e9)


def nothing():
    """A peer that lives."""


class Failing(Exception):
    pass


def fail():
    raise Failing


def reply_later(words, semaphore, sequence, seconds):
    def reply():
        time.sleep(seconds)
        words[0] = sequence
        semaphore.release()

    thread = threading.Thread(target=reply)
    thread.start()
    return thread


@pytest.mark.parametrize("limit_ns", [0, 1_000_000])
@pytest.mark.parametrize("delay", [0, 0.001, 0.12])
def test_waits_for_its_reply_and_takes_the_token(semaphore, limit_ns, delay):
    """Spinning or not, early or late: the token is taken, so that the count stays even."""
    words = [0]
    thread = reply_later(words, semaphore, 5, delay)
    SpinThenBlock(limit_ns).wait(words, 0, 5, semaphore, after(30), nothing)
    assert words[0] == 5
    assert semaphore.value == 0
    thread.join()


def test_a_token_left_over_is_not_a_reply(semaphore):
    """A token of an interrupted wait is consumed, and the wait goes on for its own."""
    semaphore.release()
    words = [4]
    thread = reply_later(words, semaphore, 5, 0.02)
    SpinThenBlock(0).wait(words, 0, 5, semaphore, after(30), nothing)
    assert words[0] == 5
    assert semaphore.value == 0
    thread.join()


@pytest.mark.parametrize("limit_ns", [0, 1_000_000])
def test_deadline(semaphore, limit_ns):
    """No reply: DeadlinePassed, not before the deadline."""
    until = after(0.06)
    with pytest.raises(DeadlinePassed):
        SpinThenBlock(limit_ns).wait([0], 0, 1, semaphore, until, nothing)
    assert time.monotonic_ns() >= until


def test_a_reply_that_is_there_wins_over_a_deadline_that_passed(semaphore):
    semaphore.release()
    SpinThenBlock(0).wait([1], 0, 1, semaphore, after(-1), nothing)


def test_the_peer_is_looked_at_between_slices(semaphore):
    """Its death ends a wait that has no deadline in sight."""
    with pytest.raises(Failing):
        SpinThenBlock(0).wait([0], 0, 1, semaphore, after(1000), fail)


def test_a_wake_without_a_reply_asks_for_the_peer(semaphore):
    """A lane that is being closed wakes its waiters by a token."""
    semaphore.release()
    with pytest.raises(Failing):
        SpinThenBlock(0).wait([0], 0, 1, semaphore, after(1000), fail)


def test_signals_with_handlers_do_not_end_the_wait(semaphore):
    """posix_ipc does not retry after a signal; the policy does, and the handler has run."""
    hits = []
    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        words = [0]
        thread = reply_later(words, semaphore, 9, 0.1)
        SpinThenBlock(0).wait(words, 0, 9, semaphore, after(30), nothing)
        thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits
    assert words[0] == 9


class Answered:
    """A word that has its sequence already, and notes whether it was polled before the semaphore was taken."""

    def __init__(self, semaphore) -> None:
        self.semaphore = semaphore
        self.polled = False
        semaphore.release()

    def __getitem__(self, index: int) -> int:
        self.polled = self.polled or self.semaphore.value > 0
        return 1


def spins(policy, semaphore) -> bool:
    words = Answered(semaphore)
    policy.wait(words, 0, 1, semaphore, after(10), nothing)
    assert semaphore.value == 0
    return words.polled


def test_one_thread_spins_at_a_time(semaphore, monkeypatch):
    policy = SpinThenBlock(1_000_000)
    monkeypatch.setattr(_wait, "_spinning_until_ns", after(10))
    assert not spins(policy, semaphore)
    monkeypatch.setattr(_wait, "_spinning_until_ns", time.monotonic_ns())  # whoever it was is interrupted or done
    assert spins(policy, semaphore)
    assert _wait._spinning_until_ns == 0


def test_slow_replies_end_the_spinning_and_fast_ones_bring_it_back(semaphore):
    """The window is learned: a CPU is not burnt for replies that take longer than it."""
    policy = SpinThenBlock(1_000)  # a microsecond: every real wait is slow against it
    for _ in range(30):
        thread = reply_later(words := [0], semaphore, 1, 0.001)
        policy.wait(words, 0, 1, semaphore, after(10), nothing)
        thread.join()
    assert not spins(policy, semaphore)
    policy.limit_ns = 1_000_000_000  # now every wait is fast
    assert spins(policy, semaphore)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 4),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/cpu.max": "100000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"/sys/fs/cgroup/cpu.max": "nonsense"}, 4),
    ],
)
def test_effective_cpus(monkeypatch, files, cpus):
    """Affinity and the quota of either cgroup version, rounded down, never below one."""
    monkeypatch.setattr(_wait.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(_wait, "_read", files.get)
    assert _wait.effective_cpus() == cpus


@pytest.mark.parametrize(
    ("value", "cpus", "limit_us"),
    [("", 2, 100), ("0", 8, 0), ("30", 2, 30), ("99999", 2, 1000), ("x", 2, 100), ("", 1, 0)],
)
def test_spin_limit(monkeypatch, value, cpus, limit_us):
    """KALOS_SPIN_US is the longest window; with one CPU nobody spins."""
    monkeypatch.setenv("KALOS_SPIN_US", value)
    monkeypatch.setattr(_wait, "effective_cpus", lambda: cpus)
    assert _wait.spin_limit_ns() == limit_us * 1000
