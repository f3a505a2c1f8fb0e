"""Writes the first inputs of the fuzz targets: what the Python client really sends, and JSON of every shape.

    .venv/bin/python tools/fuzz_seeds.py

The corpus in native/fuzz/corpus grew out of these (`FUZZ_KEEP=1 make fuzz`).
"""

from __future__ import annotations

import json
import struct
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from kalos_memory import _abi, _filters
from kalos_memory._client import Client, _drop
from kalos_memory._operations import Operations, batch

CORPUS = Path(__file__).resolve().parent.parent / "native" / "fuzz" / "corpus"
POST = struct.Struct("<BBHHHIIIQQQq")  # Post of fuzz_slot.cpp
POSTED = _abi.REQUEST_POSTED


def operations() -> list[tuple[int, bytes]]:
    op = Operations(1, 4, "cosine", "relaxed")
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    ids = ["a", "b", "c"]
    where = ("alice", "home")
    everything = [
        op.upsert(ids, vectors, texts=["east", None, "north"], metadatas=[{"n": 1}, None, {"t": ["x", {"y": 2.5}]}]),
        op.upsert(ids, vectors, namespace=where, expires_at=[datetime(2100, 1, 1, tzinfo=timezone.utc)] * 3),
        op.search(vectors[0], 2),
        op.search(vectors, 3, offset=1, namespace=where, subtree=True, filter={"n": {"$gte": 1}}, min_score=0.1),
        op.search(vectors[1], 2, group_by="n", include=("vector", "text"), explain=True, min_sequence=1),
        op.get(ids, namespace=where, include=("text", "metadata", "vector")),
        op.count(subtree=True, filter={"$or": [{"n": 1}, {"t": {"$contains": "x"}}]}),
        op.scan_page(page_limit=2, order="updated", include=("text",)),
        op.scan_page(page_limit=1, cursor=(1, 5), subtree=True),
        op.namespaces(("alice",), max_depth=2, limit=5),
        op.delete(["a", "zz"], namespace=where),
        op.delete(filter={"n": {"$in": [1, 2]}}),
        op.delete(everything=True, subtree=True),
        Client._open("notes", 4, "cosine", {"name": "e", "fingerprint": "f"}),
        _drop("other", "other"),
    ]
    everything.append(batch([*everything[:6], everything[10]], 2))
    return [(one.opcode, one.message.to_bytes()) for one in everything]


def post(opcode: int, payload: bytes, slot: int = 0, flags: int = 3, plausible: int = 1, **fields: int) -> bytes:
    values = {"part_bytes": len(payload), "reply_semaphore": slot, "state": POSTED, "message_id": 7}
    values |= {"message_bytes": len(payload), "part_offset": 0, "deadline_ns": 0, **fields}
    return POST.pack(slot, plausible, opcode, flags, len(payload), *values.values()) + payload


def frame(kind: int, body: object) -> bytes:
    data = json.dumps(body).encode()
    return struct.pack("<IHHII", _abi.CONTROL_MAGIC, kind, 0, len(data), 0) + data


def main() -> None:
    seeds: dict[str, list[bytes]] = {"message": [], "slot": [], "control": [], "filter": [], "json": []}
    for opcode, message in operations():
        seeds["message"].append(struct.pack("<H", opcode) + message)
        if opcode != _abi.OP_DROP_COLLECTION:
            seeds["slot"].append(post(opcode, message))
    first = operations()[0]
    half = len(first[1]) // 2
    total = {"message_bytes": len(first[1]), "plausible": 0}
    seeds["slot"] += [
        post(first[0], first[1][:half], flags=1, **total)
        + post(first[0], first[1][half:], flags=2, part_offset=half, **total),
        post(first[0], first[1][:half], flags=1, **total) + post(_abi.OP_ABORT, b"", flags=0, plausible=0),
        post(first[0], first[1]) + post(_abi.OP_CONTINUE, b"", flags=0, plausible=0, part_offset=4),
        post(_abi.OP_NOOP, b"", slot=1) + post(_abi.OP_LIST_COLLECTIONS, b"{}", slot=1, reply_semaphore=2),
        b"".join(post(opcode, message) for opcode, message in operations()[:10]),
    ]
    hello = {"abi_major": 1, "abi_minor": 0, "libc": "glibc 2.36", "client": "kalos-memory 0.1.0", "pid": 1}
    whole = frame(1, {**hello, "slot_count": 8, "slot_bytes": 65536, "monotonic_ns": 1}) + frame(3, {}) + frame(6, {})
    seeds["control"] += [
        b"\xff" + whole,
        b"".join(bytes([min(7, len(whole) - at)]) + whole[at : at + 7] for at in range(0, len(whole), 7)),
        b"\xff" + frame(1, {**hello, "libc": "musl"}),
        b"\xff" + frame(1, {**hello, "slot_count": -5, "slot_bytes": 2**63 - 1, "monotonic_ns": -(2**63)}),
        b"\xff" + frame(8, {"reason": "kalos stop"}),
    ]
    metadata: list[object] = [
        {},
        {"n": 1, "s": "x", "f": 2.5, "b": True, "z": None, "l": [1, "x", None], "o": {"y": {"z": 1}}},
        {"a.b": 1, "a": {"b": 2}, "é": "\U0001f600", "e": 'quote " and \\ and \n', "big": 2**63 - 1, "low": -(2**63)},
        {"deep": [[[[{"a": [1e300, -0.0, 5e-324, 0.1]}]]]]},
    ]
    filters: list[object] = [
        {"n": 1},
        {"s": {"$ne": "y"}},
        {"f": {"$gt": 1, "$lte": 2.5}},
        {"n": {"$in": [1, 2.0, "x", None]}, "s": {"$nin": []}},
        {"z": {"$exists": True}},
        {"l": {"$contains": "x"}},
        {"s": {"$icontains": "X"}},
        {"o": {"$subset": {"y": {"z": 1}}}},
        {"$and": [{"n": 1}, {"$or": [{"s": "x"}, {"$not": {"b": False}}]}]},
        {"a.b": 2},
        {"$and": []},
        {"$or": []},
    ]
    texts = [json.dumps(one, ensure_ascii=False).encode() for one in metadata]
    seeds["json"] += [*texts, b' {"a" : [ 1 , 2 ] } ', b'{"a": "\\ud83d\\ude00\\u0000"}', b'{"a": 1, "a": 2}']
    seeds["filter"] += [_filters.encode_filter(one) + b"\n" + text for one in filters for text in texts[:3]]
    for target, inputs in seeds.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (folder / f"seed-{number:02}").write_bytes(data)


if __name__ == "__main__":
    main()
