"""Collection: right answers, compared with the oracle bit by bit; right order; every bad input refused in words."""

import copy
import itertools
import math
import pickle
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kalos_memory as kalos

V = [1.0, 0.0, 0.0, 0.0]
NOW = datetime.now(timezone.utc)
_numbers = itertools.count(1)
slow = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


class fresh:  # noqa: N801
    """A collection for one example of a property test."""

    def __init__(self, client, dimension, metric="cosine"):
        self.client, self.dimension, self.metric = client, dimension, metric
        self.name = f"property-{next(_numbers)}"

    def __enter__(self):
        return self.client.collection(self.name, dimension=self.dimension, metric=self.metric)

    def __exit__(self, *_):
        self.client.drop_collection(self.name, confirm=self.name)


# ------------------------------------------------------------------------------------------ the oracle ---------------

# Numbers whose sums depend on the order of summing, ties, zeros of both signs, subnormals and extremes.
components = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3.0]),
    st.floats(-1, 1, width=32),
    st.sampled_from([1e-45, 1e-38, -1e-30, 1e15, -1e18, 16777217.0]),
)


@given(
    data=st.data(), metric=st.sampled_from(["cosine", "dot", "l2"]), dimension=st.sampled_from([1, 3, 31, 32, 33, 70])
)
@slow
def test_search_is_the_brute_force_bit_for_bit(shared, data, metric, dimension):
    """Scores equal the canonical arithmetic exactly, order is by score and then by insertion, at every k and offset."""
    vectors = st.lists(components, min_size=dimension, max_size=dimension)
    rows = data.draw(st.lists(st.none() | vectors, min_size=0, max_size=12))
    rows += data.draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else []  # ties
    queries = data.draw(st.lists(vectors, min_size=1, max_size=3))
    k = data.draw(st.integers(0, 20))
    offset = data.draw(st.integers(0, 5))
    with fresh(shared, dimension, metric) as collection:
        ids = [f"id{i}" for i in range(len(rows))]
        collection.upsert(ids, rows)
        found = collection.search(queries, k, offset=offset, include=())
        for query, hits in zip(queries, found, strict=True):
            expected = oracle.search(metric, query, list(zip(ids, rows, strict=True)), k + offset)[offset:]
            assert [(hit.id, hit.score) for hit in hits] == expected


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**53, 2**53 + 1, float(2**53), 0.5, 1.0, -0.0, 1e300, 2**63 - 1, -(2**63)])
    | st.sampled_from(["", "a", "b", "ab", "AB", "Ä", "ä", "z", "\U00010000", "\uffff", "x\0y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=2),
    max_leaves=4,
)
keys = st.sampled_from(["a", "b", "a.b", "c"])
metadatas = st.none() | st.dictionaries(keys, json_values, max_size=3)


def operators(depth):
    simple = st.one_of(
        st.tuples(st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains"]), json_values),
        st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(json_values, max_size=3)),
        st.tuples(st.just("$exists"), st.booleans()),
        st.tuples(st.just("$icontains"), st.sampled_from(["", "a", "AB", "ä"])),
        st.tuples(st.just("$subset"), st.dictionaries(st.sampled_from(["a", "b"]), json_values, max_size=2)),
    )
    if depth:
        simple |= st.tuples(st.just("$not"), st.deferred(lambda: operators(depth - 1)))
    return st.lists(simple, min_size=1, max_size=2).map(dict)


def filters(depth):
    plain = st.tuples(keys, json_values | operators(1))
    if depth:
        inner = st.deferred(lambda: filters(depth - 1))
        plain |= st.tuples(st.sampled_from(["$and", "$or"]), st.lists(inner, max_size=2))
        plain |= st.tuples(st.just("$not"), inner)
    return st.lists(plain, max_size=2).map(dict)


@given(rows=st.lists(metadatas, min_size=1, max_size=8), asked=st.lists(filters(2), min_size=1, max_size=4))
@settings(slow, max_examples=120)
def test_filters_are_those_of_the_oracle(shared, rows, asked):
    """Count, scan and search agree with the description of the operators, on any JSON."""
    with fresh(shared, 1) as collection:
        ids = [str(i) for i in range(len(rows))]
        collection.upsert(ids, [[1.0]] * len(rows), metadatas=rows)
        for filter in asked:
            expected = [id for id, row in zip(ids, rows, strict=True) if oracle.matches(filter, row)]
            assert [hit.id for hit in collection.scan(filter=filter, include=())] == expected, filter
            assert [hit.id for hit in collection.search([1.0], 100, filter=filter, include=())] == expected
            assert collection.count(filter=filter) == len(expected)


@given(metadatas)
@slow
def test_metadata_comes_back_as_it_was(shared, metadata):
    """Every JSON value survives, with its types: ints stay ints, floats floats, in the order of the keys."""
    with fresh(shared, 1) as collection:
        collection.upsert(["a"], None, metadatas=[metadata])
        found = collection.get(["a"])[0].metadata
        assert repr(found) == repr(metadata or {})


@given(st.text())
@slow
def test_any_text_comes_back_as_it_was(shared, text):
    with fresh(shared, 1) as collection:
        collection.upsert(["a"], None, texts=[text], metadatas=[{text: text}])
        hit = collection.get(["a"])[0]
        assert (hit.text, hit.metadata) == (text, {text: text})


@given(st.text(min_size=1, max_size=100))
@slow
def test_any_text_may_be_an_id_and_a_namespace(shared, text):
    with fresh(shared, 1) as collection:
        namespace = (text[:60], "x")
        collection.upsert([text], [[1.0]], namespace=namespace)
        assert [hit.id for hit in collection.search([2.0], namespace=namespace)] == [text]
        assert collection.get([text], namespace=namespace)[0].namespace == namespace
        assert collection.namespaces() == [namespace]


def test_a_larger_search(shared):
    """2,000 rows of dimension 384 against the oracle's arithmetic, vectorised in double for speed and then exact."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((2000, 384), dtype=np.float32)
    with fresh(shared, 384) as collection:
        ids = [f"r{i}" for i in range(len(rows))]
        collection.upsert(ids, rows)
        for query in rng.standard_normal((3, 384), dtype=np.float32):
            rough = rows.astype(np.float64) @ query.astype(np.float64) / np.linalg.norm(rows, axis=1)
            candidates = np.sort(np.argsort(-rough)[:40])
            expected = oracle.search("cosine", query, [(ids[i], rows[i]) for i in candidates], 10)
            assert [(hit.id, hit.score) for hit in collection.search(query, 10, include=())] == expected


# ------------------------------------------------------------------------------------------- behaviour ---------------


def test_every_field_comes_back(collection):
    vector = np.array([0.1, -2.5, 3e-40, 7], np.float32)
    before = datetime.now(timezone.utc)
    collection.upsert(
        ["ä"], vector[None], texts=["t\0😀 שלום"], metadatas=[{"k": {"l": [1, 1.0, None]}}], namespace="n"
    )
    hit = collection.search(vector, namespace="n", include=("vector", "text", "metadata"), explain=True)[0]
    assert (hit.id, hit.text, hit.metadata) == ("ä", "t\0😀 שלום", {"k": {"l": [1, 1.0, None]}})
    assert type(hit.metadata["k"]["l"][0]) is int
    assert type(hit.metadata["k"]["l"][1]) is float
    assert hit.vector.tobytes() == vector.tobytes()
    assert not hit.vector.flags.writeable
    assert hit.namespace == ("n",)
    assert before - timedelta(minutes=10) < hit.created_at <= hit.updated_at
    assert hit.explain["device"]
    assert collection.get(["ä"], namespace="n")[0].explain is None
    for twin in (copy.copy(hit), pickle.loads(pickle.dumps(hit))):
        assert twin == hit


def test_what_is_not_included_is_none(collection):
    collection.upsert(["a"], [V], texts=["t"], metadatas=[{"k": 1}])
    hit = collection.search(V, include=())[0]
    assert (hit.text, hit.metadata, hit.vector) == (None, None, None)
    assert collection.search(V)[0].vector is None


def test_absent_differs_from_empty(collection):
    collection.upsert(["a", "b"], [V, V], texts=["", None], metadatas=[{}, None])
    a, b = collection.get(["a", "b"])
    assert (a.text, b.text) == ("", None)
    assert a.metadata == b.metadata == {}


def test_changing_a_hit_changes_nothing_else(collection):
    collection.upsert(["a"], [V], metadatas=[{"list": [1]}])
    hit = collection.get(["a"])[0]
    hit.metadata["list"].append(2)
    hit.metadata["new"] = 1
    assert collection.get(["a"])[0].metadata == {"list": [1]}


def test_upsert_replaces_the_row_as_a_whole_and_keeps_its_place(collection):
    """The old text and metadata are gone, created_at and the tie order stay; deleted and inserted anew it is last."""
    collection.upsert(["a", "b"], [V, V], texts=["old", "b"], metadatas=[{"old": 1}, None])
    created = collection.get(["a"])[0].created_at
    collection.upsert(["a"], [V])
    hit = collection.get(["a"])[0]
    assert (hit.text, hit.metadata, hit.created_at) == (None, {}, created)
    assert hit.updated_at >= created
    assert [hit.id for hit in collection.search(V)] == ["a", "b"]
    assert [hit.id for hit in collection.scan(order="updated")] == ["a", "b"]
    collection.delete(["a"])
    collection.upsert(["a"], [V])
    assert [hit.id for hit in collection.search(V)] == ["b", "a"]


def test_duplicate_ids_in_a_batch(collection):
    """The first's place and the last's value."""
    collection.upsert(["a", "b", "a"], [V, V, [0, 1, 0, 0]], texts=["1", "2", "3"])
    assert collection.count() == 2
    assert [(hit.id, hit.text) for hit in collection.scan()] == [("a", "3"), ("b", "2")]


def test_rows_without_a_vector_are_listed_but_never_found(collection):
    collection.upsert(["a", "b"], [None, V], metadatas=[{"k": 1}, {"k": 1}])
    collection.upsert(["c"], None, metadatas=[{"k": 1}])
    assert [hit.id for hit in collection.search(V, 10, filter={"k": 1})] == ["b"]
    assert collection.count(filter={"k": 1}) == 3
    assert [hit.id for hit in collection.scan()] == ["a", "b", "c"]
    assert collection.get(["a"], include=("vector",))[0].vector is None


def test_namespaces_are_walls(collection):
    """A namespace sees itself only; subtree adds what lies below; the prefix of a segment is not below it."""
    places = [(), ("a",), ("a", "b"), ("ab",), ("a", "b", "c")]
    for place in places:
        collection.upsert(["x"], [V], texts=[repr(place)], namespace=place)
    for place in places:
        assert [hit.text for hit in collection.search(V, namespace=place)] == [repr(place)]
        assert collection.count(namespace=place) == 1
        below = sorted(other for other in places if other[: len(place)] == place)
        assert sorted(hit.namespace for hit in collection.search(V, namespace=place, subtree=True)) == below
        assert collection.count(namespace=place, subtree=True) == len(below)
    assert collection.get(["x"], namespace="a")[0].text == repr(("a",))
    assert collection.get(["x"], namespace=("no",)) == [None]
    assert collection.delete(["x"], namespace="a") == 1
    assert collection.count(subtree=True) == 4
    assert collection.delete(everything=True, namespace="a", subtree=True) == 2
    assert sorted(hit.namespace for hit in collection.scan(subtree=True)) == [(), ("ab",)]


def test_namespaces_are_listed(collection):
    for place in [("u", "1", "x"), ("u", "2", "x"), ("u", "1", "y"), ("v",)]:
        collection.upsert(["a"], [V], namespace=place)
    assert collection.namespaces() == sorted(collection.namespaces())
    assert set(collection.namespaces()) == {("u", "1", "x"), ("u", "1", "y"), ("u", "2", "x"), ("v",)}
    assert collection.namespaces("u", max_depth=2) == [("u", "1"), ("u", "2")]
    assert collection.namespaces(suffix="x") == [("u", "1", "x"), ("u", "2", "x")]
    assert collection.namespaces(prefix=("u", "1"), suffix=("y",)) == [("u", "1", "y")]
    assert collection.namespaces(limit=2, offset=1) == collection.namespaces()[1:3]
    assert collection.namespaces(limit=0) == []


def test_min_score_and_max_distance(shared):
    with fresh(shared, 1, "dot") as collection:
        collection.upsert(["1", "2", "3"], [[1], [2], [3]])
        assert [hit.id for hit in collection.search([1.0], min_score=2)] == ["3", "2"]
        assert collection.search([1.0], min_score=4) == []
        with pytest.raises(kalos.InvalidRequest, match="min_score"):
            collection.search([1.0], max_distance=1)
    with fresh(shared, 1, "l2") as collection:
        collection.upsert(["1", "2", "3"], [[1], [2], [3]])
        assert [(hit.id, hit.score) for hit in collection.search([1.0], max_distance=1)] == [("1", 0.0), ("2", 1.0)]
        with pytest.raises(kalos.InvalidRequest, match="max_distance"):
            collection.search([1.0], min_score=1)


def test_group_by_keeps_the_best_of_each_value(collection):
    rows = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 2, 0, 0], [1, 3, 0, 0], [1, 4, 0, 0]]
    collection.upsert(list("abcde"), rows, metadatas=[{"g": {"h": 1}}, {"g": {"h": 1.0}}, {"g": {"h": "1"}}, {}, None])
    assert [hit.id for hit in collection.search(V, group_by="g.h")] == ["a", "c", "d", "e"]
    assert [hit.id for hit in collection.search(V, 2, offset=1, group_by="g.h")] == ["c", "d"]


def test_expiry(collection):
    """Rows are gone once their moment has passed, before anybody deletes them."""
    soon = datetime.now(timezone.utc) + timedelta(seconds=1.5)
    collection.upsert(["never", "past", "soon"], [V, V, V], expires_at=[None, NOW - timedelta(days=1), soon])
    collection.upsert(["zone"], [V], expires_at=NOW.astimezone(timezone(timedelta(hours=9))) + timedelta(days=1))
    collection.upsert(["ancient"], [V], expires_at=datetime(1960, 1, 1, tzinfo=timezone.utc))
    first = {hit.id for hit in collection.scan()}
    assert first in ({"never", "soon", "zone"}, {"never", "zone"})  # the machine may be slow
    while datetime.now(timezone.utc) <= soon:
        pass
    assert {hit.id for hit in collection.search(V)} == {"never", "zone"}
    assert collection.count() == 2


def test_delete_by_ids_filter_both_and_everything(collection):
    collection.upsert(list("abcdef"), [V] * 6, metadatas=[{"n": n} for n in range(6)])
    assert collection.delete(["a", "nope", "a"]) == 1
    assert collection.delete([]) == 0
    assert collection.delete(filter={"n": {"$gte": 5}}) == 1
    assert collection.delete(["b", "c"], filter={"n": 2}) == 1
    assert [hit.id for hit in collection.scan()] == ["b", "d", "e"]
    for nothing in (
        {},
        {"filter": {}},
        {"filter": {"$and": []}},
        {"filter": {"$and": [{}, {"$and": [{}]}]}},
        {"everything": False},
        {"everything": True, "ids": ["b"]},
    ):
        with pytest.raises(kalos.InvalidRequest, match="everything"):
            collection.delete(**nothing)
    assert collection.count() == 3
    assert collection.delete(everything=True) == 3
    assert collection.count() == 0


@pytest.mark.parametrize("order", ["insertion", "updated"])
def test_scan_pages_through_everything(collection, order, monkeypatch):
    """Every row once, in order, at any page size, with offset and limit across pages."""
    ids = [f"{i:03}" for i in range(57)]
    for start in range(0, 57, 10):
        collection.upsert(ids[start : start + 10], [V] * len(ids[start : start + 10]), metadatas=None)
    whole = [hit.id for hit in collection.scan(order=order)]
    assert sorted(whole) == ids
    if order == "insertion":
        assert whole == ids
    for page in (1, 7, 57):
        monkeypatch.setattr("kalos_memory._collection._PAGE_ROWS", page)
        assert [hit.id for hit in collection.scan(order=order)] == whole
        for offset, limit in ((0, 0), (0, 1), (5, 20), (50, 20), (57, 1), (1000, None), (3, None)):
            last = None if limit is None else offset + limit
            found = [hit.id for hit in collection.scan(order=order, offset=offset, limit=limit)]
            assert found == whole[offset:last], (page, offset, limit)


def test_scan_checks_its_arguments_at_once(collection):
    """Not when the first row is asked for."""
    for bad in ({"order": "random"}, {"limit": -1}, {"offset": 1.5}, {"filter": 3}, {"include": "text"}):
        with pytest.raises(kalos.InvalidRequest):
            collection.scan(**bad)


def test_search_shapes(collection):
    """One vector gives one list, a matrix a list of lists, whatever holds the numbers."""
    collection.upsert(["a"], [V])
    for one in (V, tuple(V), np.array(V), np.array(V, np.float16), np.array([1, 0, 0, 0]), memoryview(np.array(V))):
        assert [hit.id for hit in collection.search(one)] == ["a"]
    for many in ([V, V], np.array([V, V]), np.array([V, V], np.float32)[::-1], np.array([V, V], order="F")):
        assert [[hit.id for hit in hits] for hits in collection.search(many)] == [["a"], ["a"]]
    assert collection.search([]) == []
    assert collection.search(np.zeros((0, 4), np.float32)) == []
    strided = np.zeros(8, np.float32)[::2]
    strided[0] = 1
    assert collection.search(strided)[0].score == 1
    assert collection.search(np.array(V, ">f4"))[0].score == 1


def test_k_of_0_and_beyond_the_count(collection):
    assert collection.search(V) == []
    collection.upsert(["a", "b"], [V, V])
    assert collection.search(V, 0) == []
    assert collection.search([V, V], 0) == [[], []]
    assert len(collection.search(V, 1024)) == 2
    assert len(collection.search(V, np.int64(1))) == 1
    assert collection.search(V, 2, offset=2) == []


def test_zero_vector_scores_0(collection):
    collection.upsert(["zero", "v"], [[0, 0, 0, 0], [-1, 0, 0, 0]])
    assert [(hit.id, hit.score) for hit in collection.search(V)] == [("zero", 0.0), ("v", -1.0)]
    assert [hit.score for hit in collection.search([0, 0, 0, 0])] == [0.0, 0.0]


def test_torch_tensors_are_arrays(collection):
    torch = pytest.importorskip("torch")
    collection.upsert(["a"], torch.tensor([V]))
    assert collection.search(torch.tensor(V))[0].id == "a"
    with pytest.raises(kalos.InvalidRequest, match="grad"):
        collection.search(torch.tensor(V, requires_grad=True))


def test_device_arrays_without_cupy_are_refused_with_the_way_out(collection, monkeypatch):
    on_device = SimpleNamespace(__cuda_array_interface__={"shape": (4,), "typestr": "<f4", "data": (0, False)})
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(kalos.InvalidRequest, match=r"kalos-memory\[gpu\]"):
        collection.search(on_device)


def test_empty_upsert(collection):
    """Nothing to write is no error, and the sequence is one that is visible."""
    sequence = collection.upsert([], [])
    assert isinstance(sequence, int)
    assert collection.count(min_sequence=sequence) == 0
    collection.upsert([], None)
    collection.upsert([], np.zeros((0, 4), np.float32), texts=[], metadatas=[])


def test_repr_and_pickle_of_operations(collection):
    assert "dimension 4" in repr(collection)


def test_search_timings(collection):
    collection.upsert(["a"], [V])
    hits, timings = collection._search_timed(V, 1)
    assert hits[0].id == "a"
    for name in ("queue_us", "search_us", "fetch_us", "transport_us"):
        assert getattr(timings, name) >= 0
    assert timings.search_us > 0


# ------------------------------------------------------------------------------------------- bad inputs --------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ([1, 2, 3], "3 components.*dimension 4"),
        ([[1, 2, 3]], "3 components.*dimension 4"),
        (np.zeros((1, 1, 4)), "3 axes"),
        (3.0, "0 axes"),
        (None, "None|object"),
        ("1,0,0,0", "real numbers"),
        ([True, False, True, False], "bool"),
        ([1j, 0, 0, 0], "complex"),
        (["1", "0", "0", "0"], "real numbers"),
        ([[1, 0, 0, 0], [1, 0]], "cannot be read|equal length"),
        ([1, NAN, 0, 0], "nan|NaN|finite"),
        ([INF, 0, 0, 0], "inf|finite"),
        ([1e39, 0, 0, 0], "inf|finite"),
        (np.array([-1e300, 0, 0, 0]), "inf|finite"),
        (np.array([V, [0, 0, 0, NAN]], np.float32), "nan|NaN|finite"),
        (np.zeros(0), "0 components"),
    ],
    ids=str,
)
def test_bad_query_vectors(collection, vectors, words):
    with pytest.raises(kalos.InvalidRequest, match=words):
        collection.search(vectors)


HUGE = 10**5000  # longer than Python turns into a str


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no words for this")


@pytest.mark.parametrize("value", [HUGE, Unprintable()], ids=["huge int", "unprintable"])
@pytest.mark.parametrize(
    "call",
    [
        lambda c, value: c.upsert([value], [V]),
        lambda c, value: c.upsert(["a"], [V], namespace=(value,)),
        lambda c, value: c.upsert(["a"], [V], texts=[value]),
        lambda c, value: c.upsert(["a"], [V], metadatas=[{"key": value}]),
        lambda c, value: c.upsert(["a"], [V], metadatas=[{value: 1}]),
        lambda c, value: c.upsert(["a"], [V], expires_at=[value]),
        lambda c, value: c.search(V, value),
        lambda c, value: c.search(V, min_score=value),
        lambda c, value: c.search(V, filter=value),
        lambda c, value: c.search(V, filter={value: 1}),
        lambda c, value: c.search(V, filter={"key": value}),
        lambda c, value: c.search(V, filter={"key": {"$exists": value}}),
    ],
)
def test_any_bad_value_is_refused_in_words(collection, call, value):
    """Also one that cannot be shown in them."""
    with pytest.raises(kalos.InvalidRequest):
        call(collection, value)
    assert collection.count() == 0


def test_masked_numbers_are_no_numbers(collection):
    masked = np.ma.masked_array([V], mask=[[True, False, False, False]])
    with pytest.raises(kalos.InvalidRequest, match="masked"):
        collection.upsert(["a"], masked)
    with pytest.raises(kalos.InvalidRequest, match="masked"):
        collection.search(masked[0])
    collection.upsert(["a"], np.ma.masked_array([V]))  # nothing is masked
    assert collection.search(np.ma.masked_array(V))[0].id == "a"


def test_a_search_that_was_asked_before_is_checked_all_the_same(collection):
    """True and 1.0 are equal to 1, but no offsets: also after an offset of 1 was fine."""
    collection.search(V, offset=1)
    for offset in (True, 1.0):
        with pytest.raises(kalos.InvalidRequest, match="offset"):
            collection.search(V, offset=offset)


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ([V], "1 rows for 2 ids"),
        (V, "1 axes|2 rows|axes"),
        ([V, V[:3]], "cannot be read|equal length"),
        ([V, None, V], "3 elements for 2 ids"),
        ([None, V[:3]], r"vectors\[1\] has 3 components"),
        ([None, [V]], r"vectors\[1\] has 2 axes"),
        (np.zeros((2, 5)), "5 components.*dimension 4"),
        (np.array([V, [0, NAN, 0, 0]]), r"vectors\[1\].*nan at 1"),
        ([None, [0, 0, INF, 0]], r"vectors\[1\].*inf at 2"),
        (np.array([V, [0, 0, 0, 1e39]]), r"vectors\[1\].*inf at 3"),
        (np.array([V, [0, 0, 0, 1]], object), "object"),
        ("ab", "real numbers|axes"),
    ],
    ids=str,
)
def test_bad_vectors_to_store(collection, vectors, words):
    with pytest.raises(kalos.InvalidRequest, match=words):
        collection.upsert(["a", "b"], vectors)
    assert collection.count() == 0


BAD_IDS = [
    ([""], "empty"),
    ([1], "must be a str"),
    ([b"a"], "must be a str"),
    ([None], "must be a str"),
    (["x" * 1025], "1025 bytes"),
    (["ü" * 513], "1026 bytes"),
    (["\ud800"], "lone surrogate"),
    ("abc", "list of str"),
    (b"abc", "list of str"),
    ({"a": 1}, "list of str"),
    (7, "list of str"),
]


@pytest.mark.parametrize(("ids", "words"), BAD_IDS, ids=str)
def test_bad_ids(collection, ids, words):
    """Refused by everything that takes ids, with the position."""
    for use in (lambda: collection.upsert(ids, None), lambda: collection.get(ids), lambda: collection.delete(ids)):
        with pytest.raises(kalos.InvalidRequest, match=words):
            use()


BAD_NAMESPACES = [
    (["a"], "tuple"),
    (None, "tuple"),
    (3, "tuple"),
    (b"a", "tuple"),
    ("", "0 bytes"),
    (("a", ""), "segment 1.*0 bytes"),
    (("a", 1), "segment 1"),
    (("a", ["b"]), "tuple"),
    (("x" * 257,), "257 bytes"),
    (("a",) * 17, "17 segments"),
    ("\udfff", "surrogate"),
]


@pytest.mark.parametrize(("namespace", "words"), BAD_NAMESPACES, ids=str)
def test_bad_namespaces(collection, namespace, words):
    """Refused everywhere, never taken for the root or for everything."""
    for use in (
        lambda: collection.upsert(["a"], [V], namespace=namespace),
        lambda: collection.search(V, namespace=namespace),
        lambda: collection.get(["a"], namespace=namespace),
        lambda: collection.count(namespace=namespace),
        lambda: collection.delete(["a"], namespace=namespace),
        lambda: collection.scan(namespace=namespace),
        lambda: collection.namespaces(prefix=namespace),
        lambda: collection.namespaces(suffix=namespace),
    ):
        with pytest.raises(kalos.InvalidRequest, match=words):
            use()


class Odd:
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((1, 2), "tuple"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (NOW, "datetime"),
        (date(2026, 1, 1), "date"),
        (Decimal("1.5"), "Decimal"),
        (1 + 2j, "complex"),
        (Odd(), "Odd"),
        (np.float32(1), "float32"),
        (np.int64(1), "int64"),
        (np.bool_(True), "bool"),
        (np.zeros(2), "ndarray"),
        (NAN, "nan"),
        (INF, "inf"),
        (-INF, "inf"),
        (1 << 63, "int64"),
        (-(1 << 63) - 1, "int64"),
        ({1: "x"}, "JSON keys are str"),
        ({None: "x"}, "JSON keys are str"),
        ("\ud800", "surrogate"),
        ({"\udc00": 1}, "surrogate"),
    ],
    ids=str,
)
def test_metadata_that_is_not_json_is_refused_with_its_key(collection, value, words):
    """At any depth; nothing is coerced in silence."""
    for metadata, where in (
        ({"ok": 1, "bad": value}, "bad"),
        ({"deep": [{"er": value}]}, r"deep.*er"),
        ({"a": 1.5, "list": ["x", value]}, "list"),
    ):
        with pytest.raises(kalos.InvalidRequest, match=words) as caught:
            collection.upsert(["a", "b"], None, metadatas=[{}, metadata])
        assert "metadatas[1]" in str(caught.value)
        if "surrogate" not in words:
            import re

            assert re.search(where, str(caught.value))
    assert collection.count() == 0


def test_metadata_refers_to_itself(collection):
    loop = {}
    loop["self"] = loop
    with pytest.raises(kalos.InvalidRequest, match="deeper than 32"):
        collection.upsert(["a"], None, metadatas=[loop])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"metadatas": {"k": 1}}, "metadatas must be a list"),
        ({"metadatas": [{}]}, "1 elements for 2 ids"),
        ({"metadatas": [{}, [1]]}, r"metadatas\[1\] must be a dict"),
        ({"metadatas": [{}, "x"]}, r"metadatas\[1\] must be a dict"),
        ({"metadatas": [{}, {1: 2}]}, "keys are str"),
        ({"texts": "ab"}, "texts must be a list"),
        ({"texts": ["a"]}, "1 elements for 2 ids"),
        ({"texts": ["a", b"b"]}, r"texts\[1\] must be a str"),
        ({"texts": ["a", 3]}, r"texts\[1\] must be a str"),
        ({"texts": ["a", "x\ud83d"]}, r"texts\[1\] holds a lone surrogate.*character 1"),
        ({"expires_at": datetime(2030, 1, 1)}, "naive"),  # noqa: DTZ001
        ({"expires_at": [None, datetime(2030, 1, 1)]}, r"expires_at\[1\].*naive"),  # noqa: DTZ001
        ({"expires_at": 3600}, "one element for each"),
        ({"expires_at": [3600, None]}, r"expires_at\[0\]"),
        ({"expires_at": [NOW]}, "1 elements"),
        ({"expires_at": date(2030, 1, 1)}, "one element for each"),
        ({"durability": "never"}, "durability"),
        ({"durability": True}, "durability"),
    ],
    ids=str,
)
def test_bad_columns(collection, columns, words):
    with pytest.raises(kalos.InvalidRequest, match=words):
        collection.upsert(["a", "b"], None, **columns)
    assert collection.count() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": -1}, "k is -1"),
        ({"k": 1025}, "1025"),
        ({"k": 1.5}, "k must be an int"),
        ({"k": 1.0}, "k must be an int"),
        ({"k": True}, "k must be an int"),
        ({"k": "3"}, "k must be an int"),
        ({"k": None}, "k must be an int"),
        ({"k": 1000, "offset": 25}, "offset \\+ k"),
        ({"offset": -1}, "offset"),
        ({"include": "text"}, "tuple"),
        ({"include": ("texts",)}, "include"),
        ({"include": None}, "tuple"),
        ({"include": (1,)}, "include"),
        ({"min_score": "high"}, "min_score"),
        ({"min_score": NAN}, "min_score"),
        ({"min_score": True}, "min_score"),
        ({"group_by": ""}, "group_by"),
        ({"group_by": 3}, "group_by"),
        ({"min_sequence": -1}, "min_sequence"),
        ({"min_sequence": "1"}, "min_sequence"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -3}, "timeout"),
        ({"timeout": INF}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"filter": "x"}, "filter"),
    ],
    ids=str,
)
def test_bad_search_arguments(collection, arguments, words):
    """Also after the same call was made with good arguments, so that nothing remembered lets them in."""
    collection.search(V, k=1)
    with pytest.raises(kalos.InvalidRequest, match=words):
        collection.search(V, **arguments)


def test_bad_listing_arguments(collection):
    for bad in ({"max_depth": 0}, {"max_depth": 17}, {"limit": -1}, {"offset": -1}, {"limit": 2**32}):
        with pytest.raises(kalos.InvalidRequest):
            collection.namespaces(**bad)
