"""Every limit of the interface: what is just allowed works, one more is refused in words, and nothing is half done."""

import numpy as np
import pytest

import kalos_memory as kalos
from kalos_memory import _abi, _checks
from kalos_memory._calls import call

V = [1.0, 0.0, 0.0, 0.0]


def wide(size):
    """So many bytes of UTF-8 in a quarter as many characters: limits count bytes."""
    return "😀" * (size // 4) + ("", "x", "ü", "€")[size % 4]


def escaped(size):
    """A str that has so many bytes as JSON, of which most escape what JSON cannot carry as it is."""
    return "\0" * ((size - 2) // 6) + "x" * ((size - 2) % 6)


def metadata_of_depth(depth):
    return {"k": metadata_of_depth(depth - 1)} if depth > 1 else {"k": 1}


def filter_of_depth(depth):
    return {"$and": [filter_of_depth(depth - 1)]} if depth > 1 else {"k": 1}


def open_named(collection, name):
    client = collection._transport
    client.collection(name, dimension=1)
    assert name in [found["name"] for found in client.collections()]
    client.drop_collection(name, confirm=name)


def open_wide(collection, dimension):
    client = collection._transport
    wide = client.collection("wide", dimension=dimension)
    try:
        wide.upsert(["a"], np.ones((1, dimension), np.float32))
        assert [hit.id for hit in wide.search(np.ones(dimension, np.float32))] == ["a"]
    finally:
        client.drop_collection("wide", confirm="wide")


# What has the limit; the limit's name in abi.h; what uses that much of it.
LIMITS = [
    ("id", "MAX_ID_BYTES", lambda c, n: c.upsert(["x" * n], [V])),
    ("id to get", "MAX_ID_BYTES", lambda c, n: c.get(["x" * n])),
    ("id to delete", "MAX_ID_BYTES", lambda c, n: c.delete(["x" * n])),
    ("collection name", "MAX_COLLECTION_NAME_BYTES", lambda c, n: open_named(c, "n" * n)),
    ("collection name, wide", "MAX_COLLECTION_NAME_BYTES", lambda c, n: open_named(c, wide(n))),
    ("namespace", "MAX_NAMESPACE_SEGMENTS", lambda c, n: c.upsert(["a"], [V], namespace=("s",) * n)),
    ("namespace to count", "MAX_NAMESPACE_SEGMENTS", lambda c, n: c.count(namespace=("s",) * n)),
    ("segment", "MAX_NAMESPACE_SEGMENT_BYTES", lambda c, n: c.search(V, namespace="s" * n)),
    ("segment to delete in", "MAX_NAMESPACE_SEGMENT_BYTES", lambda c, n: c.delete(["a"], namespace="s" * n)),
    ("id, wide", "MAX_ID_BYTES", lambda c, n: c.upsert([wide(n)], [V])),
    ("id to delete, wide", "MAX_ID_BYTES", lambda c, n: c.delete([wide(n)])),
    ("segment, wide", "MAX_NAMESPACE_SEGMENT_BYTES", lambda c, n: c.upsert(["a"], [V], namespace=("ü", wide(n)))),
    ("prefix, wide", "MAX_NAMESPACE_SEGMENT_BYTES", lambda c, n: c.namespaces(wide(n))),
    ("suffix, wide", "MAX_NAMESPACE_SEGMENT_BYTES", lambda c, n: c.namespaces(suffix=("s", wide(n)))),
    ("metadata, wide", "MAX_METADATA_BYTES", lambda c, n: c.upsert(["a"], None, metadatas=[{"ü": wide(n - 9)}])),
    ("metadata key", "MAX_METADATA_BYTES", lambda c, n: c.upsert(["a"], None, metadatas=[{wide(n - 6): 1}])),
    ("metadata, escaped", "MAX_METADATA_BYTES", lambda c, n: c.upsert(["a"], None, metadatas=[{"k": escaped(n - 6)}])),
    ("text, wide", "MAX_TEXT_BYTES", lambda c, n: c.upsert(["a"], [V], texts=[wide(n)])),
    ("group_by", "MAX_METADATA_BYTES", lambda c, n: c.search(V, group_by=wide(n))),
    ("dimension", "MAX_DIMENSION", open_wide),
    ("metadata", "MAX_METADATA_BYTES", lambda c, n: c.upsert(["a"], None, metadatas=[{"k": "x" * (n - 8)}])),
    ("depth", "MAX_METADATA_DEPTH", lambda c, n: c.upsert(["a"], None, metadatas=[metadata_of_depth(n)])),
    ("text", "MAX_TEXT_BYTES", lambda c, n: c.upsert(["a"], [V], texts=["x" * n])),
    ("k", "MAX_K", lambda c, n: c.search(V, n)),
    ("offset + k", "MAX_K", lambda c, n: c.search(V, 1000, offset=n - 1000)),
    ("operators", "MAX_FILTER_OPERATORS", lambda c, n: c.count(filter={f"k{i}": i for i in range(n)})),
    ("filter depth", "MAX_FILTER_DEPTH", lambda c, n: c.count(filter=filter_of_depth(n))),
    ("values of $in", "MAX_FILTER_LIST", lambda c, n: c.search(V, filter={"k": {"$in": list(range(n))}})),
    ("values of $nin", "MAX_FILTER_LIST", lambda c, n: c.delete(filter={"k": {"$nin": list(range(n))}})),
    ("batch", "MAX_BATCH_OPERATIONS", lambda c, n: c._transport.batch([c.op.count()] * n)),
]


@pytest.mark.parametrize(("name", "use"), [limit[1:] for limit in LIMITS], ids=[limit[0] for limit in LIMITS])
def test_one_below_at_and_one_above(collection, monkeypatch, name, use):
    """One below the limit and at it all is well; one above is refused in words, by the client before anything is sent,
    and by kalosd where a client does not look. Nothing is changed by what is refused."""
    limit = getattr(_abi, name)
    for allowed in (limit - 1, limit):
        use(collection, allowed)
    rows = collection.count(subtree=True)
    refusals = collection._transport.stats()["requests"]["errors"]
    with pytest.raises(kalos.InvalidRequest) as refused:
        use(collection, limit + 1)
    assert len(str(refused.value)) > 20
    assert collection._transport.stats()["requests"]["errors"] == refusals, "it was kalosd that refused"
    # A client that does not know the limit.
    monkeypatch.setattr(_abi, name, 2 * limit)
    with pytest.raises(kalos.InvalidRequest) as refused:
        use(collection, limit + 1)
    assert len(str(refused.value)) > 20
    monkeypatch.undo()
    _checks._namespace_key.cache_clear()  # of what was let through
    assert collection.count(subtree=True) == rows
    assert collection._transport.health()["status"] == "ready"


def test_what_is_at_its_limit_comes_back_whole(shared, collection):
    """Counted in bytes, whatever the characters."""
    row_id, segment, key = wide(_abi.MAX_ID_BYTES), wide(_abi.MAX_NAMESPACE_SEGMENT_BYTES), wide(10_000)
    space = (segment,) * _abi.MAX_NAMESPACE_SEGMENTS
    metadata = {key: wide(_abi.MAX_METADATA_BYTES - 10_000 - 7)}
    text = wide(_abi.MAX_TEXT_BYTES)
    collection.upsert([row_id], [V], namespace=space, metadatas=[metadata], texts=[text])
    hit = collection.search(V, namespace=segment, subtree=True)[0]
    assert (hit.id, hit.namespace, hit.metadata, hit.text == text) == (row_id, space, metadata, True)
    assert collection.namespaces(space[:-1], suffix=segment) == [space]
    name = wide(_abi.MAX_COLLECTION_NAME_BYTES)
    assert shared.collection(name, dimension=1).name == name
    shared.drop_collection(name, confirm=name)


def test_strings_of_filters(collection, monkeypatch):
    """Have no limit but the message's, and are compared as what they are, not as bytes or escapes: keys and values, in
    every operator, as long as metadata may be and longer."""
    for value in (wide(10_001), wide(300_001), '\0"\\' * 30_000):
        collection.upsert(["a"], [V], metadatas=[{value: value, "list": [value]}])
        matching = [
            {value: value}, {value: {"$in": ["x", value]}}, {value: {"$contains": value[1:-1]}}, {"list": [value]},
            {value: {"$icontains": value[2:]}}, {"list": {"$contains": value}}, {value: {"$exists": True}},
            {value: {"$gte": value, "$lte": value}}, {"$not": {value: value[:-1]}},
        ]  # fmt: skip
        for filter in matching:
            assert collection.count(filter=filter) == 1, f"{filter!r:.100}"
        others = [{value: value + "x"}, {value + "x": value}, {value: {"$gt": value}}, {"list": {"$contains": "x"}}]
        for filter in others:
            assert collection.count(filter=filter) == 0, f"{filter!r:.100}"
    longer = wide(3 * _abi.MAX_METADATA_BYTES)
    assert collection.count(filter={longer: longer}) == 0
    assert collection.count(filter={"k": {"$nin": [longer, "ü" + longer]}}) == 1
    # The message's own limit, brought down to where it can be tried.
    fixed = collection.op.count(filter={"k": ""}).message.nbytes
    monkeypatch.setattr(_abi, "MAX_MESSAGE_BYTES", 1 << 20)
    for size in ((1 << 20) - fixed - 1, (1 << 20) - fixed):
        assert collection.count(filter={"k": wide(size)}) == 0
    with pytest.raises(kalos.InvalidRequest, match="256 MiB"):
        collection.count(filter={"k": wide((1 << 20) - fixed + 1)})


def test_int64_edges(collection):
    """Integers are those of int64; one beyond is refused, in metadata and in filters, whoever looks."""
    edges = {"low": -(2**63), "high": 2**63 - 1}
    collection.upsert(["a"], None, metadatas=[edges])
    assert collection.get(["a"])[0].metadata == edges
    for key, value in edges.items():
        assert collection.count(filter={key: value}) == 1
        assert collection.count(filter={key: {"$in": [value]}}) == 1
        assert collection.count(filter={key: {"$gte": value, "$lte": value}}) == 1
    assert collection.count(filter={"high": {"$gt": 2**63 - 2}}) == 1
    assert collection.count(filter={"high": 2.0**63}) == 0  # which is one more
    assert collection.count(filter={"low": -(2.0**63)}) == 1  # which it is
    for beyond in (2**63, -(2**63) - 1, 10**400):
        with pytest.raises(kalos.InvalidRequest, match="int64"):
            collection.upsert(["a"], None, metadatas=[{"k": beyond}])
        with pytest.raises(kalos.InvalidRequest, match="int64"):
            collection.count(filter={"k": beyond})
    assert collection.get(["a"])[0].metadata == edges


@pytest.mark.parametrize("around", [-1, 0, 1])
def test_messages_around_the_size_of_a_slot(shared, collection, around):
    """Requests and replies of one byte less than a slot's payload, exactly as many and one more come whole."""
    payload = shared.current().lane.payload_bytes
    fixed = len(collection.op.upsert(["a"], None, texts=[""]).message.to_bytes())
    text = "t" * (payload - fixed + around)
    operation = collection.op.upsert(["a"], None, texts=[text])
    assert operation.message.nbytes == payload + around
    shared.batch([operation])
    collection.upsert(["a"], None, texts=[text])
    assert collection.get(["a"])[0].text == text
    # The reply to get: the same, by its own fixed part.
    collection.upsert(["b"], None, texts=["x"])
    reply = call_reply(shared, collection.op.get(["b"]))
    text = "t" * (payload - len(reply) + 1 + around)
    collection.upsert(["b"], None, texts=[text])
    assert len(call_reply(shared, collection.op.get(["b"]))) == payload + around
    assert collection.get(["b"])[0].text == text


def call_reply(client, operation):
    return call(client, operation, None, client._connect).reply


def test_id(collection):
    ids = ["x" * _abi.MAX_ID_BYTES, "ü" * (_abi.MAX_ID_BYTES // 2)]
    collection.upsert(ids, [V, V])
    assert [hit.id for hit in collection.get(ids)] == ids
    with pytest.raises(kalos.InvalidRequest, match="1024"):
        collection.upsert(["x" * (_abi.MAX_ID_BYTES + 1)], [V])


def test_namespace(collection):
    deepest = ("s" * _abi.MAX_NAMESPACE_SEGMENT_BYTES,) * _abi.MAX_NAMESPACE_SEGMENTS
    collection.upsert(["a"], [V], namespace=deepest)
    assert collection.search(V, namespace=deepest)[0].namespace == deepest
    assert collection.namespaces(deepest[:15], max_depth=16) == [deepest]
    with pytest.raises(kalos.InvalidRequest, match="17 segments"):
        collection.count(namespace=(*deepest, "s"))


@pytest.mark.parametrize("dimension", [1, _abi.MAX_DIMENSION])
def test_dimension(shared, dimension):
    name = f"limit-{dimension}"
    collection = shared.collection(name, dimension=dimension)
    vectors = np.eye(3, dimension, dtype=np.float32)
    collection.upsert(list("abc"), vectors)
    hit = collection.search(vectors[0], include=("vector",))[0]
    assert hit.id == "a"
    assert np.array_equal(hit.vector, vectors[0])
    shared.drop_collection(name, confirm=name)


def test_k(collection):
    """k = 1,024 of 1,100 rows; offset reaches into the last of them."""
    collection.upsert([str(i) for i in range(1100)], [[1, i, 0, 0] for i in range(1100)])
    assert [hit.id for hit in collection.search(V, _abi.MAX_K, include=())] == [str(i) for i in range(1024)]
    assert [hit.id for hit in collection.search(V, 24, offset=1000, include=())] == [str(i) for i in range(1000, 1024)]
    with pytest.raises(kalos.InvalidRequest):
        collection.search(V, _abi.MAX_K + 1)


def test_text_of_16_mib_and_replies_larger_than_a_slot(collection):
    """A batch larger than the lane and a reply larger than a slot travel in parts and come back whole."""
    texts = ["", "x" * (1 << 20), "ü" * (_abi.MAX_TEXT_BYTES // 2), "\0" * 300_000]
    ids = list("abcd")
    collection.upsert(ids, [V] * 4, texts=texts)
    assert [hit.text for hit in collection.get(ids)] == texts
    assert [hit.text for hit in collection.search(V)] == texts
    assert [hit.text for hit in collection.scan()] == texts
    with pytest.raises(kalos.InvalidRequest, match="16 MiB"):
        collection.upsert(["e"], [V], texts=["x" * (_abi.MAX_TEXT_BYTES + 1)])


def test_metadata_of_1_mib(collection):
    room = _abi.MAX_METADATA_BYTES - len('{"k":""}')
    collection.upsert(["a"], None, metadatas=[{"k": "x" * room}])
    assert len(collection.get(["a"])[0].metadata["k"]) == room
    with pytest.raises(kalos.InvalidRequest, match="1 MiB"):
        collection.upsert(["a"], None, metadatas=[{"k": "x" * (room + 1)}])


def test_metadata_depth(collection):
    deepest = {"k": 1}
    for _ in range(_abi.MAX_METADATA_DEPTH - 1):
        deepest = {"k": deepest}
    collection.upsert(["a"], None, metadatas=[deepest])
    assert collection.get(["a"])[0].metadata == deepest
    with pytest.raises(kalos.InvalidRequest, match="deeper than 32"):
        collection.upsert(["a"], None, metadatas=[{"k": deepest}])


def test_int64(collection):
    metadata = {"low": -(2**63), "high": 2**63 - 1, "beyond 2^53": 2**53 + 1}
    collection.upsert(["a"], None, metadatas=[metadata])
    assert collection.get(["a"])[0].metadata == metadata
    assert collection.count(filter={"beyond 2^53": 2**53 + 1}) == 1
    assert collection.count(filter={"beyond 2^53": float(2**53)}) == 0


def test_a_batch_over_256_mib_is_refused_before_its_first_byte(shared, collection):
    """By its vectors alone, in words, and the lane is as good as before."""
    name = "limit-256"
    wide = shared.collection(name, dimension=8192)
    before = shared.stats()["requests"]["bytes_in"]
    rows = (_abi.MAX_MESSAGE_BYTES // (8192 * 4)) + 1
    with pytest.raises(kalos.InvalidRequest, match="256 MiB"):
        wide.upsert([str(i) for i in range(rows)], np.zeros((rows, 8192), np.float32))
    with pytest.raises(kalos.InvalidRequest, match="256 MiB"):
        wide.search(np.zeros((rows, 8192), np.float32))
    assert shared.stats()["requests"]["bytes_in"] == before
    assert wide.count() == 0
    shared.drop_collection(name, confirm=name)


def test_a_reply_over_256_mib_is_refused_with_what_to_ask_instead(shared):
    name = "limit-reply"
    collection = shared.collection(name, dimension=1)
    collection.upsert(["a"], [[1.0]], texts=["x" * _abi.MAX_TEXT_BYTES])
    with pytest.raises(kalos.InvalidRequest, match=r"256 MiB|268435456|268,435,456"):
        collection.get(["a"] * 17)
    assert len(collection.get(["a"] * 3)) == 3
    shared.drop_collection(name, confirm=name)


def test_a_large_batch_is_one_transaction(collection):
    """20,000 rows in one call, over many slots' worth of parts."""
    rows = np.random.default_rng(1).standard_normal((20_000, 4), dtype=np.float32)
    ids = [f"row-{i}" for i in range(len(rows))]
    collection.upsert(ids, rows, metadatas=[{"i": i} for i in range(len(rows))])
    assert collection.count() == len(rows)
    assert sum(1 for _ in collection.scan(include=())) == len(rows)
    assert collection.delete(filter={"i": {"$lt": 10_000}}) == 10_000
    assert collection.delete(ids) == 10_000


def test_operations_of_a_batch(shared, collection):
    assert shared.batch([collection.op.count()] * 2000) == [0] * 2000
    with pytest.raises(kalos.InvalidRequest, match="100,000"):
        shared.batch([collection.op.count()] * (_abi.MAX_BATCH_OPERATIONS + 1))


@pytest.mark.parametrize("with_a_write", [False, True], ids=["reads", "reads and a write"])
def test_the_replies_of_a_batch_are_bounded_while_they_are_made(client, sidecar_pid, with_a_write):
    """A small request cannot make kalosd hold many times what it may answer with."""
    collection = client.collection("notes", dimension=4)
    collection.upsert(["a"], [V], texts=["x" * _abi.MAX_TEXT_BYTES])
    reads = [collection.op.get(["a"]), collection.op.search(V)] * 40
    writes = [collection.op.upsert(["b"], [V])] if with_a_write else []
    with pytest.raises(kalos.InvalidRequest, match=r"operation \d+.*reply"):
        client.batch(reads + writes)
    with open(f"/proc/{sidecar_pid(client)}/status") as status:
        peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak_kib < 700 * 1024  # 1,280 MiB for all of them
    assert collection.count() == 1
