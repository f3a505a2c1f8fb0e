"""Embedders: what turns texts into the float32 vectors that a collection keeps.

`as_embedder` accepts anything that can embed (see there); `SentenceTransformersEmbedder` is the built-in one.
Importing this package imports neither torch nor sentence-transformers.
"""

from kalos_memory.embed._adapt import CheckedEmbedder, as_embedder
from kalos_memory.embed._base import Embedder
from kalos_memory.embed._default import default_embedder
from kalos_memory.embed._sentence_transformers import SentenceTransformersEmbedder

__all__ = ["CheckedEmbedder", "Embedder", "SentenceTransformersEmbedder", "as_embedder", "default_embedder"]
