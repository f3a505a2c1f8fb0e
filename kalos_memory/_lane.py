"""One lane: slots in shared memory through which messages travel, and who of this process uses which slot.

    Lane        the mapping, the semaphores, the free slots
    Exchange    one request and its reply through one slot: a state machine that neither waits nor blocks, so that the
                threaded and the asyncio side share it

                    start()      fills the first part and posts it
                    on_reply()   reads what came: posts the next part of the request, or asks for the next part of the
                                 reply, and returns False; or returns True when the reply is whole

The layout of a slot and its life are those of abi.h and docs/abi.md. A slot that its user stops waiting for is marked
abandoned and used again only after kalosd has answered in it. What kalosd writes is bounded before it is used.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable
from struct import Struct
from time import monotonic_ns
from typing import Any

from posix_ipc import BusyError, Semaphore, SharedMemory, SignalError

from kalos_memory import _abi
from kalos_memory._codec import Message
from kalos_memory._errors import Overloaded, SidecarUnavailable
from kalos_memory._wait import SLICE_S, DeadlinePassed, SpinThenBlock

_HEADER = _abi.layout("kalos_lane_header")
_REQUEST_INTO = Struct("<IHHQQQIIq").pack_into  # from request_state on; the sequence before it is stored last
_REQUEST_AT = _abi.offset_of("kalos_slot_header", "request_state")
_REPLY_FIELDS = Struct("<IHHQQQI4xQQQ").unpack_from  # from reply_state on
_REPLY_AT = _abi.offset_of("kalos_slot_header", "reply_state")
_STATE_WORD = _REQUEST_AT // 8
_REPLY_WORD = _abi.offset_of("kalos_slot_header", "reply_sequence") // 8
assert _abi.offset_of("kalos_slot_header", "request_sequence") == 0
_SERVER_STATE_AT = _abi.offset_of("kalos_lane_header", "server_state")

# Names of this module are found faster than those of another: these are looked up in every call.
_FREE, _FILLING, _POSTED = _abi.REQUEST_FREE, _abi.REQUEST_FILLING, _abi.REQUEST_POSTED
_WHOLE = _abi.FLAG_BEGIN | _abi.FLAG_COMMIT
_OK, _PART = _abi.STATUS_OK, _abi.STATUS_PART
# kalosd posts right after answering: a token this late was taken by an interrupted wait. (If it comes after all, the
# next wait takes it and goes on waiting for its own.)
_TOKEN_LOST_NS = 5_000_000

EMPTY = Message([], 0)


class LaneLost(Exception):
    """kalosd is gone, or the lane was closed, before the answer came. (Inner: the call logic decides what follows.)"""


class Slot:
    """The right to use a slot: whoever holds this object has it, everybody else finds it in a list of the lane.

    An exception may be raised between any two instructions (a signal's handler may, Ctrl-C does), so the right can be
    dropped without anybody giving it back. Then its finaliser tells the lane.

    index: in the lane; sequence: of the last post, 0 where none is unanswered. Where its parts lie in the lane:
    in bytes (request, reply, payload), and counted in u64 (word: its first; state_word, reply_word)."""

    __slots__ = (
        "base",
        "given_up_ns",
        "index",
        "lane",
        "payload",
        "reply",
        "reply_word",
        "request",
        "semaphore",
        "sequence",
        "shared",
        "state_word",
        "word",
    )

    def __init__(self, lane: Callable[[], Lane | None], index: int, base: int, semaphore: Any) -> None:
        self.lane = lane  # a weak reference
        self.index = index
        self.base = base
        self.word = base // 8
        self.state_word = self.word + _STATE_WORD
        self.reply_word = self.word + _REPLY_WORD
        self.request = base + _REQUEST_AT
        self.reply = base + _REPLY_AT
        self.payload = base + _abi.SLOT_HEADER_BYTES
        self.semaphore = semaphore
        self.sequence = 0
        self.shared = False  # posted with the shared reply semaphore
        self.given_up_ns = 0

    def __del__(self) -> None:
        lane = self.lane()
        if lane is not None:
            lane.recover(self)


def _no_lane() -> None:
    """What a slot of a lane that is closed belongs to."""


class Lane:
    """A mapped lane.

    check_peer: raises LaneLost where kalosd is gone. durations: deadlines are sent as durations, because kalosd lives
    in another time namespace."""

    def __init__(
        self,
        memory: Any,
        request_semaphore: Any,
        reply_semaphores: list[Any],
        *,
        slot_count: int,
        slot_bytes: int,
        durations: bool = False,
        check_peer: Callable[[], None] = lambda: None,
        policy: SpinThenBlock | None = None,
    ) -> None:
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
        self.slot_count = slot_count
        self.payload_bytes = slot_bytes - _abi.SLOT_HEADER_BYTES
        self.durations = durations
        self.check_peer = check_peer
        self.policy = policy or SpinThenBlock()
        self.post_request = request_semaphore.release
        self.shared_semaphore = reply_semaphores[slot_count]
        self.next_sequence = itertools.count(1).__next__  # one counter for all posts; atomic
        self._semaphores = [request_semaphore, *reply_semaphores]
        self._reply_semaphores = reply_semaphores
        me = weakref.ref(self)
        self._free = [
            Slot(me, i, _abi.LANE_HEADER_BYTES + i * slot_bytes, reply_semaphores[i])
            for i in reversed(range(slot_count))
        ]
        self._abandoned: list[Slot] = []
        self._lock = threading.RLock()
        self._waiters: deque[Callable[[], None]] = deque()  # wake somebody who waits for a slot
        self.retired = False
        self._holds = 0  # users of the semaphores besides slots: the asyncio side's thread
        self.on_idle: Callable[[], None] = lambda: None  # called when a retired lane has no user left

    @classmethod
    def attach(cls, granted: dict[str, Any], *, durations: bool, check_peer: Callable[[], None]) -> Lane:
        """Opens what a WELCOME names, and checks that it is what it says."""
        semaphores: list[Any] = []
        try:
            shared = SharedMemory(granted["name"])  # never with a size: that would resize it
            try:
                if shared.size != granted["lane_bytes"]:
                    raise SidecarUnavailable(
                        f"the lane has {shared.size} bytes, kalosd said {granted['lane_bytes']}: is /dev/shm the same"
                        " for this process and kalosd?"
                    )
                memory = mmap.mmap(shared.fd, shared.size)
            finally:
                shared.close_fd()
            for name in (granted["request_semaphore"], *granted["reply_semaphores"]):
                semaphores.append(Semaphore(name))
        except SidecarUnavailable:
            raise
        except Exception as error:
            for semaphore in semaphores:
                semaphore.close()
            raise SidecarUnavailable(
                f"kalosd answers, but its shared memory cannot be opened ({error}): both sides need the same /dev/shm"
                " (in containers: one volume mounted there in both) and the same user"
            ) from error
        memory.madvise(mmap.MADV_DONTFORK)
        header = _HEADER.unpack_from(memory)
        found = (header[0], header[1], header[3], header[4], header[5], header[6], header[7])
        wanted = (
            _abi.LANE_MAGIC,
            _abi.ABI_MAJOR,
            _abi.LANE_HEADER_BYTES,
            granted["lane_bytes"],
            granted["slot_count"],
            granted["slot_bytes"],
            _abi.SLOT_HEADER_BYTES,
        )
        fits = _abi.LANE_HEADER_BYTES + granted["slot_count"] * granted["slot_bytes"] <= len(memory)
        if found != wanted or not fits or len(semaphores) != granted["slot_count"] + 2:
            for semaphore in semaphores:
                semaphore.close()
            memory.close()
            raise SidecarUnavailable(f"the lane's header says {found}, {wanted} was expected: versions do not fit")
        return cls(
            memory,
            semaphores[0],
            semaphores[1:],
            slot_count=granted["slot_count"],
            slot_bytes=granted["slot_bytes"],
            durations=durations,
            check_peer=check_peer,
        )

    # ------------------------------------------------------------------------------------------- slots --------------

    def take_now(self) -> Slot | None:
        """A free slot, or None. Overloaded where every slot is abandoned and none was answered yet."""
        while True:
            if self.retired:
                raise LaneLost
            try:
                return self._free.pop()
            except IndexError:
                pass
            if not self._reclaim():
                if len(self._abandoned) >= self.slot_count:
                    raise Overloaded(
                        f"all {self.slot_count} slots of this client hold requests that were given up and that kalosd"
                        " has not answered yet: it is overloaded or stuck; try again later"
                    )
                return None

    def take(self, deadline_ns: int) -> Slot:
        """A free slot, waiting for one until the deadline."""
        try:
            return self._free.pop() if not self.retired else self._refuse()
        except IndexError:
            pass
        while True:
            woken = threading.Event()
            self._waiters.append(woken.set)
            try:
                # Looked at after enlisting, so that a slot freed in between is not missed.
                slot = self.take_now()
                if slot is not None:
                    return slot
                left_s = (deadline_ns - monotonic_ns()) / 1e9
                if left_s <= 0:
                    raise DeadlinePassed
                woken.wait(min(SLICE_S, left_s))
            finally:
                self.stop_waiting(woken.set)

    def _refuse(self) -> Slot:
        raise LaneLost

    def when_free(self, wake: Callable[[], None]) -> None:
        """Calls wake (once, from any thread) when a slot becomes free. Look at take_now() after enlisting."""
        self._waiters.append(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        """Whoever was woken but does not take the slot passes the news on."""
        try:
            self._waiters.remove(wake)
        except ValueError:
            if self._free:
                self._wake_one()

    def _wake_one(self) -> None:
        try:
            wake = self._waiters.popleft()
        except IndexError:
            return
        wake()

    def give_back(self, slot: Slot) -> None:
        """The reply was taken: the slot is free."""
        self.words[slot.state_word] = _FREE
        self._free.append(slot)
        if self._waiters:
            self._wake_one()
        if self.retired:
            self._one_less()

    def give_up(self, slot: Slot) -> None:
        """Its user stops waiting: an unanswered slot is abandoned, any other is free."""
        if slot.sequence == 0:
            self.give_back(slot)
            return
        if self.words[slot.word] != slot.sequence:  # interrupted just before it was posted
            slot.sequence = 0
            self.give_back(slot)
            return
        _STATE.pack_into(self.memory, slot.request, _abi.REQUEST_ABANDONED)
        slot.given_up_ns = monotonic_ns()
        self._abandoned.append(slot)
        self._post(self._semaphores[0])  # in case it was interrupted just before kalosd was told
        if self.retired:
            self._one_less()

    def recover(self, dropped: Slot) -> None:
        """Somebody who had this slot was interrupted and does not have it any more. (From its finaliser.)"""
        if not self._semaphores:
            return
        slot = Slot(dropped.lane, dropped.index, dropped.base, dropped.semaphore)
        slot.sequence, slot.shared = dropped.sequence, dropped.shared
        self.give_up(slot)

    def _one_less(self) -> None:
        if self.in_use == 0:
            self.on_idle()
        self._close_when_unused()

    def _reclaim(self) -> bool:
        """Frees abandoned slots that were answered meanwhile."""
        if not self._abandoned:
            return False
        freed = False
        with self._lock:
            for slot in list(self._abandoned):
                if self.words[slot.reply_word] != slot.sequence:
                    continue
                # The shared semaphore's tokens are taken by the thread that waits on it; a slot's own is taken here.
                if not slot.shared and not self._drain(slot):
                    continue
                self._abandoned.remove(slot)
                slot.sequence = 0
                self.give_back(slot)
                freed = True
        return freed

    @staticmethod
    def _drain(slot: Slot) -> bool:
        try:
            slot.semaphore.acquire(0)
        except BusyError:
            return monotonic_ns() - slot.given_up_ns > _TOKEN_LOST_NS
        except SignalError:
            return False
        return True

    @property
    def in_use(self) -> int:
        """Slots that somebody waits in."""
        return self.slot_count - len(self._free) - len(self._abandoned)

    # --------------------------------------------------------------------------------------------- life --------------

    def draining(self) -> bool:
        """What kalosd hints in the header; the control socket is the truth."""
        return bool(self.memory[_SERVER_STATE_AT] != _abi.SERVER_SERVING)

    def retire(self, *, wake: bool) -> None:
        """No new request. The memory is given back once nobody waits in it any more; wake: let them stop at once."""
        with self._lock:
            already, self.retired = self.retired, True
        if wake:
            for semaphore in self._reply_semaphores:
                self._post(semaphore)
        while self._waiters:
            self._wake_one()
        if not already or wake:
            self._close_when_unused()

    def hold(self) -> None:
        """Somebody uses the semaphores without a slot: they stay open until release_hold()."""
        with self._lock:
            self._holds += 1

    def release_hold(self) -> None:
        with self._lock:
            self._holds -= 1
        if self.retired:
            self._close_when_unused()

    @staticmethod
    def _post(semaphore: Any) -> None:
        with contextlib.suppress(Exception):  # closed already, or full of tokens: nobody sleeps on it then
            semaphore.release()

    def _close_when_unused(self) -> None:
        with self._lock:
            if self._holds or not self._semaphores:
                return
            # All free slots are taken out first, so that nobody can begin to use what is closed below.
            unused: list[Slot] = []
            while self._free:
                unused.append(self._free.pop())
            if len(unused) + len(self._abandoned) < self.slot_count:
                self._free.extend(unused)
                return
            for slot in (*unused, *self._abandoned):
                slot.lane = _no_lane
            semaphores, self._semaphores = self._semaphores, []
            for semaphore in semaphores:
                semaphore.close()
            self.words.release()
            self.memory.close()


_STATE = Struct("<I")


class Exchange:
    """One request and its reply. See the top of this file."""

    # Defaults on the class: an exchange in one part, which nearly all are, stores little.
    committed = False  # the last part was posted: a write may be done from here on
    message_id = 0
    sequence = 0
    status = -1
    reply = b""
    queue_ns = search_ns = fetch_ns = 0
    _at = 0  # bytes of the message that were posted
    _received = 0  # bytes of the reply that were read
    _chunks: list[bytes] | None = None  # of a reply in several parts

    def __init__(
        self, lane: Lane, slot: Slot, opcode: int, message: Message, deadline_ns: int, *, shared: bool = False
    ) -> None:
        self._lane = lane
        self.slot = slot
        self.opcode = opcode
        self.message = message
        self.deadline_ns = deadline_ns
        slot.shared = shared

    def start(self) -> None:
        lane, slot, message = self._lane, self.slot, self.message
        total = message.nbytes
        if total > lane.payload_bytes or lane.durations:
            self._post_part()
            return
        # The same as _post_part() and _post(), for what nearly all messages are: one part.
        words, memory, at = lane.words, lane.memory, slot.payload
        words[slot.state_word] = _FILLING
        for segment, size in message.segments:
            end = at + size
            memory[at:end] = segment
            at = end
        self.committed = True
        self.sequence = self.message_id = slot.sequence = sequence = lane.next_sequence()
        semaphore = lane.slot_count if slot.shared else slot.index
        _REQUEST_INTO(
            memory, slot.request, _POSTED, self.opcode, _WHOLE, sequence, total, 0, total, semaphore, self.deadline_ns
        )
        words[slot.word] = sequence
        lane.post_request()

    def _post_part(self) -> None:
        lane, slot, message = self._lane, self.slot, self.message
        first, total = self._at, message.nbytes
        last = min(total, first + lane.payload_bytes)
        flags = (_abi.FLAG_BEGIN if first == 0 else 0) | (_abi.FLAG_COMMIT if last == total else 0)
        lane.words[slot.state_word] = _FILLING
        message.copy_into(lane.memory, slot.payload, first, last)
        self._at = last
        if last == total:
            self.committed = True
        self._post(self.opcode, flags, total, first, last - first)

    def _post(self, opcode: int, flags: int, total: int, offset: int, size: int) -> None:
        lane, slot = self._lane, self.slot
        self.sequence = sequence = lane.next_sequence()
        message_id = self.message_id
        if not message_id:
            self.message_id = message_id = sequence
        deadline_ns = self.deadline_ns
        if lane.durations:
            deadline_ns = max(1, deadline_ns - monotonic_ns())
        _REQUEST_INTO(
            lane.memory,
            slot.request,
            _POSTED,
            opcode,
            flags,
            message_id,
            total,
            offset,
            size,
            lane.slot_count if slot.shared else slot.index,
            deadline_ns,
        )
        slot.sequence = sequence
        lane.words[slot.word] = sequence
        lane.post_request()

    def answered(self) -> bool:
        """A hint: the semaphore's token comes after it."""
        return bool(self._lane.words[self.slot.reply_word] == self.sequence)

    def on_reply(self) -> bool:
        """Call after the semaphore was taken and answered() holds."""
        lane, slot = self._lane, self.slot
        slot.sequence = 0  # answered: the slot is ours again, whatever happens below
        memory, at = lane.memory, slot.payload
        _, status, flags, message_id, total, offset, size, queue_ns, search_ns, fetch_ns = _REPLY_FIELDS(
            memory, slot.reply
        )
        if message_id != self.message_id or size > lane.payload_bytes:
            raise LaneLost  # kalosd is out of step: a new connection is the way out
        received = self._received
        if size == total and not received and status != _PART:  # whole at once, as nearly all are
            if offset:
                raise LaneLost
            self.status = status
            self.queue_ns, self.search_ns, self.fetch_ns = queue_ns, search_ns, fetch_ns
            self.reply = memory[at : at + size]
            self._received = size
            return True
        if status == _PART:
            if self.committed:
                raise LaneLost
            self._post_part()
            return False
        if not received:
            self.status = status
            self.queue_ns, self.search_ns, self.fetch_ns = queue_ns, search_ns, fetch_ns
        elif status != _OK:  # of a CONTINUE
            self.status = status
            self._chunks = None
            offset = received = 0
        if offset != received or offset + size > total or total > _abi.MAX_MESSAGE_BYTES:
            raise LaneLost
        if self._chunks is None:
            self._chunks = []
        self._chunks.append(memory[at : at + size])
        self._received = received = received + size
        if received < total:
            if not flags & _abi.REPLY_MORE or size == 0:
                raise LaneLost
            self._post(_abi.OP_CONTINUE, 0, 0, received, 0)
            return False
        self.reply = b"".join(self._chunks)
        return True


def exchange(lane: Lane, opcode: int, message: Message, deadline_ns: int, patience_ns: int = 0) -> Exchange:
    """Sends and waits, in the calling thread. patience_ns: how much longer than the deadline kalosd's word is awaited.

    Raises DeadlinePassed or LaneLost, whose `committed` says whether a write may be done."""
    slot = lane.take(deadline_ns)
    run = Exchange(lane, slot, opcode, message, deadline_ns)
    try:
        run.start()
        wait, until_ns = lane.policy.wait, deadline_ns + patience_ns
        while True:
            wait(lane.words, slot.reply_word, run.sequence, slot.semaphore, until_ns, lane.check_peer)
            if run.on_reply():
                break
    except BaseException as error:
        lane.give_up(slot)
        if isinstance(error, (LaneLost, DeadlinePassed)):
            error.committed = run.committed  # type: ignore[union-attr]
        raise
    lane.give_back(slot)
    return run
