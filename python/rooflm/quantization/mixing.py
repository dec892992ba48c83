# SPDX-License-Identifier: Apache-2.0
"""Mixed precision to a target: of all ways to give each tensor a type, the one with the least expected loss that meets
a size, bits per weight or speed.

The loss of a tensor in a type is taken as its sensitivity times its squared relative error, columns weighted by
importance: small errors of weights add to KL by their squares. Sensitivities are measured (rooflm.sensitivity), or
numbers such as gradient norms, or alike for all. Choosing one type per tensor under a budget is a knapsack; it is
solved by dynamic programming over the budget in small steps.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._output import html_table, megabytes, table
from rooflm.quantization import formats, recipes
from rooflm.quantization.imatrix import ImportanceArg, as_importance

TYPES = ("F16", "Q8_0", "Q6_K", "Q5_1", "Q5_K", "Q5_0", "Q4_1", "Q4_K", "IQ4_NL", "Q4_0", "IQ4_XS", "Q3_K", "Q2_K")
STEPS = 16384  # of the budget
KIND_OF = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o", "ffn_gate": "gate", "ffn_up": "up",
           "ffn_down": "down", "token_embd": "embedding", "output": "output", "attn_qkv": "qkv"}  # fmt: skip


@dataclass(repr=False)
class Mix(Mapping[str, str]):
    """A recipe, {tensor: type}, for rooflm.quantize; with what is expected of it. rows: tensor, type,
    bits_per_weight, nbytes, error, sensitivity, loss."""

    types: dict[str, str] = field(repr=False)
    rows: list[dict[str, Any]] = field(repr=False)
    target: str
    by: str
    nbytes: int  # of the file
    bits_per_weight: float
    bytes_per_token: float
    tps: Optional[float]
    loss: float

    def __getitem__(self, tensor: str) -> str:
        return self.types[tensor]

    def __iter__(self) -> Iterator[str]:
        return iter(self.types)

    def __len__(self) -> int:
        return len(self.types)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1, "kind": "mix", "target": self.target, "by": self.by, "nbytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight, "bytes_per_token": self.bytes_per_token, "tps": self.tps,
            "loss": self.loss, "types": dict(self.types), "rows": self.rows,
        }  # fmt: skip

    def to_pandas(self) -> Any:
        """One row per tensor."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.rows)

    _COLUMNS = ("tensor", "type", "bits_per_weight", "nbytes", "error", "sensitivity", "loss")

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {t}" for t, n in Counter(self.types.values()).most_common())
        speed = f", {self.tps:.1f} tokens/s expected" if self.tps else ""
        return (
            f"<Mix for {self.target} by {self.by}: {megabytes(self.nbytes)}, {self.bits_per_weight:.3f} bits per "
            f"weight{speed}; {counts}>"
        )

    def table(self) -> str:
        return table(self.rows, self._COLUMNS)

    def _repr_html_(self) -> str:
        return f"<p>{self!r}</p>".replace("<Mix", "&lt;Mix") + html_table(self.rows, self._COLUMNS)


def kind_of(tensor: str) -> str:
    """"q", "down", "embedding"...: the kinds of rooflm.sensitivity."""
    part = recipes.part_of(tensor)
    part = part[: -len("_shexp")] if part.endswith("_shexp") else part
    return KIND_OF.get(part, part)


def _errors(source: _core.GGUF, names: Sequence[str], types: Sequence[str], importance: Any, rows: int) -> Any:
    """{tensor: {type: squared relative error}} of some rows spread over each tensor, for the types that fit it."""
    out: dict[str, dict[str, float]] = {}
    for name in names:
        t = source.tensors[name]
        n, cols = int(np.prod(t.shape[:-1])), t.shape[-1]
        x = t.dequantize(rows=np.unique(np.linspace(0, n - 1, min(rows, n)).astype(int)))
        w = None
        if importance is not None and name in importance:
            w = np.asarray(importance[name], np.float32)
            w = np.ascontiguousarray(w if w.ndim == 1 else w.mean(0))
        fit = [k for k in types if cols % _core._type_info(k)[1] == 0]
        out[name] = {k: formats.errors(x, k, w)["error_weighted"] ** 2 for k in fit}
    return out


