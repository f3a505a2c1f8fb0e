"""What becomes of one call: connecting, sending, waiting out a load, trying again, giving up. Once, and without I/O.

call_steps() is a generator. It yields what it needs done (Connect, Send, Sleep), is resumed with the outcome (sent in,
or thrown in as an exception), and returns the reply. run_sync() below drives it in the calling thread,
_async.run_async() on an event loop. call() is what threads use: it sends at once where there is a connection, as there
nearly always is, and asks the generator only when the outcome is anything but a reply with the status OK.

The rules
    reads       sent again once when the sidecar died, inside the deadline
    writes      sent again under the same write id when the sidecar died after the last part was posted: the store
                remembers write ids, so that the second sending gets the first one's answer. Where that fails too, or no
                answer comes in time, WriteOutcomeUnknown
    LOADING     asked again for up to load_timeout, which does not count against the call's timeout
    BEHIND      (min_sequence is not published yet) asked again within the timeout
    DRAINING    nothing was done: connect again, to the next sidecar
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from time import monotonic_ns
from typing import Any, Generic, Protocol, TypeVar

from kalos_memory import _abi
from kalos_memory._codec import Message
from kalos_memory._connection import Connection
from kalos_memory._errors import (
    KalosError,
    KalosTimeout,
    RecallTimeout,
    SidecarUnavailable,
    WriteOutcomeUnknown,
    error_for,
)
from kalos_memory._lane import Exchange, LaneLost, exchange
from kalos_memory._types import Timings
from kalos_memory._wait import DeadlinePassed

T = TypeVar("T")

_WRITE_TIMEOUT_NS = 10_000_000_000
_WRITE_NS_PER_BYTE = 1_000_000_000 / (8 << 20)
_WRITE_PATIENCE_NS = 1_000_000_000  # kalosd answers EXPIRED at the deadline: better than not knowing
_MOST_SENDINGS = {"read": 2, "write": 3}
_OK = _abi.STATUS_OK


# What a daemon thread that calls while the interpreter ends is ended with: SystemExit(INTERPRETER_ENDS). Threads take a
# SystemExit without a word (but nothing derived from it). There is nobody left to tell, a traceback at every exit would
# only alarm, and locks that the thread holds come free.
INTERPRETER_ENDS = "the interpreter ends"


class Operation(Generic[T]):
    """A request, checked and encoded, and how to read its reply.

    Attributes:
        opcode, message: what is sent.
        decode: the reply's bytes -> the result.
        write_id: of a write; None for a read.
        what: names it in error messages.
        repeatable: a write without a write id whose repetition does no harm.
    """

    __slots__ = ("decode", "is_write", "message", "opcode", "repeatable", "what", "write_id")

    def __init__(
        self,
        opcode: int,
        message: Message,
        decode: Callable[[bytes], T],
        *,
        what: str,
        write_id: bytes | None = None,
        repeatable: bool = False,
    ) -> None:
        self.opcode = opcode
        self.message = message
        self.decode = decode
        self.what = what
        self.write_id = write_id
        self.repeatable = repeatable
        self.is_write = write_id is not None or repeatable


class Caller(Protocol):
    """What the logic needs of a client."""

    timeout_s: float
    load_timeout_s: float

    def current(self) -> Connection | None:
        """The connection in use, if it may be used. Raises where the client is closed: a KalosError, or
        SystemExit(INTERPRETER_ENDS)."""

    def discard(self, connection: Connection) -> None:
        """This connection is of no use any more."""


class Connect:
    __slots__ = ("deadline_ns",)

    def __init__(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns


class Send:
    __slots__ = ("connection", "deadline_ns", "operation", "patience_ns")

    def __init__(self, connection: Connection, operation: Operation[Any], deadline_ns: int, patience_ns: int) -> None:
        self.connection = connection
        self.operation = operation
        self.deadline_ns = deadline_ns
        self.patience_ns = patience_ns


class FirstSending:
    """A read that was sent before the rules were asked, and what came of it."""

    __slots__ = ("_outcome", "begun_ns", "connection")

    def __init__(self, connection: Connection, begun_ns: int, outcome: Exchange | Exception) -> None:
        self.connection = connection
        self.begun_ns = begun_ns
        self._outcome = outcome

    def outcome(self) -> Exchange:
        """The exchange; or raises what it raised."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class Sleep:
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


