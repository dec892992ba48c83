# SPDX-License-Identifier: Apache-2.0
"""Which tensor gets which type: the field's named mixtures, patterns, and the rules that turn a wish into a type that
the tensor's shape allows.

The mixtures are those of llama.cpp's quantizer, by its names; tests compare the histogram of types of whole files.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Iterable, Mapping, Optional, Union

from rooflm import _core
from rooflm._keywords import suggestion

# Recipe -> (its base type, the id that general.file_type has for it).
NAMED = {
    "F32": ("F32", 0), "F16": ("F16", 1), "BF16": ("BF16", 32), "Q4_0": ("Q4_0", 2), "Q4_1": ("Q4_1", 3),
    "Q5_0": ("Q5_0", 8), "Q5_1": ("Q5_1", 9), "Q8_0": ("Q8_0", 7), "Q2_K_S": ("Q2_K", 21), "Q2_K": ("Q2_K", 10),
    "Q3_K_S": ("Q3_K", 11), "Q3_K_M": ("Q3_K", 12), "Q3_K_L": ("Q3_K", 13), "Q4_K_S": ("Q4_K", 14),
    "Q4_K_M": ("Q4_K", 15), "Q5_K_S": ("Q5_K", 16), "Q5_K_M": ("Q5_K", 17), "Q6_K": ("Q6_K", 18),
    "IQ4_NL": ("IQ4_NL", 25), "IQ4_XS": ("IQ4_XS", 30),
}  # fmt: skip
SHORT = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}  # names of types that mean a mixture

# Types a tensor can be written in, and what takes the place of one whose block does not divide the rows.
FLOATS = ("F32", "F16", "BF16")
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_1", "Q5_K", "Q5_0", "Q4_1", "Q4_K", "IQ4_NL", "Q4_0", "IQ4_XS",
         "Q3_K", "Q2_K")  # fmt: skip
FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}

# Matrices that stay as they are, by a piece of their name: small, or read in a way that no quantized kernel serves.
KEPT = ("_norm.weight", "ffn_gate_inp", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d", "attn_rel_b.weight",
        "shortconv.conv.weight", "token_types.weight", "position_embd", "time_mix_first", "time_mix_w0", "time_mix_w1",
        "time_mix_w2", "time_mix_v0", "time_mix_v1", "time_mix_v2", "time_mix_a0", "time_mix_a1", "time_mix_a2",
        "time_mix_g1", "time_mix_g2", "time_mix_decay_w", "time_mix_lerp_fused")  # fmt: skip
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
# What the rules of the mixtures call a matrix, by the first piece that its name has.
ROLES = {"attn_qkv.weight": "attn_v", "attn_kv_b.weight": "attn_v", "attn_v.weight": "attn_v",
         "attn_k.weight": "attn_k", "attn_output.weight": "attn_output", "ffn_down": "ffn_down"}  # fmt: skip

# Falcon has rules of its own: types of the first sixteenth of the layers, of those that get more bits, of the rest.
FALCON = {
    ("Q3_K_M", "ffn_down"): ("Q5_K", "Q4_K", "Q3_K"),
    ("Q3_K_L", "ffn_down"): ("Q4_K", "Q4_K", "Q4_K"),
    ("Q4_K_S", "ffn_down"): ("Q4_K", "Q4_K", "Q4_K"),
    ("Q4_K_M", "ffn_down"): ("Q6_K", "Q5_K", "Q4_K"),
    ("Q2_K", "attn_output"): ("Q2_K", "Q2_K", "Q2_K"),
    ("Q3_K_M", "attn_output"): ("Q3_K", "Q3_K", "Q3_K"),
    ("Q3_K_L", "attn_output"): ("Q4_K", "Q4_K", "Q4_K"),
}

LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class Shape:
    """What a rule may know of a model: its tensors in the file's order and the numbers that the mixtures ask for."""

    tensors: Mapping[str, tuple[int, ...]]
    n_layer: int
    n_expert: int
    gqa: int  # query heads per KV head
    tied: bool  # no output.weight: the embedding is the output, too
    arch: str = ""


