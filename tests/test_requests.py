"""What kalosd makes of requests that the client of this package never sends: a write id that is used twice, bits that
nobody knows, deadlines that have passed. (docs/abi.md promises it to clients in other languages.)"""

from __future__ import annotations

import json
import os
import signal
import struct
from time import monotonic_ns
from typing import Any

import numpy as np
import pytest
from conftest import wait_until

import kalos_memory as kalos
from kalos_memory import _abi, _codec, _lane
from kalos_memory._codec import Message

ONE_PART = _abi.FLAG_BEGIN | _abi.FLAG_COMMIT
DEADLINE = "the deadline passed"


class Posted:
    """A request as bytes in a slot, posted; answer() waits for what became of it."""

    def __init__(
        self,
        client: kalos.Client,
        opcode: int,
        message: bytes,
        *,
        flags: int = ONE_PART,
        deadline_ns: int = 0,
        total: int | None = None,
        offset: int = 0,
        slot: _lane.Slot | None = None,
        message_id: int | None = None,
    ) -> None:
        connection = client.current()
        assert connection is not None
        self.lane = lane = connection.lane
        taken = slot or lane.take_now()
        assert taken is not None
        self.slot = taken
        assert len(message) <= lane.payload_bytes
        lane.memory[taken.payload : taken.payload + len(message)] = message
        sequence = lane.next_sequence()
        self.message_id = sequence if message_id is None else message_id
        whole = len(message) if total is None else total
        fields = (_abi.REQUEST_POSTED, opcode, flags, self.message_id, whole, offset, len(message), taken.index)
        _lane._REQUEST_INTO(lane.memory, taken.request, *fields, deadline_ns)
        lane.words[taken.word] = sequence
        lane.post_request()

    def answer(self, *, keep_slot: bool = False) -> tuple[int, bytes]:
        self.slot.semaphore.acquire(60)
        _, status, more, _, _, _, size, *_ = _lane._REPLY_FIELDS(self.lane.memory, self.slot.reply)
        assert not more
        reply = bytes(self.lane.memory[self.slot.payload : self.slot.payload + size])
        if not keep_slot:
            self.lane.give_back(self.slot)
        return status, reply


def ask(client: kalos.Client, opcode: int, message: bytes, **how: Any) -> tuple[int, bytes]:
    return Posted(client, opcode, message, **how).answer()


# ------------------------------------------------------------------------------------------------- messages ----------


def upsert(collection: int, write_id: bytes, text: str, *, durability: int = 1, row: str = "x") -> bytes:
    message = _codec.upsert_message(
        collection_id=collection,
        write_id=write_id,
        durability=durability,
        namespace=b"",
        ids=[row.encode()],
        texts=[text.encode()],
        metadatas=None,
        expires_us=None,
        has_vector=None,
        vectors=np.array([[1, 0]], np.float32),
    )
    return message.to_bytes()


def delete(collection: int, write_id: bytes, *, flags: int = 0, ids: list[bytes] | None = None) -> bytes:
    message = _codec.delete_message(
        collection_id=collection, write_id=write_id, durability=1, flags=flags, namespace=b"", ids=ids, filter=None
    )
    return message.to_bytes()


def batch(write_id: bytes, operations: list[tuple[int, bytes]]) -> bytes:
    parts = [(opcode, Message([(one, len(one))], len(one))) for opcode, one in operations]
    return _codec.batch_message(write_id=write_id, durability=1, operations=parts).to_bytes()


def collection_id(client: kalos.Client, name: str) -> int:
    return int(client.collection(name, dimension=2)._described["id"])


# ------------------------------------------------------------------------------------------------ write ids ----------


def same_write_id(a: int, b: int, write_id: bytes) -> tuple[bytes, dict[str, tuple[int, bytes]]]:
    """An upsert into collection a, and requests that differ from it in one thing each."""
    first = upsert(a, write_id, "first")
    return first, {
        "another text": (_abi.OP_UPSERT, upsert(a, write_id, "other")),
        "another row": (_abi.OP_UPSERT, upsert(a, write_id, "first", row="y")),
        "another collection": (_abi.OP_UPSERT, upsert(b, write_id, "first")),
        "another durability": (_abi.OP_UPSERT, upsert(a, write_id, "first", durability=2)),
        "a delete": (_abi.OP_DELETE, delete(a, write_id, ids=[b"x"])),
        "a delete of everything": (_abi.OP_DELETE, delete(a, write_id, flags=_abi.SCOPE_EVERYTHING)),
        "a batch": (_abi.OP_BATCH, batch(write_id, [(_abi.OP_UPSERT, first)])),
        "a batch of two": (_abi.OP_BATCH, batch(write_id, [(_abi.OP_UPSERT, first)] * 2)),
    }


