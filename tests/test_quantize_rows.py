# SPDX-License-Identifier: Apache-2.0
"""Float32 rows to blocks: every tier gives the same bits, other readers agree on what the blocks mean, bad values are
refused, and the error is no larger than the error of the field's own quantizers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from peer_ggml import Ggml, find_library, restore
from quant_cases import BLOCKS, REAL, ROWS, importance, real_values, values, weighted_error

import rooflm
from rooflm import _core

TYPES = [*BLOCKS, "F16", "BF16", "F32"]
TIERS = sorted({k.isa for k in rooflm.kernels(isa=None) if k.family == "quant" and k.available})
LLAMACPP = json.loads((Path(__file__).parent / "golden" / "quant_errors.json").read_text())


def quantize(x: np.ndarray, type: str, weights: np.ndarray | None = None, **more: object) -> np.ndarray:
    return restore(_core.quantize_rows(x, type, weights, **more), type, x.shape[1])


@pytest.mark.parametrize("type", TYPES)
def test_error_is_small_and_reported(type):
    x = values(24, 768)
    errors = np.full((24, 2), np.nan)
    y = quantize(x, type, errors=errors)
    err = ((x.astype(float) - y) ** 2).sum(1)
    np.testing.assert_allclose(errors[:, 0], err, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(errors[:, 1], (x.astype(float) ** 2).sum(1), rtol=1e-6)


def check_against_llamacpp(name: str, x: np.ndarray, type: str) -> None:
    """LLAMACPP[name][type]: errors without and with importance. Where a file is quantized again to its own type, both
    find the old grid again and differ by the last bit of its scales only."""
    for i, theirs in zip((None, importance(x.shape[1])), LLAMACPP[name][type]):
        ours = weighted_error(x, quantize(x, type, i), type, i)
        assert 0.3 * theirs < ours <= theirs, (name, type, i is not None)


@pytest.mark.parametrize("type", BLOCKS)
def test_no_worse_than_llamacpp(type):
    check_against_llamacpp("made", values(ROWS, 1024), type)


@pytest.mark.parametrize("model", REAL)
def test_no_worse_than_llamacpp_on_real_tensors(model, request):
    path = request.getfixturevalue(model)
    for tensor in REAL[model]:
        name = f"{model} {tensor}"
        x = real_values(path, tensor)
        for type in LLAMACPP[name]:
            check_against_llamacpp(name, x, type)


@pytest.mark.skipif(find_library() is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("type", BLOCKS)
def test_recorded_errors_are_llamacpps(type):
    x, w = values(ROWS, 1024), importance(1024)
    ggml = Ggml(find_library())
    for i, recorded in zip((None, w), LLAMACPP["made"][type]):
        assert weighted_error(x, ggml.round_trip(x, type, i), type, i) == pytest.approx(recorded, rel=1e-3)


@pytest.mark.parametrize("type", BLOCKS)
def test_every_tier_and_thread_count_gives_the_same_bits(type):
    n = 256 * 5 if "K" in type or type == "IQ4_XS" else 32 * 21  # fills no panel evenly
    x = values(7, n, 1)
    for w in (None, importance(n)):
        want = _core.quantize_rows(x, type, w, isa="ref")
        assert "ref" in TIERS and len({r.tobytes() for r in want}) == 7
        for isa in TIERS:
            np.testing.assert_array_equal(_core.quantize_rows(x, type, w, isa=isa), want, err_msg=isa)
        np.testing.assert_array_equal(_core.quantize_rows(x, type, w, threads=3), want)


@pytest.mark.parametrize("type", TYPES)
def test_another_reader_agrees(type):
    gguf = pytest.importorskip("gguf")
    x = values(4, 512, 3)
    raw = _core.quantize_rows(x, type)
    other = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type])
    np.testing.assert_allclose(other.reshape(x.shape), restore(raw, type, 512), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("type", BLOCKS)
def test_importance_moves_the_error(type):
    """Columns that matter a hundred times as much get less of the error."""
    x = values(16, 512, 4)
    heavy = np.zeros(512, bool)
    heavy[::8] = True
    plain = ((quantize(x, type) - x) ** 2)[:, heavy].sum()
    y = quantize(x, type, np.where(heavy, 100, 1).astype(np.float32))
    assert ((y - x) ** 2)[:, heavy].sum() < 0.98 * plain
    np.testing.assert_array_equal(  # only ratios matter
        _core.quantize_rows(x, type, np.where(heavy, 256, 2).astype(np.float32)),
        _core.quantize_rows(x, type, np.where(heavy, 128, 1).astype(np.float32)))  # fmt: skip


@pytest.mark.parametrize("type", TYPES)
def test_awkward_rows(type):
    """Zeros, a constant, tiny, huge beside tiny, one value only: finite, and near where half precision allows."""
    x = np.zeros((7, 256), np.float32)
    x[1] = 0.25
    x[2] = 1e-30
    x[3] = -3.0
    x[4, 17] = 5.0
    x[5] = np.linspace(1, 2, 256)
    x[6, :128], x[6, 128:] = 1e-8, 1000
    for w in (None, np.zeros(256, np.float32), np.eye(1, 256, 40, dtype=np.float32)[0]):
        y = quantize(x, type, w)
        assert np.isfinite(y).all()
        assert not y[0].any()
        for row in (1, 3, 4, 5, 6):
            close = {"Q2_K": 0.4, "Q3_K": 0.25}.get(type, 0.12) * abs(x[row]).max()
            assert abs(y[row] - x[row])[abs(x[row]) > 1e-6].max() <= close, (row, w is None)
        assert abs(y[2]).max() < 1e-6


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(type, bad):
    x = values(6, 256, 5)
    x[4, 77] = bad
    with pytest.raises(ValueError, match=r"row 4 .*column 77"):
        _core.quantize_rows(x, type, threads=2)


@pytest.mark.parametrize("type", [t for t in TYPES if t not in ("BF16", "F32")])
def test_values_beyond_half_precision(type):
    x = values(3, 256, 6)
    x[2, 5] = 1e30
    with pytest.raises(ValueError, match="row 2 holds values too large"):
        _core.quantize_rows(x, type)


def test_values_that_bfloat16_rounds_to_infinity():
    x = values(3, 256, 6)
    x[2, 5] = -3.4e38  # the largest one is 3.3895e38
    with pytest.raises(ValueError, match="row 2 holds values too large for BF16"):
        _core.quantize_rows(x, "BF16")
    x[2, 5] = -3.38e38
    half = _core.quantize_rows(x, "BF16").view(np.uint16).astype(np.uint32)
    assert np.isfinite((half << 16).view(np.float32)).all()


def test_arguments():
    x = values(2, 256)
    with pytest.raises(ValueError, match="multiple of 256 values, not 192"):
        _core.quantize_rows(np.ascontiguousarray(x[:, :192]), "Q4_K")
    with pytest.raises(ValueError, match="no type 'Q9_9'"):
        _core.quantize_rows(x, "Q9_9")
    for name in ("IQ2_XS", "Q8_K", "I8"):
        with pytest.raises(ValueError, match=f"cannot be written as {name}"):
            _core.quantize_rows(x, name)
    for w in (np.full(256, -1, np.float32), np.full(256, np.nan, np.float32)):
        with pytest.raises(ValueError, match="finite and not negative"):
            _core.quantize_rows(x, "Q4_0", w)
    with pytest.raises(ValueError, match="128 values for rows of 256"):
        _core.quantize_rows(x, "Q4_0", np.ones(128, np.float32))
    with pytest.raises(ValueError, match=r"shape \(2, 144\)"):
        _core.quantize_rows(x, "Q4_K", None, np.empty((2, 145), np.uint8))
    with pytest.raises(ValueError, match="C-contiguous"):
        _core.quantize_rows(x[:, ::2], "Q4_0")
    with pytest.raises(TypeError, match="importance"):
        _core.quantize_rows(x, "Q4_0", importanse=None)
    out = np.zeros((2, 144), np.uint8)
    assert _core.quantize_rows(x, "Q4_K", out=out) is out and out.any()
    assert _core.quantize_rows(np.empty((0, 256), np.float32), "Q4_K").shape == (0, 144)
