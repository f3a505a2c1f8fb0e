"""What becomes of a call in every kind of weather, told step by step without any I/O."""

import time
from types import SimpleNamespace

import pytest

import kalos_memory as kalos
from kalos_memory import _abi
from kalos_memory._calls import Connect, Operation, Send, Sleep, call_steps
from kalos_memory._lane import EMPTY, LaneLost
from kalos_memory._wait import DeadlinePassed

READ = Operation(_abi.OP_COUNT, EMPTY, bytes, what="the count")
SEARCH = Operation(_abi.OP_SEARCH, EMPTY, bytes, what="the search")
WRITE = Operation(_abi.OP_UPSERT, EMPTY, bytes, what="the upsert", write_id=b"0123456789abcdef")
OPEN = Operation(_abi.OP_OPEN_COLLECTION, EMPTY, bytes, what="opening", repeatable=True)
DROP = Operation(_abi.OP_DROP_COLLECTION, EMPTY, bytes, what="dropping", repeatable=True)


class Caller:
    """A client whose connections are names."""

    def __init__(self, timeout_s=1.0, load_timeout_s=30.0, connected=True):
        self.timeout_s, self.load_timeout_s = timeout_s, load_timeout_s
        self.connection = "first" if connected else None
        self.discarded = []

    def current(self):
        return self.connection

    def discard(self, connection):
        self.discarded.append(connection)
        self.connection = None


def answer(status, words=b""):
    return SimpleNamespace(status=status, reply=words)


def lost(committed):
    error = LaneLost()
    error.committed = committed
    return error


def passed(committed):
    error = DeadlinePassed()
    error.committed = committed
    return error


def play(operation, outcomes, caller=None, timeout_s=None):
    """Runs the call, giving each Send and Connect the next outcome. -> (result or error, steps, caller)"""
    caller = caller or Caller()
    steps = call_steps(caller, operation, timeout_s)
    outcomes = iter(outcomes)
    seen = []
    try:
        step = next(steps)
        while True:
            seen.append(step)
            if isinstance(step, Sleep):
                time.sleep(step.seconds)
                step = steps.send(None)
                continue
            outcome = next(outcomes)
            if isinstance(step, Connect) and outcome == "connected":
                caller.connection = f"connection {len(seen)}"
                outcome = caller.connection
            step = steps.throw(outcome) if isinstance(outcome, BaseException) else steps.send(outcome)
    except StopIteration as stop:
        return stop.value, seen, caller
    except kalos.KalosError as error:
        return error, seen, caller


def kinds(seen):
    return [type(step) for step in seen]


OK = answer(_abi.STATUS_OK, b"fine")


def test_fair_weather():
    result, seen, _ = play(READ, [OK])
    assert result is OK
    assert kinds(seen) == [Send]
    assert seen[0].patience_ns == 0


def test_connects_first_where_there_is_no_connection():
    result, seen, _ = play(READ, ["connected", OK], Caller(connected=False))
    assert result is OK
    assert kinds(seen) == [Connect, Send]
    assert seen[0].deadline_ns == seen[1].deadline_ns


def test_no_connection_is_the_caller_s_error():
    away = kalos.SidecarUnavailable("nobody there")
    assert play(READ, [away], Caller(connected=False))[0] is away
    assert play(WRITE, [away], Caller(connected=False))[0] is away


@pytest.mark.parametrize("committed", [False, True])
def test_a_read_is_sent_again_once(committed):
    result, seen, caller = play(READ, [lost(committed), "connected", OK])
    assert result is OK
    assert kinds(seen) == [Send, Connect, Send]
    assert caller.discarded == ["first"]
    result, seen, _ = play(READ, [lost(committed), "connected", lost(committed)])
    assert type(result) is kalos.SidecarUnavailable
    assert kinds(seen) == [Send, Connect, Send]


def test_a_write_is_sent_again_under_the_same_id():
    result, seen, _ = play(WRITE, [lost(True), "connected", OK])
    assert result is OK
    assert seen[0].operation is seen[2].operation


@pytest.mark.parametrize(
    "ending",
    [
        [kalos.SidecarUnavailable("nobody there")],
        ["connected", passed(False)],
        ["connected", kalos.Overloaded("full")],
        ["connected", answer(_abi.STATUS_EXPIRED)],
        ["connected", answer(_abi.STATUS_OVERLOADED)],
        ["connected", answer(_abi.STATUS_UNKNOWN_OUTCOME)],
        ["connected", lost(False), "connected", lost(False)],
        ["connected", lost(True), "connected", lost(True)],
    ],
    ids=str,
)
def test_a_write_that_may_be_done_is_never_called_not_done(ending):
    """Its last part was posted and the answer lost: whatever comes then, short of an answer, the outcome is unknown."""
    result, _, _ = play(WRITE, [lost(True), *ending])
    assert type(result) is kalos.WriteOutcomeUnknown
    assert result.write_id == WRITE.write_id


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ([passed(False)], kalos.KalosTimeout),
        ([answer(_abi.STATUS_EXPIRED)], kalos.KalosTimeout),
        ([answer(_abi.STATUS_OVERLOADED)], kalos.Overloaded),
        ([kalos.Overloaded("full")], kalos.Overloaded),
        ([lost(False), kalos.SidecarUnavailable("nobody")], kalos.SidecarUnavailable),
        ([lost(False), "connected", lost(False), "connected", lost(False)], kalos.SidecarUnavailable),
        ([passed(True)], kalos.WriteOutcomeUnknown),
        ([answer(_abi.STATUS_UNKNOWN_OUTCOME)], kalos.WriteOutcomeUnknown),
        ([lost(True), "connected", answer(_abi.STATUS_STORE_ERROR)], kalos.StoreError),
        ([lost(True), "connected", answer(_abi.STATUS_NOT_FOUND)], kalos.NotFound),
    ],
    ids=str,
)
def test_a_write_that_was_not_done_is_not_called_unknown(ending, kind):
    """Not sent as a whole, or answered: then it is known."""
    assert type(play(WRITE, ending)[0]) is kind


