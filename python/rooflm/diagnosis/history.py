# SPDX-License-Identifier: Apache-2.0
"""Health checks of the past, in SQLite: several processes may add to one file at once, and a run that cannot be saved
is still a result. A new speed is judged against the noise of earlier ones with the same manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional, Sequence, Union

from rooflm._output import plain
from rooflm.stats import median_and_mad

EARLIER = 5  # runs a verdict needs
SLOWER = 0.05  # share of the median
DEVIATIONS = 3.0  # median absolute deviations
WAIT_S = 30.0  # for another process that writes

_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,          -- UTC, ISO 8601
    manifest TEXT NOT NULL,    -- what must be equal for two runs to be compared, as JSON with sorted keys
    decode_tps REAL NOT NULL,
    record TEXT NOT NULL       -- the whole record as JSON
)
"""


def manifest_key(manifest: dict[str, Any]) -> str:
    return json.dumps(plain(manifest), sort_keys=True)


class History:
    """Records of health checks in one SQLite file, made when it is not there. Connections are open only during a call,
    so that several processes share the file."""

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self.path = Path(path)

    def _connect(self) -> Any:
        import sqlite3

        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
        try:
            connection.execute(_TABLE)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def add(self, record: dict[str, Any]) -> None:
        """Appends a record. OSError when it cannot be written (a full disk, a read-only or damaged file); what was
        there before is still there then."""
        import sqlite3

        try:
            connection = self._connect()
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "INSERT INTO runs (at, manifest, decode_tps, record) VALUES (?, ?, ?, ?)",
                    (
                        record["at"],
                        manifest_key(record["manifest"]),
                        record["decode_tps"],
                        json.dumps(plain(record), allow_nan=False),
                    ),
                )
                connection.execute("COMMIT")
            finally:
                connection.close()
        except sqlite3.Error as e:
            raise OSError(f"{self.path}: this run was not added to the history: {e}") from e

    def records(self, manifest: Optional[dict[str, Any]] = None) -> list[dict[str, Any]]:
        """All records, or those with this manifest, the oldest first; none where there is no file yet."""
        import sqlite3

        if not self.path.exists():
            return []
        try:
            connection = self._connect()
            try:
                where, values = ("WHERE manifest = ?", (manifest_key(manifest),)) if manifest else ("", ())
                rows = connection.execute(f"SELECT record FROM runs {where} ORDER BY id", values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error as e:
            raise OSError(f"{self.path}: the history cannot be read: {e}") from e
        return [json.loads(text) for (text,) in rows]


def verdict(earlier: Sequence[float], now: float) -> dict[str, Any]:
    """A regression is a speed more than 5 % and more than three median absolute deviations below the median of at least
    five earlier runs. The dict has verdict ("regression", "none" or "too few runs"), n, median_tps, mad_tps, change
    (share of the median, negative when slower)."""
    n = len(earlier)
    median, mad = median_and_mad(earlier) if n else (None, None)
    change = now / median - 1 if median else None
    if n < EARLIER or median is None or mad is None or change is None:
        word = "too few runs"
    else:
        word = "regression" if change < -SLOWER and median - now > DEVIATIONS * mad else "none"
    return {"verdict": word, "n": n, "median_tps": median, "mad_tps": mad, "change": change}


def curve(values: Sequence[float], width: int = 40) -> str:
    """The last values as a line of text, from the lowest to the highest block character."""
    blocks = "▁▂▃▄▅▆▇█"
    last = list(values)[-width:]
    if not last:
        return ""
    low, high = min(last), max(last)
    return "".join(blocks[round((v - low) / (high - low) * 7) if high > low else 3] for v in last)
