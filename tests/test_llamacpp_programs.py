# SPDX-License-Identifier: Apache-2.0
"""What llama.cpp's own programs said (tests/oracle/llamacpp_programs.py): the figures of llama-perplexity
--kl-divergence, the files of llama-imatrix in both forms, and its statistics."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
from golden_files import golden
from text_for_tests import topics

import rooflm

sys.path.insert(0, str(Path(__file__).parent / "oracle"))

from llamacpp_kl import STEP, storage_error, stored_kl
from llamacpp_programs import TINY, TINY_CTX, TINY_TEXT, blocks_hash

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = json.loads((GOLDEN / "real" / "smollm2_programs.json").read_text())
PRINTED = 1e-6  # half a unit of the last digit of a KL, and float32 in between


# --- llama-imatrix ---------------------------------------------------------------------------------------------


@pytest.fixture(params=TINY)
def tiny(request, tmp_path):
    """A tiny model and what llama-imatrix wrote for it on TINY_TEXT: (model's path, GGUF form, .dat form)."""
    files = []
    for form in ("gguf", "dat"):
        files.append(tmp_path / f"i.{form}")
        files[-1].write_bytes(lzma.decompress((GOLDEN / "imatrix" / f"{request.param}.{form}.xz").read_bytes()))
    return golden(request.param).path, *files


def test_importance_is_that_of_llama_imatrix(tiny):
    """Its windows, tokens and squares: the counts are equal, the sums up to the order of float32 sums. Routers, which
    nobody quantizes, are in theirs alone."""
    path, file, _ = tiny
    theirs = rooflm.IMatrix.load(file)
    ours = rooflm.imatrix(path, TINY_TEXT, ctx=TINY_CTX, compute="f32", n_threads=2)
    assert theirs.chunks == ours.chunks > 1 and theirs.chunk_size == TINY_CTX and theirs.datasets == ["t.txt"]
    assert {n for n in theirs.entries if "ffn_gate_inp" not in n} == set(ours.entries)
    for name, mine in ours.entries.items():
        e = theirs.entries[name]
        np.testing.assert_array_equal(mine.counts, e.counts, err_msg=name)
        np.testing.assert_allclose(mine.sums, e.sums, rtol=1e-5, atol=1e-6 * e.sums.max(), err_msg=name)


def test_both_forms_say_the_same(tiny, tmp_path):
    """The older form lays experts one after the other and does not say how many there are."""
    path, new, old = tiny
    a, b = rooflm.IMatrix.load(new), rooflm.IMatrix.load(old)
    assert set(a.entries) == set(b.entries) and a.chunks == b.chunks and a.datasets == b.datasets
    for name, e in a.entries.items():
        np.testing.assert_allclose(b.entries[name].mean_squares().ravel(), e.mean_squares().ravel(), rtol=1e-6)
    out = [tmp_path / f"{n}.gguf" for n in ("new", "old", "none")]
    for dst, importance in zip(out, (new, old, None)):
        rooflm.quantize(path, dst, "Q4_0", imatrix=importance)
    with rooflm.GGUF(out[0]) as x, rooflm.GGUF(out[1]) as y, rooflm.GGUF(out[2]) as z:
        for name, t in x.tensors.items():
            np.testing.assert_allclose(y.tensors[name].dequantize(), t.dequantize(), rtol=1e-3, atol=1e-3)
        up = next(n for n in x.tensors if "ffn_up" in n)
        assert (x.tensors[up].raw != z.tensors[up].raw).any()
    both = a + b
    for name, e in a.entries.items():
        assert both.entries[name].sums.shape == e.sums.shape
    back = tmp_path / "back.gguf"
    a.save(back)
    again = rooflm.IMatrix.load(back)
    for name, e in a.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, e.sums)
        np.testing.assert_array_equal(again.entries[name].counts, e.counts)