def shape_of(source: _core.GGUF) -> Shape:
    meta, arch = source.metadata, source.architecture or ""

    def number(key: str, default: int) -> int:
        v = meta.get(f"{arch}.{key}", default)
        if hasattr(v, "__len__"):  # per layer
            return max((int(n) for n in v), default=default)
        return int(v)

    heads, kv = number("attention.head_count", 1), number("attention.head_count_kv", 0)
    tensors = {name: t.shape for name, t in source.tensors.items()}
    layers = number("block_count", 0)
    tied = "output.weight" not in tensors
    return Shape(tensors, layers, number("expert_count", 0), heads // kv if kv else 1, tied, arch)


def is_quantized_here(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a recipe may change this tensor: a matrix of weights. A single row is a vector."""
    return math.prod(shape[:-1]) > 1 and name.endswith("weight") and not any(piece in name for piece in KEPT)


def fitting(type: str, n: int) -> str:
    """The type, or what takes its place where its block does not divide rows of n values."""
    for t in (type, FALLBACK.get(type, "F16"), "F16"):
        if n % _core._type_info(t)[1] == 0:
            return t
    raise AssertionError("F16 has blocks of one value")


def more_bits(i: int, n: int) -> bool:
    """The layers that get more bits in the _M mixtures: the first and last eighth, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _mixture(name: str, base: str, role: str, i: int, n: int, s: Shape, importance: bool) -> str:
    """Type of a matrix in a named mixture. i, n: it is the i-th of n with this role, or belongs to layer i of n."""
    first = i < n // 8
    if s.arch == "falcon" and (name, role) in FALCON:
        earliest, more, rest = FALCON[name, role]
        return earliest if i < n // 16 else more if more_bits(i, n) else rest
    if role == "attn_v":
        if name == "Q2_K":
            type = "Q4_K" if s.gqa >= 4 else "Q3_K"
        elif name == "Q2_K_S" and s.gqa >= 4:
            type = "Q4_K"
        elif name == "Q3_K_M":
            type = "Q5_K" if i < 2 else "Q4_K"
        elif name == "Q3_K_L" or (name in ("IQ4_NL", "IQ4_XS") and s.gqa >= 4):
            type = "Q5_K"
        elif name in ("Q4_K_M", "Q5_K_M") and more_bits(i, n):
            type = "Q6_K"
        elif name == "Q4_K_S" and i < 4:
            type = "Q5_K"
        else:
            type = base
        if s.n_layer == 80 and s.gqa > 1 and type in ("Q3_K", "Q4_K"):  # a 70B: small, as several heads share it
            type = "Q5_K"
        return "Q8_0" if s.n_expert == 8 else type
    if role == "attn_k":
        return "Q8_0" if s.n_expert == 8 else base
    if role == "ffn_down":
        if name == "Q2_K":
            return "Q3_K"
        if name == "Q3_K_M":
            return "Q5_K" if i < n // 16 else "Q4_K"
        if name == "Q3_K_L":
            return "Q5_K"
        if name in ("Q4_K_M", "Q5_K_M") and more_bits(i, n):
            return "Q6_K"
        if first and name == "Q2_K_S":
            return "Q4_K"
        if first and (name == "Q4_K_S" or (name in ("IQ4_NL", "IQ4_XS") and not importance)):
            return "Q5_K"
        if first and name in ("Q4_0", "Q5_0") and importance:
            return name[:3] + "1"
        return base
    if role == "attn_output":
        if s.n_expert == 8:
            low = name in ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
            return "Q5_K" if low else base
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(name, base)
    return base


def canonical(name: str) -> str:
    """The name of a recipe in its own spelling; a ValueError that suggests one."""
    known = {n.upper(): n for n in [*NAMED, *SHORT]}
    found = known.get(name.upper())
    if found is None:
        near = suggestion(name.upper(), known)
        hint = f"did you mean {known[near]}?" if near else f"there are {', '.join(NAMED)}"
        raise ValueError(f"no recipe is named {name!r}; {hint}")
    return SHORT.get(found, found)


def named(name: str, shape: Shape, importance: bool = False) -> dict[str, str]:
    """{tensor: type asked for} by a named mixture, before any fallback."""
    name = canonical(name)
    base = NAMED[name][0]
    wanted = {t: base for t, dims in shape.tensors.items() if is_quantized_here(t, dims)}
    if base in FLOATS:
        return wanted
    roles = {t: next((r for piece, r in ROLES.items() if piece in t), "") for t in wanted}
    total = Counter(roles.values())
    seen: Counter[str] = Counter()
    for t in sorted(wanted, key=lambda t: (layer_of(t), t)):
        if t == "output.weight" or (shape.tied and t in EMBEDDINGS):
            fits = shape.tensors[t][-1] % _core._type_info(base)[1] == 0
            wanted[t] = "Q8_0" if base == "Q8_0" or not fits or shape.arch == "falcon" else "Q6_K"
        elif roles[t]:
            i, n = seen[roles[t]], total[roles[t]]
            if roles[t] == "ffn_down":  # counted against all layers, and in a mixture of experts by the layer itself
                i, n = layer_of(t) if shape.n_expert > 1 else i, shape.n_layer
            wanted[t] = _mixture(name, base, roles[t], i, n, shape, importance)
            seen[roles[t]] += 1
    return wanted


def layer_of(tensor: str) -> int:
    """Number of its layer, -1 where it belongs to none."""
    m = LAYER.match(tensor)
    return int(m.group(1)) if m else -1


def part_of(tensor: str) -> str:
    """"attn_v" of blk.3.attn_v.weight; experts count as the matrix they are a stack of."""
    part = LAYER.sub("", tensor)
    part = part[: -len(".weight")] if part.endswith(".weight") else part
    return part[: -len("_exps")] if part.endswith("_exps") else part


def check_type(type: str) -> str:
    """The type in its own spelling; a ValueError when no tensor can be written in it."""
    for t in TYPES:
        if t == type.upper():
            return t
    raise ValueError(f"tensors cannot be written as {type!r}; the types are {', '.join(TYPES)}")


Recipe = Union[str, Mapping[str, str]]


def resolve(recipe: Recipe, shape: Shape, importance: bool = False) -> tuple[dict[str, str], str]:
    """({tensor: type asked for}, name of the recipe).

    A mapping goes from patterns of tensor names to types, the first match wins, "*" last; its key "base" names the
    mixture for what no pattern meets (default: such tensors keep their type). A pattern that meets no tensor is a
    ValueError.
    """
    if isinstance(recipe, str):
        return named(recipe, shape, importance), canonical(recipe)
    rest = dict(recipe)
    base = rest.pop("base", None)
    wanted = named(base, shape, importance) if base else {}
    patterns = {p: check_type(t) for p, t in rest.items()}
    met = set()
    for t, dims in shape.tensors.items():
        for p, type in patterns.items():
            if fnmatch.fnmatchcase(t, p):
                met.add(p)
                # A pattern with a wildcard leaves norms and routers alone; a full name takes anything.
                if t == p or is_quantized_here(t, dims):
                    wanted[t] = type
                break
    unmet = [p for p in patterns if p not in met and p != "*"]
    if unmet:
        near = suggestion(unmet[0], shape.tensors)
        hint = f"; is {near!r} meant?" if near else ""
        raise ValueError(f"the recipe's pattern {unmet[0]!r} meets no tensor of this file{hint}")
    if base:
        return wanted, f"{canonical(base)} with {len(patterns)} patterns"
    target = getattr(recipe, "target", None)  # of a Mix
    return wanted, f"mix for {target}" if target else f"{len(patterns)} patterns"


def file_type(recipe: Recipe, types: Iterable[str]) -> Optional[int]:
    """general.file_type: the recipe's own, else that of the type that most matrices have."""
    if isinstance(recipe, str):
        return NAMED[canonical(recipe)][1]
    counts: dict[str, int] = {}
    for t in types:
        counts[t] = counts.get(t, 0) + 1
    most = max(counts, key=lambda t: counts[t], default="F32")
    ids = {base: id for base, id in NAMED.values()}
    return ids.get(most)
