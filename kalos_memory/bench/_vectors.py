"""Seeded vectors, and the exact answers that everybody's are held to.

unit_vectors() are directions drawn at random: no structure that an index could lean on, and the narrowest gaps between
scores. clustered_vectors() have topics, as texts do. Text and metadata are of the size that an agent's notes have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def unit_vectors(rows: int, dimension: int, seed: int) -> Floats:
    """float32 (rows, dimension), each of length 1 up to rounding; the same for the same seed."""
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((rows, dimension), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def clustered_vectors(rows: int, dimension: int, seed: int, rows_a_centre: int = 40) -> Floats:
    """float32 (rows, dimension) of length 1 around centres drawn at random: two rows of one centre have a cosine of
    about 0.77, as passages on one topic have. The same for the same seed."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((max(1, rows // rows_a_centre), dimension), dtype=np.float32)
    vectors = centres[generator.integers(0, len(centres), rows)]
    vectors += 0.54 * generator.standard_normal((rows, dimension), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def record_ids(rows: int) -> list[str]:
    """Ids whose number is the row."""
    return [f"row-{row:08d}" for row in range(rows)]


def record_text(row: int, length: int = 200) -> str:
    """A text of exactly `length` bytes, different for every row."""
    sentence = f"Note {row}: the deployment of service {row % 97} moved to region {row % 13} after review {row % 7}. "
    return (sentence * (length // len(sentence) + 1))[:length]


def record_metadata(row: int) -> dict[str, Any]:
    """Three keys: a string, a number, a boolean."""
    return {"source": f"notes/{row % 50}.md", "position": row, "pinned": row % 10 == 0}


def exact_top(vectors: Floats, query: Floats, k: int, block: int = 8192) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Row numbers of the k best cosine scores in float64, ties by row, and the score of every row.

    Slow and plain: this is the answer that the fast ones are compared with.
    """
    wide = query.astype(np.float64)
    query_norm = np.sqrt(wide @ wide)
    scores = np.empty(len(vectors), dtype=np.float64)
    for start in range(0, len(vectors), block):
        part = vectors[start : start + block].astype(np.float64)
        scores[start : start + block] = (part @ wide) / (np.sqrt(np.einsum("ij,ij->i", part, part)) * query_norm)
    order = np.lexsort((np.arange(len(scores)), -scores))[:k]
    return [int(row) for row in order], scores


def same_answer(found: list[int], expected: list[int], scores: npt.NDArray[np.float64], tolerance: float) -> bool:
    """Whether two rankings agree: the same rows at the same ranks, or rows whose exact scores tie within tolerance.

    tolerance is 1e-12 for an answer computed in float64 (the order of summation differs), 1e-6 for float32.
    """
    if len(found) != len(expected) or len(set(found)) != len(found):
        return False
    return all(
        mine == right or abs(scores[mine] - scores[right]) <= tolerance
        for mine, right in zip(found, expected, strict=True)
    )
