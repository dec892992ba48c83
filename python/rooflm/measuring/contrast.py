# SPDX-License-Identifier: Apache-2.0
"""What tells two results apart: which facts moved, and an effect only when nothing moved but the one that is named.

A fact moves when its values differ between the two sides. Some facts follow from others (another model has other
tensor types and other kernels): those that follow from the named one do not confound. Conditions that are measured
(clock, temperature, load of others, bandwidth) always differ a little: one of them moves when the medians of the two
sides lie further apart than a stated share and than three median absolute deviations of either side.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from html import escape
from typing import Any, Iterable, Mapping, Optional, Sequence

from rooflm import _core
from rooflm._output import html_table, show, table
from rooflm.measuring.recording import record_line
from rooflm.stats import median_and_mad, t_interval, t_quantile

Records = Sequence[Mapping[str, Any]]

# Facts of a record by the name under which they are compared; (where, whose change they follow).
# A fact that follows another one does not confound a comparison by it.
MODEL = ("model",)
DEVICE = ("device",)  # the thing as it stands there, with its system
HARDWARE = ("hardware", *DEVICE)  # strict: another system or compiler confounds
SYSTEM = ("system", *DEVICE)
DEVICE_PARTS = "manifest.machine.cpu manifest.machine.board manifest.machine.os"
ENGINE = ("model", "isa", "kernel", "compute", "kv", "blas", "load", "prompt", "gen", "depth", "threads", *HARDWARE)
FACTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "model": ("manifest.model.sha256", ()),
    "model name": ("manifest.model.file", MODEL),
    "architecture": ("manifest.model.arch", MODEL),
    "parameters": ("manifest.model.n_params", MODEL),
    "bits per weight": ("manifest.model.bits_per_weight", MODEL),
    "tensor types": ("manifest.model.types", MODEL),
    "replaced tensors": ("manifest.model.replaced", ()),
    "prompt": ("prompt", ()),
    "gen": ("gen", ()),
    "depth": ("depth", ()),
    "context": ("manifest.engine.n_ctx", ("prompt", "gen", "depth", "evict")),
    "kv": ("kv", ()),
    "evict": ("evict", ()),
    "compute": ("compute", ()),
    "kernel": ("kernel", ()),
    "isa": ("isa", ("kernel", *HARDWARE)),
    "rows in strips": ("manifest.engine.strips", HARDWARE),
    "kernels of decode": ("kernels.decode", ENGINE),
    "kernels of prefill": ("kernels.prefill", ENGINE),
    "blas": ("blas", ()),
    "batch": ("manifest.engine.n_batch", ()),
    "load": ("load", ()),
    "file mapped": ("manifest.engine.mapped", ("load",)),
    "threads": ("threads", HARDWARE),
    "cpus": ("manifest.placement.cpus", ("threads", *HARDWARE)),
    "fallbacks": ("fallbacks", ("model", "load")),
    "device": (DEVICE_PARTS, ()),
    "hardware": ("manifest.machine.cpu", DEVICE),
    "board": ("manifest.machine.board", HARDWARE),
    "cores": ("manifest.machine.n_cpus", HARDWARE),
    "allowed cpus": ("manifest.machine.allowed_cpus", HARDWARE),
    "caches": ("manifest.machine.caches", HARDWARE),
    "memory": ("manifest.machine.memory_bytes", HARDWARE),
    "page size": ("manifest.machine.page_bytes", HARDWARE),
    "governor": ("manifest.machine.governor", ()),
    "huge pages": ("manifest.machine.huge_pages", ()),
    "limits": ("manifest.machine.cgroup", ()),
    "container": ("manifest.machine.container", ()),
    "system": ("manifest.machine.os", DEVICE),
    "system kernel": ("manifest.machine.kernel", SYSTEM),
    "libc": ("manifest.machine.libc", SYSTEM),
    "firmware": ("manifest.machine.firmware", SYSTEM),
    "firmware date": ("manifest.machine.firmware_date", SYSTEM),
    "library": ("manifest.build.rooflm", ()),
    "compiler": ("manifest.build.compiler", DEVICE),
    "flags": ("manifest.build.flags", ("compiler", *DEVICE)),
    "assertions": ("manifest.build.asserts", ()),
    "throttled": ("sensors.throttled", ()),
}

# Conditions: where, the least share (or amount, see ABSOLUTE) by which medians must differ, whose change they follow.
CONDITIONS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "clock": ("sensors.clock_ghz", 0.03, ("threads", "compute", "kernel", "isa", *HARDWARE)),
    "frequency": ("sensors.freq_mhz.median", 0.03, ("threads", "cpus", *HARDWARE)),
    "temperature": ("sensors.temperature_c.start", 8.0, HARDWARE),
    "load of others": ("sensors.others_busy", 0.10, ()),
    "stolen time": ("sensors.steal", 0.05, ()),
    "read bandwidth": ("read_gbs", 0.10, ("model", "threads", "cpus", "load", "isa", *HARDWARE)),
}
ABSOLUTE = ("temperature", "load of others", "stolen time")

# What users may write for `by` beside the names above.
ALSO = {
    "quantization": "model",
    "machine": "device",
    "cpu": "hardware",
    "n_ctx": "context",
    "bandwidth": "read bandwidth",
    "version": "library",
}


class ConfoundedError(_core.Error):
    """An effect was asked for that cannot be told from other differences; `.moved` has their names."""

    def __init__(self, message: str, moved: Sequence[str]) -> None:
        super().__init__(message)
        self.moved = list(moved)


@dataclass(frozen=True)
class Moved:
    name: str
    a: Any
    b: Any
    follows: Optional[str] = None  #: the named fact whose change explains this one

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.a)} -> {_short(self.b)}"


@dataclass(frozen=True)
class Effect:
    """b over a, of one figure. ratio is the geometric mean; the interval is 95 %, None where there are too few runs."""

    metric: str
    a: float  #: median of each side
    b: float
    ratio: float
    interval: Optional[list[float]]
    n: int  #: pairs, or the runs of the smaller side
    paired: bool

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __repr__(self) -> str:
        span = f"95 % interval {self.interval[0]:.3f} to {self.interval[1]:.3f}" if self.interval else "no interval"
        how = "pairs" if self.paired else "runs a side"
        return f"{self.metric}: {show(self.a)} -> {show(self.b)}, x {self.ratio:.3f} ({span}, n = {self.n} {how})"


class Contrast:
    """Two sides of records compared by one named fact; made by Results.contrast().

    moved       every fact that differs, the named one first, as Moved(name, a, b, follows)
    confounded  those that neither are the named one nor follow from it
    effect      an Effect; ConfoundedError when something confounds, Error when the named fact did not move
    """

    def __init__(
        self,
        a: Sequence[Mapping[str, Any]],
        b: Sequence[Mapping[str, Any]],
        *,
        by: str,
        metric: str = "decode_tps",
    ) -> None:
        self.by = fact_name(by)
        self.metric = metric
        self._a, self._b = list(a), list(b)
        for side, records in (("a", self._a), ("b", self._b)):
            if not records:
                raise ValueError(f"contrast by {by!r}: side {side} has no records")
        self.moved = moved_facts(self._a, self._b, self.by)
        self.confounded = [m for m in self.moved if m.name != self.by and m.follows is None]

    @property
    def effect(self) -> Effect:
        if self.confounded:
            names = [m.name for m in self.confounded]
            raise ConfoundedError(
                f"no effect of {self.by}: {', '.join(map(str, self.confounded))} moved as well; repeat both sides "
                f"with the same {', '.join(names)}, interleaved in one bench()",
                names,
            )
        if not any(m.name == self.by for m in self.moved):
            raise _core.Error(f"{self.by} did not move: both sides have {_short(_values(self._a, self.by))}")
        return effect_of(self._a, self._b, self.metric)

    def to_dict(self) -> dict[str, Any]:
        def rows(items: Iterable[Moved]) -> list[dict[str, Any]]:
            return [dict(m.__dict__) for m in items]

        return {
            "schema": 1,
            "by": self.by,
            "metric": self.metric,
            "moved": rows(self.moved),
            "confounded": rows(self.confounded),
            "effect": None if self.confounded or not self._moves() else self.effect.to_dict(),
        }

    def _moves(self) -> bool:
        return any(m.name == self.by for m in self.moved)

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "moved": m.name,
                "a": _short(m.a),
                "b": _short(m.b),
                "": "the named one" if m.name == self.by else f"follows {m.follows}" if m.follows else "CONFOUNDS",
            }
            for m in self.moved
        ]

    def _verdict(self) -> str:
        if self.confounded:
            return f"no effect of {self.by} can be stated: {', '.join(m.name for m in self.confounded)} moved as well"
        return repr(self.effect) if self._moves() else f"{self.by} did not move"

    def __repr__(self) -> str:
        rows = table(self._rows(), ("moved", "a", "b", "")) if self.moved else "nothing moved"
        return f"{rows}\n{self._verdict()}"

    def _repr_html_(self) -> str:
        return f"{html_table(self._rows(), ('moved', 'a', 'b', ''))}<p>{escape(self._verdict())}</p>"


def fact_name(by: str) -> str:
    name = ALSO.get(by, by)
    if name not in FACTS and name not in CONDITIONS:
        from rooflm._keywords import suggestion

        known = [*FACTS, *CONDITIONS, *ALSO]
        near = suggestion(by, known)
        raise ValueError(f"by={by!r}: " + (f"did you mean {near!r}?" if near else f"one of {', '.join(known)}"))
    return name


def select_by(records: Records, name: str, value: Any) -> list[Mapping[str, Any]]:
    """The records where fact `name` has this value; of a model its hash, its file's name or the name in the file."""
    paths = [FACTS[name][0]] if name in FACTS else []
    if name == "model":
        paths += ["model", "manifest.model.name"]
    elif name == "device":
        paths = ["manifest.machine.cpu", "manifest.machine.board"]
    chosen = [r for r in records if any(look_up(r, p) == value for p in paths)]
    if not chosen:
        there = sorted({_short(look_up(r, p)) for r in records for p in paths[-1:]})
        raise ValueError(f"no record has {name} {value!r}; there are {', '.join(there) or 'none'}")
    return chosen


