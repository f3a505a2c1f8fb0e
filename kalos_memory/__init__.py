"""Kalos: the memory of an LLM agent, in a sidecar on the same host.

    import kalos_memory as kalos

    memory = kalos.Memory("assistant", namespace="alice")       # text in, text out
    client = kalos.connect()                                    # vectors in, hits out

Memory and the embedders are imported when they are first used, so that importing this package stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kalos_memory._calls import Operation
from kalos_memory._client import Client, aconnect, connect
from kalos_memory._collection import Collection
from kalos_memory._errors import (
    CollectionMismatch,
    InvalidRequest,
    KalosError,
    KalosTimeout,
    NotFound,
    Overloaded,
    RecallTimeout,
    SidecarUnavailable,
    StoreError,
    WriteOutcomeUnknown,
)
from kalos_memory._types import Hit, Timings

if TYPE_CHECKING:
    from kalos_memory._memory import Memory
    from kalos_memory._recall import Recall
    from kalos_memory.embed import Embedder, SentenceTransformersEmbedder

__all__ = [
    "Client",
    "Collection",
    "CollectionMismatch",
    "Embedder",
    "Hit",
    "InvalidRequest",
    "KalosError",
    "KalosTimeout",
    "Memory",
    "NotFound",
    "Operation",
    "Overloaded",
    "Recall",
    "RecallTimeout",
    "SentenceTransformersEmbedder",
    "SidecarUnavailable",
    "StoreError",
    "Timings",
    "WriteOutcomeUnknown",
    "aconnect",
    "connect",
]

_LAZY = {
    "Embedder": "kalos_memory.embed",
    "Memory": "kalos_memory._memory",
    "Recall": "kalos_memory._recall",
    "SentenceTransformersEmbedder": "kalos_memory.embed",
}

for _name in __all__:
    if _name not in _LAZY:
        globals()[_name].__module__ = __name__
del _name


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(_LAZY[name]), name)
        value.__module__ = __name__
    elif name == "__version__":
        from importlib import metadata

        try:
            value = metadata.version("kalos-memory")
        except metadata.PackageNotFoundError:
            value = "unknown"  # a checkout that was never installed
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
