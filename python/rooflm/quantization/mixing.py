# SPDX-License-Identifier: Apache-2.0
"""Mixed precision to a target: of all ways to give each tensor a type, the one with the least expected loss that meets
a size, bits per weight or speed.

What a type costs a tensor is estimated in losses.py. Choosing one type per tensor under a budget is a knapsack; it is
solved by dynamic programming over the budget in small steps.
"""

from __future__ import annotations

import fnmatch
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, megabytes, table
from rooflm.quantization import formats, losses, recipes
from rooflm.quantization.earlier_swaps import rows_of
from rooflm.quantization.imatrix import ImportanceArg, as_importance

TYPES = ("F16", "Q8_0", "Q6_K", "Q5_1", "Q5_K", "Q5_0", "Q4_1", "Q4_K", "IQ4_NL", "Q4_0", "IQ4_XS", "Q3_K", "Q2_K")
STEPS = 16384  # of the budget
TRIALS, NEAR = 3, 0.03  # of a mix for a speed: how often it is made, and the share by which it may miss


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


def solve(costs: Sequence[np.ndarray], expected: Sequence[np.ndarray], budget: float) -> list[int]:
    """For each tensor the index of its choice, such that the costs add up to at most `budget` and the
    expected losses to the least. ValueError when even the cheapest choices cost more."""
    least = sum(float(c.min()) for c in costs)
    if least > budget:
        raise ValueError(f"the least possible is {least:.6g}")
    # Beyond the cheapest choices; costs rounded to steps, which errs by half a step per tensor either way.
    room = budget - least
    step = room / STEPS or 1.0
    best = np.zeros(STEPS + 1)
    picks = []
    for c, loss in zip(costs, expected):
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
        found = [v for p, v in norms.items() if fnmatch.fnmatchcase(name, p) or losses.kind_of(name) == p]
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