def test_timeouts_by_kind():
    assert type(play(READ, [passed(True)])[0]) is kalos.KalosTimeout
    assert type(play(SEARCH, [passed(True)])[0]) is kalos.RecallTimeout
    assert type(play(SEARCH, [answer(_abi.STATUS_EXPIRED, b"words")])[0]) is kalos.RecallTimeout
    assert "words" in str(play(SEARCH, [answer(_abi.STATUS_EXPIRED, b"words")])[0])


def test_timeouts_are_the_call_s_or_the_client_s_and_writes_get_more():
    now = time.monotonic_ns()
    caller = Caller(timeout_s=5.0)
    assert 4 < (play(READ, [OK], caller)[1][0].deadline_ns - now) / 1e9 < 20
    assert 100 < (play(READ, [OK], caller, 100.0)[1][0].deadline_ns - now) / 1e9 < 120
    write = play(WRITE, [OK], caller)[1][0]
    assert 9.9 < (write.deadline_ns - now) / 1e9 < 30
    assert write.patience_ns > 0
    large = Operation(_abi.OP_UPSERT, SimpleNamespace(nbytes=80 << 20), bytes, what="w", write_id=b"1" * 16)
    assert 19.9 < (play(large, [OK], caller)[1][0].deadline_ns - now) / 1e9 < 40
    assert 59 < (play(large, [OK], Caller(timeout_s=60))[1][0].deadline_ns - now) / 1e9 < 80


def test_loading_is_waited_out_and_does_not_count():
    """Against the timeout: each asking anew has all of it."""
    loading = answer(_abi.STATUS_LOADING, b"loading, 43 %")
    result, seen, _ = play(SEARCH, [loading, loading, loading, OK], Caller(timeout_s=0.001))
    assert result is OK
    assert kinds(seen) == [Send, Sleep, Send, Sleep, Send, Sleep, Send]
    deadlines = [step.deadline_ns for step in seen if isinstance(step, Send)]
    assert deadlines == sorted(set(deadlines))


def test_loading_for_too_long_says_how_far_it_is():
    loading = [answer(_abi.STATUS_LOADING, b"loading, 43 %")] * 100
    result, _, _ = play(SEARCH, loading, Caller(load_timeout_s=0.05))
    assert type(result) is kalos.SidecarUnavailable
    assert "43 %" in str(result)


def test_behind_is_asked_again_within_the_timeout():
    behind = answer(_abi.STATUS_BEHIND, b"7 is not there yet")
    assert play(SEARCH, [behind, behind, OK])[0] is OK
    result, _, _ = play(SEARCH, [behind] * 1000, Caller(timeout_s=0.05))
    assert type(result) is kalos.RecallTimeout
    assert "7 is not there yet" in str(result)


@pytest.mark.parametrize("ending", [passed(False), answer(_abi.STATUS_EXPIRED, b"late")], ids=["silence", "expired"])
def test_what_was_waited_for_is_named_however_the_time_ends(ending):
    result, _, _ = play(READ, [answer(_abi.STATUS_BEHIND, b"7 is not there yet"), ending])
    assert type(result) is kalos.KalosTimeout
    assert "7 is not there yet" in str(result)


@pytest.mark.parametrize("operation", [READ, WRITE])
def test_draining_leads_to_the_next_sidecar(operation):
    """Nothing was done, so a write may be sent anew any number of times."""
    draining = answer(_abi.STATUS_DRAINING, b"ending")
    result, seen, caller = play(operation, [draining, "connected", draining, "connected", draining, "connected", OK])
    assert result is OK
    assert len(caller.discarded) == 3
    assert kinds(seen).count(Send) == 4


def test_the_rest_of_a_reply_that_is_gone_is_asked_anew_once():
    gone = answer(_abi.STATUS_REPLY_GONE, b"gone")
    assert play(READ, [gone, OK])[0] is OK
    assert type(play(READ, [gone, gone])[0]) is kalos.KalosError


def test_opening_may_be_repeated_and_dropping_too():
    assert play(OPEN, [lost(True), "connected", OK])[0] is OK
    assert type(play(OPEN, [passed(True)])[0]) is kalos.KalosTimeout
    result, _, _ = play(DROP, [lost(True), "connected", answer(_abi.STATUS_NOT_FOUND, b"none")])
    assert result.reply == b"{}"
    assert type(play(DROP, [answer(_abi.STATUS_NOT_FOUND, b"none")])[0]) is kalos.NotFound


@pytest.mark.parametrize("status", [s for s in vars(_abi) if s.startswith("STATUS_")])
def test_every_status_ends_in_an_answer_or_a_kalos_error(status):
    """None is forgotten, none loops for ever."""
    outcomes = [answer(getattr(_abi, status), b"words"), "connected"] * 3000
    if status in ("STATUS_LOADING", "STATUS_BEHIND", "STATUS_REPLY_GONE"):
        outcomes = [outcome for outcome in outcomes if outcome != "connected"]
    result, _, _ = play(READ, outcomes, Caller(timeout_s=0.02, load_timeout_s=0.02))
    assert isinstance(result, kalos.KalosError) or result.status == _abi.STATUS_OK
