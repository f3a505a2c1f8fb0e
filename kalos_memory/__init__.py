"""Kalos: the memory of an LLM agent, in a sidecar on the same host.

    import kalos_memory as kalos

    memory = kalos.Memory("assistant", namespace="alice")       # text in, text out
    client = kalos.connect()                                    # vectors in, hits out

Everything is imported when it is first used: the package itself costs nothing, so `kalos --help` is there at once, and
torch comes only with a Memory that embeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from kalos_memory._memory import Memory
    from kalos_memory._recall import Recall
    from kalos_memory._types import Hit, Timings
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

_CORE = {
    "kalos_memory._calls": ("Operation",),
    "kalos_memory._client": ("Client", "aconnect", "connect"),
    "kalos_memory._collection": ("Collection",),
    "kalos_memory._errors": (
        "CollectionMismatch",
        "InvalidRequest",
        "KalosError",
        "KalosTimeout",
        "NotFound",
        "Overloaded",
        "RecallTimeout",
        "SidecarUnavailable",
        "StoreError",
        "WriteOutcomeUnknown",
    ),
    "kalos_memory._types": ("Hit", "Timings"),
}
_LAZY = {
    "Embedder": "kalos_memory.embed",
    "Memory": "kalos_memory._memory",
    "Recall": "kalos_memory._recall",
    "SentenceTransformersEmbedder": "kalos_memory.embed",
}


def _load_core() -> None:
    """All of the core at once, so that whatever one name leads to is called by its public name too."""
    from importlib import import_module

    for module, names in _CORE.items():
        loaded = import_module(module)
        for name in names:
            value = getattr(loaded, name)
            value.__module__ = __name__
            globals()[name] = value


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        _load_core()
        value = getattr(import_module(_LAZY[name]), name)
        value.__module__ = __name__
    elif name == "__version__":
        from importlib import metadata

        try:
            value = metadata.version("kalos-memory")
        except metadata.PackageNotFoundError:
            value = "unknown"  # a checkout that was never installed
    elif name in __all__:
        _load_core()
        value = globals()[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