def _from_rows(rows: Sequence[Mapping[str, Any]], errors: Mapping[str, Mapping[str, float]], tied: bool) -> Any:
    """Sensitivities from measured swaps: KL over the squared error that caused it; of a whole kind, over the sum of all
    its tensors. A tensor's own swap counts first, then those of its kind in the layers around it, then that of the
    whole kind; a tied embedding has the KL of both its uses."""
    own: dict[str, list[float]] = {}
    kinds: dict[str, list[float]] = {}
    for r in rows:
        kl = r.get("kl_mean", r.get("kl"))
        if kl is None:
            continue
        tensor, type = r.get("tensor"), r["type"]
        if tensor is not None:
            name = "token_embd.weight" if tied and tensor == "output.weight" else tensor
            e = errors.get(name, {}).get(type)
            if e:
                own.setdefault(tensor, []).append(kl / e)
        else:
            like = "embedding" if tied and r["kind"] == "output" else r["kind"]
            e = sum(v.get(type, 0.0) for n, v in errors.items() if kind_of(n) == like)
            if e:
                kinds.setdefault(r["kind"], []).append(kl / e)
    measured = {name: float(np.median(v)) for name, v in own.items()}
    result = {}
    for name in errors:
        uses = [name, "output.weight"] if tied and name == "token_embd.weight" else [name]
        known = []
        for use in uses:
            value = measured.get(use, _between_layers(use, measured))
            if value is None and kind_of(use) in kinds:
                value = float(np.median(kinds[kind_of(use)]))
            if value is not None:
                known.append(value)
        if known:
            result[name] = sum(known)
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


def sensitivities(by: Any, errors: Mapping[str, Mapping[str, float]], tied: bool) -> tuple[dict[str, float], str]:
    """({tensor: sensitivity}, what it is from). See mix() for what `by` may be; tensors that it does not know get the
    median of those it does."""
    if by is None:
        return dict.fromkeys(errors, 1.0), "error"
    rows = getattr(by, "rows", by)
    if isinstance(rows, Mapping):
        found = {}
        for name in errors:
            for pattern, v in rows.items():
                if fnmatch.fnmatchcase(name, pattern) or kind_of(name) == pattern:
                    found[name] = float(v) ** 2
                    break
        title = "norms"
    else:
        found, title = _from_rows(list(rows), errors, tied), "sensitivity"
    bad = [n for n, v in found.items() if not np.isfinite(v) or v < 0]
    if bad:
        raise ValueError(f"the sensitivity of {bad[0]} is {found[bad[0]]}: it must be finite and not negative")
    if not found:
        raise ValueError("by= names no tensor of this file")
    middle = float(np.median(list(found.values())))
    return {name: found.get(name, middle) for name in errors}, title


def solve(costs: Sequence[np.ndarray], losses: Sequence[np.ndarray], budget: float) -> list[int]:
    """For each tensor the index of its choice, such that the costs add up to at most `budget` and the losses to the
    least. ValueError when even the cheapest choices cost more."""
    least = sum(float(c.min()) for c in costs)
    if least > budget:
        raise ValueError(f"the least possible is {least:.6g}")
    # Beyond the cheapest choices; costs rounded to steps, which errs by half a step per tensor either way.
    room = budget - least
    step = room / STEPS or 1.0
    best = np.zeros(STEPS + 1)
    picks = []
    for c, loss in zip(costs, losses):
        more = np.minimum(c - c.min(), room + 2 * step)  # what costs more is out of reach anyway
        extra = np.rint(more / step).astype(np.int64)
        total = np.full(STEPS + 1, np.inf)
        pick = np.zeros(STEPS + 1, np.int8)
        for k in np.argsort(extra, kind="stable"):
            e = int(extra[k])
            if e > STEPS:
                continue
            with_k = np.full(STEPS + 1, np.inf)
            with_k[e:] = best[: STEPS + 1 - e] + loss[k]
            better = with_k < total
            total[better], pick[better] = with_k[better], k
        best = total
        picks.append((pick, extra))
    at = STEPS
    chosen = []
    for pick, extra in reversed(picks):
        k = int(pick[at])
        chosen.append(k)
        at -= int(extra[k])
    return chosen[::-1]


def by_threshold(
    source: _core.GGUF, norms: Mapping[str, float], *, threshold: float = 1e-3, low: str = "Q4_K", high: str = "Q8_0"
) -> dict[str, str]:
    """A recipe by a rule of the field: `low` where a tensor's norm (of its gradient, say) is below the threshold,
    `high` elsewhere. norms: by tensor, pattern or kind, the first that matches counts; "blk.3.*" is a layer. A tensor
    without a norm is a ValueError: a rule with holes is none."""
    recipe = {}
    for name, t in source.tensors.items():
        if not recipes.is_quantized_here(name, t.shape):
            continue
        found = [v for p, v in norms.items() if fnmatch.fnmatchcase(name, p) or kind_of(name) == p]
        if not found:
            raise ValueError(f"norms has no entry for {name}; add one, or '*' for the rest")
        recipe[name] = recipes.check_type(low if found[0] < threshold else high)
    return recipe


