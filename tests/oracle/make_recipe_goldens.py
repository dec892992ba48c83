# SPDX-License-Identifier: Apache-2.0
"""Records which types llama.cpp's quantizer would give to every tensor, for tests/test_recipes.py: `llama-quantize
--dry-run`, each recipe, with and without an importance matrix. Types depend on names, on the length of rows and on a
few numbers of the model, so matrices are cut to two rows; models that no package offers are invented from the tiny ones
of tests/golden/arch. Run with a Python that has rooflm and gguf (how the program is built: CONTRIBUTING.md):

    python tests/oracle/make_recipe_goldens.py LLAMA_QUANTIZE SCRATCH_DIRECTORY smollm2=FILE gemma3=FILE
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import rooflm
from rooflm.quantization import recipes
from rooflm.quantization.imatrix import Entry

GOLDEN = Path(__file__).parents[1] / "golden" / "recipe_types.json"
LINE = re.compile(r"\] +(\S+) +- \[.*type = +(\w+), size = .*?MiB(?: -> .*MiB \((\w+)\))?$")
# Name: (tiny model, keys without the architecture); layers and head counts reach the rules that the real ones do not.
INVENTED: dict[str, tuple[str, dict[str, int]]] = {
    "fused qkv": ("phi3-short", {"block_count": 32}),
    "70B": (
        "llama",
        {"block_count": 80, "attention.head_count": 8, "attention.head_count_kv": 1, "rope.dimension_count": 8},
    ),
    "eight experts": ("llama-moe", {"block_count": 32, "expert_count": 8}),
    "many experts": ("qwen3moe", {"block_count": 24}),
    "shared expert": ("granitemoe-shared", {"block_count": 40}),
    "falcon": ("falcon", {"block_count": 32}),  # not run by the engine: what a Falcon file has, see falcon()
    "tied, seven heads": ("qwen2", {"block_count": 28, "attention.head_count": 7, "attention.head_count_kv": 1}),
}


def shapes_like(names: dict[str, tuple[int, ...]], layers: int) -> dict[str, tuple[int, ...]]:
    """Tensors of so many layers, each as the first one is, with rows of 256 values: the longest block."""
    out = {}
    for name, shape in names.items():
        m = recipes.LAYER.match(name)
        if m is None or m.group(1) == "0":
            for i in range(layers if m else 1):
                own = (*(2 for _ in shape[:-1]), 256)
                out[name.replace("blk.0.", f"blk.{i}.", 1) if m else name] = own
    return out


def coded(types: dict[str, str]) -> dict[str, str]:
    """{kind of tensor: its types in order of layers, "4x Q5_K 28x Q4_K"}; what "*" says is left out, and vectors."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for name, type in types.items():
        kinds.setdefault(recipes.LAYER.sub("", name), []).append((recipes.layer_of(name), type))
    text = {}
    for kind, found in kinds.items():
        runs = [(type, len(list(g))) for type, g in groupby(type for _, type in sorted(found))]
        text[kind] = runs[0][0] if len(runs) == 1 else " ".join(f"{n}x {type}" for type, n in runs)
    times = Counter(text.values())
    most = min(times, key=lambda t: (-times[t], t))
    return {"*": most, **{k: v for k, v in sorted(text.items()) if v != most}}


def dry_run(program: str, source: Path, recipe: str, importance: Path | None) -> dict[str, str]:
    given = [] if importance is None else ["--imatrix", str(importance)]
    done = subprocess.run(
        [program, "--dry-run", *given, str(source), recipe], capture_output=True, text=True, check=True
    )
    found = [LINE.search(line) for line in (done.stdout + done.stderr).splitlines()]
    types = {m.group(1): (m.group(3) or m.group(2)).upper() for m in found if m}
    with rooflm.GGUF(source) as g:
        assert set(types) == set(g.tensors), (source, recipe, set(g.tensors) - set(types))
        return {n: types[n] for n, t in g.tensors.items() if len(t.shape) > 1}


