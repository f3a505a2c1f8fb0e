"""Accepts whatever can embed, recognised by its methods, so that no framework is ever imported here."""

from __future__ import annotations

import functools
import operator
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kalos_memory._checks import utf8
from kalos_memory._errors import InvalidRequest
from kalos_memory._fork_lock import ForkLock
from kalos_memory.embed._base import FloatMatrix
from kalos_memory.embed._check import MAX_DIMENSION, check_vectors
from kalos_memory.embed._sentence_transformers import SentenceTransformersEmbedder

_EmbedFunction = Callable[[list[str]], Any]
_ACCEPTED = (
    "a callable from list[str] to an array, a SentenceTransformer, a LangChain Embeddings, a LlamaIndex BaseEmbedding, "
    "or an object with embed_queries and embed_documents"
)


class CheckedEmbedder:
    """An embedder whose every output has been checked; what `as_embedder` returns and `Memory.embedder` is.

    Attributes: `name` (str), `fingerprint` (str or None when unknown), `dimension` (int, or None until it is known).
    """

    def __init__(
        self,
        queries: _EmbedFunction,
        documents: _EmbedFunction,
        *,
        name: str,
        dimension: int | None = None,
        fingerprint: str | Callable[[], str | None] | None = None,
        queries_timed: Callable[[list[str]], tuple[Any, float]] | None = None,
    ) -> None:
        if dimension is not None and not 1 <= dimension <= MAX_DIMENSION:
            raise InvalidRequest(
                f"The embedder {name} has dimension {dimension}, expected 1 to {MAX_DIMENSION}, or None for unknown."
            )
        self.name = name
        self._queries = queries
        self._documents = documents
        self._queries_timed = queries_timed
        self._fingerprint = fingerprint
        self._dimension = dimension
        self._lock = ForkLock()

    @property
    def dimension(self) -> int | None:
        """Length of a vector; None until the first call when the embedder does not say."""
        return self._dimension

    @property
    def fingerprint(self) -> str | None:
        """Identity of the vector space, or None when unknown. May read the model's weights the first time."""
        with self._lock:
            if callable(self._fingerprint):
                self._fingerprint = self._fingerprint()
            return self._fingerprint

    def embed_queries(self, texts: list[str]) -> FloatMatrix:
        """Vectors of n queries: float32, shape (n, dimension). Raises InvalidRequest for bad texts or bad output."""
        return self._run(self._queries, texts)

    def embed_documents(self, texts: list[str]) -> FloatMatrix:
        """Vectors of n documents: float32, shape (n, dimension). Raises InvalidRequest for bad texts or bad output."""
        return self._run(self._documents, texts)

    def embed_query_timed(self, text: str) -> tuple[FloatMatrix, float, float]:
        """One query as (vectors of shape (1, dimension), tokenize_us, embed_us).

        Only sentence-transformers models can tell tokenizing from embedding; for others tokenize_us is 0 and embed_us
        covers both.
        """
        start = time.perf_counter_ns()
        tokenize_us = 0.0
        if self._queries_timed is None:
            vectors = self.embed_queries([text])
        else:
            utf8(text, "the query")
            raw, tokenize_us = self._queries_timed([text])
            vectors = self._accept(raw, 1)
        return vectors, tokenize_us, (time.perf_counter_ns() - start) / 1000 - tokenize_us

    def __repr__(self) -> str:
        return f"CheckedEmbedder({self.name!r}, dimension={self._dimension})"

    def _run(self, function: _EmbedFunction, texts: Any) -> FloatMatrix:
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise InvalidRequest(f"texts must be a list of str, not a {type(texts).__name__}: write [text] for one")
        texts = list(texts)
        for i, text in enumerate(texts):
            utf8(text, f"texts[{i}]")
        if not texts:
            return np.empty((0, self._dimension or 0), dtype=np.float32)
        return self._accept(function(texts), len(texts))

    def _accept(self, raw: Any, rows: int) -> FloatMatrix:
        vectors = check_vectors(raw, rows, self._dimension, self.name)
        if self._dimension is None:
            with self._lock:
                if self._dimension is None:
                    self._dimension = int(vectors.shape[1])
            if vectors.shape[1] != self._dimension:  # another thread learned a different one first
                return check_vectors(raw, rows, self._dimension, self.name)
        return vectors


