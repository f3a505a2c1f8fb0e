"""The exceptions: their tree, what status becomes which, and that they travel."""

import pickle

import pytest

import kalos_memory as kalos
from kalos_memory import _abi
from kalos_memory._errors import error_for


def test_tree():
    """The tree drawn at the top of _errors.py."""
    assert kalos.KalosError.__bases__ == (Exception,)
    for kind in ("SidecarUnavailable", "KalosTimeout", "CollectionMismatch", "NotFound", "StoreError", "Overloaded"):
        assert getattr(kalos, kind).__bases__ == (kalos.KalosError,)
    assert kalos.WriteOutcomeUnknown.__bases__ == (kalos.KalosError,)
    assert kalos.RecallTimeout.__bases__ == (kalos.KalosTimeout,)
    assert kalos.InvalidRequest.__bases__ == (kalos.KalosError, ValueError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("INVALID_REQUEST", "InvalidRequest"),
        ("COLLECTION_MISMATCH", "CollectionMismatch"),
        ("NOT_FOUND", "NotFound"),
        ("STORE_ERROR", "StoreError"),
        ("OVERLOADED", "Overloaded"),
        ("EXPIRED", "KalosTimeout"),
        ("LOADING", "SidecarUnavailable"),
        ("BEHIND", "KalosTimeout"),
        ("DRAINING", "SidecarUnavailable"),
        ("REPLY_GONE", "KalosError"),
        ("UNSUPPORTED", "InvalidRequest"),
        ("INTERNAL", "KalosError"),
        ("UNKNOWN_OUTCOME", "WriteOutcomeUnknown"),
    ],
)
def test_status_becomes_its_exception_with_kalosd_s_words(status, kind):
    error = error_for(getattr(_abi, f"STATUS_{status}"), "words of kalosd")
    assert type(error) is getattr(kalos, kind)
    assert str(error) == "words of kalosd"


def test_unknown_status_and_missing_words_are_still_an_error():
    """A newer kalosd may know more statuses."""
    error = error_for(99, "")
    assert type(error) is kalos.KalosError
    assert "99" in str(error)


@pytest.mark.parametrize("error", [kalos.NotFound("gone"), kalos.WriteOutcomeUnknown("perhaps", b"0123456789abcdef")])
def test_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert getattr(copy, "write_id", None) == getattr(error, "write_id", None)
