# SPDX-License-Identifier: Apache-2.0
"""The ceiling of decode: read bandwidth over bytes per token, measured here or for a device one does not own."""

from __future__ import annotations

import re
from typing import Any, Optional, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, megabytes, show, table
from rooflm.measuring.ceilings import Cpus, read_arrays, roof_name
from rooflm.measuring.grid import settings_of
from rooflm.measuring.sizes import ModelArg, TokenBytes, bytes_per_token, opened

Bandwidth = Union[float, int, str]
UNITS = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "mib": 2.0**20, "gib": 2.0**30}


def parse_bandwidth(value: Bandwidth) -> float:
    """GB/s (1e9 bytes) from a number of GB/s or a text such as "17GB/s" or "800 MB/s"."""
    if isinstance(value, str):
        m = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(?:([kmgt]?i?b)(?:/s|ps)?)?\s*", value, re.I)
        unit = (m.group(2) or "GB").lower() if m else ""
        try:
            gbs = float(m.group(1)) * UNITS[unit] / 1e9 if m else 0.0
        except (KeyError, ValueError):
            gbs = 0.0
    else:
        gbs = float(value)
    if not 0 < gbs < float("inf"):
        raise ValueError(f"bandwidth={value!r} is not a positive number of GB/s, such as 17 or '17GB/s'")
    return gbs


class Ceiling:
    """tps, the most tokens per second that reading allows: gbs * 1e9 / bytes.total. `measured` is False where the
    bandwidth was given."""

    def __init__(self, bytes: TokenBytes, gbs: float, measured: bool, roof: str, threads: Optional[int]) -> None:
        self.bytes, self.gbs, self.measured, self.roof, self.threads = bytes, gbs, measured, roof, threads
        self.tps: float = gbs * 1e9 / bytes.total

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.bytes.model,
            "n_ctx": self.bytes.n_ctx,
            "kv": self.bytes.kv_type,
            "threads": self.threads,
            "bytes_per_token": self.bytes.total,
            "read_gbs": self.gbs,
            "measured": self.measured,
            "roof": self.roof,
            "ceiling_tps": self.tps,
        }

    def __float__(self) -> float:
        return self.tps

    def __repr__(self) -> str:
        how = f"measured with {self.threads} threads" if self.measured else "given"
        return (
            f"at most {show(self.tps)} tokens/s: {self.gbs:.1f} GB/s ({how}, roof {self.roof}) over "
            f"{megabytes(self.bytes.total)} per token"
        )


@checked_keywords
def ceiling(
    model: ModelArg,
    *,
    n_ctx: int = 1,
    kv: str = "f16",
    threads: Optional[int] = None,
    cpus: Cpus = None,
    bandwidth: Optional[Bandwidth] = None,
    passes: int = 7,
) -> Ceiling:
    """The most tokens per second that a model can generate with n_ctx positions in use.

    Without bandwidth (GB/s, or text such as "17GB/s") the model's own bytes, and as much memory as its keys and values
    take, are read here with the best read kernel, threads (default the free big cores) and the median of `passes`
    passes, after one that warms up: this loads them.
    """
    loaded = opened(model)
    bytes = bytes_per_token(loaded, n_ctx=n_ctx, kv=kv)
    if bandwidth is not None:
        return Ceiling(bytes, parse_bandwidth(bandwidth), False, "given", None)
    from rooflm import machine

    arrays = [*read_arrays(loaded), np.ones(int(bytes.kv), np.uint8)]
    result = _core.read_bandwidth(arrays, threads=threads, passes=passes, cpus=cpus)
    n = int(result["threads"])
    return Ceiling(bytes, float(result["gbs"]), True, roof_name(bytes.total, n, machine()["caches"]), n)


class WhatIf:
    """Ceilings of a model on devices of given bandwidths: `rows`, one per bandwidth, KV type and depth."""

    columns = ("bandwidth_gbs", "kv", "depth", "bytes_per_token", "ceiling_tps", "kv_share")

    def __init__(self, model: str, rows: list[dict[str, Any]]) -> None:
        self.model, self.rows = model, rows

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "model": self.model, "rows": self.rows}

    def __repr__(self) -> str:
        return f"{self.model}\n{table(self.rows, self.columns)}"

    def _repr_html_(self) -> str:
        return html_table(self.rows, self.columns)


@checked_keywords
def whatif(
    model: ModelArg,
    *,
    bandwidth: Union[Bandwidth, list[Bandwidth]],
    depth: Union[int, list[int]] = 0,
    kv: Union[str, list[str]] = "f16",
) -> WhatIf:
    """Ceilings of decode on a device that one does not own, from its read bandwidth; lists sweep. depth: tokens of
    context before the one that is generated. Nothing is measured and no weight is read."""
    loaded = opened(model)
    rows = []
    for s in settings_of({"bandwidth": bandwidth, "kv": kv, "depth": depth}):
        at_least(0, depth=s["depth"])
        gbs = parse_bandwidth(s["bandwidth"])
        c = Ceiling(bytes_per_token(loaded, n_ctx=s["depth"] + 1, kv=s["kv"]), gbs, False, "given", None)
        rows.append(
            {
                "bandwidth_gbs": gbs,
                "kv": s["kv"],
                "depth": s["depth"],
                "bytes_per_token": c.bytes.total,
                "ceiling_tps": c.tps,
                "kv_share": c.bytes.kv / c.bytes.total,
            }
        )
    return WhatIf(bytes_per_token(loaded).model, rows)
