"""The identity of a sentence-transformers model's vector space, cheap and the same in every process.

    "st1:" + sha256 of, in this order, each followed by a zero byte:
      the class names of the modules, joined by commas; the pooling; the dimension
      each prompt that is not empty, sorted: name, "=", prompt; the default prompt's name
      sha256 of the vocabulary in order of token id, tokens joined by line feeds
      for each weight of two dimensions or more, sorted by its digest:
        sha256 of its shape and of at most 256 evenly spaced values as little-endian float32

Names of weights, files and folders are left out: they change with the libraries' versions, the numbers do not. The
unused pooler is left out for the same reason. A copy in half precision is another vector space by this measure.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

_SAMPLES = 256


def model_fingerprint(model: Any) -> str:
    """The fingerprint of a loaded SentenceTransformer; reads about 100 KB of weights and the vocabulary."""
    modules = list(model.children())
    digest = hashlib.sha256()
    dimension = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    prompts = getattr(model, "prompts", None) or {}
    fields = [
        ",".join(type(module).__name__ for module in modules),
        ",".join(_pooling(module) for module in modules if type(module).__name__ == "Pooling"),
        str(dimension()),
        *(f"{name}={prompt}" for name, prompt in sorted(prompts.items()) if prompt),
        str(getattr(model, "default_prompt_name", None)),
        _vocabulary_digest(getattr(model, "tokenizer", None)),
        *sorted(_weight_digest(w) for name, w in model.named_parameters() if w.ndim >= 2 and ".pooler." not in name),
    ]
    for field in fields:
        digest.update(field.encode("utf-8", "surrogatepass") + b"\0")
    return "st1:" + digest.hexdigest()


def _weight_digest(weight: Any) -> str:
    flat = weight.detach().reshape(-1)
    positions = np.linspace(0, flat.shape[0] - 1, min(_SAMPLES, flat.shape[0])).astype(np.int64).tolist()
    values = flat[positions].float().cpu().numpy().astype("<f4")
    return hashlib.sha256(repr(tuple(weight.shape)).encode() + values.tobytes()).hexdigest()


def _vocabulary_digest(tokenizer: Any) -> str:
    if not hasattr(tokenizer, "get_vocab"):
        return "none"
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    tokens = "\n".join(sorted(vocabulary, key=lambda token: (vocabulary[token], token)))
    return hashlib.sha256(tokens.encode("utf-8", "surrogatepass")).hexdigest()


def _pooling(module: Any) -> str:
    mode = getattr(module, "pooling_mode", None)  # newer versions; the older ones have a method
    if mode is None:
        mode = module.get_pooling_mode_str()
    return mode if isinstance(mode, str) else "+".join(map(str, mode))
