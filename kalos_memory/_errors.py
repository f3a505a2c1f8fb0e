"""What can go wrong, as exceptions.

    KalosError
    ├── SidecarUnavailable       no kalosd answers: not running, ended, draining, or still loading
    ├── KalosTimeout             the deadline passed; a read changed nothing, a write was not started
    │   └── RecallTimeout        the same, of a search
    ├── InvalidRequest           the request breaks a rule (also a ValueError)
    ├── CollectionMismatch       dimension, metric or embedder differ from the collection's
    ├── NotFound                 no such collection
    ├── StoreError               the disk or the memory limit refused; nothing was changed
    ├── WriteOutcomeUnknown      the write may or may not be on disk
    └── Overloaded               a bound on work in flight is reached

Every message says what happened, what was expected and what to do.
"""

from __future__ import annotations

from kalos_memory import _abi


class KalosError(Exception):
    """Base of everything that Kalos raises on purpose."""


class SidecarUnavailable(KalosError):
    """No kalosd answers: none runs and none may be started, it ended, it drains, or a collection is still loading."""


class KalosTimeout(KalosError):
    """The deadline passed before the answer came. A read changed nothing; a write was not started."""


class RecallTimeout(KalosTimeout):
    """A search did not answer within its timeout."""


class InvalidRequest(KalosError, ValueError):
    """The request breaks a rule of the interface; the message says which, and what is expected instead."""


class CollectionMismatch(KalosError):
    """The collection exists with another dimension, metric or embedder; the message names both."""


class NotFound(KalosError):
    """There is no such collection, or it was dropped."""


class StoreError(KalosError):
    """The disk or the memory limit refused. Nothing was changed."""


class Overloaded(KalosError):
    """A bound on work in flight is reached; nothing was done. Try again later, or send less at once."""


class WriteOutcomeUnknown(KalosError):
    """The write was sent, but its answer never came: it may or may not be on disk.

    Sending it again is safe: an upsert or a delete done twice leaves what it leaves when done once.

    Attributes:
        write_id: the 16 bytes under which the sidecar would remember this write, or None.
    """

    def __init__(self, message: str, write_id: bytes | None = None) -> None:
        super().__init__(message)
        self.write_id = write_id

    def __reduce__(self) -> tuple[type[WriteOutcomeUnknown], tuple[str, bytes | None]]:
        return (type(self), (str(self), self.write_id))


_BY_STATUS: dict[int, type[KalosError]] = {
    _abi.STATUS_INVALID_REQUEST: InvalidRequest,
    _abi.STATUS_COLLECTION_MISMATCH: CollectionMismatch,
    _abi.STATUS_NOT_FOUND: NotFound,
    _abi.STATUS_STORE_ERROR: StoreError,
    _abi.STATUS_OVERLOADED: Overloaded,
    _abi.STATUS_EXPIRED: KalosTimeout,
    _abi.STATUS_LOADING: SidecarUnavailable,
    _abi.STATUS_BEHIND: KalosTimeout,
    _abi.STATUS_DRAINING: SidecarUnavailable,
    _abi.STATUS_UNSUPPORTED: InvalidRequest,
    _abi.STATUS_UNKNOWN_OUTCOME: WriteOutcomeUnknown,
}


def error_for(status: int, words: str) -> KalosError:
    """The exception for a status of the ABI and the words that came with it."""
    return _BY_STATUS.get(status, KalosError)(words or f"kalosd answered status {status} without words")
