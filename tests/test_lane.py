"""One lane against a server in this process: parts, abandonment, exhaustion, closing, and a server that misbehaves."""

import contextlib
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
from fake_kalosd import FakeLane

from kalos_memory import Overloaded, SidecarUnavailable, _abi
from kalos_memory._codec import Message
from kalos_memory._lane import EMPTY, Exchange, Lane, LaneLost, exchange
from kalos_memory._wait import DeadlinePassed


def after(seconds=30.0):
    return time.monotonic_ns() + int(seconds * 1e9)


def message(data):
    return Message([(data, len(data))], len(data))


def in_thread(call):
    """Starts the call in a thread. The function returned waits for it and gives what it raised or returned."""
    outcome = []

    def run():
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait():
        thread.join(60)
        return outcome[0]

    return wait


@pytest.fixture
def make():
    made = []

    def make(handle, **shape):
        server = FakeLane(handle, **shape).start()
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def echo(make):
    return make(lambda request: (0, request.payload))


def closed(lane):
    lane.retire(wake=True)
    return lane.memory.closed


def test_noop(echo):
    """An empty request is one post and one reply, with the times that the server wrote."""
    lane = echo.attach()
    run = exchange(lane, _abi.OP_NOOP, EMPTY, after())
    assert (run.status, run.reply) == (0, b"")
    assert (run.queue_ns, run.search_ns, run.fetch_ns) == (1000, 2000, 3000)
    assert len(echo.requests) == 1
    assert closed(lane)


