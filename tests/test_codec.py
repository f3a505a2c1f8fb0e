"""Messages: what the client writes is laid out as abi.h says, and no reply, however broken, does more than raise."""

import contextlib
import itertools
import json
import mmap
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalos_memory import InvalidRequest, KalosError, _abi, _codec
from kalos_memory._codec import HitsPage, Message


def unpack(name, data, at=0):
    """A struct of abi.h as a dict; spans as pairs."""
    text, fields = _abi.LAYOUTS[name]
    values = struct.unpack_from("<" + text[1:], data, at)
    return {
        field: struct.unpack("<II", value) if token == "8s" else value
        for field, value, token in zip(fields, values, _abi._tokens(text), strict=True)
    }


def at_span(data, span):
    return None if span[0] == 0 else data[span[0] : span[0] + span[1]]


def table(data, span, count):
    assert span[1] == 8 * count
    assert span[0] % 4 == 0
    return [at_span(data, struct.unpack_from("<II", data, span[0] + 8 * i)) for i in range(count)]


blobs = st.lists(st.none() | st.binary(max_size=40), max_size=20)


@given(ids=st.lists(st.binary(min_size=1, max_size=30), max_size=20), data=st.data())
def test_upsert_message(ids, data):
    """Every column of an upsert is found where the header says, whole, aligned, with absent told from empty."""
    rows = len(ids)
    texts = data.draw(st.none() | st.lists(st.none() | st.binary(max_size=20), min_size=rows, max_size=rows))
    metadatas = data.draw(st.none() | st.lists(st.none() | st.binary(max_size=20), min_size=rows, max_size=rows))
    expires = data.draw(st.none() | st.lists(st.integers(0, 2**62), min_size=rows, max_size=rows))
    dimension = data.draw(st.integers(1, 5))
    vectors = (
        np.arange(rows * dimension, dtype=np.float32).reshape(rows, dimension) if data.draw(st.booleans()) else None
    )
    mask = np.ones(rows, np.uint8) if vectors is not None and data.draw(st.booleans()) else None
    message = _codec.upsert_message(
        collection_id=7,
        write_id=b"w" * 16,
        durability=2,
        namespace=b"\0\1n",
        ids=ids,
        texts=texts,
        metadatas=metadatas,
        expires_us=expires,
        has_vector=mask,
        vectors=vectors,
    )
    raw = message.to_bytes()
    assert len(raw) == message.nbytes
    head = unpack("kalos_upsert_request", raw)
    assert (head["collection_id"], head["write_id"], head["durability"], head["row_count"]) == (7, b"w" * 16, 2, rows)
    assert head["reserved"] == bytes(32)
    assert at_span(raw, head["name_space"]) == b"\0\1n"
    assert table(raw, head["ids"], rows) == ids
    assert (None if texts is None else table(raw, head["texts"], rows)) == texts
    assert (None if metadatas is None else table(raw, head["metadatas"], rows)) == metadatas
    if texts is None:
        assert head["texts"] == (0, 0)
    if expires is not None:
        assert at_span(raw, head["expires"]) == struct.pack(f"<{rows}q", *expires)
        assert head["expires"][0] % 8 == 0
    if vectors is not None:
        assert head["dimension"] == dimension
        assert head["vectors"][0] % 8 == 0
        assert at_span(raw, head["vectors"]) == vectors.tobytes()
    if mask is not None:
        assert at_span(raw, head["has_vector"]) == mask.tobytes()


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_a_message_cut_anywhere_is_the_message(sizes, cuts):
    """Parts of any size, laid end to end, are the whole; segments may be bytes or arrays."""
    segments = [
        (bytes(range(size)), size) if i % 2 else (np.arange(size, dtype=np.float32), 4 * size)
        for i, size in enumerate(sizes)
    ]
    message = Message(segments, sum(size for _, size in segments))
    bounds = sorted({0, message.nbytes, *(cut for cut in cuts if cut < message.nbytes)})
    pieces = bytearray()
    for first, last in itertools.pairwise(bounds):
        with mmap.mmap(-1, 8 + last - first) as target:
            message.copy_into(target, 8, first, last)
            pieces += target[8:]
    assert bytes(pieces) == message.to_bytes()