def look_up(record: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, None where there is none; several paths give a list."""
    if " " in path:
        return [look_up(record, p) for p in path.split()]
    value: Any = record
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _values(records: Iterable[Mapping[str, Any]], name: str) -> list[Any]:
    """The different values of a fact, or the median of a condition."""
    if name in CONDITIONS:
        known = _measured(records, CONDITIONS[name][0])
        return [statistics.median(known)] if known else [None]
    path = FACTS[name][0]
    found = {record_line({"": look_up(r, path)}): look_up(r, path) for r in records}
    return [found[k] for k in sorted(found)]


def moved_facts(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], by: Optional[str] = None
) -> list[Moved]:
    """Every fact and condition that differs between two sides, the named one first."""
    differing: dict[str, tuple[Any, Any]] = {}
    for name in FACTS:
        va, vb = _values(a, name), _values(b, name)
        if record_line({"": va}) != record_line({"": vb}):
            differing[name] = _differing_part(va[0] if len(va) == 1 else va, vb[0] if len(vb) == 1 else vb)
    for name, (path, least, _) in CONDITIONS.items():
        pair = _condition_moved(a, b, path, least, absolute=name in ABSOLUTE)
        if pair:
            differing[name] = pair
    if by != "device":
        differing.pop("device", None)  # a summary of others, which are listed themselves
    cells_a, cells_b = cells_of(a, b)
    if set(cells_a) != set(cells_b):  # each value is on both sides, but not in the same combinations
        differing["combination of settings"] = (sorted(cells_a), sorted(cells_b))
    parents = {name: FACTS[name][1] if name in FACTS else CONDITIONS.get(name, ("", 0.0, ()))[2] for name in differing}

    def root(name: str, seen: frozenset[str] = frozenset()) -> Optional[str]:
        """The named fact, when this one follows from it, if need be over others that moved."""
        for parent in parents[name]:
            if parent == by and by in differing:
                return by
            if parent in differing and parent not in seen and root(parent, seen | {name}) == by and by:
                return by
        return None

    names = sorted(differing, key=lambda n: n != by)
    return [Moved(n, *differing[n], None if n == by else root(n)) for n in names]


def _differing_part(a: Any, b: Any) -> tuple[Any, Any]:
    """Of two dicts the keys that differ."""
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return a, b
    keys = [k for k in dict.fromkeys((*a, *b)) if a.get(k) != b.get(k)]
    return {k: a.get(k) for k in keys}, {k: b.get(k) for k in keys}


def _measured(records: Iterable[Mapping[str, Any]], path: str) -> list[float]:
    """What is known of a condition, one number per run. Of a clock timed before and after it is the higher one: an
    interruption only ever makes it look slower."""
    values = [look_up(r, path) for r in records]
    return [max(v.values()) if isinstance(v, Mapping) else v for v in values if v is not None]


def _condition_moved(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], path: str, least: float, absolute: bool
) -> Optional[tuple[float, float]]:
    va, vb = _measured(a, path), _measured(b, path)
    if not va or not vb:
        return None
    (ma, deviation_a), (mb, deviation_b) = median_and_mad(va), median_and_mad(vb)
    noise = 3 * max(deviation_a, deviation_b)
    limit = least if absolute else least * max(abs(ma), abs(mb))
    return (ma, mb) if abs(ma - mb) > max(limit, noise) else None


def cells_of(a: Records, b: Records) -> tuple[dict[str, list[Mapping[str, Any]]], dict[str, list[Mapping[str, Any]]]]:
    """The records of each side by what both sides sweep alike: the settings whose values are the same on both."""

    def values(side: Records, key: str) -> set[str]:
        return {record_line({"": (r.get("setting") or {}).get(key)}) for r in side}

    keys = {k for r in (*a, *b) for k in (r.get("setting") or {})}
    common = sorted(k for k in keys if values(a, k) == values(b, k))
    sides: list[dict[str, list[Mapping[str, Any]]]] = []
    for side in (a, b):
        cells: dict[str, list[Mapping[str, Any]]] = {}
        for r in side:
            cells.setdefault(record_line({k: (r.get("setting") or {}).get(k) for k in common}), []).append(r)
        sides.append(cells)
    return sides[0], sides[1]


def effect_of(a: Records, b: Records, metric: str) -> Effect:
    """b over a, the geometric mean over the settings that both sides have. Runs of one repetition of one bench() are
    pairs when each side has one per setting; else the sides are independent samples (Welch). Both on logarithms, so
    that the ratio reads both ways."""
    known_a, known_b = (_positive(side, metric) for side in (a, b))
    cells_a, cells_b = cells_of(known_a, known_b)
    shared = [k for k in cells_a if k in cells_b]
    logs_a, logs_b = ([[math.log(r[metric]) for r in cells[k]] for k in shared] for cells in (cells_a, cells_b))
    differences = _paired_differences([(cells_a[k], cells_b[k]) for k in shared], metric)
    if differences:
        interval = t_interval(differences)
        mean, n = math.fsum(differences) / len(differences), len(differences)
    else:
        mean, interval = _welch(logs_a, logs_b)
        n = min(len(known_a), len(known_b))
    span = None if interval is None else [math.exp(interval[0]), math.exp(interval[1])]
    median_a, median_b = (statistics.median(r[metric] for r in side) for side in (known_a, known_b))
    return Effect(metric, median_a, median_b, math.exp(mean), span, n, bool(differences))


def _positive(records: Records, metric: str) -> list[Mapping[str, Any]]:
    found = [r for r in records if r.get(metric) is not None]
    if not found:
        raise ValueError(f"no record has a {metric!r}")
    if any(r[metric] <= 0 for r in found):
        raise ValueError(f"{metric!r} must be positive to be compared as a ratio")
    return found


def _paired_differences(cells: Iterable[tuple[Records, Records]], metric: str) -> list[float]:
    """One difference of logarithms per repetition and setting; empty unless each repetition is on both sides exactly
    once."""
    out = []
    for a, b in cells:
        turns = [{(r.get("block"), r.get("repeat")): math.log(r[metric]) for r in side} for side in (a, b)]
        whole = len(turns[0]) == len(a) and len(turns[1]) == len(b) and set(turns[0]) == set(turns[1])
        if not whole or any(block is None for block, _ in turns[0]):
            return []
        out += [turns[1][k] - turns[0][k] for k in turns[0]]
    return out


def _welch(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> tuple[float, Optional[tuple[float, float]]]:
    """Difference of means, averaged over the settings, and its 95 % interval for unequal variances (Welch 1947)."""
    difference = statistics.fmean(statistics.fmean(y) - statistics.fmean(x) for x, y in zip(a, b))
    groups = [*a, *b]
    if any(len(g) < 2 for g in groups):
        return difference, None
    parts = [(statistics.variance(g) / len(g) / len(a) ** 2, len(g) - 1) for g in groups]
    variance = math.fsum(v for v, _ in parts)
    if variance == 0:
        return difference, (difference, difference)
    half = t_quantile(0.975, variance**2 / math.fsum(v**2 / df for v, df in parts)) * math.sqrt(variance)
    return difference, (difference - half, difference + half)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    elif isinstance(value, list):
        value = ", ".join(_short(v) for v in value)
    text = show(value)
    return text if len(text) <= 60 else text[:57] + "..."