def test_a_write_id_is_never_taken_for_another_request(client: kalos.Client, data_dir: str) -> None:
    """Promise: who uses a write id for another request is told so in words, whatever differs, and nothing is lost in
    silence; the same bytes get the first answer. So it is at once and after a kill."""
    first, others = same_write_id(collection_id(client, "a"), collection_id(client, "b"), os.urandom(16))
    status, answer = ask(client, _abi.OP_UPSERT, first)
    assert status == _abi.STATUS_OK
    commit, count = struct.unpack("<QQ", answer)
    assert count == 1

    def check(asked: kalos.Client) -> None:
        for what, (opcode, message) in others.items():
            status, words = ask(asked, opcode, message)
            assert status == _abi.STATUS_INVALID_REQUEST, (what, status, words)
            assert f"used before, for another request (commit sequence {commit})" in words.decode(), what
        assert ask(asked, _abi.OP_UPSERT, first) == (_abi.STATUS_OK, answer)
        assert [hit.text for hit in asked.collection("a").scan()] == ["first"]
        assert asked.collection("b").count() == 0

    check(client)
    os.kill(client.stats()["kalosd"]["pid"], signal.SIGKILL)
    with kalos.connect(data_dir, timeout=30) as after:
        assert after.collection("a").count() == 1
        check(after)


def test_one_write_id_in_flight_twice(client: kalos.Client) -> None:
    """No order is promised between slots: whichever comes first is the write id's request, and it alone is done."""
    a, b = collection_id(client, "a"), collection_id(client, "b")
    for _ in range(20):
        first, others = same_write_id(a, b, os.urandom(16))
        posted = [Posted(client, _abi.OP_UPSERT, first)]
        posted += [Posted(client, opcode, message) for opcode, message in list(others.values())[:6]]
        statuses = sorted(one.answer()[0] for one in posted)
        assert statuses == [_abi.STATUS_OK] + [_abi.STATUS_INVALID_REQUEST] * 6


def test_the_reads_of_a_batch_belong_to_its_request(client: kalos.Client) -> None:
    """A batch that holds reads is resent as the same bytes too: its reads see the present state, other reads make
    another request."""
    a = collection_id(client, "a")
    write_id = os.urandom(16)
    count = _codec.count_message(collection_id=a, flags=0, min_sequence=0, namespace=b"", filter=None).to_bytes()
    other = _codec.count_message(collection_id=a, flags=1, min_sequence=0, namespace=b"", filter=None).to_bytes()
    write = (_abi.OP_UPSERT, upsert(a, bytes(16), "text"))
    first = batch(write_id, [(_abi.OP_COUNT, count), write])

    def counted(reply: bytes) -> int:
        return _codec.decode_count(_codec.decode_batch(reply)[0])[1]

    status, reply = ask(client, _abi.OP_BATCH, first)
    assert (status, counted(reply)) == (_abi.STATUS_OK, 0)
    status, reply = ask(client, _abi.OP_BATCH, first)
    assert (status, counted(reply)) == (_abi.STATUS_OK, 1)
    status, words = ask(client, _abi.OP_BATCH, batch(write_id, [(_abi.OP_COUNT, other), write]))
    assert status == _abi.STATUS_INVALID_REQUEST
    assert b"used before" in words


def test_without_a_write_id_nothing_is_remembered(client: kalos.Client) -> None:
    """A write id of zeros is none: as many writes as one likes."""
    a = collection_id(client, "a")
    for text in ("one", "two"):
        assert ask(client, _abi.OP_UPSERT, upsert(a, bytes(16), text))[0] == _abi.STATUS_OK
    assert [hit.text for hit in client.collection("a").scan()] == ["two"]


# --------------------------------------------------------------------------------------------- unknown bits ----------

