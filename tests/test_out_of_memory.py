# SPDX-License-Identifier: Apache-2.0
"""Every allocation that Python makes for a call fails once, one after the other: each gives MemoryError, and what was
called works afterwards. (The C side's own allocations are not among them: test_hostile.py limits address space.)"""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from maker import tiny_model

import rooflm
from rooflm import _core

testcapi = pytest.importorskip("_testcapi")
IDS = np.array([1, 2], np.int32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tiny_model(tmp_path_factory.mktemp("oom") / "m.gguf", types={"*": "Q8_0"}))


@pytest.fixture(scope="module")
def session(path):
    return rooflm.Model(path).session(n_ctx=64, n_threads=1)._c


def again(s, use):
    s.rewind(0)
    return use()


def tapped(s):
    s._set_taps(["blk.0.resid_post"])
    again(s, lambda: s.eval(IDS))
    s._take_taps()
    s._set_taps([])


def inputs(s):
    s._collect_inputs(True)
    again(s, lambda: s.eval(IDS))
    s._take_inputs()
    s._collect_inputs(False)


def everything_of(g):
    return dict(g.metadata), [repr(t) for t in g.tensors.values()], g._repr_html_(), g.shards


def cache():
    a = np.ones((2, 2, 32), np.float32)
    kv = _core.KVCache(1, n_head_kv=2, head_dim=32, n_ctx=64)
    kv.append(a, a)
    return kv.k(), kv.pages(0), kv.fork(), kv.window, repr(kv), _core.attention(np.ones((1, 4, 32)), kv)


CALLS = {
    "eval": lambda s, p: again(s, lambda: s.eval(IDS)),
    "slice": lambda s, p: again(s, lambda: s.eval(IDS, logits=slice(0, None))),
    "logprobs": lambda s, p: again(s, lambda: s.logprobs(IDS, top=2)),
    "step": lambda s, p: again(s, lambda: _core.Session._step_many([s], [IDS])),
    "taps": lambda s, p: tapped(s),
    "inputs": lambda s, p: inputs(s),
    "state": lambda s, p: (s.fork(), s.kernels(), s.placement, s.tokens, [(x.k(), x.pages) for x in s.kv]),
    "session": lambda s, p: _core.Session(s.model, n_ctx=32, n_threads=1, rules=[("attn_*", "f32")]).close(),
    "model": lambda s, p: _core.Model(p).tokenizer.encode("hello w\u00f6rld"),
    "gguf": lambda s, p: everything_of(_core.GGUF(p)),
    "tensor": lambda s, p: (lambda t: (t.raw, t.dequantize(), t.dequantize(rows=[1, 2]), t @ np.ones(64)))(
        s.model.gguf.tensors["blk.0.attn_q.weight"]
    ),
    "sampler": lambda s, p: _core.Sampler(seed=1, logit_bias={1: 2.0}, repeat_penalty=1.1).probs(np.ones(9), [1, 2]),
    "cache": lambda s, p: cache(),
    "quantize": lambda s, p: _core.quantize_rows(np.ones((2, 256), np.float32), "Q4_K", np.ones(256, np.float32)),
    "machine": lambda s, p: (_core._cpus(), _core._isa(), _core._build(), _core._last_threads()),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_allocation_may_fail(session, path, name):
    call = CALLS[name]
    call(session, path)
    failed = passed = 0
    gc.disable()  # its own allocations would be counted
    try:
        for k in range(1, 2000):
            testcapi.set_nomemory(k, k + 1)
            try:
                call(session, path)
            except MemoryError:
                failed, passed = failed + 1, 0
            else:
                passed += 1  # nothing failed, or what failed could be done without
            finally:
                testcapi.remove_mem_hooks()
            if passed > 30:
                break
    finally:
        gc.enable()
    assert failed, "no allocation was reached"
    assert passed > 30, "the call never got through"
    call(session, path)
    assert session.eval(IDS[:1]).shape == (320,) and os.path.exists(path)
