# SPDX-License-Identifier: Apache-2.0
"""Named recipes give every tensor the type that llama.cpp's quantizer gives it, with and without importance."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rooflm
from rooflm.quantization import recipes

sys.path.insert(0, str(Path(__file__).parent / "oracle"))

from make_recipe_goldens import GOLDEN, coded

# {(model or invented model, recipe or what is known of it): its types by kind of tensor}
RECORDED: dict[tuple[str, str], Any] = {tuple(k.split("|")): v for k, v in json.loads(GOLDEN.read_text()).items()}


def of(case: str) -> dict[str, Any]:
    return {key: v for (owner, key), v in RECORDED.items() if owner == case}


INVENTED = [case for case, key in RECORDED if key == "shape"]


def invented(case: str) -> recipes.Shape:
    known = of(case)
    tensors: dict[str, tuple[int, ...]] = {}
    for pattern in known["matrices"]:
        dims = (2, 2, 256) if "_exps" in pattern else (2, 256)
        layers = range(known["shape"]["n_layer"] if "blk.*" in pattern else 1)
        tensors.update({pattern.replace("blk.*", f"blk.{i}"): dims for i in layers})
    return recipes.Shape(tensors, tied="output.weight" not in tensors, **known["shape"])


def given(recipe: str, shape: recipes.Shape, importance: bool) -> dict[str, str]:
    """Types of the matrices of an F16 file."""
    wanted = recipes.named(recipe, shape, importance)
    return {
        n: recipes.fitting(wanted[n], dims[-1]) if n in wanted else "F16"
        for n, dims in shape.tensors.items()
        if len(dims) > 1
    }


def check(case: str, shape: recipes.Shape) -> None:
    recorded = of(case)
    for recipe in recipes.NAMED:
        plain = recorded[recipe]
        assert coded(given(recipe, shape, False)) == plain, recipe
        weighted = recorded.get(f"{recipe} with importance", plain)
        assert coded(given(recipe, shape, True)) == weighted, f"{recipe} with importance"


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_types_of_the_real_models(model, request):
    with rooflm.GGUF(request.getfixturevalue(model)) as g:
        check(model, recipes.shape_of(g))


@pytest.mark.parametrize("case", INVENTED)
def test_types_of_models_that_meet_other_rules(case):
    """Fused QKV, tied embeddings, 80 layers, experts: rows of 256 values, so that no type is substituted."""
    check(case, invented(case))


def test_what_was_recorded_covers_the_rules():
    """Goldens that say nothing would pass: importance changes types, and every recipe is there for every model."""
    assert len(INVENTED) >= 6
    changed = {key for _, key in RECORDED if key.endswith("with importance")}
    assert changed == {f"{r} with importance" for r in ("Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS")}
    for case in ("smollm2", "gemma3", *INVENTED):
        assert set(recipes.NAMED) <= set(of(case))


@pytest.mark.parametrize("name, shape, changes", [
    ("blk.0.attn_q.weight", (256, 256), True),
    ("blk.0.attn_norm.weight", (256,), False),
    ("blk.0.ffn_gate_inp.weight", (8, 256), False),
    ("blk.0.ffn_gate_inp_shexp.weight", (1, 256), False),
    ("blk.0.time_mix_decay_w1.weight", (64, 256), False),
    ("per_layer_model_proj.weight", (64, 256), False),
    ("blk.0.attn_q.bias", (2, 256), False),
    ("blk.0.some_gate.weight", (1, 256), False),  # one row is a vector
    ("blk.0.ffn_up_exps.weight", (4, 1, 256), True),
])  # fmt: skip
def test_what_recipes_leave_alone(name, shape, changes):
    assert recipes.is_quantized_here(name, shape) is changes