def share_read(source: _core.GGUF, shape: recipes.Shape, name: str) -> float:
    """The share of a tensor's bytes that one token reads."""
    if name == "token_embd.weight" and not shape.tied:
        return 1.0 / source.tensors[name].shape[0]
    if "_exps." in name and shape.n_expert:
        used = int(source.metadata.get(f"{source.architecture}.expert_used_count", shape.n_expert))
        return used / shape.n_expert
    return 1.0


def token_seconds(model: Any, threads: int, tokens: int = 24) -> float:
    """Median time of one token of a rooflm.Model, behind a short context."""
    times = []
    with model.session(n_ctx=128, n_threads=threads) as s:
        s.eval(np.full(8, 1, np.int32))
        for _ in range(tokens):
            start = time.perf_counter()
            s.eval([1])
            times.append(time.perf_counter() - start)
    return float(np.median(times[4:]))


@checked_keywords
def mix(
    source: Union[str, os.PathLike[str], _core.GGUF],
    *,
    size_bytes: Optional[float] = None,
    bits: Optional[float] = None,
    speed_tps: Optional[float] = None,
    by: Any = None,
    types: Optional[Sequence[str]] = None,
    imatrix: ImportanceArg = None,
    gbs: Union[None, float, Mapping[str, float]] = None,
    rows: int = 64,
    threads: Optional[int] = None,
) -> Mix:
    """A recipe for one target: size_bytes of the whole file, bits per weight over all tensors, or speed_tps, the decode
    speed in tokens/s.

    source   the file that will be quantized, best in F16 or BF16
    by       None: squared errors of all tensors count alike. A rooflm.Sensitivity or its rows ({tensor or kind, type,
             kl_mean}): measured KL, the best there is. {tensor, pattern or kind: number}: norms, such as gradient
             norms, whose squares weight the errors
    types    to choose from; default all quantized ones and F16
    imatrix  importance of columns, as rooflm.quantize takes it: give both the same
    gbs      for speed_tps: GB/s at which rows are read, one number or {type: number}. None measures each type, and then
             a token of a first mix made in memory (as large as the result), which shows what else a token takes
    rows     of each tensor that errors are taken from

    Returns a Mix, a mapping that rooflm.quantize takes as recipe. ValueError for a target that cannot be reached, with
    what can be.
    """
    targets = {"size_bytes": size_bytes, "bits": bits, "speed_tps": speed_tps}
    given = [k for k, v in targets.items() if v is not None]
    if len(given) != 1:
        raise ValueError(f"mix() takes exactly one of size_bytes, bits and speed_tps, not {len(given)}")
    target = float(targets[given[0]] or 0)
    if not 0 < target < np.inf:
        raise ValueError(f"{given[0]}={targets[given[0]]} must be a finite number above 0")
    g = source if isinstance(source, _core.GGUF) else _core.GGUF(source)
    shape = recipes.shape_of(g)
    names = [n for n, t in g.tensors.items() if recipes.is_quantized_here(n, t.shape)]
    if not names:
        raise ValueError(f"{g.path} has no matrix to quantize")
    importance, _ = as_importance(imatrix)
    errors = _errors(g, names, [recipes.check_type(t) for t in types or TYPES], importance, rows)
    empty = [n for n in names if not errors[n]]
    if empty:
        raise ValueError(f"none of these types fits the rows of {empty[0]}, {g.tensors[empty[0]].shape[-1]} values")
    weight, title = sensitivities(by, errors, shape.tied)
    choices = {n: list(errors[n]) for n in names}
    sizes = {n: np.array([_nbytes(g.tensors[n].shape, t) for t in choices[n]]) for n in names}
    losses = [np.array([weight[n] * errors[n][t] for t in choices[n]]) for n in names]
    kept = sum(t.nbytes for n, t in g.tensors.items() if n not in errors)
    values = sum(int(np.prod(t.shape)) for t in g.tensors.values())
    header = g.nbytes - sum(t.nbytes for t in g.tensors.values())
    read = {n: share_read(g, shape, n) for n in names}
    speeds: Optional[dict[str, float]] = None
    besides = 0.0  # seconds of a token besides reading matrices at the types' rates
    if speed_tps is not None:
        threads = int(_core._cpus()["default_threads"]) if threads is None else threads
        speeds = _speeds(g, choices, gbs, threads)
        costs = [sizes[n] * read[n] / np.array([speeds[t] for t in choices[n]]) / 1e9 for n in names]
        budget = 1 / speed_tps
    else:
        costs = [sizes[n].astype(float) for n in names]
        budget = (size_bytes - header if size_bytes is not None else (bits or 0) * values / 8) - kept
    low, high = (sum(float(f(c)) for c in costs) for f in (np.min, np.max))
    if budget < low:
        reach = _reach(given[0], low, besides, kept, header, values)
        raise ValueError(f"{given[0]}={targets[given[0]]} cannot be reached with these types: the limit is {reach}")
    if speed_tps is None and budget > 1.01 * high:
        reach = _reach(given[0], high, besides, kept, header, values)
        raise ValueError(f"{given[0]}={targets[given[0]]} is more than these types fill: the most is {reach}")
    picked = solve(costs, losses, min(budget, high))
    if speed_tps is not None and gbs is None:
        # The rates are those of long rows in a row; a token of the mix itself, made in memory, shows the difference.
        trial = {n: choices[n][k] for n, k in zip(names, picked)}
        besides = _trial_seconds(g, trial, threads or 1) - sum(float(c[k]) for c, k in zip(costs, picked))
        if budget - besides < low:
            reach = _reach(given[0], low, besides, kept, header, values)
            raise ValueError(f"{given[0]}={targets[given[0]]} cannot be reached with these types: the limit is {reach}")
        picked = solve(costs, losses, min(budget - besides, high))
    chosen = {n: choices[n][k] for n, k in zip(names, picked)}
    nbytes = {n: int(sizes[n][k]) for n, k in zip(names, picked)}
    table_rows = [
        {"tensor": n, "type": chosen[n], "bits_per_weight": 8 * nbytes[n] / int(np.prod(g.tensors[n].shape)),
         "nbytes": nbytes[n], "error": float(np.sqrt(errors[n][chosen[n]])), "sensitivity": weight[n],
         "loss": float(loss[k])}
        for n, loss, k in zip(names, losses, picked)
    ]  # fmt: skip
    total = sum(nbytes.values()) + kept
    seconds = besides + sum(float(c[k]) for c, k in zip(costs, picked)) if speed_tps is not None else None
    return Mix(
        types=chosen,
        rows=table_rows,
        target=f"{given[0]} {targets[given[0]]:.6g}",
        by=title,
        nbytes=total + header,
        bits_per_weight=8 * total / values,
        bytes_per_token=kept + sum(read[n] * nbytes[n] for n in names),
        tps=1 / seconds if seconds else None,
        loss=sum(r["loss"] for r in table_rows),
    )


