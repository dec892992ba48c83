# SPDX-License-Identifier: Apache-2.0
"""Measurements of machines, kept with their date.

One counts while nothing that it depends on has changed: the processor, the tier in use, the CPUs allowed, the kernel,
the governors, the memory, the kind of pages and the version of this library; and for 30 days. What does not count is
never used in silence: the reason says so.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any, Mapping, Optional

from rooflm._output import plain
from rooflm._whole_file import write_whole
from rooflm.fetching import cache_dir

SCHEMA = 2
DAYS = 30


def key_of(m: Mapping[str, Any]) -> dict[str, Any]:
    from rooflm import __version__

    return {
        "cpu": m["cpu"],
        "isa": m["isa"]["in_use"] if m["isa"] else None,
        "allowed_cpus": m["allowed_cpus"],
        "default_threads": m["default_threads"],
        "kernel": m["kernel"],
        "governors": sorted({p["governor"] for p in m["cpufreq"] if p["governor"]}),
        "memory_bytes": m["memory_bytes"],
        "huge_pages": m["huge_pages"]["transparent"],
        "version": __version__,
    }


def _path(key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_dir() / f"machine-{digest[:12]}.json"


def keep(m: Mapping[str, Any], measured: Mapping[str, Any]) -> Optional[str]:
    """Writes the measurement; None, or why it could not be kept."""
    key = key_of(m)
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"schema": SCHEMA, "key": key, "measured": plain(measured)}, allow_nan=False))
    except OSError as e:
        return f"{path}: {e.strerror or e}"
    return None


def kept(m: Mapping[str, Any], *, now: Optional[datetime.datetime] = None) -> tuple[Optional[dict[str, Any]], str]:
    """The measurement that counts for this machine, or None and why there is none."""
    key = key_of(m)
    now = now or datetime.datetime.now(datetime.timezone.utc)
    record = _read(_path(key))
    if record is None:
        return None, _nearest(key) or "never measured: machine(measure=True) does"
    measured: dict[str, Any] = record["measured"]
    days = (now - datetime.datetime.fromisoformat(measured["date"])).days
    if days > DAYS:
        return None, f"measured on {measured['date'][:10]}, more than {DAYS} days ago"
    return measured, ""


def _read(path: Path) -> Optional[dict[str, Any]]:
    try:
        record = json.loads(path.read_text())
        datetime.datetime.fromisoformat(record["measured"]["date"])
        return record if record["schema"] == SCHEMA and record["key"] else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, cut off, of another version
        return None


def _nearest(key: Mapping[str, Any]) -> Optional[str]:
    """What changed since the last measurement that is there."""
    records = [r for p in cache_dir().glob("machine-*.json") if (r := _read(p)) is not None]
    if not records:
        return None
    last = max(records, key=lambda r: str(r["measured"]["date"]))
    changed = [f"{k} was {last['key'].get(k)!r}" for k in key if last["key"].get(k) != key[k]]
    return f"measured on {last['measured']['date'][:10]}, when {', '.join(changed)}"
