# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 on every ISA tier, x86-64 and AArch64 alike, against one recording: a prompt, then one token.

The recording (smollm2.npz) holds every 16th logit of the AVX-512 tier in int16. Tiers sum floats in different orders,
and a rounding that falls the other way in one layer moves the activations of the next: 0.03 was seen, on logits whose
standard deviation is 6.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rooflm

PROMPT, NEXT = [504, 2988, 282, 4649, 314, 260, 28, 1], [253]
BOUND = 0.06
TIERS = sorted({k.isa for k in rooflm.kernels(isa=None) if k.available} - {"ref"})


@pytest.mark.parametrize("isa", TIERS)
def test_logits_agree(isa, smollm2, monkeypatch):
    monkeypatch.setenv("ROOFLM_ISA", isa)
    with np.load(Path(__file__).parent / "smollm2.npz") as z:
        want, top = z["logits"], z["top"]
    with rooflm.Model(smollm2).session(n_ctx=64, n_threads=1, compute="int16") as s:
        got = np.stack([s.eval(PROMPT, logits="last"), s.eval(NEXT, logits="last")])
    np.testing.assert_array_equal(got.argmax(1), top)
    assert np.abs(got[:, ::16] - want).max() < BOUND


@pytest.mark.parametrize("compute,rms", [("int8", 0.8), ("int16", 0.3)])
def test_arithmetic_over_a_quantized_cache(compute, rms, smollm2, monkeypatch):
    """What this CPU chooses for itself, over q8_0 pages: 0.3 to 0.5 was seen for int8 and 0.08 to 0.17 for int16."""
    monkeypatch.delenv("ROOFLM_ISA", raising=False)
    with np.load(Path(__file__).parent / "smollm2.npz") as z:
        want, top = z["logits"], z["top"]
    with rooflm.Model(smollm2).session(n_ctx=64, n_threads=1, kv="q8_0", compute=compute) as s:
        got = np.stack([s.eval(PROMPT, logits="last"), s.eval(NEXT, logits="last")])
    assert np.sqrt(np.square(got[:, ::16] - want).mean(1)).max() < rms
    assert (got.max(1) - got[[0, 1], top]).max() < rms


@pytest.mark.parametrize("isa", TIERS)
def test_text_on_two_threads(isa, smollm2, monkeypatch):
    """What a user does first: threads, a quantized cache, the default arithmetic, a few tokens."""
    monkeypatch.setenv("ROOFLM_ISA", isa)
    with rooflm.Model(smollm2).session(n_ctx=64, n_threads=2, kv="q8_0") as s:
        text = "".join(s.generate("The capital of France is", max_tokens=3))
    assert text.startswith(" Paris"), text
