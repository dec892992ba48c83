# SPDX-License-Identifier: Apache-2.0
"""The sampler against its definition in NumPy float64: probabilities, frequencies, seeds, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest

import rooflm


def definition(
    logits,
    history=(),
    *,
    temperature=0.8,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    penalty=1.0,
    last_n=64,
    bias=None,
):
    """The documented steps, written the slow way."""
    x = np.asarray(logits, np.float32).copy()
    for i, b in (bias or {}).items():
        x[i] += np.float32(b)
    recent = list(history) if last_n < 0 else list(history)[len(history) - min(last_n, len(history)) :]
    for i in set(recent):
        v = float(x[i])
        x[i] = v / penalty if v > 0 else v * penalty
    x = x.astype(np.float64)
    order = np.lexsort((np.arange(x.size), -x))
    order = order[np.isfinite(x[order])]
    if temperature == 0:
        order = order[:1]
        temperature = 1
    if top_k:
        order = order[:top_k]
    p = np.exp(x[order] - x[order[0]])
    keep = len(order)
    if top_p < 1:
        keep = int(np.argmax(np.cumsum(p) >= top_p * p.sum())) + 1
    if min_p > 0:
        keep = min(keep, max(1, int((x[order] - x[order[0]] >= math.log(min_p)).sum())))
    order = order[:keep]
    w = np.exp((x[order] - x[order[0]]) / temperature)
    out = np.zeros(x.size)
    out[order] = w / w.sum()
    return out


SETTINGS = [
    dict(),
    dict(temperature=0),
    dict(temperature=1.7, top_k=5, top_p=1.0, min_p=0.0),
    dict(top_k=0),
    dict(top_k=0, min_p=0.0),
    dict(top_k=0, top_p=1.0, min_p=0.0),
    dict(top_k=0, top_p=1.0, min_p=0.3),
    dict(top_k=0, top_p=0.4, min_p=0.0, temperature=2.0),
    dict(top_k=1),
    dict(top_k=10**6, top_p=0.01, min_p=0.0),
    dict(top_k=300, top_p=1.0, min_p=0.0, temperature=30.0),
    dict(min_p=1.0, top_p=1.0),
]


@pytest.mark.parametrize("n", [1, 2, 39, 40, 41, 1000, 49152])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_probabilities_equal_the_definition(n, settings):
    logits = np.random.default_rng(n).normal(0, 2, n).astype(np.float32)
    got = rooflm.Sampler(seed=0, **settings).probs(logits)
    assert got.dtype == np.float64 and got.shape == (n,)
    want = definition(logits, **settings)
    assert np.abs(got - want).max() < 1e-12
    assert abs(got.sum() - 1) < 1e-12


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equal_logits_keep_the_lower_ids(settings):
    logits = np.random.default_rng(5).integers(0, 3, 500).astype(np.float32)
    got = rooflm.Sampler(seed=0, **settings).probs(logits)
    assert np.abs(got - definition(logits, **settings)).max() < 1e-12


@pytest.mark.parametrize("last_n", [-1, 0, 1, 3, 64])
@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.8])
def test_penalty_and_bias(last_n, penalty):
    rng = np.random.default_rng(9)
    logits = rng.normal(0, 2, 200).astype(np.float32)
    history = rng.integers(0, 200, 100)
    bias = {3: 5.0, 7: -math.inf, 199: -1.5, int(history[-1]): 2.0}
    s = rooflm.Sampler(seed=0, repeat_penalty=penalty, repeat_last_n=last_n, logit_bias=bias, top_k=0, min_p=0)
    before = logits.copy()
    got = s.probs(logits, history)
    want = definition(logits, history, penalty=penalty, last_n=last_n, bias=bias, top_k=0, min_p=0)
    assert np.abs(got - want).max() < 1e-12 and got[7] == 0
    assert (logits == before).all(), "the caller's logits were changed"
    assert s.probs(logits, list(history)).tolist() == got.tolist()
    assert s.logit_bias == bias


@pytest.mark.parametrize("settings", [dict(), dict(top_k=0, top_p=1.0, min_p=0.0), dict(top_k=0, temperature=1.5)])
def test_frequencies_follow_the_probabilities(settings):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 1.5, 60).astype(np.float32)
    p = definition(logits, **settings)
    s, n = rooflm.Sampler(seed=123, **settings), 20000
    counts = np.bincount([s.sample(logits) for _ in range(n)], minlength=60)
    assert (counts[p == 0] == 0).all()
    # Chi-square over the cells that expect at least 5, the others as one cell.
    big = p * n >= 5
    got, want = np.append(counts[big], counts[~big].sum()), np.append(p[big] * n, p[~big].sum() * n)
    got, want = got[want > 0], want[want > 0]
    chi2, dof = ((got - want) ** 2 / want).sum(), len(want) - 1
    # The mean is dof, the deviation sqrt(2 dof): five deviations, and not suspiciously good either.
    assert abs(chi2 - dof) < 5 * math.sqrt(2 * dof), (chi2, dof)


def test_draws_are_independent_of_each_other():
    s = rooflm.Sampler(seed=5, temperature=1.0, top_p=1.0, min_p=0.0)
    bits = np.array([s.sample([0.0, 0.0]) for _ in range(4000)])
    pairs = np.bincount(bits[:-1] * 2 + bits[1:], minlength=4)
    assert (np.abs(pairs - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)).all()


def test_seeds():
    logits = np.random.default_rng(2).normal(0, 1, 1000)

    def ids(s, n=50):
        return [s.sample(logits) for _ in range(n)]

    s = rooflm.Sampler(seed=42)
    first = ids(s)
    assert ids(s) != first
    s.reset()
    assert ids(s) == first == ids(rooflm.Sampler(seed=42))
    assert ids(rooflm.Sampler(seed=43)) != first
    s.reset()
    s.probs(logits)  # uses up no draw
    with pytest.raises(ValueError):
        s.sample([math.nan])  # nor does a refusal
    assert ids(s) == first
    a, b = rooflm.Sampler(), rooflm.Sampler()
    assert a.seed != b.seed and f"seed={a.seed}" in repr(a)
    again = eval(repr(a), {"Sampler": rooflm.Sampler})
    assert ids(again) == ids(a)
    assert rooflm.Sampler(seed=2**64 - 1).seed == 2**64 - 1


def test_greedy():
    s = rooflm.Sampler.greedy()
    assert s.temperature == 0 and s.sample([1.0, 3.0, 3.0, -math.inf]) == 1
    assert s.probs([1.0, 3.0, 3.0]).tolist() == [0, 1, 0]
    assert rooflm.Sampler(temperature=0, repeat_penalty=2.0).sample([4.0, 3.0], [0]) == 1


def test_large_logits_and_tiny_temperature():
    x = np.random.default_rng(0).normal(430, 3, 5000).astype(np.float32)
    assert np.abs(rooflm.Sampler(seed=0).probs(x) - definition(x)).max() < 1e-12
    assert rooflm.Sampler(seed=0, temperature=1e-300).probs(x).max() == 1
    masked = np.full(5000, -np.inf, np.float32)
    masked[4321] = -1e30
    for settings in SETTINGS:
        assert rooflm.Sampler(seed=0, **settings).sample(masked) == 4321


@pytest.mark.parametrize(
    "kw",
    [
        dict(temperature=-0.1),
        dict(temperature=math.nan),
        dict(temperature=math.inf),
        dict(top_k=-1),
        dict(top_p=0.0),
        dict(top_p=1.01),
        dict(top_p=math.nan),
        dict(min_p=-0.1),
        dict(min_p=1.1),
        dict(repeat_penalty=0.0),
        dict(repeat_penalty=math.inf),
        dict(repeat_last_n=-2),
        dict(seed=-1),
        dict(seed=2**64),
        dict(logit_bias={-1: 1.0}),
        dict(logit_bias={2**40: 1.0}),
        dict(logit_bias={3: math.nan}),
        dict(logit_bias={3: math.inf}),
    ],
    ids=str,
)
def test_bad_values_are_named(kw):
    with pytest.raises(ValueError, match=next(iter(kw))):
        rooflm.Sampler(**kw)


def test_wrong_types_and_keywords():
    with pytest.raises(TypeError, match="top_k"):
        rooflm.Sampler(top_k=1.5)
    with pytest.raises(TypeError, match="seed"):
        rooflm.Sampler(seed="1")
    with pytest.raises(TypeError, match="logit_bias"):
        rooflm.Sampler(logit_bias=[1])
    with pytest.raises(TypeError, match="temperature"):
        rooflm.Sampler(temprature=1.0)
    with pytest.raises(TypeError, match="temperature"):
        rooflm.Sampler(temp=1.0)
    with pytest.raises(TypeError):
        rooflm.Sampler(0.8)


@pytest.mark.parametrize("call", ["sample", "probs"])
def test_bad_logits_and_ids(call):
    for settings in (dict(), dict(temperature=0), dict(top_k=0)):
        f = getattr(rooflm.Sampler(seed=0, **settings), call)
        x = np.zeros(1000, np.float32)
        x[777] = np.nan
        with pytest.raises(ValueError, match=r"logits\[777\] is NaN"):
            f(x)
        x[777] = np.inf
        with pytest.raises(ValueError, match=r"logits\[777\] is \+inf"):
            f(x)
        with pytest.raises(ValueError, match="every logit is -inf"):
            f(np.full(100, -np.inf))
        for wrong in (np.zeros((2, 3)), np.zeros(0), 1.0, np.zeros(3, bool), ["a"], np.zeros(3, complex)):
            with pytest.raises(ValueError, match="logits"):
                f(wrong)
        for ids in ([1000], [-1], [2**40], [[1]], [0.5]):
            with pytest.raises(ValueError, match="history"):
                f(np.zeros(1000), ids)
    with pytest.raises(ValueError, match="logit_bias names id 50"):
        getattr(rooflm.Sampler(logit_bias={50: 1.0}), call)(np.zeros(50))


def test_strided_and_other_types():
    x = np.random.default_rng(3).normal(0, 1, 400).astype(np.float32)
    s = rooflm.Sampler(seed=0)
    want = s.probs(x[::2].copy())
    for same in (x[::2], x[::2].astype(np.float64), x[::2].tolist(), x[::2].astype(">f4")):
        assert (s.probs(same) == want).all()


def test_memory_is_given_back():
    import sys

    bias = {1: 1.0}
    before = sys.getrefcount(bias)
    for _ in range(100):
        rooflm.Sampler(logit_bias=bias).sample(np.zeros(10))
    assert sys.getrefcount(bias) == before


@pytest.mark.parametrize("penalty", [1e-45, 1e-300, 1e45, 1e300])
@pytest.mark.parametrize("scale", [1.0, 3e38])
def test_penalties_and_biases_never_overflow(penalty, scale):
    logits = np.linspace(-1, 1, 100, dtype=np.float32) * np.float32(scale)
    s = rooflm.Sampler(seed=1, repeat_penalty=penalty, logit_bias={99: 3e38, 0: -3e38}, top_k=0, top_p=1.0, min_p=0.0)
    for history in ([0, 1, 2, 97, 98, 99], list(range(100))):
        p = s.probs(logits, history)
        assert np.isfinite(p).all() and p.sum() == pytest.approx(1)
        assert p[s.sample(logits, history)] > 0
