# SPDX-License-Identifier: Apache-2.0
"""Counts are whole numbers in all public calls: 1.5 tokens, True threads and "3" windows are errors that name the
argument, too few as well, and NumPy's integers are taken."""

from __future__ import annotations

import inspect
import re
from typing import Union

import numpy as np
import pytest
from golden_files import golden
from maker import tiny_model

import rooflm
from rooflm._keywords import COUNTS, at_least, checked_keywords, whole
from rooflm.batch import Batch

# Annotated with int and no counts: what checks them is their own.
OTHERS = {"cpus", "rank", "vocab", "out", "tokens", "progress", "strides"}
# Not called by users: what comes from other calls.
RESULTS = {rooflm.IMatrix, rooflm.Generation, rooflm.Evaluation}
TEXT = "the other rain " * 200


def public_calls():
    """(name, function) of all public functions, constructors and methods written in Python."""
    for o in [getattr(rooflm, name) for name in rooflm.__all__] + [Batch]:
        if not inspect.isclass(o):
            yield o.__name__, o
        elif o not in RESULTS:
            methods = {n: f for n, f in vars(o).items() if not n.startswith("_") or n == "__init__"}
            yield from ((f"{o.__name__}.{n}", f) for n, f in methods.items() if inspect.isfunction(f))


def with_counts():
    for name, f in public_calls():
        parameters = inspect.signature(f).parameters.values()
        wanted = [p for p in parameters if re.search(r"\bint\b", str(p.annotation)) and p.name not in OTHERS]
        if wanted and not name.startswith(("DraftModel.propose", "PromptLookup.propose", "Plan.")):
            yield pytest.param(f, wanted, id=name)


def test_all_public_calls_are_looked_at():
    assert len(list(with_counts())) > 40


@pytest.mark.parametrize("f, wanted", list(with_counts()))
def test_counts_are_whole_numbers(f, wanted):
    """Found before anything else of a call is looked at, so that the other arguments may be anything."""
    parameters = inspect.signature(f).parameters.values()
    for p in wanted:
        none, many = COUNTS[p.annotation]
        for bad in (1.5, True, "3", [1.5], {}, float("nan"), *([] if none else [None]), *([] if many else [[1]])):
            needed = [q for q in parameters if q.default is q.empty and q.name != "self"]
            given = {q.name: 1 if q.annotation in COUNTS else None for q in needed}
            with pytest.raises(TypeError, match=rf"^{p.name}=.*: must be a whole number"):
                f(*[None] * ("self" in inspect.signature(f).parameters), **{**given, p.name: bad})


@pytest.mark.parametrize(
    "call, counts",
    [
        (rooflm.Sampler, ("top_k", "repeat_last_n", "seed")),
        (rooflm.KVCache, ("n_layer", "n_head_kv", "head_dim", "dim_k", "dim_v", "n_ctx", "window_slack", "window")),
        (lambda **k: rooflm.attention(None, None, **k), ("layer", "window", "threads")),
        (lambda **k: rooflm._core.quantize_rows(None, "Q8_0", **k), ("threads",)),
        (lambda **k: rooflm._core.read_bandwidth([], **k), ("threads", "passes", "repeat")),
        (lambda **k: rooflm.GGUF(golden("llama").path).tensors["output_norm.weight"].dequantize(**k), ("threads",)),
    ],
)
def test_counts_of_the_extension_are_whole_numbers(call, counts):
    for name in counts:
        for bad in (1.5, True, "3"):
            given = {"n_head_kv": 1, "head_dim": 64, "n_ctx": 64} if call is rooflm.KVCache else {}
            with pytest.raises(TypeError, match=f"^{name}=.*: must be a whole number"):
                call(**{**given, name: bad})


def test_numpy_integers_are_counts():
    two = np.int64(2)
    kv = rooflm.KVCache(two, n_head_kv=two, head_dim=np.uint8(64), n_ctx=np.int32(64), window=two, window_slack=two)
    assert kv.window == [2, 2] and kv.n_ctx == 64
    assert rooflm.Sampler(top_k=two, seed=two).top_k == 2
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=np.int64(64), n_threads=np.int64(1), n_batch=np.uint16(32), window=np.int8(16)) as s:
        assert len(s.generate([1, 2], max_tokens=two, n_draft=two).ids) <= 2
        s.rewind(two)
        assert s.n_past == 2 and len(s.kernels(two))
    size = rooflm.kv_size(n_layer=two, n_head=two, head_dim=np.int64(32), n_ctx=two, window=[two, None])
    assert type(size.n_ctx) is int and size.to_dict()["layers"][0]["positions"] == 2


def test_one_checker():
    @checked_keywords
    def f(a: int, b: Union[None, int, list[int]] = None):
        return a, b

    assert f(np.int64(3)) == (3, None) and f(1, [np.int64(2), 3]) == (1, [2, 3]) and f(a=1, b=0) == (1, 0)
    assert type(f(np.int64(3))[0]) is int
    for args in [(1.0,), (None,), ([1],), (1, (1, 2)), (1, [1, 2.0])]:
        with pytest.raises(TypeError, match="must be a whole number"):
            f(*args)
    assert whole("n", 5) == 5
    at_least(1, a=1, b=None, c=[1, None, 2])
    with pytest.raises(ValueError, match="^c=0: must be at least 1$"):
        at_least(1, a=1, c=[1, 0])


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    class Here:
        path = golden("llama").path
        model = rooflm.Model(path)
        file = tmp_path_factory.mktemp("counts") / "out.gguf"

    return Here