def test_search_message_has_its_vectors_last_and_aligned():
    for namespace in (b"", b"\0\1a", b"\0\5abcde"):
        head = _codec.search_head(
            collection_id=1,
            flags=0,
            include=3,
            query_count=2,
            dimension=3,
            k=5,
            skip=1,
            min_score=0.5,
            max_distance=0.0,
            min_sequence=9,
            namespace=namespace,
            filter=b'{"a":1}',
            group_by=None,
        )
        vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
        raw = _codec.search_message(head, vectors).to_bytes()
        fields = unpack("kalos_search_request", raw)
        assert fields["vectors"] == (len(head), 24)
        assert len(head) % 8 == 0
        assert at_span(raw, fields["vectors"]) == vectors.tobytes()
        assert (at_span(raw, fields["name_space"]) or b"") == namespace
        assert at_span(raw, fields["filter"]) == b'{"a":1}'
        assert fields["group_by"] == (0, 0)


def test_batch_message_holds_whole_messages_at_multiples_of_8():
    parts = [(32, _codec.json_message({"n": i * "x"})) for i in range(9)]
    raw = _codec.batch_message(write_id=b"i" * 16, durability=1, operations=parts).to_bytes()
    head = unpack("kalos_batch_request", raw)
    assert head["operation_count"] == 9
    for i, (_, message) in enumerate(parts):
        operation = unpack("kalos_batch_operation", raw, head["operations"][0] + 16 * i)
        assert operation["opcode"] == 32
        assert operation["message"][0] % 8 == 0
        assert at_span(raw, operation["message"]) == message.to_bytes()


def test_a_batch_over_256_mib_is_refused_before_it_is_built():
    """Refused in words, whichever column is the large one."""
    whole = b"x" * (1 << 20)
    with pytest.raises(InvalidRequest, match="256 MiB"):
        _codec.get_message(collection_id=1, include=0, min_sequence=0, namespace=b"", ids=[whole] * 257)


# ---------------------------------------------------------------------------------------------- replies --------------


def hits_reply(rows, scores=True, explain=None, include=7):
    """A reply as kalosd writes it. rows: (id or None, namespace key, text, metadata, vector)."""
    count = len(rows)
    fields_at = 128 + 8 + 8 * count * 3
    blob = bytearray()
    start = fields_at + 40 * count

    def put(data):
        if data is None:
            return (0, 0)
        blob.extend(bytes(-(start + len(blob)) % 8))
        at = start + len(blob)
        blob.extend(data)
        return (at, len(data))

    fields = b"".join(struct.pack("<10I", *(n for data in row for n in put(data))) for row in rows)
    explain_span = put(explain)
    head = _abi.layout("kalos_hits_reply").pack(
        77, count, 1, include, 2, 0, 0, 0, 128, 8, 136 if scores else 0, 8 * count, 136 + 8 * count, 8 * count,
        136 + 16 * count, 8 * count, fields_at, 40 * count, *explain_span,
    )  # fmt: skip
    body = struct.pack("<II", 0, count) + struct.pack(f"<{count}d", *range(count))
    body += struct.pack(f"<{count}q", *[1_000_000] * count) + struct.pack(f"<{count}q", *[2_000_001] * count)
    return head + body + fields + bytes(blob)


ROWS = [
    (b"a", b"", "täxt\0😀".encode(), b'{"k":[1,2.5,null]}', struct.pack("<2f", 1, 2)),
    (b"b", b"\0\1x\0\2yz", None, None, None),
    (b"c", b"", b"", b"{}", None),
]


