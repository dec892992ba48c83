# SPDX-License-Identifier: Apache-2.0
"""Vector operations of every tier against float64: accuracy, odd lengths, NaN and infinities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cpu_features import cpu_has

from rooflm import KernelUnavailable, _core

OPS = """rmsnorm layernorm add scale silu_mul gelu_mul gelu silu softcap rope_norm rope_neox max exp_sum logsumexp
argmax""".split()
LENGTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 130, 576, 1000, 4099]
EPS = 2.0**-24
TINY = 2.0**-120  # silu and gelu may flush results this small to zero


def tiers() -> list[str]:
    has, found = cpu_has(), ["ref"]
    if {"avx2", "fma", "f16c"} <= has:
        found.append("avx2")
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"} <= has:
        found.append("avx512")
    if "neon" in has:
        found.append("neon")
    return found


TIERS = tiers()


@pytest.fixture(params=TIERS)
def isa(request) -> str:
    return request.param


def run(op, isa, x, a=None, b=None, in_place=False, **kw):
    """Output of an operation with a guard behind it, and its value. The output starts as NaN."""
    x = np.ascontiguousarray(x, np.float32)
    room = np.full(x.size + 32, np.nan, np.float32)
    room[x.size :] = 12345.0
    out = room[: x.size]
    if in_place:
        out[:] = x
        x = out
    value = _core._vec(f"rl_vec_{op}_{isa}", out, x, a, b, **kw)
    assert (room[x.size :] == 12345.0).all(), "wrote past the end"
    return out.copy(), value


def draw(n, seed=0, spread=3.0):
    return np.random.default_rng(seed).normal(0, spread, n).astype(np.float32)


def ulps(got, want, below=0.0):
    """Distance in units of the last place of the float32 next to `want` (float64), `below` being forgiven."""
    unit = np.spacing(np.maximum(np.abs(want), 2.0**-126).astype(np.float32)).astype(np.float64)
    return np.maximum(np.abs(got.astype(np.float64) - want) - below, 0) / unit


def test_every_tier_has_every_operation(isa):
    for op in OPS:
        name = f"rl_vec_{op}_{isa}"
        a = None if op in ("rmsnorm", "layernorm") else np.zeros(4 if op not in ("rope_norm", "rope_neox") else 2, "f4")
        _core._vec(name, np.zeros(4, "f4"), np.zeros(4, "f4"), a, s=1.0)


def test_unknown_name_and_wrong_buffers():
    x = np.zeros(4, "f4")
    with pytest.raises(KernelUnavailable, match="rl_vec_nothing"):
        _core._vec("rl_vec_nothing", x, x)
    with pytest.raises(ValueError, match="float32"):
        _core._vec("rl_vec_silu_ref", x, np.zeros(4))
    with pytest.raises(ValueError, match="as long as x"):
        _core._vec("rl_vec_silu_ref", np.zeros(3, "f4"), x)
    with pytest.raises(ValueError, match="as long as x"):
        _core._vec("rl_vec_add_ref", x, x)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_norms(isa, n, in_place):
    x, w, b = draw(n, n) + np.float32(0.5), draw(n, n + 1), draw(n, n + 2)
    x64 = x.astype(np.float64)
    for weight in (None, w):
        out, _ = run("rmsnorm", isa, x, weight, s=1e-5, in_place=in_place)
        want = x64 / np.sqrt((x64**2).mean() + np.float64(np.float32(1e-5))) * (1 if weight is None else w)
        assert ulps(out, want).max() < 3
    for weight, bias in ((None, None), (w, None), (w, b)):
        out, _ = run("layernorm", isa, x, weight, bias, s=1e-5, in_place=in_place)
        y = (x64 - x64.mean()) / np.sqrt(x64.var() + np.float64(np.float32(1e-5)))
        want = y * (1 if weight is None else w.astype(np.float64)) + (0 if bias is None else b.astype(np.float64))
        scale = np.abs(y * (1 if weight is None else w)) + (0 if bias is None else np.abs(b)) + 1e-30
        assert (np.abs(out - want) / scale).max() < 4 * EPS


def test_norm_sums_hold_under_outliers(isa):
    x = draw(4096, 5, 1e-3)
    x[7] = 3e4  # a float32 sum of squares loses everything else
    x[4000] = 1e20  # and overflows
    x64 = x.astype(np.float64)
    out, _ = run("rmsnorm", isa, x, s=1e-6)
    assert ulps(out, x64 / np.sqrt((x64**2).mean() + 1e-6)).max() < 3
    y = draw(4096, 6) * np.float32(1e-3) + np.float32(1000)  # a mean large against the spread
    y64 = y.astype(np.float64)
    out, _ = run("layernorm", isa, y, s=0.0)
    assert np.abs(out - (y64 - y64.mean()) / y64.std()).max() < 1e-6


@pytest.mark.parametrize("n", LENGTHS)
def test_add_and_scale(isa, n):
    a, b = draw(n, 1), draw(n, 2)
    assert (run("add", isa, a, b)[0] == a + b).all()
    assert (run("scale", isa, a, s=0.3)[0] == a * np.float32(0.3)).all()


def gelu64(x):
    x = x.astype(np.float64)
    y = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-y))


def silu64(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))


@pytest.mark.parametrize("n", LENGTHS)
def test_activations(isa, n):
    x, up = draw(n, n, 4.0), draw(n, n + 1)
    assert ulps(run("silu", isa, x)[0], silu64(x), TINY).max() < 4
    assert ulps(run("gelu", isa, x)[0], gelu64(x), TINY).max() < 8
    assert ulps(run("silu_mul", isa, x, up)[0], silu64(x) * up, TINY).max() < 5
    assert ulps(run("gelu_mul", isa, x, up, in_place=True)[0], gelu64(x) * up, TINY).max() < 9
    assert ulps(run("softcap", isa, x * 20, s=30.0)[0], 30 * np.tanh(x.astype(np.float64) * 20 / 30)).max() < 6


def test_activations_over_their_whole_range(isa):
    x = np.concatenate([np.linspace(-12, 12, 20001), np.geomspace(1e-30, 1e30, 999), -np.geomspace(1e-30, 1e30, 999)])
    x = x.astype(np.float32)
    for op, exact, relative in (("gelu", gelu64, 1e-6), ("silu", silu64, 1e-6)):
        got, want = run(op, isa, x)[0], exact(x)
        # Relative down to TINY.
        assert (np.abs(got - want) <= relative * np.abs(want) + TINY).all(), op
    got = run("softcap", isa, x, s=50.0)[0]
    want = 50 * np.tanh(x.astype(np.float64) / 50)
    assert (np.abs(got - want) <= 6e-7 * np.abs(want) + 2.0**-126).all()
    assert np.abs(got).max() <= 50


def test_exp_is_accurate_and_covers_underflow(isa):
    x = np.concatenate([np.linspace(-110, 0, 30011), [-np.inf, -1e30, -0.0]]).astype(np.float32)
    out, total = run("exp_sum", isa, x, s=0.0)
    want = np.exp(x.astype(np.float64))
    assert ulps(out, want).max() < 1.6
    assert abs(total / want.sum() - 1) < 1e-6
    assert out[-3] == 0 and out[-2] == 0 and out[-1] == 1


@pytest.mark.parametrize("n", LENGTHS)
def test_softmax_parts(isa, n):
    x = draw(n, n, 10.0)
    top = run("max", isa, x)[1]
    assert top == x.max()
    out, total = run("exp_sum", isa, x, s=float(top))
    want = np.exp((x - x.max()).astype(np.float64))
    assert ulps(out, want).max() < 1.6 and abs(total / want.sum() - 1) < 1e-6
    x64 = x.astype(np.float64)
    assert abs(run("logsumexp", isa, x)[1] - (x64.max() + np.log(np.exp(x64 - x64.max()).sum()))) < 2e-7


def test_logsumexp_far_out(isa):
    x = draw(262144, 3) + np.float32(430)
    x64 = x.astype(np.float64)
    got = run("logsumexp", isa, x)[1]
    assert math.isfinite(got) and abs(got - (x64.max() + np.log(np.exp(x64 - x64.max()).sum()))) < 1e-7
    assert run("logsumexp", isa, np.full(40, -np.inf))[1] == -math.inf
    assert run("logsumexp", isa, np.array([0, np.inf] + [1] * 30))[1] == math.inf
    assert math.isnan(run("logsumexp", isa, np.array([0, np.nan] + [1] * 30))[1])
    assert math.isnan(run("logsumexp", isa, np.array([0.0] * 33 + [np.nan]))[1])


def test_everything_masked_gives_zeros(isa):
    out, total = run("exp_sum", isa, np.full(37, -np.inf), s=-math.inf)
    assert (out == 0).all() and total == 0


@pytest.mark.parametrize("n", LENGTHS + [2500])
def test_argmax_takes_the_first_of_equals(isa, n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        x = rng.integers(0, 4, n).astype(np.float32)  # many equals
        assert run("argmax", isa, x)[1] == int(np.argmax(x))
        x = rng.normal(size=n).astype(np.float32)
        assert run("argmax", isa, x)[1] == int(np.argmax(x))
    x = np.full(n, -np.inf, np.float32)
    assert run("argmax", isa, x)[1] == 0


def test_nan_policy(isa):
    nan = np.nan
    assert run("max", isa, np.array([nan, 1, nan, 3] * 9 + [nan]))[1] == 3
    assert run("argmax", isa, np.array([nan, 1, nan, 3] * 9 + [nan]))[1] == 3
    assert run("argmax", isa, np.array([nan] * 21))[1] == 0
    assert run("argmax", isa, np.array([nan] * 1100 + [-np.inf]))[1] == 1100
    for at in (0, 20, 36):
        x = draw(37, 1)
        x[at] = nan
        for op in ("silu", "gelu", "softcap"):
            out = run(op, isa, x, s=30.0)[0]
            assert np.isnan(out[at]) and np.isnan(out).sum() == 1, op
        out, total = run("exp_sum", isa, x, s=5.0)
        assert math.isnan(total) and np.isnan(out[at])
        assert np.isnan(run("rmsnorm", isa, x, s=1e-6)[0]).all()


@pytest.mark.parametrize(
    "n_rot,ld", [(2, 2), (6, 8), (16, 16), (32, 80), (64, 64), (20, 20), (128, 128), (80, 96), (256, 256)]
)
@pytest.mark.parametrize("position,base", [(0, 1e4), (17, 1e4), (1_000_000, 1e4), (1_000_000, 1e6)])
def test_rope(isa, n_rot, ld, position, base):
    heads, half = 5, n_rot // 2
    angle = position * base ** (-2.0 * np.arange(half) / n_rot)
    cs = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32).ravel()
    x = draw(heads * ld, ld)
    x64 = x.astype(np.float64).reshape(heads, ld)
    for op, first, second in (
        ("rope_norm", np.arange(half) * 2, np.arange(half) * 2 + 1),
        ("rope_neox", np.arange(half), np.arange(half) + half),
    ):
        want = x64.copy()
        a, b = x64[:, first], x64[:, second]
        want[:, first] = a * np.cos(angle) - b * np.sin(angle)
        want[:, second] = a * np.sin(angle) + b * np.cos(angle)
        out = run(op, isa, x, cs, heads=heads)[0].reshape(heads, ld)
        assert (out[:, n_rot:] == x.reshape(heads, ld)[:, n_rot:]).all()
        pair = np.sqrt(a**2 + b**2)
        assert (np.abs(out - want)[:, first] <= 4 * EPS * pair).all()
        assert (np.abs(out - want)[:, second] <= 4 * EPS * pair).all()
        if position == 0:
            assert (out == x.reshape(heads, ld)).all()
