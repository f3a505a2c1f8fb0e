"""How a thread waits for a reply. One named policy, with its costs.

SpinThenBlock
    1. Spin: poll the reply's sequence word, keeping the GIL, for a bounded window. Costs one CPU for that window and
       sees the reply within about 0.1 us. At most one thread of this process spins, only where at
       least two CPUs are really ours (affinity and cgroup quota), and only while replies have lately come within the
       window: waiting for a slow answer is left to the kernel. Keeping the GIL is meant: giving it up costs up to one
       switch interval (5 ms) when another thread computes.
    2. Block: take the slot's semaphore, in slices. Costs 25 to 60 us of waking. The semaphore is always taken, also
       after a successful spin, since it orders memory and keeps its count even. Between slices the control socket is
       looked at, which is how the death of kalosd is noticed; the first slice is short for that reason.

The window: KALOS_SPIN_US (default 100, at most 1000; 0: never spin), and at most twice what replies took lately.

Deadlines are time.monotonic_ns() values. posix_ipc turns a timeout into a moment of the wall clock, so a stepped clock
lengthens or shortens a slice, never the wait. A signal with a Python handler ends an acquire with SignalError: the rest
is computed again and waited for; KeyboardInterrupt passes through.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from os import sched_yield
from time import monotonic_ns
from typing import Any

from posix_ipc import BusyError, SignalError

FIRST_SLICE_S = 0.002
SLICE_S = 0.05
DEFAULT_SPIN_US = 100
LONGEST_SPIN_US = 1000
_POLLS = range(48)


class DeadlinePassed(Exception):
    """The reply did not come in time. (Inner: turned into KalosTimeout or its kin by the call logic.)"""


def effective_cpus() -> int:
    """CPUs that this process may really use: affinity, and the cgroup's quota rounded down; at least 1."""
    cpus = len(os.sched_getaffinity(0))
    for quota in (_quota_v2(), _quota_v1()):
        if quota is not None:
            cpus = min(cpus, int(quota))
    return max(1, cpus)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _quota_v2() -> float | None:
    smallest: float | None = None
    paths = ["/sys/fs/cgroup/cpu.max"]
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            # A limit may sit at any level above.
            parts = line[3:].strip("/").split("/")
            paths += [f"/sys/fs/cgroup/{'/'.join(parts[:depth])}/cpu.max" for depth in range(1, len(parts) + 1)]
    for path in paths:
        words = (_read(path) or "").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            cpus = int(words[0]) / int(words[1])
            smallest = cpus if smallest is None else min(smallest, cpus)
    return smallest


def _quota_v1() -> float | None:
    quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota is None or period is None or not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def spin_limit_ns() -> int:
    """The longest window, from KALOS_SPIN_US and the CPUs; 0: never spin."""
    text = os.environ.get("KALOS_SPIN_US", "")
    limit = int(text) if text.isdigit() else DEFAULT_SPIN_US
    return min(limit, LONGEST_SPIN_US) * 1000 if effective_cpus() >= 2 else 0


# Until when (time.monotonic_ns()) the one thread of this process that spins may go on. A moment and no lock, so that a
# spinner that an exception ends leaves nothing behind. Two threads that take it within the same few instructions both
# spin for once, which costs time and nothing else.
_spinning_until_ns = 0


def after_fork_in_child() -> None:
    global _spinning_until_ns
    _spinning_until_ns = 0


class SpinThenBlock:
    """The policy above, with what it has learned. One per lane; its state is a hint, so threads share it unlocked."""

    __slots__ = ("limit_ns", "usual_ns")

    def __init__(self, limit_ns: int | None = None) -> None:
        self.limit_ns = spin_limit_ns() if limit_ns is None else limit_ns
        self.usual_ns = 0  # how long replies took lately: an exponential average

    def wait(
        self,
        words: Any,
        index: int,
        sequence: int,
        semaphore: Any,
        deadline_ns: int,
        check_peer: Callable[[], None],
    ) -> None:
        """Returns once words[index] == sequence and its semaphore was taken.

        Raises DeadlinePassed, or whatever check_peer (called between slices) raises."""
        global _spinning_until_ns
        begun = monotonic_ns()
        usual, limit = self.usual_ns, self.limit_ns
        seen = False
        if limit and usual < 2 * limit and begun > _spinning_until_ns:
            _spinning_until_ns = until = begun + min(limit, 2 * usual + 20_000, deadline_ns - begun)
            while True:
                for _ in _POLLS:
                    if words[index] == sequence:
                        seen = True
                        break
                if seen or monotonic_ns() >= until:
                    break
                sched_yield()
            _spinning_until_ns = 0
        if seen:
            try:
                semaphore.acquire(FIRST_SLICE_S)  # kalosd posts right after the sequence
            except (BusyError, SignalError):
                seen = False
        if not seen:
            self._block(words, index, sequence, semaphore, deadline_ns, check_peer)
        # A slow reply counts as at most four windows, so that a single one does not end the spinning for long.
        took = monotonic_ns() - begun
        self.usual_ns = usual + ((min(took, 4 * limit) - usual) >> 3)

    @staticmethod
    def _block(
        words: Any, index: int, sequence: int, semaphore: Any, deadline_ns: int, check_peer: Callable[[], None]
    ) -> None:
        slice_s = FIRST_SLICE_S
        while True:
            left_s = (deadline_ns - monotonic_ns()) / 1e9
            try:
                semaphore.acquire(min(slice_s, left_s) if left_s > 0 else 0)
            except BusyError:
                if left_s <= 0:
                    raise DeadlinePassed from None
                check_peer()
                slice_s = SLICE_S
                continue
            except SignalError:
                continue
            if words[index] == sequence:
                return
            # A token left over from a wait that was given up, or the wake of a lane that is being closed.
            check_peer()