def record(program: str, source: Path, scratch: Path) -> dict[str, dict[str, str]]:
    with rooflm.GGUF(source) as g:
        name, width = next((n, t.shape[-1]) for n, t in g.tensors.items() if "ffn_down" in n)
    importance = scratch / "importance.gguf"
    rooflm.IMatrix({name: Entry(np.ones((1, width)), np.ones(1))}, 1, 512, ["made up"]).save(importance)
    out = {}
    for recipe in recipes.NAMED:
        out[recipe] = coded(dry_run(program, source, recipe, None))
        weighted = coded(dry_run(program, source, recipe, importance))
        if weighted != out[recipe]:
            out[f"{recipe} with importance"] = weighted
    return out


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from golden_files import golden
    from rewrite import rewrite

    program, scratch = sys.argv[1], Path(sys.argv[2])
    source = scratch / "cut.gguf"
    result: dict[str, Any] = {}
    for model, path in (a.split("=", 1) for a in sys.argv[3:]):
        with rooflm.GGUF(path) as g:
            shapes = {n: (2, *t.shape[1:]) if len(t.shape) > 1 else t.shape for n, t in g.tensors.items()}
        write(rewrite, path, source, {}, shapes)
        result[model] = {"recipes": record(program, source, scratch)}
    for case, (tiny, numbers) in INVENTED.items():
        path = falcon(scratch) if tiny == "falcon" else golden(tiny).path
        with rooflm.GGUF(path) as g:
            shapes = shapes_like({n: t.shape for n, t in g.tensors.items()}, numbers["block_count"])
            keys = {f"{g.architecture}.{k}": v for k, v in numbers.items()}
        write(rewrite, path, source, keys, shapes)
        with rooflm.GGUF(source) as g:
            s = recipes.shape_of(g)
        result[case] = {
            "shape": {"n_layer": s.n_layer, "n_expert": s.n_expert, "gqa": s.gqa, "arch": s.arch},
            "matrices": sorted({recipes.LAYER.sub("blk.*.", n) for n, d in shapes.items() if len(d) > 1}),
            "recipes": record(program, source, scratch),
        }
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in flattened(result)]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def falcon(scratch: Path) -> Path:
    """One layer under the names that a Falcon file has, for llama-quantize, which asks for keys and not for tensors."""
    import gguf

    path = scratch / "falcon.gguf"
    w = gguf.GGUFWriter(path, "falcon")
    w.add_context_length(64)
    w.add_embedding_length(64)
    w.add_feed_forward_length(256)
    w.add_block_count(1)
    w.add_head_count(4)
    w.add_head_count_kv(1)
    w.add_layer_norm_eps(1e-5)
    w.add_tokenizer_model("no_vocab")
    names = ["attn_qkv", "attn_output", "ffn_up", "ffn_down"]
    for name in ["token_embd.weight", "output.weight", *(f"blk.0.{n}.weight" for n in names)]:
        w.add_tensor(name, np.zeros((2, 256), np.float16))
    for name in ("output_norm", "blk.0.attn_norm"):
        for part in ("weight", "bias"):
            w.add_tensor(f"{name}.{part}", np.zeros(256, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def flattened(result: dict[str, Any]) -> list[tuple[str, Any]]:
    """One line of the file for each recipe of each model."""
    out = []
    for model, entry in result.items():
        out += [(f"{model}|{k}", v) for k, v in entry.items() if k != "recipes"]
        out += [(f"{model}|{k}", v) for k, v in entry["recipes"].items()]
    return out


def write(rewrite: Any, src: Any, dst: Path, keys: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
    extra = {n: np.zeros(d, np.float16 if len(d) > 1 else np.float32) for n, d in shapes.items()}
    rewrite(src, dst, keys=keys, tensor=lambda name, data: None, extra=extra)


if __name__ == "__main__":
    main()
