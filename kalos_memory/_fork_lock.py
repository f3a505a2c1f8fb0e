"""A lock that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkLock:
    """A reentrant lock for `with`. In a forked child it is free, whoever held it in the parent.

    An ordinary lock that another thread held at the fork stays locked in the child for ever, because that thread does
    not exist there. What the lock guards may be half done in that case, so guard only what can be done again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_locks):
        lock._lock = threading.RLock()


os.register_at_fork(after_in_child=_free_all)