SUBTREE, EVERYTHING, EXPLAIN = _abi.SCOPE_SUBTREE, _abi.SCOPE_EVERYTHING, _abi.SCOPE_EXPLAIN
INCLUDES = _abi.INCLUDE_TEXT | _abi.INCLUDE_METADATA | _abi.INCLUDE_VECTOR

# Every opcode: the name of its struct, and of its fields of bits those that it has.
BITS: dict[str, tuple[str, dict[str, int]]] = {
    "NOOP": ("", {}),
    "CONTINUE": ("", {}),
    "ABORT": ("", {}),
    "OPEN_COLLECTION": ("", {}),
    "LIST_COLLECTIONS": ("", {}),
    "DROP_COLLECTION": ("", {}),
    "SEARCH": (
        "kalos_search_request",
        {"flags": SUBTREE | EXPLAIN | _abi.SCOPE_MIN_SCORE | _abi.SCOPE_MAX_DISTANCE, "include": INCLUDES},
    ),
    "GET": ("kalos_get_request", {"include": INCLUDES}),
    "COUNT": ("kalos_count_request", {"flags": SUBTREE}),
    "SCAN": ("kalos_scan_request", {"flags": SUBTREE, "include": INCLUDES}),
    "NAMESPACES": ("kalos_namespaces_request", {}),
    "UPSERT": ("kalos_upsert_request", {}),
    "DELETE": ("kalos_delete_request", {"flags": SUBTREE | EVERYTHING}),
    "BATCH": ("kalos_batch_request", {}),
}
CARRY_NO_MESSAGE = ("NOOP", "CONTINUE", "ABORT")


def messages(collection: kalos.Collection) -> dict[str, bytes]:
    """A good request of every opcode."""
    described = collection._described
    number = described["id"]
    op = collection.op
    made = {
        "SEARCH": op.search([1, 0, 0, 0]).message.to_bytes(),
        "GET": op.get(["x"]).message.to_bytes(),
        "COUNT": op.count().message.to_bytes(),
        "SCAN": op.scan_page(page_limit=10).message.to_bytes(),
        "NAMESPACES": op.namespaces().message.to_bytes(),
        "UPSERT": op.upsert(["x"], [[1, 0, 0, 0]]).message.to_bytes(),
        "DELETE": delete(number, bytes(16), ids=[b"absent"]),
        "OPEN_COLLECTION": json.dumps({"name": described["name"]}).encode(),
        "LIST_COLLECTIONS": b"{}",
        "DROP_COLLECTION": b'{"name": "there is none"}',
    }
    made["BATCH"] = batch(os.urandom(16), [(_abi.OP_COUNT, made["COUNT"]), (_abi.OP_UPSERT, made["UPSERT"])])
    return made | dict.fromkeys(CARRY_NO_MESSAGE, b"")


def with_bits(message: bytes, structure: str, field: str, bits: int) -> bytes:
    at = _abi.offset_of(structure, field)
    (present,) = struct.unpack_from("<I", message, at)
    return message[:at] + struct.pack("<I", present | bits) + message[at + 4 :]


def test_the_table_has_every_opcode_and_every_field_of_bits() -> None:
    """Whoever adds an opcode, or a field of bits to a request, says here which bits are known."""
    assert set(BITS) == {name.removeprefix("OP_") for name in vars(_abi) if name.startswith("OP_")}
    for structure, fields in BITS.values():
        if structure:
            present = {name for name in ("flags", "include") if name in _abi.LAYOUTS[structure][1]}
            assert present == set(fields), structure