def _nbytes(shape: tuple[int, ...], type: str) -> int:
    _, block, size = _core._type_info(type)
    return int(np.prod(shape)) // block * size


def _reach(target: str, least: float, besides: float, kept: int, header: int, values: int) -> str:
    if target == "speed_tps":
        return f"{1 / (least + besides):.4g} tokens/s"
    if target == "bits":
        return f"{8 * (least + kept) / values:.4g} bits"
    return f"{least + kept + header:.0f} bytes"


def _speeds(
    g: _core.GGUF, choices: Mapping[str, Sequence[str]], gbs: Union[None, float, Mapping[str, float]], threads: int
) -> dict[str, float]:
    """GB/s of each type."""
    every = sorted({t for c in choices.values() for t in c})
    if isinstance(gbs, Mapping):
        missing = [t for t in every if t not in gbs]
        if missing:
            raise ValueError(f"gbs has no entry for {missing[0]}")
        return {t: float(gbs[t]) for t in every}
    if gbs is not None:
        return dict.fromkeys(every, float(gbs))
    # Rows of 256 x n so that every type fits; the usual width of the model's rows.
    widths = [g.tensors[n].shape[-1] for n in choices]
    cols = max(256, int(np.median(widths)) // 256 * 256)
    return {t: r["gbs"] for t, r in formats.rates(every, cols, threads=threads).items()}


def _trial_seconds(g: _core.GGUF, chosen: Mapping[str, str], threads: int) -> float:
    """Time of a token of the source with its matrices in these types, in memory."""
    from rooflm.model import Model

    replace = {}
    for name, type in chosen.items():
        t = g.tensors[name]
        x = t.dequantize(threads=threads).reshape(-1, t.shape[-1])
        replace[name] = (type, _core.quantize_rows(x, type, threads=threads).reshape(*t.shape[:-1], -1))
    return token_seconds(Model(g, replace=replace), threads)
