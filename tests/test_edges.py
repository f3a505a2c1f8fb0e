"""The edges of what is a number or a moment: commit sequences, expiry, ttl. There, too, what is allowed does what it
says; anything else is refused in words that name the argument, and changes nothing."""

import pickle
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pytest

import kalos_memory as kalos
from kalos_memory import _checks, _records

V = [1.0, 0.0, 0.0, 0.0]
NOW = datetime.now(timezone.utc)

READS = {
    "search": lambda c, **options: [hit.id for hit in c.search(V, **options)],
    "get": lambda c, **options: [hit.id for hit in c.get(["a"], **options)],
    "count": lambda c, **options: ["a"] * c.count(**options),
    "scan": lambda c, **options: [hit.id for hit in c.scan(**options)],
    "namespaces": lambda c, **options: ["a"] * (c.namespaces(**options) == [()]),
    "batch": lambda c, timeout=None, **options: [
        hit.id for hit in c._transport.batch([c.op.search(V, **options)], timeout=timeout)[0]
    ],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_min_sequence(collection, read):
    """Zero asks for nothing; the write just acknowledged is there, in whatever type its number is kept; one more is
    waited for until the timeout, up to the end of int64 and u64."""
    now = collection.upsert(["a"], [V])
    for reached in (None, 0, 1, now - 1, now, np.int64(now), np.uint64(now), np.int32(now), np.uint8(0), np.array(now)):
        assert read(collection, min_sequence=reached) == ["a"]
    for later in (np.uint64(now + 1), 2**63 - 1, 2**64 - 1):
        with pytest.raises(kalos.KalosTimeout, match=f"commit {later} is not published yet, the latest is {now}"):
            read(collection, min_sequence=later, timeout=0.1)
    assert read(collection, min_sequence=now) == ["a"]


BAD_SEQUENCES = [
    -1, -(2**63), 2**64, 10**400, np.int64(-1), True, False, np.bool_(True), float("nan"), float("inf"), 1.0,
    np.float64(1), np.float32("nan"), Decimal(1), "1", b"1", [1], np.array([1]), NOW, (), object(),
]  # fmt: skip


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_no_commit_sequence(collection, read):
    for bad in BAD_SEQUENCES:
        with pytest.raises(kalos.InvalidRequest, match="min_sequence") as refused:
            read(collection, min_sequence=bad)
        assert len(str(refused.value)) < 300


def test_arguments_that_are_equal_to_good_ones_are_no_better(shared):
    """True == 1 == 1.0: what was right once does not make the other right."""
    for metric, bound in (("cosine", "min_score"), ("l2", "max_distance")):
        collection = shared.collection(f"equal-{metric}", dimension=4, metric=metric)
        collection.upsert(["a"], [V])
        for good in ({bound: 1.0}, {bound: 1}, {"k": 1}, {"offset": 0}):
            collection.search(V, **good)
            (name,) = good
            for bad in (True, np.bool_(True), "1", None if name != bound else b"1"):
                with pytest.raises(kalos.InvalidRequest, match=name):
                    collection.search(V, **{name: bad})
        shared.drop_collection(f"equal-{metric}", confirm=f"equal-{metric}")


class NotATime(datetime):
    """What pandas.NaT is: a datetime that is not even equal to itself."""

    def __eq__(self, other):
        return False

    def __ne__(self, other):
        return True

    __hash__ = datetime.__hash__


ENDS = {
    "now": NOW,
    "a microsecond ago": NOW - timedelta(microseconds=1),
    "elsewhere": NOW.astimezone(timezone(timedelta(hours=14))),
    "1970": datetime(1970, 1, 1, tzinfo=timezone.utc),
    "before 1970": datetime(1969, 12, 31, 23, 59, tzinfo=timezone.utc),
    "the first moment": datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    "the last moment": datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    "soon": NOW + timedelta(days=1),
}


def test_expires_at(collection):
    """A row whose moment has come was never there, for any read; the others stay, as far ahead as datetime goes."""
    collection.upsert(list(ENDS), [V] * len(ENDS), expires_at=list(ENDS.values()))
    alive = [name for name, end in ENDS.items() if end > NOW]
    assert alive == ["the last moment", "soon"]
    assert [hit.id for hit in collection.search(V)] == alive
    assert [hit.id for hit in collection.scan()] == alive
    assert [name for name, hit in zip(ENDS, collection.get(list(ENDS)), strict=True) if hit] == alive
    assert collection.count() == 2
    for name, end in ENDS.items():
        own = f"own-{name}"
        collection.upsert(["a", "b"], [V, V], namespace=own, expires_at=end)
        assert collection.namespaces((own,)) == ([(own,)] if name in alive else [])
        assert collection.count(namespace=own, filter={"k": {"$exists": False}}) == 2 * (name in alive)
        # What is written again lives, and what lived ends.
        collection.upsert(["a"], [V], namespace=own)
        assert [hit.id for hit in collection.scan(namespace=own)] == (["a", "b"] if name in alive else ["a"])
        collection.upsert(["a"], [V], namespace=own, expires_at=[NOW])
        assert collection.get(["a"], namespace=own) == [None]


@pytest.mark.parametrize(
    "bad",
    [
        0, -1, 3600, 2**63 - 1, 1e18, float("nan"), True, np.int64(5), np.datetime64("2030-01-01"),
        np.datetime64("NaT", "s"), "2030-01-01T00:00:00Z", b"", date(2030, 1, 1), timedelta(days=1), {},
        datetime(2030, 1, 1),  # noqa: DTZ001
        NotATime(2030, 1, 1, tzinfo=timezone.utc),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_moment(collection, bad):
    """Neither for all rows nor for one of them."""
    for expires_at in (bad, [bad, None]):
        with pytest.raises(kalos.InvalidRequest, match=r"expires_at.*aware|expires_at.*naive") as refused:
            collection.upsert(["a", "b"], [V, V], expires_at=expires_at)
        assert len(str(refused.value)) < 300
    assert collection.count() == 0


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        (1, 1), (0.25, 0.25), (np.int64(5), 5), (np.uint8(255), 255), (np.float32(0.5), 0.5), (Decimal("1.5"), 1.5),
        (timedelta(microseconds=1), 1e-6), (1e-9, 0), (5e-324, 0), (timedelta(weeks=4), 4 * 7 * 86400), (10**9, 1e9),
    ],
    ids=repr,
)  # fmt: skip
def test_ttl(ttl, seconds):
    """Counted from the call, in seconds or as a timedelta; a part of a microsecond ends at once."""
    before = datetime.now(timezone.utc)
    expires_at = _records.Records.of("text", None, None, ttl).expires_at
    after = datetime.now(timezone.utc)
    assert before + timedelta(seconds=seconds) <= expires_at <= after + timedelta(seconds=seconds)
    assert _checks.expiry_column(expires_at, 1)[0] > 0


@pytest.mark.parametrize(
    "bad",
    [
        0, 0.0, -0.0, -1, -5e-324, timedelta(0), timedelta(microseconds=-1), timedelta.min, timedelta.max, 2**63 - 1,
        1e300, 10**400, float("nan"), float("inf"), float("-inf"), np.float32("nan"), np.int64(-1), True,
        np.bool_(True), "60", b"60", Decimal("NaN"), np.timedelta64(5, "D"), np.timedelta64("NaT", "s"), [60],
        np.array([60]), 5j, NOW, object(),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_ttl(bad):
    with pytest.raises(kalos.InvalidRequest, match="ttl") as refused:
        _records.Records.of("text", None, None, bad)
    assert len(str(refused.value)) < 300


def test_words_stay_short_whatever_is_refused(shared, collection):
    """A message shows the beginning of what it is about, be it 1 MiB long, and names what is wrong with it."""
    long = "ü" * (1 << 20)
    refused = {
        "not JSON": lambda: collection.upsert(["a"], None, metadatas=[{long: {long: [{long: object()}]}}]),
        "JSON cannot carry": lambda: collection.upsert(["a"], None, metadatas=[{long: float("nan")}]),
        "unknown operator": lambda: collection.count(filter={long: {"$foo": 1}}),
        "[$]and": lambda: collection.count(filter={"$" + long: []}),
        "must be a list": lambda: collection.count(filter={long: {"$in": long}}),
        "True or False": lambda: collection.count(filter={long: {"$exists": long}}),
        "1024": lambda: collection.get([long]),
        "256": lambda: collection.count(namespace=long),
        "255": lambda: shared.collection(long, dimension=1),
        "confirm": lambda: shared.drop_collection(long, confirm="x" + long),
        "durability": lambda: collection.upsert(["a"], [V], durability=long),
        "order": lambda: collection.scan(order=long),
        "include": lambda: collection.search(V, include=(long,)),
        "group_by": lambda: collection.search(V, group_by=long + "x"),
        "k must be": lambda: collection.search(V, long),
        "min_score": lambda: collection.search(V, min_score=long),
        "vectors": lambda: collection.search(long),
        "embedder": lambda: shared.collection("c", dimension=1, embedder={"name": 1, "x": long}),
        "ttl": lambda: _records.Records.of("text", None, None, long),
        "data_dir": lambda: kalos.connect(long),
        "lone surrogate": lambda: collection.upsert(["a"], None, metadatas=[{long + "\ud800": 1}]),
    }
    for words, call in refused.items():
        with pytest.raises(kalos.InvalidRequest, match=words) as caught:
            call()
        assert len(str(caught.value)) < 600, words
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert collection.count() == 0