def test_hits_decode():
    page = HitsPage(hits_reply(ROWS, explain=b'{"plan":"p"}'))
    a, b, c = page.hits(0, 3)
    assert (a.id, a.score, a.text, a.metadata, a.namespace) == ("a", 0.0, "täxt\0😀", {"k": [1, 2.5, None]}, ())
    assert a.vector.tolist() == [1, 2]
    assert a.vector.dtype == np.float32
    assert (a.created_at.timestamp(), a.updated_at.microsecond) == (1.0, 1)
    assert a.created_at.tzinfo is not None
    assert (b.text, b.metadata, b.vector, b.namespace, b.score) == (None, {}, None, ("x", "yz"), 1.0)
    assert (c.text, c.metadata) == ("", {})
    assert a.explain == b.explain == {"plan": "p"}
    a.metadata["k"].append("mine")
    assert page.hit(0).metadata == {"k": [1, 2.5, None]}


def test_not_included_is_none():
    """Metadata that was not asked for is None, not an empty dict that looks like an answer."""
    hit = HitsPage(hits_reply(ROWS, include=0)).hit(1)
    assert hit.metadata is None


def test_get_marks_what_was_not_found():
    page = HitsPage(hits_reply([ROWS[0], (None, None, None, None, None), ROWS[1]], scores=False))
    found = page.found()
    assert [hit and hit.id for hit in found] == ["a", None, "b"]
    assert found[0].score is None


@given(st.data())
def test_broken_replies_raise_kalos_error_only(data):
    """Cut short, or with any bytes changed: KalosError or the ValueError of a text, never a crash or struct.error."""
    raw = bytearray(hits_reply(ROWS))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        page = HitsPage(raw)
        if page.row_count < 1000:
            for group in page.group_lists():
                for hit in group:
                    for name in ("id", "score", "text", "metadata", "namespace", "vector"):
                        getattr(hit, name)
    except (KalosError, ValueError):  # ValueError: text that is not UTF-8, metadata that is not JSON
        pass


@given(st.binary(max_size=200))
def test_noise_is_refused_by_every_decoder(noise):
    for decode in (
        _codec.decode_count,
        _codec.decode_write,
        _codec.decode_namespaces,
        _codec.decode_batch,
        _codec.decode_json,
        HitsPage,
    ):
        with contextlib.suppress(KalosError, UnicodeDecodeError):
            decode(noise)


@given(st.lists(st.text(min_size=1, max_size=20), max_size=16))
def test_namespace_key_round_trip(segments):
    from kalos_memory._checks import namespace_key

    assert _codec.decode_namespace(namespace_key(tuple(segments))) == tuple(segments)


def test_json_message_is_plain_utf8():
    assert json.loads(_codec.json_message({"ü": "😀"}).to_bytes()) == {"ü": "😀"}


def test_what_does_not_decode_in_a_hit_is_an_error_of_ours():
    """A row whose bytes are damaged never raises a bare decoding error of Python's."""
    page = object.__new__(_codec.HitsPage)
    page.data = bytes(8) + b'{"a": 1} \xff\xfe {"a":'
    page.fields, page._head = 0, (0, 0, 0, _abi.INCLUDE_TEXT | _abi.INCLUDE_METADATA)
    for start, end, metadata in ((8, 17, {"a": 1}), (8, 20, None), (20, 25, None)):
        spans = bytearray(40)
        struct.pack_into("<II", spans, _abi.offset_of("kalos_hit_fields", "text"), 58, 2)
        struct.pack_into("<II", spans, _abi.offset_of("kalos_hit_fields", "metadata"), start + 40, end - start)
        damaged = object.__new__(_codec.HitsPage)
        damaged.data, damaged.fields, damaged._head = bytes(spans) + page.data, 0, page._head
        damaged.row_count, damaged.scores, damaged._explain = 1, None, None
        hit = damaged.hit(0)
        with pytest.raises(KalosError, match="makes no sense"):
            _ = hit.text
        if metadata is not None:
            assert hit.metadata == metadata  # white space around an object is allowed
        else:
            with pytest.raises(KalosError, match="makes no sense"):
                _ = hit.metadata
