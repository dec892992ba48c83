# SPDX-License-Identifier: Apache-2.0
"""Comparisons against llama.cpp: its 16-bit storage of log-probabilities on the same logits, and its figures for the
same two models and text (tests/oracle/llamacpp_kl.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from text_for_tests import topics

import rooflm
from rooflm import _core

sys.path.insert(0, str(Path(__file__).parent / "oracle"))

from llamacpp_kl import exact, stored_kl

GOLDEN = Path(__file__).parent / "golden" / "real" / "smollm2_kl.json"


@pytest.mark.parametrize("noise", [0.05, 0.5])
@pytest.mark.parametrize("vocab", [5000, 262144])
def test_storage_in_16_bits_explains_the_difference_to_llama_cpp(noise, vocab):
    """llama.cpp keeps log-probabilities in steps of (max - min) / 65535, at most 16 nats deep. Rounding by half a step
    moves a KL by at most about a step; what lies deeper counts as nothing, which takes off its part of the KL (R34)."""
    rng = np.random.default_rng(1)
    p = (rng.normal(size=(4, vocab)) * 2.5).astype(np.float32)
    q = (p + rng.normal(size=p.shape) * noise).astype(np.float32)
    kl = _core._contrast_rows(p, q, np.zeros(4, int))["kl"]
    for i in range(4):
        assert kl[i] == pytest.approx(exact(p[i], q[i]), rel=1e-9)
        log_p = p[i].astype(np.float64) - p[i].max()
        log_p -= np.log(np.exp(log_p).sum())
        log_q = q[i].astype(np.float64) - q[i].max()
        log_q -= np.log(np.exp(log_q).sum())
        deep = log_p <= -16
        lost = (np.exp(log_p) * (log_p - log_q))[deep].sum()
        step = 16 / 65535
        assert stored_kl(p[i], q[i]) == pytest.approx(kl[i] - lost, abs=step)


def test_figures_of_llama_cpp(smollm2):
    """The same two models: ours with the tensors replaced in memory, on the path that is exact enough to judge."""
    golden = json.loads(GOLDEN.read_text())
    q4 = gguf.GGMLQuantizationType.Q4_0
    replace = {}
    for name, t in rooflm.GGUF(smollm2).tensors.items():
        if "ffn_down" in name:
            replace[name] = ("Q4_0", gguf.quants.quantize(t.dequantize(), q4).ravel())
    model = rooflm.Model(smollm2, replace=replace)
    text = topics()[:120_000]
    d = rooflm.compare(smollm2, model, text, ctx=golden["ctx"], windows=golden["windows"])[0].to_dict()
    assert d["ppl_ref"] == pytest.approx(golden["ppl_ref"], rel=2e-3)
    assert d["ppl"] == pytest.approx(golden["ppl"], rel=2e-3)
    storage = abs(golden["kl_mean_stored"] - golden["kl_mean"])
    assert d["kl_mean"] == pytest.approx(golden["kl_mean"], rel=0.01)
    assert abs(d["kl_mean"] - golden["kl_mean_stored"]) < storage + 0.01 * golden["kl_mean"]
    assert d["kl_median"] == pytest.approx(golden["kl_median"], rel=0.02)
    assert d["top1"] == pytest.approx(golden["top1"], abs=0.006)
