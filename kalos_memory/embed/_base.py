"""The embedder protocol: two methods that must exist, three attributes that may."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

FloatMatrix = NDArray[np.float32]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. Queries and documents are told apart because many models embed them differently.

    Both methods take a list of n strings and return a float32 array of shape (n, dimension), row i for text i. They may
    be called from several threads at once.

    Optional attributes, read with `getattr`:

    - `dimension: int | None`: the length of a vector; learned from the first call when absent.
    - `name: str | None`: for people, kept with the collection and shown in errors.
    - `fingerprint: str | None`: equal exactly when two embedders give comparable vectors. A collection remembers it and
      refuses another one; when it is absent only the dimension can be checked.

    Example:
        >>> class Lengths:
        ...     dimension, name, fingerprint = 1, "lengths", "lengths-1"
        ...     def embed_documents(self, texts): return np.array([[len(t)] for t in texts], dtype=np.float32)
        ...     embed_queries = embed_documents
    """

    def embed_queries(self, texts: list[str]) -> Any: ...

    def embed_documents(self, texts: list[str]) -> Any: ...