def as_embedder(
    embedder: Any, *, name: str | None = None, dimension: int | None = None, fingerprint: str | None = None
) -> CheckedEmbedder:
    """Makes a checked embedder of anything that can embed. `name`, `dimension` and `fingerprint` override what it says.

    Recognised by their methods, in this order: an object with `embed_queries` and `embed_documents` (see `Embedder`); a
    LangChain `Embeddings` (`embed_documents`, `embed_query`); a LlamaIndex `BaseEmbedding` (`get_text_embedding_batch`,
    `get_query_embedding`); a sentence-transformers model (`encode`), its name or its folder; any callable from
    list[str] to an array of shape (n, dimension), used for queries and documents alike.

    Raises InvalidRequest when it is none of these.

    Example:
        >>> embedder = as_embedder(lambda texts: [[len(text), 1.0] for text in texts], name="lengths")
        >>> embedder.embed_queries(["hi"])
        array([[2., 1.]], dtype=float32)
    """
    if isinstance(embedder, CheckedEmbedder) and name is None and dimension is None and fingerprint is None:
        return embedder
    if isinstance(embedder, type):
        raise InvalidRequest(
            f"embedder is the class {embedder.__name__}, expected an instance: {embedder.__name__}(…)."
        )
    if isinstance(embedder, (str, os.PathLike)) or _is_sentence_transformer(embedder):
        embedder = SentenceTransformersEmbedder(embedder)
    queries, documents = _methods(embedder)
    return CheckedEmbedder(
        queries,
        documents,
        name=name or _name_of(embedder),
        dimension=dimension if dimension is not None else _dimension_of(embedder),
        fingerprint=fingerprint or functools.partial(_fingerprint_of, embedder),
        queries_timed=getattr(embedder, "embed_queries_timed", None),
    )


def _has(embedder: Any, *methods: str) -> bool:
    return all(callable(getattr(embedder, method, None)) for method in methods)


def _is_sentence_transformer(embedder: Any) -> bool:
    if _has(embedder, "embed_documents"):
        return False
    dimension_methods = ("get_embedding_dimension", "get_sentence_embedding_dimension")  # new and old name
    return _has(embedder, "encode") and any(hasattr(type(embedder), method) for method in dimension_methods)


def _methods(embedder: Any) -> tuple[_EmbedFunction, _EmbedFunction]:
    """The functions that embed queries and documents."""
    if _has(embedder, "embed_queries", "embed_documents"):
        return embedder.embed_queries, embedder.embed_documents
    if _has(embedder, "embed_query", "embed_documents"):
        return lambda texts: [embedder.embed_query(text) for text in texts], embedder.embed_documents
    if _has(embedder, "get_query_embedding", "get_text_embedding_batch"):
        return lambda texts: [embedder.get_query_embedding(text) for text in texts], embedder.get_text_embedding_batch
    if callable(embedder):
        return embedder, embedder
    raise InvalidRequest(f"embedder is a {type(embedder).__name__}, expected {_ACCEPTED}.")


def _name_of(embedder: Any) -> str:
    # LangChain and LlamaIndex embeddings carry their model's name; functions carry their own.
    for attribute in ("name", "model_name", "model", "__qualname__"):
        value = getattr(embedder, attribute, None)
        if isinstance(value, str) and value:
            return value
    return type(embedder).__name__


def _dimension_of(embedder: Any) -> int | None:
    value = getattr(embedder, "dimension", None)
    return operator.index(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _fingerprint_of(embedder: Any) -> str | None:
    value = getattr(embedder, "fingerprint", None)
    return value if isinstance(value, str) and value else None