Step = Connect | Send | Sleep
Steps = Generator[Step, Any, Exchange]


def call_steps(
    caller: Caller, operation: Operation[Any], timeout_s: float | None, first: FirstSending | None = None
) -> Steps:
    """See the top of this file. Returns the exchange whose status is OK.

    first: of a read, where it was sent already."""
    is_write = operation.is_write
    begun_ns = monotonic_ns() if first is None else first.begun_ns
    budget_ns = int((caller.timeout_s if timeout_s is None else timeout_s) * 1e9)
    patience_ns = 0
    if is_write:
        budget_ns = max(budget_ns, _WRITE_TIMEOUT_NS + int(operation.message.nbytes * _WRITE_NS_PER_BYTE))
        patience_ns = _WRITE_PATIENCE_NS
    deadline_ns = begun_ns + budget_ns
    loading_until_ns = begun_ns + int(caller.load_timeout_s * 1e9)
    sendings = 0
    maybe_done = False  # a write: its last part was posted, and no answer came
    behind = ""  # kalosd's words on the commit that is waited for
    pause_s = 0.002

    def failed(error: KalosError, why: str | None = None) -> KalosError:
        """The error, or that nobody knows, where an earlier sending of a write may have been done. For errors that say
        nothing about that; those that come from the write itself do, since write ids are looked at first."""
        if maybe_done and not operation.repeatable:
            return _unknown(operation, why or f"the sidecar ended before it answered, and then: {error}")
        return error

    while True:
        try:
            connection = caller.current() if first is None else first.connection
            if connection is None:
                connection = yield Connect(deadline_ns)
        except KalosError as error:
            raise failed(error) from error.__cause__
        sendings += 1
        try:
            if first is None:
                run: Exchange = yield Send(connection, operation, deadline_ns, patience_ns)
            else:
                sent, first = first, None
                run = sent.outcome()
        except LaneLost as lost:
            caller.discard(connection)
            maybe_done = maybe_done or (is_write and getattr(lost, "committed", False))
            if sendings >= _MOST_SENDINGS["write" if is_write else "read"]:
                ended = SidecarUnavailable(
                    f"the sidecar ended while it worked on {operation.what}, {sendings} times in a row: its log"
                    " (kalosd.log in the data directory) says why"
                )
                raise failed(ended, "the sidecar ended before it answered, more than once") from None
            continue
        except DeadlinePassed as passed:
            maybe_done = maybe_done or (is_write and getattr(passed, "committed", False))
            waited_s = (monotonic_ns() - begun_ns) / 1e9
            raise failed(_timeout(operation, begun_ns, behind), f"no answer came within {waited_s:.3g} s") from None
        except KalosError as error:
            raise failed(error) from error.__cause__
        status = run.status
        if status == _abi.STATUS_OK:
            return run
        if status == _abi.STATUS_LOADING:
            if monotonic_ns() + int(pause_s * 1e9) > loading_until_ns:
                raise failed(
                    SidecarUnavailable(
                        f"{_words(run)} (waited {caller.load_timeout_s:g} s; connect(load_timeout=...) waits longer)"
                    )
                )
            sendings -= 1
            yield Sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.1)
            deadline_ns = monotonic_ns() + budget_ns
        elif status == _abi.STATUS_BEHIND:
            behind = _words(run)
            if monotonic_ns() + int(pause_s * 1e9) > deadline_ns:
                raise _timeout(operation, begun_ns, behind)
            sendings -= 1
            yield Sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        elif status == _abi.STATUS_DRAINING:
            caller.discard(connection)
            if monotonic_ns() + int(pause_s * 1e9) > deadline_ns:
                raise failed(SidecarUnavailable(_words(run)))
            sendings -= 1
            yield Sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        elif status == _abi.STATUS_REPLY_GONE and not is_write and sendings < _MOST_SENDINGS["read"]:
            continue
        elif status == _abi.STATUS_EXPIRED:
            raise failed(_timeout(operation, begun_ns, behind or _words(run)))
        elif status == _abi.STATUS_OVERLOADED:
            raise failed(error_for(status, _words(run)))
        elif status == _abi.STATUS_UNKNOWN_OUTCOME:
            raise _unknown(operation, _words(run))
        elif operation.opcode == _abi.OP_DROP_COLLECTION and status == _abi.STATUS_NOT_FOUND and maybe_done:
            run.reply = b"{}"  # the first sending dropped it
            return run
        else:
            raise error_for(status, _words(run))


