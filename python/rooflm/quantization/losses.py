# SPDX-License-Identifier: Apache-2.0
"""What a type is expected to cost each tensor: its squared relative error times a sensitivity.

Small errors of weights add to KL by their squares. Columns count by their importance, where there is one: then the
error is that of what the matrix puts out. Sensitivities are measured (rooflm.sensitivity), from norms of gradients, or,
with neither, from where a matrix stands:

    output     errors of logits are errors of the distribution: half their variance, in nats
    layers     noise in what one of N matrices puts out reaches the logits as about an Nth of the residual stream
    embedding  is the residual stream of the first of L layers: an Lth

A tied embedding has two uses, each with an error and a sensitivity of its own: as "token_embd.weight" it is looked up,
so that all columns count alike, as "output.weight" it is multiplied.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from rooflm import _core
from rooflm.quantization import formats, recipes
from rooflm.quantization.earlier_swaps import rows_of
from rooflm.quantization.quantize import weights_for

KIND_OF = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o", "ffn_gate": "gate", "ffn_up": "up",
           "ffn_down": "down", "ffn_gate_inp": "router", "token_embd": "embedding", "output": "output",
           "attn_qkv": "qkv"}  # fmt: skip
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


def kind_of(tensor: str) -> str:
    """"q", "down", "embedding"...: the kinds of rooflm.sensitivity."""
    part = recipes.part_of(tensor)
    part = part[: -len("_shexp")] if part.endswith("_shexp") else part
    return KIND_OF.get(part, part)


def uses_of(tensor: str, tied: bool) -> tuple[str, ...]:
    return (EMBEDDING, OUTPUT) if tied and tensor == EMBEDDING else (tensor,)


@dataclass(frozen=True)
class Errors:
    """Of some rows of a matrix in one use."""

    squared: Mapping[str, float]  # relative error, by type
    mean_square: float  # of its weights, columns weighted by importance to a mean of 1
    power: Optional[float]  # of what it puts out, per row; None without importance
    spread: Optional[float]  # the same without what all rows have in common


def measure(
    source: _core.GGUF, names: Sequence[str], types: Sequence[str], importance: Any, rows: int, tied: bool
) -> dict[str, Errors]:
    """{use: Errors} of rows spread over each tensor, for the types that fit it."""
    out = {}
    for name in names:
        t = source.tensors[name]
        n, cols = int(np.prod(t.shape[:-1])), t.shape[-1]
        x = t.dequantize(rows=np.unique(np.linspace(0, n - 1, min(rows, n)).astype(int)))
        squares = x.astype(np.float64) ** 2
        of_experts = weights_for(name, t, importance)
        w = None if of_experts is None else of_experts.mean(0)
        errors = {k: formats.errors(x, k, w) for k in types if cols % _core._type_info(k)[1] == 0}
        for use in uses_of(name, tied):
            looked_up = use == EMBEDDING
            key = "error" if looked_up else "error_weighted"
            weights = np.ones(cols) if w is None or looked_up else w.astype(np.float64)
            power = None if w is None else float(squares.mean(0) @ weights)
            spread = None if w is None else float(x.var(0, dtype=np.float64) @ weights)
            mean_square = float(squares.mean(0) @ weights / max(weights.sum(), 1e-30))
            out[use] = Errors({k: e[key] ** 2 for k, e in errors.items()}, mean_square, power, spread)
    return out


def from_place(errors: Mapping[str, Errors], n_layer: int) -> dict[str, float]:
    """Sensitivities from where each matrix stands. In nats where the importance of the output matrix is known."""
    head = errors.get(OUTPUT)
    in_nats = head is not None and head.spread is not None
    output = 0.5 * head.power if in_nats else 1.0  # type: ignore[union-attr, operator]
    stream = 0.5 * head.spread if in_nats else 1.0  # type: ignore[union-attr, operator]
    in_layers = sum(1 for use in errors if recipes.LAYER.match(use))
    places = {OUTPUT: output, EMBEDDING: stream / max(n_layer, 1)}
    return {use: places.get(use, stream / max(in_layers, 1)) for use in errors}


def from_norms(norms: Mapping[str, float], errors: Mapping[str, Errors], tied: bool) -> dict[str, float]:
    """The first pattern or kind that meets a tensor counts: squared norm times mean squared error. The gradient of a
    tied embedding is that of both uses: it is put to the output, which has most of it."""
    found = {}
    for use, e in errors.items():
        name = EMBEDDING if tied and use == OUTPUT else use
        if tied and use == EMBEDDING:
            found[use] = 0.0
            continue
        for pattern, v in norms.items():
            if fnmatch.fnmatchcase(name, pattern) or kind_of(name) == pattern:
                found[use] = float(v) ** 2 * e.mean_square
                break
    return found


def from_swaps(rows: Sequence[Mapping[str, Any]], errors: Mapping[str, Errors]) -> dict[str, float]:
    """Sensitivities from measured swaps: KL over the squared error that caused it; of a whole kind, over the sum of all
    its tensors. A tensor's own swap counts first, then those of its kind in the layers around it, then that of the
    whole kind."""
    own: dict[str, list[float]] = {}
    kinds: dict[str, list[float]] = {}
    for r in rows:
        kl = r.get("kl_mean", r.get("kl"))
        if kl is None:
            continue
        tensor, type = r.get("tensor"), r["type"]
        if tensor is not None:
            e = errors[tensor].squared.get(type) if tensor in errors else None
            if e:
                own.setdefault(tensor, []).append(kl / e)
        else:
            swapped = r.get("tensors") or [use for use in errors if kind_of(use) == r["kind"]]
            e = sum(errors[use].squared.get(type, 0.0) for use in swapped if use in errors)
            if e:
                kinds.setdefault(r["kind"], []).append(kl / e)
    measured = {name: float(np.median(v)) for name, v in own.items()}
    result = {}
    for use in errors:
        value = measured.get(use, _between_layers(use, measured))
        if value is None and kind_of(use) in kinds:
            value = float(np.median(kinds[kind_of(use)]))
        if value is not None:
            result[use] = value
    return result


def _between_layers(name: str, measured: Mapping[str, float]) -> Optional[float]:
    """What the same matrix has in the layers before and after, by ratios; None unless two layers were measured."""
    layer = recipes.LAYER.match(name)
    if not layer:
        return None
    points = {}
    for other, value in measured.items():
        m = recipes.LAYER.match(other)
        if m and other[m.end() :] == name[layer.end() :]:
            points[int(m[1])] = value
    if len(points) < 2:
        return None
    at = sorted(points)
    logs = np.log(np.maximum([points[i] for i in at], 1e-30))
    return float(np.exp(np.interp(int(layer[1]), at, logs)))


def sensitivities(by: Any, errors: Mapping[str, Errors], tied: bool, n_layer: int) -> tuple[dict[str, float], str]:
    """({use: sensitivity}, what it is from). See rooflm.mix() for what `by` may be. What it does not know gets what its
    place says, scaled to the rest."""
    place = from_place(errors, n_layer)
    if by is None:
        return place, "error" if all(e.power is None for e in errors.values()) else "importance"
    rows = rows_of(by)
    if rows is None:
        found, title = from_norms(by, errors, tied), "norms"
    else:
        found, title = from_swaps(rows, errors), "sensitivity"
    bad = [n for n, v in found.items() if not np.isfinite(v) or v < 0]
    if bad:
        raise ValueError(f"the sensitivity of {bad[0]} is {found[bad[0]]}: it must be finite and not negative")
    if not any(found.values()):
        raise ValueError("by= names no tensor of this file with a sensitivity above 0")
    known = [v / place[use] for use, v in found.items() if v > 0 and place[use] > 0]
    scale = float(np.median(known)) if known else 1.0
    return {use: found.get(use, scale * place[use]) for use in errors}, title