@pytest.mark.parametrize("size", [0, 1, 16127, 16128, 16129, 3 * 16128, 100_003])
def test_messages_of_any_size_travel_whole(echo, size):
    """Requests longer than a slot go as a chain of parts, replies longer than a slot are pulled in parts."""
    lane = echo.attach()
    data = os.urandom(size)
    run = exchange(lane, _abi.OP_GET, message(data), after())
    assert run.reply == data
    parts = [request for request in echo.requests if request.opcode == _abi.OP_GET]
    assert len(parts) == max(1, -(-size // 16128))
    assert parts[0].flags & _abi.FLAG_BEGIN
    assert parts[-1].flags & _abi.FLAG_COMMIT
    assert len({request.message_id for request in echo.requests}) == 1
    assert closed(lane)


def test_sequences_grow_and_are_never_reused(echo):
    lane = echo.attach()
    threads = [
        threading.Thread(target=lambda: [exchange(lane, _abi.OP_NOOP, EMPTY, after()) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sequences = [request.sequence for request in echo.requests]
    assert len(sequences) == len(set(sequences)) == 200
    assert 0 not in sequences
    assert closed(lane)


def test_threads_use_different_slots(make):
    """Two requests that are served at the same time do not meet in one slot."""
    barrier = threading.Barrier(2)
    seen = []

    def handle(request):
        seen.append(request)
        if len(seen) == 2:
            for one in seen:
                server.answer(one, 0, one.payload)

    server = make(handle)
    lane = server.attach()
    replies = {}

    def ask(data):
        barrier.wait()
        replies[data] = exchange(lane, _abi.OP_GET, message(data), after()).reply

    threads = [threading.Thread(target=ask, args=(data,)) for data in (b"one", b"two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {b"one": b"one", b"two": b"two"}
    assert {request.slot for request in seen} == {0, 1}
    assert closed(lane)


def test_exhausted_slots_are_waited_for(make):
    """More threads than slots: all are answered."""
    server = make(lambda request: (time.sleep(0.001), (0, request.payload))[1])
    lane = server.attach()
    replies = []
    threads = [
        threading.Thread(
            target=lambda i=i: replies.append((i, exchange(lane, _abi.OP_GET, message(str(i).encode()), after()).reply))
        )
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [(i, str(i).encode()) for i in range(20)]
    assert closed(lane)


def test_no_free_slot_until_the_deadline(make):
    """A slot that somebody else waits in is not taken from him."""
    server = make(lambda request: None, slot_count=1)
    lane = server.attach()
    failed = in_thread(lambda: exchange(lane, 32, message(b"x"), after(0.5)))
    while not server.requests:
        time.sleep(0.001)
    with pytest.raises(DeadlinePassed):
        exchange(lane, _abi.OP_GET, message(b"y"), after(0.05))
    assert isinstance(failed(), DeadlinePassed)
    assert len(server.requests) == 1


def test_a_slot_given_up_is_used_again_only_after_its_answer(make):
    """After a timeout the other slot is used; the late answer goes to nobody; then the slot is free again."""
    late = []

    def handle(request):
        if request.payload == b"slow":
            late.append(request)
            return None
        return 0, request.payload

    server = make(handle)
    lane = server.attach()
    with pytest.raises(DeadlinePassed):
        exchange(lane, _abi.OP_GET, message(b"slow"), after(0.05))
    for _ in range(5):
        assert exchange(lane, _abi.OP_GET, message(b"fast"), after()).reply == b"fast"
    assert {request.slot for request in server.requests if request.payload == b"fast"} == {1 - late[0].slot}
    with pytest.raises(DeadlinePassed):
        exchange(lane, _abi.OP_GET, message(b"slow"), after(0.05))
    with pytest.raises(Overloaded, match="given up"):
        exchange(lane, _abi.OP_GET, message(b"fast"), after())
    for request in late:
        server.answer(request, 0, b"too late")
    for _ in range(5):
        assert exchange(lane, _abi.OP_GET, message(b"fast"), after()).reply == b"fast"
    assert closed(lane)


def test_a_slot_whose_token_was_lost_comes_back(make):
    """An interrupt between taking the token and saying so must not cost the slot for ever."""
    server = make(lambda request: (0, b"ok"), slot_count=1)
    lane = server.attach()
    slot = lane.take(after())
    slot.sequence = lane.next_sequence()
    lane.words[slot.word] = slot.sequence
    lane.words[slot.word + 16] = slot.sequence  # answered, its token taken by the wait that was interrupted
    server.seen[0] = slot.sequence
    lane.give_up(slot)
    end = time.monotonic() + 20
    while True:
        try:
            assert exchange(lane, _abi.OP_GET, message(b"x"), after()).reply == b"ok"
            break
        except Overloaded:
            assert time.monotonic() < end
            time.sleep(0.02)
    assert closed(lane)


def test_a_slot_that_nobody_holds_any_more_comes_back(make):
    """An exception may come between any two instructions: taken, filled, posted, answered, but never given back."""
    held = []
    server = make(lambda request: held.append(request), slot_count=2)
    lane = server.attach()
    for step in ("taken", "numbered", "posted"):
        slot = lane.take(after())
        if step == "numbered":  # the sequence was chosen, and not stored yet
            slot.sequence = lane.next_sequence()
        if step == "posted":
            run = Exchange(lane, slot, _abi.OP_GET, message(b"x"), after())
            run.start()
            del run
        assert lane.in_use == 1
        del slot
        gc.collect()
        assert lane.in_use == 0
    with pytest.raises(DeadlinePassed):
        exchange(lane, _abi.OP_GET, message(b"y"), after(0.05))
    with pytest.raises(Overloaded):
        lane.take(after())
    while len(held) < 2:
        time.sleep(0.001)
    for request in held:
        server.answer(request, 0, b"late")
    slots = [lane.take(after()), lane.take(after())]
    assert {slot.index for slot in slots} == {0, 1}
    del slots
    assert lane.in_use == 0
    assert closed(lane)


def test_a_request_whose_doorbell_was_not_rung_is_answered(make):
    """Interrupted after the sequence was stored and before kalosd was told: giving up tells it."""
    server = make(lambda request: (0, b"ok"), slot_count=1)
    lane = server.attach()
    ring, lane.post_request = lane.post_request, lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        exchange(lane, _abi.OP_GET, message(b"x"), after())
    lane.post_request = ring
    while not server.requests:
        time.sleep(0.001)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(Overloaded):
            assert exchange(lane, _abi.OP_GET, message(b"x"), after()).reply == b"ok"
            break
    assert closed(lane)


def test_interrupt_while_waiting_gives_the_slot_up(make):
    """Ctrl-C comes through at once, and the lane goes on working."""
    held = []
    server = make(lambda request: held.append(request) if request.payload == b"wait" else (0, b"ok"))
    lane = server.attach()

    def interrupt():
        while not held:
            time.sleep(0.001)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        exchange(lane, _abi.OP_GET, message(b"wait"), after())
    thread.join()
    assert exchange(lane, _abi.OP_GET, message(b"x"), after()).reply == b"ok"
    server.answer(held[0], 0, b"late")
    assert closed(lane)


def test_a_timeout_says_whether_a_write_may_be_done(make):
    """committed is True exactly when the last part was posted."""

    class Stuck(FakeLane):
        def _take(self, request):
            """Answers nothing."""

    for size, committed in ((10, True), (20_000, False)):
        server = Stuck(lambda request: None).start()
        lane = server.attach()
        with pytest.raises(DeadlinePassed) as caught:
            exchange(lane, _abi.OP_UPSERT, message(bytes(size)), after(0.02))
        assert caught.value.committed is committed
        server.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"message_id": 12345},
        {"bytes": 1 << 31},
        {"bytes": 20_000, "total": 20_000},
        {"offset": 7},
        {"total": 1},
        {"total": 1 << 40, "flags": 1},
        {"total": 100, "flags": 0},
        {"status": _abi.STATUS_PART},
    ],
    ids=str,
)
def test_a_server_out_of_step_is_left_not_believed(make, wrong):
    """Whatever a reply's header says is bounded before it is used; the connection is given up."""
    server = make(lambda request: None)
    server.handle = lambda request: server.answer(request, 0, b"four", changes=wrong)
    lane = server.attach()
    with pytest.raises(LaneLost):
        exchange(lane, _abi.OP_GET, message(b"x"), after())
    assert closed(lane)


def test_the_status_of_a_continue_replaces_the_reply(make):
    """The held rest of a reply is gone: the words of that error are the reply, not half of the first part."""
    server = make(lambda request: (0, bytes(40_000)))
    take = server._take

    def gone(request):
        if request.opcode == _abi.OP_CONTINUE:
            server.answer(request, _abi.STATUS_REPLY_GONE, b"gone")
        else:
            take(request)

    server._take = gone
    lane = server.attach()
    run = exchange(lane, _abi.OP_GET, message(b"x"), after())
    assert (run.status, run.reply) == (_abi.STATUS_REPLY_GONE, b"gone")
    assert closed(lane)


@pytest.mark.parametrize("durations", [False, True])
def test_deadlines_go_as_moments_or_as_durations(echo, durations):
    """Absolute CLOCK_MONOTONIC, or a duration where kalosd lives in another time namespace."""
    lane = echo.attach(durations=durations)
    until = after(10)
    exchange(lane, _abi.OP_NOOP, EMPTY, until)
    sent = echo.requests[-1].deadline_ns
    assert (0 < sent <= 10_000_000_000) if durations else sent == until
    assert closed(lane)


def test_retire_wakes_whoever_waits(make):
    """close() in one thread ends the wait of another, and only then is the memory given back."""
    server = make(lambda request: None)
    gone = threading.Event()

    def check():
        if gone.is_set():
            raise LaneLost

    lane = server.attach(check_peer=check)
    failed = in_thread(lambda: exchange(lane, 33, EMPTY, after(1000)))
    while not server.requests:
        time.sleep(0.001)
    gone.set()
    lane.retire(wake=True)
    assert isinstance(failed(), LaneLost)
    assert lane.memory.closed
    with pytest.raises(LaneLost):
        exchange(lane, _abi.OP_NOOP, EMPTY, after())


def test_retire_gently_lets_the_last_reply_come(make):
    """A sidecar that drains still answers what it took."""
    held = []
    server = make(held.append)
    lane = server.attach()
    idle = threading.Event()
    lane.on_idle = idle.set
    replies = []
    thread = threading.Thread(target=lambda: replies.append(exchange(lane, _abi.OP_GET, message(b"x"), after()).reply))
    thread.start()
    while not held:
        time.sleep(0.001)
    lane.retire(wake=False)
    assert not lane.memory.closed
    server.answer(held[0], 0, b"done")
    thread.join(30)
    assert replies == [b"done"]
    assert idle.is_set()
    assert lane.memory.closed


@pytest.mark.parametrize(
    "changes", [{"magic": 1}, {"major": 2}, {"header": 8192}, {"count": 64}, {"stride": 4096}, {"slot_header": 128}]
)
def test_attach_refuses_a_header_that_disagrees(echo, changes):
    echo.write_header(**changes)
    with pytest.raises(SidecarUnavailable, match="header"):
        echo.attach()


def test_attach_refuses_another_size_and_missing_names(echo):
    echo.granted["lane_bytes"] += 4096
    with pytest.raises(SidecarUnavailable, match="dev/shm"):
        echo.attach()
    echo.granted["lane_bytes"] -= 4096
    for key in ("name", "request_semaphore"):
        good, echo.granted[key] = echo.granted[key], "/kl.no.such.name"
        with pytest.raises(SidecarUnavailable, match="dev/shm"):
            echo.attach()
        echo.granted[key] = good
    assert isinstance(echo.attach(), Lane)


def test_vectors_are_copied_as_they_are(echo):
    lane = echo.attach()
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    run = exchange(lane, _abi.OP_GET, Message([(b"head", 4), (vectors, 48)], 52), after())
    assert run.reply == b"head" + vectors.tobytes()
    assert closed(lane)