TOO_FEW = [
    (lambda h, **k: h.model.session(n_threads=1).generate([1], **k), {"max_tokens": 0, "n_draft": 0}),
    (lambda h, **k: h.model.session(n_threads=1).trace(**k), {"capacity": 1}),
    (lambda h, **k: h.model.session(n_threads=1).compress(rank=8, **k), {"recent": 0}),
    (lambda h, **k: h.model.batch(n_threads=1).join([1], **k), {"max_tokens": 1}),
    (lambda h, **k: rooflm.bench(h.path, **k), {"prompt": 1, "gen": 1, "depth": 0, "repeats": 1, "seed": 0}),
    (lambda h, **k: rooflm.kv_loss(h.path, text=TEXT, settings=["q8_0"], **k), {"gen": 1, "repeats": 1, "seed": 0}),
    (lambda h, **k: rooflm.perplexity(h.path, TEXT, **k), {"windows": 1}),
    (lambda h, **k: rooflm.compare(h.path, [h.path], text=TEXT, **k), {"windows": 1}),
    (lambda h, **k: rooflm.compare_layers(h.path, h.path, TEXT, **k), {"limit": 1}),
    (lambda h, **k: rooflm.evaluate(h.path, **k), {"limit": 1, "max_tokens": 1, "n_ctx": 1}),
    (lambda h, **k: rooflm.imatrix(h.path, TEXT, **k), {"chunks": 1}),
    (lambda h, **k: rooflm.quantize(h.path, h.file, "Q8_0", **k), {"split": 1}),
    (lambda h, **k: rooflm.mix(h.path, bits=8, **k), {"rows": 1, "threads": 1}),
    (lambda h, **k: rooflm.formats(**k), {"rows": 1, "cols": 1, "threads": 1, "seed": 0}),
    (lambda h, **k: rooflm.synth(h.file, **k), {"width": 1, "layers": 1, "heads": 1, "kv_heads": 1, "ffn": 1,
                                                "vocab": 1, "context": 1, "seed": 0}),
    (lambda h, **k: rooflm.forecast(h.path, **k), {"n_ctx": 1, "n_batch": 1, "logits": 0}),
    (lambda h, **k: rooflm.kv_size(**{"n_layer": 1, "n_head": 1, "head_dim": 32, "n_ctx": 8, **k}),
     {"n_layer": 1, "n_head": 1, "n_head_kv": 1, "head_dim": 1, "n_ctx": 1, "n_batch": 1}),
    (lambda h, **k: rooflm.whatif(h.path, bandwidth=10, **k), {"depth": 0}),
    (lambda h, **k: rooflm.load_times(h.path, **k), {"threads": 1, "repeats": 1, "seed": 0}),
    (lambda h, **k: rooflm.doctor(h.path, **k), {"depth": 0, "prompt": 1, "gen": 2}),
    (lambda h, **k: rooflm.tune(h.path, **k), {"depth": 0, "context": 1, "gen": 2, "repeats": 1}),
    (lambda h, **k: rooflm.sweep("context", h.path, **k), {"depth": 0, "ctx": 32, "gen": 2, "threads": 1, "seed": 0}),
    (lambda h, **k: rooflm.sweep("kernels", h.path, **k), {"tokens": 1, "repeats": 1}),
    (lambda h, **k: rooflm.sweep("cache", **k), {"sizes": 1}),
    (lambda h, **k: rooflm.kernel_choice(h.model, **k), {"threads": 1}),
    (lambda h, **k: rooflm.random_latency(4096, **k), {"seed": 0}),
    (lambda h, **k: rooflm.latency_ladder(**k), {"stride": 8}),
]  # fmt: skip


@pytest.mark.parametrize("call, least", TOO_FEW)
def test_too_few_is_said_with_the_least(here, call, least):
    for name, n in least.items():
        with pytest.raises(ValueError, match=f"^{name}={n - 1}: must be at least {n}$"):
            call(here, **{name: n - 1})
    assert not here.file.exists()


@pytest.mark.parametrize("stop", ["", ["a", ""]])
def test_an_empty_text_ends_nothing(here, command, stop):
    with here.model.session(n_ctx=64, n_threads=1) as s, pytest.raises(ValueError, match="an empty text would end"):
        s.generate([1], stop=stop)
    code, _, err = command("run", tiny_model(here.file), "-p", "a", "--stop", "")
    here.file.unlink()
    assert code == 1 and err.startswith("rooflm: stop=['']: an empty text")


@pytest.mark.parametrize("stop", [[None], None, 3, [b"x"], {"a": 1}])
def test_what_ends_an_answer_is_text(here, stop):
    with here.model.session(n_ctx=64, n_threads=1) as s:
        with pytest.raises(TypeError, match=re.escape(f"stop={stop!r}: must be a text")):
            s.generate([1], stop=stop)
        assert s.generate([1], stop=("x", "y"), max_tokens=1).run().stop_reason
