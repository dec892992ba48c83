# SPDX-License-Identifier: Apache-2.0
"""Traces: every operation of every layer, in order and without gaps; taps of attention weights."""

from __future__ import annotations

import numpy as np
from golden_files import golden

import rooflm

OPS = ["attn_norm", "qkv", "rope", "attention", "attn_out", "ffn_norm", "gate_up", "activation", "down"]


def test_operations_follow_each_other_without_gaps():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=2) as s:
        with s.trace() as tr:
            s.eval([3, 4, 5])
            s.eval([6])
    steps = [e for e in tr.events if e.op == "embed"]
    assert [e.n_tokens for e in steps] == [3, 1] and tr.dropped == 0
    for layer in range(m.n_layer):
        assert [e.op for e in tr.events if e.layer == layer] == OPS * 2
    first = tr.events[: len(tr.events) // 2]
    assert all(a.end_ns == b.start_ns for a, b in zip(first, first[1:]))
    assert all(0 <= e.wait_ns <= e.end_ns - e.start_ns for e in tr.events)
    assert abs(sum(r["share"] for r in tr.by_op()) - 1) < 1e-9
    assert "attention" in repr(tr)


def test_a_full_trace_counts_what_it_drops():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace(capacity=5) as tr:
            s.eval([3])
        whole = 1 + m.n_layer * len(OPS) + 2
        assert len(tr.events) == 5 and tr.dropped == whole - 5
        with s.trace() as again:
            s.eval([3])
        assert len(again.events) == whole


def test_tracing_changes_no_logit():
    m = rooflm.Model(golden("gemma3").path)
    with m.session(n_ctx=64, n_threads=2) as a, m.session(n_ctx=64, n_threads=2) as b:
        with a.trace():
            x = a.eval([3, 4, 5], logits="all")
        assert np.array_equal(x, b.eval([3, 4, 5], logits="all"))


def test_attention_weights_sum_to_one_over_what_a_token_sees():
    m = rooflm.Model(golden("gemma3").path)
    window, sliding = m.hparams["window"], m.hparams["sliding"]
    tokens = list(range(3, 3 + 40))
    with m.session(n_ctx=64, n_threads=2, n_batch=16, kv="f32", compute="f32") as s:
        with s.capture("blk.*.attn_weights") as cap:
            s.eval(tokens)
    for i, slides in enumerate(sliding):
        w = cap[f"blk.{i}.attn_weights"]
        assert w.shape == (40, m.n_head, 40)
        np.testing.assert_allclose(w.sum(-1), 1, atol=1e-5)
        past = np.arange(40)[:, None] - np.arange(40)[None]
        seen = (past >= 0) & (past < window if slides else True)
        assert (w[~np.broadcast_to(seen[:, None], w.shape)] == 0).all()
        assert (w[np.broadcast_to(seen[:, None], w.shape)] > 0).all()
