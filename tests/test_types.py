"""Hit and Timings as values."""

import copy
import pickle
from datetime import datetime, timezone

import numpy as np
import pytest

from kalos_memory import Hit, Timings


def full():
    return Hit(
        "a",
        0.5,
        text="text",
        metadata={"k": [1]},
        namespace=("x", "y"),
        vector=np.array([1, 2], np.float32),
        created_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
        updated_at=datetime(2026, 1, 2, tzinfo=timezone.utc),
        explain={"plan": "p"},
    )


def test_equality_looks_at_every_field():
    assert full() == full()
    for name, value in {
        "id": "b",
        "score": 0.25,
        "text": None,
        "metadata": {},
        "namespace": ("x",),
        "vector": None,
        "created_at": None,
        "updated_at": None,
        "explain": None,
    }.items():
        other = full()
        setattr(other, name, value)
        assert other != full(), name
    other = full()
    other.vector = np.array([1, 2, 3], np.float32)
    assert other != full()
    assert full() != "a"


def test_hash_follows_equality():
    assert len({full(), full()}) == 1


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda hit: pickle.loads(pickle.dumps(hit))])
def test_copies_are_equal(make):
    assert make(full()) == full()


def test_repr_is_short_and_names_what_matters():
    hit = full()
    assert repr(hit) == "Hit(id='a', score=0.5, text='text', metadata={'k': [1]}, namespace=('x', 'y'))"
    hit.text = "t" * 1000
    hit.metadata = {"long": "m" * 1000}
    assert len(repr(hit)) < 250
    assert repr(Hit("only")) == "Hit(id='only')"


def test_unknown_attributes_are_refused():
    hit = full()
    with pytest.raises(AttributeError, match="colour"):
        _ = hit.colour


def test_timings_add_up():
    timings = Timings(1.0, 2.0, 3.0, 4.0)
    assert timings.total_us == 10
    assert "search_us=2.0" in repr(timings)
