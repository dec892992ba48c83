# SPDX-License-Identifier: Apache-2.0
"""Gate, up and activation of a prompt in one piece: the same bits as step by step, which a tap of the activation asks
for, for every layout that reads its result; and where it is not taken."""

from __future__ import annotations

import numpy as np
import pytest
from maker import tiny_model

import rooflm

TOKENS = np.arange(450) % 300 + 3
# (architecture, types, width, ffn): down reads each layout of tile.h, rows end within a block of 256 and of 32
PIECES = {
    "u5.g32.min": ("llama", "Q4_K", 256, 512),
    "u5.g16.min": ("llama", {"*ffn_down*": "Q2_K", "*ffn*": "Q5_1"}, 64, 768),
    "u6b32.g16": ("llama", {"*ffn_down*": "Q6_K", "*ffn_gate*": "Q3_K", "*ffn*": "Q6_K"}, 256, 512),
    "u8b128.g32": ("llama", "Q8_0", 64, 352),
    "floats": ("llama", {"*ffn_down*": "Q4_1", "*ffn*": "F16"}, 96, 416),
    "gelu": ("gemma3", {"*ffn_up*": "Q5_0", "*ffn*": "Q8_0"}, 64, 256),
}
# name: (types, width, ffn, n_head, compute)
STEPS = {
    "int16": ("Q8_0", 64, 256, 4, "int16"),
    "f32": ("Q8_0", 64, 256, 4, "f32"),
    "float down": ({"*ffn_down*": "F32", "*ffn*": "Q8_0"}, 64, 256, 4, "int8"),
    "no room": ("Q8_0", 64, 96, 4, "int8"),
    "columns cut": ({"*ffn*": "Q8_0"}, 20 * 256, 256, 1, "int8"),
}


def prefill(session, n, tapped=False):
    """Logits of all positions, and the operations of the first layer."""
    session.rewind(0)
    with session.trace() as tr:
        if tapped:
            with session.capture("blk.*.ffn_act"):
                logits = session.eval(TOKENS[:n], logits="all")
        else:
            logits = session.eval(TOKENS[:n], logits="all")
    return logits, [e.op for e in tr.events if e.layer == 0]


@pytest.fixture(scope="module", params=PIECES)
def piece(request, tmp_path_factory):
    arch, types, width, ffn = PIECES[request.param]
    path = tmp_path_factory.mktemp("ffn") / "m.gguf"
    return rooflm.Model(tiny_model(path, arch, types=types, width=width, ffn=ffn, n_ctx=512, seed=7))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_piece_gives_the_bits_of_single_steps(piece, threads):
    with piece.session(n_ctx=512, n_threads=threads, compute="int8") as s:
        for n in (12, 13, 100, 450):
            at_once, ops = prefill(s, n)
            by_steps, more_ops = prefill(s, n, tapped=True)
            assert "activation" not in ops and "activation" in more_ops  # both ways were taken
            np.testing.assert_array_equal(at_once, by_steps)
            assert np.isfinite(at_once).all() and at_once.std() > 0


def test_one_piece_gives_the_bits_of_one_thread(piece):
    with piece.session(n_ctx=512, n_threads=1, compute="int8") as s:
        want, _ = prefill(s, 450)
    for threads in (2, 4):
        with piece.session(n_ctx=512, n_threads=threads, compute="int8") as s:
            np.testing.assert_array_equal(prefill(s, 450)[0], want)


@pytest.mark.parametrize("name", STEPS)
def test_other_prompts_go_step_by_step(name, tmp_path):
    types, width, ffn, n_head, compute = STEPS[name]
    path = tiny_model(
        tmp_path / "m.gguf", types=types, width=width, ffn=ffn, n_head=n_head, head_dim=width // n_head % 64 or 64
    )
    with rooflm.Model(path).session(n_ctx=512, n_threads=2, compute=compute) as s:
        logits, ops = prefill(s, 450)
        assert "activation" in ops and np.isfinite(logits).all()


def test_few_tokens_go_step_by_step(piece):
    with piece.session(n_ctx=64, n_threads=2, compute="int8") as s:
        for n in (1, 8, 11):
            assert "activation" in prefill(s, n)[1]


def test_what_nobody_writes_is_not_counted_as_memory_in_use(tmp_path):
    """Whole batches leave the floats of gate and up alone: rows of 2 x 4 x ffn bytes less than with int16."""
    path = tiny_model(tmp_path / "m.gguf", types="Q8_0", ffn=2048, n_ctx=512)
    used = {}
    for compute in ("int8", "int16"):
        with rooflm.Model(path).session(n_ctx=512, n_batch=512, n_threads=1, compute=compute) as s:
            used[compute] = s.scratch_used_nbytes
    floats, panels = 2 * 4 * 2048 * 512, 2 * 2048 * 512
    assert used["int16"] - used["int8"] > floats - panels
