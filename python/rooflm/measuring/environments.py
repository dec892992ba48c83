# SPDX-License-Identifier: Apache-2.0
"""One suite measured in several environments, side by side: machines, system images, temperatures."""

from __future__ import annotations

import statistics
from typing import Any, Mapping, Sequence

from rooflm._output import html_table, table
from rooflm.measuring.recording import record_line

Records = Sequence[Mapping[str, Any]]
# What makes an environment, from manifest.machine and manifest.build.
MACHINE = ("cpu", "board", "os", "kernel", "libc", "firmware", "firmware_date", "governor", "container")
BUILD = ("rooflm", "compiler")


def environment(record: Mapping[str, Any]) -> dict[str, Any]:
    manifest = record.get("manifest") or {}
    machine, build = manifest.get("machine") or {}, manifest.get("build") or {}
    return {**{k: machine.get(k) for k in MACHINE}, **{k: build.get(k) for k in BUILD}}


def by_environment(records: Records) -> list[tuple[dict[str, Any], list[Mapping[str, Any]]]]:
    found: dict[str, tuple[dict[str, Any], list[Mapping[str, Any]]]] = {}
    for r in records:
        where = environment(r)
        found.setdefault(record_line(where), (where, []))[1].append(r)
    return list(found.values())


def environments(records: Records) -> list[dict[str, Any]]:
    """One row per environment: its name in merged tables, what makes it, the hottest start of a run, and its runs."""
    groups = by_environment(records)
    rows = []
    for (where, inside), name in zip(groups, names([w for w, _ in groups])):
        starts = [(r.get("sensors") or {}).get("temperature_c") for r in inside]
        hottest = [t["start"] for t in starts if t and t.get("start") is not None]
        fallbacks = sorted({f for r in inside for f in r.get("fallbacks") or ()})
        rows.append(
            {
                "environment": name,
                **where,
                "temperature_c": max(hottest, default=None),
                "fallbacks": ", ".join(fallbacks) or None,
                "runs": len(inside),
            }
        )
    return rows


def names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Short names: the first fact that tells all apart (board, processor, system, ...), else their number."""
    for keys in (("board",), ("cpu",), ("os",), ("kernel",), ("cpu", "os"), ("firmware_date",), ("governor",)):
        found = [", ".join(str(g.get(k)) for k in keys) for g in groups]
        if len(set(found)) == len(found) and all(g.get(keys[0]) for g in groups):
            return found
    return [f"environment {i + 1}" for i in range(len(groups))]


class Merged:
    """A row per setting, a column per environment: `rows`, and `environments` says what each column is."""

    def __init__(self, records: Records, metric: str) -> None:
        self.metric = metric
        self.environments = environments(records)
        rows: dict[str, dict[str, Any]] = {}
        for about, (_, inside) in zip(self.environments, by_environment(records)):
            cells: dict[str, list[float]] = {}
            for r in inside:
                # threads may be a default that each machine resolves in its own way: the row is what was asked for
                key = record_line({k: v for k, v in (r.get("asked") or r.get("setting") or {}).items() if k != "seed"})
                setting = dict(r.get("setting") or {})
                if (r.get("asked") or {}).get("threads", 0) is None:
                    setting["threads"] = "default"
                rows.setdefault(key, setting)
                if r.get(metric) is not None:
                    cells.setdefault(key, []).append(r[metric])
            for key, values in cells.items():
                rows[key][about["environment"]] = statistics.median(values)
        self.rows = list(rows.values())

    def _columns(self) -> tuple[str, ...]:
        where = [e["environment"] for e in self.environments]
        settings = [k for k in dict.fromkeys(k for r in self.rows for k in r) if k not in where]
        varied = [k for k in settings if len({str(r.get(k)) for r in self.rows}) > 1]
        return (*(varied or ["model"]), *where)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "metric": self.metric, "rows": self.rows, "environments": self.environments}

    def __repr__(self) -> str:
        about = table(self.environments, [k for k in self.environments[0] if any(e[k] for e in self.environments)])
        return f"{self.metric}, medians\n{table(self.rows, self._columns())}\n\n{about}" if self.rows else "no records"

    def _repr_html_(self) -> str:
        return f"<p>{self.metric}, medians</p>{html_table(self.rows, self._columns())}"
