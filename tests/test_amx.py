# SPDX-License-Identifier: Apache-2.0
"""Whole models with the AMX tier: the bits of AVX-512, whatever the batches, the layouts and the kinds of panels."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from cpu_features import cpu_has
from golden_files import golden
from maker import tiny_model

import rooflm

pytestmark = pytest.mark.skipif(
    not {"amxint8", "avx512vnni"} <= cpu_has() or rooflm.kernels(isa=None).isa != "amx",
    reason="no AMX here, or a limit below it",
)

TOKENS = np.arange(450) % 260 + 3
# (architecture, types, width, ffn): every layout of tile.h, rows that end within 256 columns, an odd number of groups
MODELS = {
    "u5.g32.min": ("llama", "Q4_K", 256, 512),
    "u5.g16.min": ("llama", {"*ffn_down*": "Q2_K", "*ffn*": "Q5_1"}, 64, 768),
    "u6b32.g16": ("llama", {"*ffn_down*": "Q6_K", "*ffn_gate*": "Q3_K", "*ffn*": "Q6_K"}, 256, 512),
    "u8b128.g32": ("llama", "Q8_0", 64, 352),
    "several": ("llama", {"*ffn_gate*": "Q4_1", "*ffn_down*": "Q5_1", "*": "Q8_0"}, 96, 416),
    "gelu": ("gemma3", {"*ffn_up*": "Q5_0", "*ffn*": "Q8_0"}, 64, 256),
    "experts": None,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("amx") / "m.gguf"
    if request.param == "experts":
        rooflm.quantize(golden("qwen3moe").path, path, "Q8_0")
        return rooflm.Model(path)
    arch, types, width, ffn = MODELS[request.param]
    return rooflm.Model(tiny_model(path, arch, types=types, width=width, ffn=ffn, n_ctx=512, seed=7))


def logits(model, isa, n=450, batch=512, threads=2, compute="int8"):
    with model.session(n_ctx=512, n_batch=batch, n_threads=threads, compute=compute, isa=isa) as s:
        used = {k["kernel"] for k in s.kernels(min(n, batch))}
        assert any(k.endswith("_amx") for k in used) == (isa == "amx" and min(n, batch) >= 32)
        return s.eval(TOKENS[:n], logits="all")


@pytest.mark.parametrize("compute", ["int8", "int16"])
def test_same_bits_as_avx512_for_every_batch(model, compute):
    for n, batch in ((450, 512), (450, 64), (100, 8), (40, 1), (12, 512), (31, 512), (32, 512), (33, 512), (449, 100)):
        want, got = (logits(model, isa, n, batch, compute=compute) for isa in ("avx512", "amx"))
        assert np.isfinite(want).all() and want.std() > 0
        np.testing.assert_array_equal(got, want, err_msg=f"{n} tokens by {batch}")


def test_same_bits_for_any_number_of_threads(model):
    want = logits(model, "amx", threads=1)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(logits(model, "amx", threads=threads), want)


@pytest.mark.parametrize("layout", ["u8b128_g32", "u5_g32_min", "u6b32_g16", "u5_g16_min"])
@pytest.mark.parametrize("isa", ["amx", "avx512"])
def test_two_kinds_of_panels_in_one_layer(model, layout, isa, monkeypatch):
    """One layout's kernel asked for by name: for all prompts, beside the other kind that the rest takes."""
    want = logits(model, "avx512")
    monkeypatch.setenv("ROOFLM_KERNELS", f"rl_tile_mul_{layout}_q8_{isa}")
    with model.session(n_ctx=512, n_batch=512, n_threads=2, compute="int8") as s:
        np.testing.assert_array_equal(s.eval(TOKENS, logits="all"), want)
        few = {k["kernel"] for k in s.kernels(16) if layout in k["kernel"]}
        assert few <= {f"rl_tile_mul_{layout}_q8_{isa}"}


def in_a_child(path, conn):
    conn.send(logits(rooflm.Model(path), "amx", 100))


def test_a_forked_process_has_the_permission(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", types="Q8_0", n_ctx=512)
    want = logits(rooflm.Model(path), "amx", 100)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=in_a_child, args=(path, there))
    child.start()
    there.close()
    try:
        np.testing.assert_array_equal(here.recv(), want)
    finally:
        child.join(60)
    assert child.exitcode == 0


def test_the_limit_turns_it_off(model, monkeypatch):
    monkeypatch.setenv("ROOFLM_ISA", "avx512")
    with model.session(n_ctx=512, n_threads=1, compute="int8") as s:
        assert s.isa == "avx512" and not [k for k in s.kernels(450) if k["isa"] == "amx"]