def token_seconds(model: Any, threads: int, *, least_s: float = 1.0) -> float:
    """Median time of one token of a rooflm.Model behind a short context, over `least_s` seconds, at least 24 tokens."""
    times: list[float] = []
    with model.session(n_ctx=64, n_threads=threads) as s:
        s.eval(np.full(8, 1, np.int32))
        while len(times) < 28 or sum(times) < least_s:
            if s.n_past == s.n_ctx:
                s.rewind(8)
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
    by       A rooflm.Sensitivity, its record or its rows ({tensor or kind, type, kl_mean}): measured KL, the best there
             is.
             {tensor, pattern or kind: number}: norms of gradients, whose squares weight the mean squared errors. None:
             errors by importance and by where a matrix stands; see rooflm.quantization.losses
    types    to choose from; default all quantized ones and F16
    imatrix  importance of columns, as rooflm.quantize takes it: give both the same
    gbs      for speed_tps: GB/s at which rows are read, one number or {type: number}. None measures each type, and then
             tokens of a file of the mix in the directory for temporary files, up to three times until it has
             the speed
    rows     of each tensor that errors are taken from

    Returns a Mix, a mapping that rooflm.quantize takes as recipe. ValueError for a target that cannot be reached, with
    what can be.
    """
    at_least(1, rows=rows, threads=threads)
    targets = {"size_bytes": size_bytes, "bits": bits, "speed_tps": speed_tps}
    given = [k for k, v in targets.items() if v is not None]
    if len(given) != 1:
        raise ValueError(f"mix() takes exactly one of size_bytes, bits and speed_tps, not {len(given)}")
    target = float(targets[given[0]] or 0)
    if not 0 < target < np.inf:
        raise ValueError(f"{given[0]}={targets[given[0]]} must be a finite number above 0")
    task = _task(source, by, types, imatrix, rows)
    tps: Optional[float] = None
    if speed_tps is not None:
        picked, tps = _for_speed(task, speed_tps, gbs, threads)
    else:
        picked = _for_size(task, given[0], target)
    return _mix(task, picked, f"{given[0]} {targets[given[0]]:.6g}", tps)


@dataclass
class _Task:
    """Matrices with what each may become and what that costs."""

    file: _core.GGUF
    title: str  # what the sensitivities are from
    choices: dict[str, list[str]]  # types by tensor
    sizes: list[np.ndarray]  # bytes of each choice of each tensor
    expected: list[np.ndarray]  # loss of each
    weight: dict[str, float]  # sensitivity by use
    errors: dict[str, losses.Errors]
    uses: dict[str, tuple[str, ...]]
    read: dict[str, float]  # share of a tensor that a token reads

    @property
    def kept(self) -> int:
        """Bytes of the tensors that stay as they are."""
        return sum(t.nbytes for n, t in self.file.tensors.items() if n not in self.choices)

    @property
    def header(self) -> int:
        return self.file.nbytes - sum(t.nbytes for t in self.file.tensors.values())

    @property
    def values(self) -> int:
        return sum(int(np.prod(t.shape)) for t in self.file.tensors.values())

    def types(self, picked: Sequence[int]) -> dict[str, str]:
        return {n: c[k] for (n, c), k in zip(self.choices.items(), picked)}


def _task(source: Any, by: Any, types: Optional[Sequence[str]], imatrix: ImportanceArg, rows: int) -> _Task:
    g = source if isinstance(source, _core.GGUF) else _core.GGUF(source)
    shape = recipes.shape_of(g)
    names = [n for n, t in g.tensors.items() if recipes.is_quantized_here(n, t.shape)]
    if not names:
        raise ValueError(f"{g.path} has no matrix to quantize")
    importance, _ = as_importance(imatrix)
    fitting = [recipes.check_type(t) for t in types or TYPES]
    measured = {r["type"] for r in (None if by is None else rows_of(by)) or () if r["type"] in recipes.TYPES}
    errors = losses.measure(g, names, list(dict.fromkeys([*fitting, *sorted(measured)])), importance, rows, shape.tied)
    weight, title = losses.sensitivities(by, errors, shape.tied, shape.n_layer)
    uses = {n: losses.uses_of(n, shape.tied) for n in names}
    choices = {n: [t for t in errors[uses[n][0]].squared if t in fitting] for n in names}
    empty = [n for n in names if not choices[n]]
    if empty:
        raise ValueError(f"none of these types fits the rows of {empty[0]}, {g.tensors[empty[0]].shape[-1]} values")
    sizes = [np.array([_nbytes(g.tensors[n].shape, t) for t in choices[n]]) for n in names]
    expected = [
        np.array([sum(weight[u] * errors[u].squared[t] for u in uses[n]) for t in choices[n]]) for n in names
    ]
    read = {n: share_read(g, shape, n) for n in names}
    return _Task(g, title, choices, sizes, expected, weight, errors, uses, read)


def _for_size(task: _Task, target: str, value: float) -> list[int]:
    """Choices for size_bytes or bits."""
    costs = [c.astype(float) for c in task.sizes]
    budget = (value - task.header if target == "size_bytes" else value * task.values / 8) - task.kept
    low, high = (sum(float(f(c)) for c in costs) for f in (np.min, np.max))

    def reach(nbytes: float) -> str:
        if target == "bits":
            return f"{8 * (nbytes + task.kept) / task.values:.4g} bits"
        return f"{nbytes + task.kept + task.header:.0f} bytes"

    shown = f"{value:g}" if target == "bits" else f"{value:.0f}"
    if budget < low:
        raise ValueError(f"{target}={shown} cannot be reached with these types: the limit is {reach(low)}")
    if budget > 1.01 * high:
        raise ValueError(f"{target}={shown} is more than these types fill: the most is {reach(high)}")
    return solve(costs, task.expected, min(budget, high))


def _for_speed(
    task: _Task, speed_tps: float, gbs: Union[None, float, Mapping[str, float]], threads: Optional[int]
) -> tuple[list[int], float]:
    """(choices, tokens/s expected of them). Rates are those of long rows in a row; unless they are given, tokens of the
    mix itself show the difference, and it is made anew until it has the speed."""
    threads = int(_core._cpus()["default_threads"]) if threads is None else threads
    speeds = _speeds(task.file, task.choices, gbs, threads)
    costs = [
        size * task.read[n] / np.array([speeds[t] for t in types]) / 1e9
        for size, (n, types) in zip(task.sizes, task.choices.items())
    ]
    budget = 1 / speed_tps
    low, high = (sum(float(f(c)) for c in costs) for f in (np.min, np.max))

    def too_much(seconds: float) -> ValueError:
        return ValueError(
            f"speed_tps={speed_tps} cannot be reached with these types: the limit is {1 / seconds:.4g} tokens/s"
        )

    def cost(picked: Sequence[int]) -> float:
        return sum(float(c[k]) for c, k in zip(costs, picked))

    if budget < low:
        raise too_much(low)
    picked = solve(costs, task.expected, min(budget, high))
    if gbs is not None:
        return picked, 1 / cost(picked)
    slower = 1.0  # a token than reading its matrices at the types' rates
    cheapest = [int(np.argmin(c)) for c in costs]
    for _ in range(TRIALS):
        seconds = _trial_seconds(task.file, task.types(picked), threads)
        slower = seconds / cost(picked)
        if abs(seconds / budget - 1) < NEAR:
            break
        if picked == cheapest and seconds > budget:
            raise too_much(seconds)
        room = min(budget / slower, high)
        again = solve(costs, task.expected, room) if room > low else cheapest
        if again == picked:
            break
        picked = again
    return picked, 1 / (slower * cost(picked))


def _mix(task: _Task, picked: Sequence[int], target: str, tps: Optional[float]) -> Mix:
    """The result, with a row per tensor."""
    rows: list[dict[str, Any]] = []
    for (n, type), size, loss, k in zip(task.types(picked).items(), task.sizes, task.expected, picked):
        use = task.uses[n][-1]
        squared, nbytes = task.errors[use].squared[type], int(size[k])
        rows.append({
            "tensor": n, "type": type, "bits_per_weight": 8 * nbytes / int(np.prod(task.file.tensors[n].shape)),
            "nbytes": nbytes, "error": float(np.sqrt(squared)),
            "sensitivity": float(loss[k] / squared) if squared > 0 else task.weight[use], "loss": float(loss[k]),
        })  # fmt: skip
    total = task.kept + sum(r["nbytes"] for r in rows)
    return Mix(
        types=task.types(picked),
        rows=rows,
        target=target,
        by=task.title,
        nbytes=total + task.header,
        bits_per_weight=8 * total / task.values,
        bytes_per_token=task.kept + sum(task.read[r["tensor"]] * r["nbytes"] for r in rows),
        tps=tps,
        loss=sum(r["loss"] for r in rows),
    )


def _nbytes(shape: tuple[int, ...], type: str) -> int:
    _, block, size = _core._type_info(type)
    return int(np.prod(shape)) // block * size


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
    """Time of a token of a file with these types, which is written for that and removed."""
    from rooflm.model import Model
    from rooflm.quantization.quantize import quantize

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trial.gguf")
        quantize(g, path, chosen, threads=threads, vocabulary=False, progress=False)
        return token_seconds(Model(path), threads)