@pytest.mark.parametrize("name", BITS)
def test_unknown_bits_are_refused(collection: kalos.Collection, name: str) -> None:
    """Promise: a bit that this kalosd does not know in a field of this opcode is UNSUPPORTED, naming field and bit;
    what was asked for by it would silently not be done. Alone, in a batch, and beside known ones."""
    client: Any = collection._transport
    collection.upsert(["kept"], [[0, 1, 0, 0]])
    opcode = getattr(_abi, f"OP_{name}")
    message = messages(collection)[name]
    structure, fields = BITS[name]

    def refused(answer: tuple[int, bytes], field: str, bits: int) -> None:
        status, words = answer
        assert (status, f"{field} has the bits {bits:#x}," in words.decode()) == (_abi.STATUS_UNSUPPORTED, True), words

    for bit in range(2, 16):
        refused(ask(client, opcode, message, flags=ONE_PART | 1 << bit), "request_flags", 1 << bit)
    for field, known in fields.items():
        for bit in range(32):
            if known >> bit & 1:
                continue
            changed = with_bits(message, structure, field, 1 << bit)
            refused(ask(client, opcode, changed), field, 1 << bit)
            refused(ask(client, _abi.OP_BATCH, batch(os.urandom(16), [(opcode, changed)])), field, 1 << bit)
        unknown = 0xFFFFFFFF & ~known
        refused(ask(client, opcode, with_bits(message, structure, field, 0xFFFFFFFF)), field, unknown)
    assert [hit.id for hit in collection.scan()] == ["kept"]
    for field, known in fields.items():
        for bit in range(32):
            if known >> bit & 1:
                status, _ = ask(client, opcode, with_bits(message, structure, field, 1 << bit))
                assert status != _abi.STATUS_UNSUPPORTED, (field, bit)
    status, words = ask(client, opcode, message)
    expected = {"CONTINUE": _abi.STATUS_REPLY_GONE, "DROP_COLLECTION": _abi.STATUS_NOT_FOUND}
    assert status == expected.get(name, _abi.STATUS_OK), words


def test_our_client_sends_no_unknown_bit(collection: kalos.Collection) -> None:
    """Everything that can be asked for at once is known to kalosd."""
    include = ("text", "metadata", "vector")
    vector = [1, 0, 0, 0]
    collection.upsert(["a"], [vector], texts=["t"], metadatas=[{"k": 1}])
    found = collection.search(vector, subtree=True, min_score=0.5, include=include, explain=True)
    assert [hit.id for hit in found] == ["a"]
    assert [hit.id for hit in collection.scan(subtree=True, include=include)] == ["a"]
    hit = collection.get(["a"], include=include)[0]
    assert hit is not None
    assert hit.text == "t"
    assert collection.count(subtree=True) == 1
    assert collection.delete(everything=True, subtree=True) == 1


# ------------------------------------------------------------------------------------------------ deadlines ----------


@pytest.mark.parametrize("name", BITS)
def test_a_deadline_that_has_passed(collection: kalos.Collection, name: str) -> None:
    """Promise: whatever carries a message is EXPIRED after its deadline, and nothing is done. What carries none asks
    for no work and is answered."""
    client: Any = collection._transport
    opcode = getattr(_abi, f"OP_{name}")
    message = messages(collection)[name]
    answered = {"NOOP": _abi.STATUS_OK, "CONTINUE": _abi.STATUS_REPLY_GONE, "ABORT": _abi.STATUS_OK}
    for deadline_ns in (1, -1, -(1 << 63), monotonic_ns() - 1):
        status, words = ask(client, opcode, message, deadline_ns=deadline_ns)
        assert status == answered.get(name, _abi.STATUS_EXPIRED), words
        if name not in answered:
            assert DEADLINE in words.decode()
    assert collection.count() == 0


def test_a_deadline_that_passes_between_parts(client: kalos.Client) -> None:
    """A part that comes too late is EXPIRED, as the whole message would be, and what was staged before it is
    dropped."""
    message = upsert(collection_id(client, "a"), os.urandom(16), "text")
    half = len(message) // 2
    first = Posted(client, _abi.OP_UPSERT, message[:half], flags=_abi.FLAG_BEGIN, total=len(message))
    assert first.answer(keep_slot=True)[0] == _abi.STATUS_PART
    assert client.stats()["requests"]["staged_bytes"] == half
    late = Posted(
        client,
        _abi.OP_UPSERT,
        message[half:-1],
        flags=0,  # neither the first part nor the last
        total=len(message),
        offset=half,
        slot=first.slot,
        message_id=first.message_id,
        deadline_ns=1,
    )
    status, words = late.answer()
    assert (status, DEADLINE in words.decode()) == (_abi.STATUS_EXPIRED, True), words
    wait_until(lambda: client.stats()["requests"]["staged_bytes"] == 0, "what was staged is dropped")
    assert client.collection("a").count() == 0
