"""A kalosd for tests, in Python and in this process: a real lane, served by a function per request.

Serves what abi.h says, and, where a test wants it, the opposite.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

import posix_ipc

from kalos_memory import _abi
from kalos_memory._lane import Lane
from kalos_memory._wait import SpinThenBlock

Handler = Callable[["Request"], "tuple[int, bytes] | None"]


class Request:
    """One post: the fields of the slot's header, and the payload."""

    def __init__(self, lane: FakeLane, slot: int) -> None:
        base = lane.base(slot)
        (
            self.sequence, self.state, self.opcode, self.flags, self.message_id, self.message_bytes, self.offset,
            self.bytes, self.semaphore, self.deadline_ns,
        ) = struct.unpack_from("<QIHHQQQIIq", lane.memory, base)  # fmt: skip
        self.slot = slot
        self.payload = bytes(lane.memory[base + 256 : base + 256 + self.bytes])


class FakeLane:
    """The server's side of a lane. handle(request) -> (status, whole reply), or None not to answer (yet)."""

    def __init__(self, handle: Handler, slot_count: int = 2, slot_bytes: int = 16384) -> None:
        self.handle = handle
        self.slot_count, self.slot_bytes = slot_count, slot_bytes
        self.lane_bytes = 4096 + slot_count * slot_bytes
        stem = f"/kl.fake.{os.getpid():x}.{os.urandom(4).hex()}"
        shared = posix_ipc.SharedMemory(stem, posix_ipc.O_CREX, size=self.lane_bytes)
        self.memory = mmap.mmap(shared.fd, self.lane_bytes)
        shared.close_fd()
        self.request = posix_ipc.Semaphore(stem + ".r", posix_ipc.O_CREX)
        self.replies = [posix_ipc.Semaphore(f"{stem}.{i}", posix_ipc.O_CREX) for i in range(slot_count + 1)]
        self.granted: dict[str, Any] = {
            "name": stem,
            "lane_bytes": self.lane_bytes,
            "slot_count": slot_count,
            "slot_bytes": slot_bytes,
            "request_semaphore": stem + ".r",
            "reply_semaphores": [f"{stem}.{i}" for i in range(slot_count + 1)],
        }
        self.write_header()
        self.seen = [0] * slot_count
        self.staged: dict[int, bytearray] = {}
        self.held: dict[int, bytes] = {}
        self.requests: list[Request] = []
        self.stopping = False
        self.thread = threading.Thread(target=self._serve)

    def write_header(self, **changes: int) -> None:
        fields = {
            "magic": _abi.LANE_MAGIC, "major": 1, "minor": 0, "header": 4096, "lane": self.lane_bytes,
            "count": self.slot_count, "stride": self.slot_bytes, "slot_header": 256, "semaphores": self.slot_count + 1,
        } | changes  # fmt: skip
        struct.pack_into("<QHHIQIIII", self.memory, 0, *fields.values())

    def base(self, slot: int) -> int:
        return 4096 + slot * self.slot_bytes

    def start(self) -> FakeLane:
        self.thread.start()
        return self

    def stop(self) -> None:
        self.stopping = True
        self.request.release()
        if self.thread.ident:
            self.thread.join()
        for semaphore, name in zip(
            [self.request, *self.replies],
            [self.granted["request_semaphore"], *self.granted["reply_semaphores"]],
            strict=True,
        ):
            semaphore.close()
            posix_ipc.unlink_semaphore(name)
        posix_ipc.unlink_shared_memory(self.granted["name"])
        self.memory.close()

    def attach(self, **options: Any) -> Lane:
        """The client's side."""
        options = {"durations": False, "check_peer": lambda: None} | options
        lane = Lane.attach(self.granted, **options)
        lane.policy = SpinThenBlock(0)
        return lane

    def _serve(self) -> None:
        while True:
            self.request.acquire()
            if self.stopping:
                return
            for slot in range(self.slot_count):
                if struct.unpack_from("<Q", self.memory, self.base(slot))[0] != self.seen[slot]:
                    request = Request(self, slot)
                    self.seen[slot] = request.sequence
                    self.requests.append(request)
                    self._take(request)

    def _take(self, request: Request) -> None:
        if request.opcode == _abi.OP_CONTINUE:
            self.answer(request, 0, self.held[request.slot], request.offset)
            return
        if request.flags & _abi.FLAG_BEGIN:
            self.staged[request.slot] = bytearray()
        staged = self.staged.setdefault(request.slot, bytearray())
        assert request.offset == len(staged)
        staged += request.payload
        if request.opcode != _abi.OP_NOOP and not request.flags & _abi.FLAG_COMMIT:
            self.answer(request, _abi.STATUS_PART, b"")
            return
        request.payload = bytes(staged)
        answer = self.handle(request)
        if answer is not None:
            self.answer(request, *answer)

    def answer(
        self, request: Request, status: int, message: bytes, offset: int = 0, changes: dict[str, int] | None = None
    ) -> None:
        """Writes a reply, or the part of it from offset, and posts. changes: fields that are to be wrong."""
        self.held[request.slot] = message
        part = message[offset : offset + self.slot_bytes - 256]
        base = self.base(request.slot)
        self.memory[base + 256 : base + 256 + len(part)] = part
        fields = {
            "state": _abi.REPLY_DONE, "status": status, "flags": int(offset + len(part) < len(message)),
            "message_id": request.message_id, "total": len(message), "offset": offset, "bytes": len(part),
            "queue": 1000, "search": 2000, "fetch": 3000,
        } | (changes or {})  # fmt: skip
        struct.pack_into("<IHHQQQI4xQQQ", self.memory, base + 136, *fields.values())
        struct.pack_into("<Q", self.memory, base + 128, request.sequence)
        self.replies[request.semaphore].release()
