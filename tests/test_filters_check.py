"""Filters are checked with words before they are sent, by the same rules as in kalosd."""

import json

import pytest

from kalos_memory import InvalidRequest, _abi, _codec
from kalos_memory._calls import Operation
from kalos_memory._filters import encode_filter

GOOD = [
    {},
    {"a": 1},
    {"a": None, "b": [1, {"c": 2}]},
    {"a": {"plain": "object"}},
    {"a": {}},
    {"a": {"$gt": 1, "$lt": 2.5}},
    {"a": {"$in": []}, "b": {"$nin": [1, "x", None]}},
    {"$and": [], "$or": [{"a": 1}, {"b": {"$not": {"$exists": True}}}]},
    {"$not": {"a": 1}},
    {"a": {"$subset": {"b": {"c": 1}}}, "b": {"$contains": "x"}, "c": {"$icontains": "É"}},
    {"a": {"$in": list(range(10_000))}},
    {f"k{i}": i for i in range(64)},
    {"ключ 😀\0": "значение"},
]

BAD = [
    ({"$nor": []}, "known|may stand"),
    ({"$gt": 1}, "where a key is expected|below a metadata key"),
    ({"a": {"$near": 1}}, "known"),
    ({"a": {"$gt": 1, "plain": 2}}, "plain|mixes"),
    ({"a": {"$and": []}}, "known|below a key"),
    ({"$and": {"a": 1}}, "list"),
    ({"$or": [1]}, "filter|object|dict"),
    ({"$not": 3}, "filter|object|dict"),
    ({"a": {"$not": 3}}, "operators"),
    ({"a": {"$not": {"plain": 1}}}, "operators"),
    ({"a": {"$in": 3}}, "list|array"),
    ({"a": {"$in": list(range(10_001))}}, "10,?000"),
    ({"a": {"$exists": 1}}, "[Tt]rue"),
    ({"a": {"$subset": []}}, "object|dict"),
    ({f"k{i}": i for i in range(65)}, "64"),
    ({"a": 1 << 63}, "int64"),
]


def nested(depth):
    """A filter whose innermost part lies at this depth."""
    filter = {"a": 1}
    for _ in range(depth - 1):
        filter = {"$not": filter}
    return filter


def ask(collection, raw):
    """Counts with a filter that the client did not check."""
    message = _codec.count_message(
        collection_id=collection._described["id"], flags=0, min_sequence=0, namespace=b"", filter=raw
    )
    return collection._transport._perform(Operation(_abi.OP_COUNT, message, _codec.decode_count, what="the test"))


@pytest.mark.parametrize("filter", [*GOOD, nested(16)], ids=str)
def test_good_filters_pass_both_sides(collection, filter):
    data = encode_filter(filter)
    assert json.loads(data) == filter
    assert ask(collection, data)[1] == 0


@pytest.mark.parametrize(("filter", "words"), [*BAD, (nested(17), "16")], ids=str)
def test_bad_filters_are_refused_by_both_sides(collection, filter, words):
    """Neither side relies on the other."""
    with pytest.raises(InvalidRequest, match=words):
        encode_filter(filter)
    with pytest.raises(InvalidRequest, match=words):
        ask(collection, json.dumps(filter).encode())


@pytest.mark.parametrize(
    ("filter", "words"),
    [
        ("a = 1", "must be a dict"),
        ([{"a": 1}], "must be a dict"),
        ({1: 2}, "keys are str"),
        ({"a": {1, 2}}, r"\['a'\] is a set"),
        ({"a": (1, 2)}, r"\['a'\] is a tuple"),
        ({"a": {"$gt": float("nan")}}, "nan"),
        ({"a": {"$in": [1, b"x"]}}, r"\[1\] is a bytes"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"$and": [{"b": {"$eq": object()}}]}, r"\['\$and'\]\[0\]\['b'\]"),
    ],
    ids=str,
)
def test_what_is_not_json_is_refused_with_its_place(filter, words):
    with pytest.raises(InvalidRequest, match=words):
        encode_filter(filter)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"a":1}x', b"\xff{}", b'{"a": {"$in": [}}'])
def test_kalosd_refuses_what_is_no_json_object(collection, raw):
    with pytest.raises(InvalidRequest):
        ask(collection, raw)
