"""The asyncio side: one waiter thread per client, never the loop's own thread.

Requests are posted by the loop's thread, which never blocks: where no slot is free, one is awaited. All replies go to
the lane's shared semaphore; the waiter thread takes its tokens and resolves the futures of the slots that were
answered. Imported only when a method with the prefix `a` is first called.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from time import monotonic_ns
from typing import Any, TypeVar

from posix_ipc import BusyError, SignalError

from kalos_memory._calls import INTERPRETER_ENDS, Connect, Send, Sleep, Steps
from kalos_memory._connection import Connection
from kalos_memory._errors import KalosError
from kalos_memory._lane import Exchange, Lane, LaneLost, Slot
from kalos_memory._wait import FIRST_SLICE_S, SLICE_S, DeadlinePassed

T = TypeVar("T")
Pending = tuple[Exchange, "asyncio.Future[None]", asyncio.AbstractEventLoop]


class ReplyWaiter:
    """The thread that waits for all asyncio replies of one connection. It sleeps without a timer while none is due."""

    def __init__(self, connection: Connection) -> None:
        self._lane = connection.lane
        self._check_peer = connection.check_peer
        self._pending: dict[int, Pending] = {}  # by slot
        self._work = threading.Event()
        self._stopped = False
        self._lane.hold()
        self._thread = threading.Thread(target=self._run, name="kalos-replies", daemon=True)
        self._thread.start()

    def expect(self, run: Exchange, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future that is resolved when the next reply of this exchange is there. Call before posting."""
        future: asyncio.Future[None] = loop.create_future()
        self._pending[run.slot.index] = (run, future, loop)
        self._work.set()
        return future

    def look_again(self) -> None:
        """For a future that is expected after its reply may have come: a token of our own makes the thread look."""
        self._lane.shared_semaphore.release()

    def forget(self, run: Exchange) -> None:
        self._pending.pop(run.slot.index, None)

    def stop(self) -> None:
        """Everything that still waits gets LaneLost."""
        self._stopped = True
        self._work.set()

    def _run(self) -> None:
        lane = self._lane
        acquire = lane.shared_semaphore.acquire
        slice_s = FIRST_SLICE_S
        try:
            while not self._stopped:
                if not self._pending:
                    self._work.clear()
                    if not self._pending and not self._stopped:
                        self._work.wait()
                    slice_s = FIRST_SLICE_S
                    continue
                try:
                    acquire(slice_s)
                    slice_s = FIRST_SLICE_S
                except BusyError:
                    slice_s = SLICE_S
                    self._check_peer()
                except SignalError:
                    continue
                self._resolve()
        except LaneLost:
            pass
        finally:
            self._stopped = True
            self._fail_all()
            lane.release_hold()

    def _resolve(self) -> None:
        # Every token is a reason to look at all slots, so that none depends on which token was taken for which.
        for index, (run, future, loop) in list(self._pending.items()):
            if run.sequence and run.answered():
                self._pending.pop(index, None)
                _call_soon(loop, _set_result, future)

    def _fail_all(self) -> None:
        while self._pending:
            for index, (_, future, loop) in list(self._pending.items()):
                self._pending.pop(index, None)
                _call_soon(loop, _set_lost, future)

    @property
    def stopped(self) -> bool:
        return self._stopped


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(call, *arguments)


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _set_lost(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(LaneLost())


def waiter_of(connection: Connection) -> ReplyWaiter:
    waiter = connection.waiter
    if waiter is None or waiter.stopped:
        if connection.closed:
            raise LaneLost
        waiter = connection.waiter = ReplyWaiter(connection)
    return waiter


async def _slot(lane: Lane, deadline_ns: int) -> Slot:
    loop = asyncio.get_running_loop()
    slot = lane.take_now()
    while slot is None:
        freed = loop.create_future()

        def wake(freed: asyncio.Future[None] = freed) -> None:
            _call_soon(loop, _set_result, freed)

        lane.when_free(wake)
        try:
            slot = lane.take_now()
            if slot is None:
                left_s = (deadline_ns - monotonic_ns()) / 1e9
                if left_s <= 0:
                    raise DeadlinePassed
                await asyncio.wait([freed], timeout=min(SLICE_S, left_s))
                slot = lane.take_now()
        finally:
            lane.stop_waiting(wake)
    return slot


async def _exchange(send: Send) -> Exchange:
    connection, operation = send.connection, send.operation
    lane = connection.lane
    slot = await _slot(lane, send.deadline_ns)
    run = Exchange(lane, slot, operation.opcode, operation.message, send.deadline_ns, shared=True)
    waiter: ReplyWaiter | None = None
    try:
        waiter = waiter_of(connection)
        loop = asyncio.get_running_loop()
        until_ns = send.deadline_ns + send.patience_ns
        future = waiter.expect(run, loop)
        run.start()
        while True:
            if waiter.stopped:
                raise LaneLost
            await asyncio.wait([future], timeout=max(0.0, (until_ns - monotonic_ns()) / 1e9))
            if not future.done():
                raise DeadlinePassed
            future.result()
            answered = run.answered()
            # Before on_reply(), which may post the next part. The thread may take that for answered already, by the
            # reply before it; then the future comes early, and the thread is asked to look again.
            future = waiter.expect(run, loop)
            if not answered:
                waiter.look_again()
            elif run.on_reply():
                break
    except BaseException as error:
        if waiter is not None:
            waiter.forget(run)
        lane.give_up(slot)
        if isinstance(error, (LaneLost, DeadlinePassed)):
            error.committed = run.committed  # type: ignore[union-attr]
        raise
    waiter.forget(run)
    lane.give_back(slot)
    return run


async def run_async(steps: Steps, connect: Callable[[int], Connection]) -> Exchange:
    """Drives the steps on the running loop. connect: deadline -> Connection, called in a thread."""
    try:
        step = next(steps)
        while True:
            try:
                outcome: Any = None
                if isinstance(step, Send):
                    outcome = await _exchange(step)
                elif isinstance(step, Connect):
                    outcome = await in_thread(connect, step.deadline_ns)
                else:
                    assert isinstance(step, Sleep)
                    await asyncio.sleep(step.seconds)
            except (KalosError, LaneLost, DeadlinePassed) as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        run: Exchange = stop.value
        return run
    except SystemExit as ending:
        if ending.code is INTERPRETER_ENDS:
            # Of a loop in a daemon thread. No task ends without a word, so this one waits for ever, as its thread will.
            never = asyncio.get_running_loop().create_future()
            _nevers.append(never)
            await never
        raise


_nevers: list[asyncio.Future[None]] = []


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


Awaited = Coroutine[Any, Any, T]
