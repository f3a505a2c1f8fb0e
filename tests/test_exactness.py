"""Searches of collections large enough to be ruled out by codes: bit for bit those of a brute force.

The slow obvious version is tests/oracle.py. native/tests/test_sweep.cpp holds the bounds themselves to every row.
"""

import itertools

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kalos_memory as kalos

_numbers = itertools.count(1)


def _gaussian(rng, n, d):
    return rng.standard_normal((n, d))


def _clustered(rng, n, d):
    return rng.standard_normal((6, d))[rng.integers(0, 6, n)] + 0.05 * rng.standard_normal((n, d))


def _duplicated(rng, n, d):
    return rng.standard_normal((3, d))[rng.integers(0, 3, n)]


def _lengths_far_apart(rng, n, d):
    return rng.standard_normal((n, d)) * 2.0 ** rng.integers(-100, 100, (n, 1))


def _outlier_dimension(rng, n, d):
    rows = rng.standard_normal((n, d))
    rows[:, d // 2] = 50 + 200 * rows[:, d // 2]
    return rows


def _far_from_the_origin(rng, n, d):
    return 1000 + rng.standard_normal((n, d))


def _with_zeros(rng, n, d):
    return rng.standard_normal((n, d)) * (rng.random((n, 1)) < 0.7)


def _few_values(rng, n, d):
    return rng.integers(-1, 2, (n, d))


def _denormal(rng, n, d):
    return rng.standard_normal((n, d)) * 1e-41


def _huge(rng, n, d):
    return rng.standard_normal((n, d)) * 1e37


FAMILIES = [
    _gaussian, _clustered, _duplicated, _lengths_far_apart, _outlier_dimension, _far_from_the_origin, _with_zeros,
    _few_values, _denormal, _huge,
]  # fmt: skip


def _query(rng, kind, family, rows, d):
    if kind == "zero":
        return np.zeros(d, np.float32)
    if kind == "a row":
        return rows[rng.integers(len(rows))]
    if kind == "against a row":
        return -rows[rng.integers(len(rows))]
    return family(rng, 1, d)[0].astype(np.float32)


@given(
    seed=st.integers(0, 2**32 - 1),
    family=st.sampled_from(FAMILIES),
    metric=st.sampled_from(["cosine", "dot", "l2"]),
    n=st.integers(33, 700),
    d=st.one_of(st.integers(1, 70), st.sampled_from([96, 384])),
    k=st.one_of(st.integers(0, 40), st.integers(41, 1024)),
    kind=st.sampled_from(["alike", "a row", "against a row", "zero"]),
    deleted=st.sampled_from([0.0, 0.1, 0.9]),
    filtered=st.booleans(),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_search_is_the_brute_force_bit_for_bit(shared, seed, family, metric, n, d, k, kind, deleted, filtered):
    """Same ids, same order, same scores, after deletes, with a filter, at every k; rows of other namespaces never."""
    rng = np.random.default_rng(seed)
    rows = family(rng, n, d).astype(np.float32)
    name = f"exactness-{next(_numbers)}"
    collection = shared.collection(name, dimension=d, metric=metric)
    try:
        ids = [str(i) for i in range(n)]
        collection.upsert(ids, rows, metadatas=[{"odd": i % 2 == 1} for i in range(n)])
        collection.upsert(ids[:40], rows[:40], namespace="decoy")
        gone = np.flatnonzero(rng.random(n) < deleted)
        if len(gone):
            collection.delete([ids[i] for i in gone])
        kept = np.setdiff1d(np.arange(n), gone)
        if filtered:
            kept = kept[kept % 2 == 1]
        query = _query(rng, kind, family, rows, d)
        expected = [(ids[kept[row]], score) for row, score in oracle.search_matrix(metric, query, rows[kept], k)]
        hits = collection.search(query, k, filter={"odd": True} if filtered else None, include=())
        assert [(hit.id, hit.score) for hit in hits] == expected
    finally:
        shared.drop_collection(name, confirm=name)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("d", [768, 8192])
def test_wide_vectors_of_one_sign(shared, metric, d):
    """The largest integer sums that codes can make: every component at the end of the range."""
    rng = np.random.default_rng(d)
    rows = np.ones((100, d), np.float32)
    rows[:, 0] += rng.random(100, np.float32)
    name = f"wide-{metric}-{d}"
    collection = shared.collection(name, dimension=d, metric=metric)
    try:
        collection.upsert([str(i) for i in range(100)], rows)
        for query in (rows[7], -rows[7]):
            expected = oracle.search_matrix(metric, query, rows, 10 if metric != "l2" else 3)
            hits = collection.search(query, len(expected), include=())
            assert [(int(hit.id), hit.score) for hit in hits] == expected
    finally:
        shared.drop_collection(name, confirm=name)


KERNELS = ["portable", "avx2", "avx512", "amx"]  # each needs a CPU that has those before it


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_set_of_kernels_gives_the_same_bits(monkeypatch, kernels):
    """KALOS_KERNELS asks for one; a set that the CPU lacks is passed over, and `stats` says which is in use."""
    monkeypatch.setenv("KALOS_KERNELS", kernels)
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((500, 100)).astype(np.float32)
    with kalos.connect(":memory:", timeout=10) as client:
        collection = client.collection("rows", dimension=100)
        collection.upsert([str(i) for i in range(500)], rows)
        hits = collection.search(rows[3], 20, include=(), explain=True)
        assert [(int(hit.id), hit.score) for hit in hits] == oracle.search_matrix("cosine", rows[3], rows, 20)
        assert hits[0].explain["plan"] == "code scan"
        assert client.stats()["database"]["search"]["kernels"] in KERNELS[: KERNELS.index(kernels) + 1]


def test_kernels_that_do_not_exist_are_refused_in_words(monkeypatch):
    monkeypatch.setenv("KALOS_KERNELS", "fastest")
    with pytest.raises(kalos.SidecarUnavailable, match="expected portable, avx2, avx512 or amx"):
        kalos.connect(":memory:")