def _words(run: Exchange) -> str:
    return run.reply.decode(errors="replace")


def _timeout(operation: Operation[Any], begun_ns: int, words: str = "") -> KalosTimeout:
    kind = RecallTimeout if operation.opcode == _abi.OP_SEARCH else KalosTimeout
    waited = (monotonic_ns() - begun_ns) / 1e9
    return kind(
        f"{operation.what} was not answered within {waited:.3g} s"
        + (f" ({words})" if words else "")
        + ": give it a longer timeout, or see `kalos status` for what keeps the sidecar busy"
    )


def _unknown(operation: Operation[Any], why: str) -> WriteOutcomeUnknown:
    return WriteOutcomeUnknown(
        f"{operation.what} may or may not be on disk: {why}. Send it again (doing it twice leaves what doing it once"
        " leaves), or read it back",
        operation.write_id,
    )


def call(
    caller: Caller, operation: Operation[Any], timeout_s: float | None, connect: Callable[[int], Connection]
) -> Exchange:
    """The whole call, in this thread. connect: deadline -> Connection."""
    if operation.is_write or (connection := caller.current()) is None:
        return run_sync(call_steps(caller, operation, timeout_s), connect)
    begun_ns = monotonic_ns()
    deadline_ns = begun_ns + int((caller.timeout_s if timeout_s is None else timeout_s) * 1e9)
    outcome: Exchange | Exception
    try:
        outcome = run = exchange(connection.lane, operation.opcode, operation.message, deadline_ns)
        if run.status == _OK:
            return run
    except (KalosError, LaneLost, DeadlinePassed) as error:
        outcome = error
    first = FirstSending(connection, begun_ns, outcome)
    return run_sync(call_steps(caller, operation, timeout_s, first), connect)


def run_sync(steps: Steps, connect: Callable[[int], Connection]) -> Exchange:
    """Drives the steps in this thread. connect: deadline -> Connection."""
    try:
        step = next(steps)
        while True:
            outcome: Any = None
            try:
                if isinstance(step, Send):
                    operation = step.operation
                    outcome = exchange(
                        step.connection.lane, operation.opcode, operation.message, step.deadline_ns, step.patience_ns
                    )
                elif isinstance(step, Connect):
                    outcome = connect(step.deadline_ns)
                else:
                    time.sleep(step.seconds)
            except (KalosError, LaneLost, DeadlinePassed) as error:
                step = steps.throw(error)
            else:
                step = steps.send(outcome)
    except StopIteration as stop:
        run: Exchange = stop.value
        return run


def timings_of(run: Exchange, wall_ns: int) -> Timings:
    """Where the time of a call went: what kalosd said, and the rest of the wall time as transport."""
    inside_ns = run.queue_ns + run.search_ns + run.fetch_ns
    return Timings(run.queue_ns / 1e3, run.search_ns / 1e3, run.fetch_ns / 1e3, max(0, wall_ns - inside_ns) / 1e3)