@pytest.mark.slow
def test_statistics_are_those_of_llama_imatrix(smollm2, tmp_path):
    """On SmolLM2 in F16, where llama.cpp rounds activations to half precision: 5e-4 of the norm."""
    recorded = json.loads((GOLDEN / "real" / "smollm2_imatrix.json").read_text())
    f16 = tmp_path / "f16.gguf"
    rooflm.quantize(smollm2, f16, "F16")
    ours = rooflm.imatrix(f16, topics()[:120_000], ctx=recorded["ctx"], chunks=recorded["windows"])
    rows = {r["tensor"]: r for r in ours.statistics()}
    assert set(rows) - set(recorded["tensors"]) == {"token_embd.weight"} and len(recorded["tensors"]) == 210
    for name, (total, largest, entropy, cosine) in recorded["tensors"].items():
        r = rows[name]
        assert r["mean"] * r["columns"] == pytest.approx(total, rel=2e-3, abs=0.006), name
        assert r["max"] == pytest.approx(largest, rel=2e-3, abs=6e-5), name
        assert r["entropy"] == pytest.approx(entropy, abs=5e-4), name
        assert (r["cosine_before"] or 0.0) == pytest.approx(cosine, abs=1e-3), name


# --- llama-perplexity --kl-divergence ---------------------------------------------------------------------------


@pytest.mark.slow
def test_kl_is_that_of_llama_perplexity(smollm2, tmp_path):
    """F32 against the values of Q4_K_M and Q8_0, both sides in float32. Every figure lies where the 16-bit storage of
    the reference allows; with that storage put on our logits, the mean is theirs to the printed digits."""
    reference, files = tmp_path / "f32.gguf", [tmp_path / f"{r}.gguf" for r in ("Q4_K_M", "Q8_0")]
    rooflm.quantize(smollm2, reference, "F32")
    for f in files:
        rooflm.quantize(reference, f, f.stem)
        assert blocks_hash(f) == PROGRAMS[f.stem]["blocks"], "other blocks: run tests/oracle/llamacpp_programs.py again"
    ctx, windows = PROGRAMS["ctx"], PROGRAMS["windows"]
    result = rooflm.compare(reference, files, topics()[:120_000], ctx=ctx, windows=windows, compute="f32")
    stored, errors = (np.zeros((len(files), *result[0].kl.shape)) for _ in range(2))
    sessions = [rooflm.Model(p).session(n_ctx=ctx, kv="f32", compute="f32") for p in (reference, *files)]
    for w, ids in enumerate(result[0].windows.ids):
        p, *others = (s.eval(ids, logits=slice(ctx // 2, ctx - 1)) for s in sessions)
        for i, q in enumerate(others):
            stored[i, w] = [stored_kl(a, b) for a, b in zip(p, q)]
            errors[i, w] = [storage_error(a, b) + PRINTED for a, b in zip(p, q)]
        for s in sessions:
            s.rewind(0)
    for i, c in enumerate(result):
        ours, theirs = c.to_dict(), PROGRAMS[files[i].stem]["weights"]
        assert np.mean(stored[i]) == pytest.approx(theirs["kl_mean"], abs=2 * PRINTED)
        assert ours["kl_mean"] == pytest.approx(theirs["kl_mean"], abs=float(errors[i].mean()))
        assert ours["ppl"] == pytest.approx(theirs["ppl"], rel=1e-6)
        assert ours["ppl_ref"] == pytest.approx(theirs["ppl_ref"], rel=STEP / 2)
        assert ours["ppl_ratio"] == pytest.approx(theirs["ppl_ratio"], rel=STEP / 2)
        low, high = c.kl - errors[i], c.kl + errors[i]
        for key, value in theirs.items():
            if key.startswith("kl_") and key != "kl_mean":
                of = {"kl_median": 50.0, "kl_max": 100.0}.get(key) or float(key[4:].replace("_", "."))
                assert np.percentile(low, of) <= value <= np.percentile(high, of), key
            elif key.startswith("dp_"):  # p moves by p times half a step; three digits of a percentage are printed
                assert ours[key] == pytest.approx(value, abs=STEP / 2 + 6e-6), key
        assert ours["top1"] == pytest.approx(theirs["top1"], abs=1.5 / c.kl.size)  # equal steps may swap one
