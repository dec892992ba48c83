# SPDX-License-Identifier: Apache-2.0
"""Results: a list of records (one per run) with what is done to them: tables, files, plots, comparisons.

A record is a plain dict in JSON's own types. It has `schema`, `kind` ("bench", "sweep", ...), `setting` (what the run
was asked for, as a dict), `repeat`, the measured figures with units in their names, and `manifest`.
"""

from __future__ import annotations

import html
import json
import statistics
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Optional, TypeVar, Union, overload

from rooflm._keywords import checked_keywords
from rooflm._output import html_table, plain, table
from rooflm._whole_file import write_whole
from rooflm.measuring.recording import PathLike, read_records, record_line

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from rooflm.measuring.contrast import Contrast
    from rooflm.measuring.environments import Merged

SCHEMA = 1

# What tables show of each kind of record, and the line above them in a notebook.
MEASURED = {
    "bench": (
        "prefill_tps",
        "decode_tps",
        "ttft_ms",
        "bytes_per_token",
        "read_gbs",
        "ceiling_tps",
        "ceiling_share",
    ),
    "load": (
        "ready_s",
        "open_s",
        "first_token_s",
        "first_touch_s",
        "major_faults",
        "minor_faults",
        "resident_before",
        "read_gbs",
    ),
}
CAPTIONS = {
    "bench": "medians; ceiling: the best read of the same bytes, before and after each repetition",
    "load": "medians; ready: open and the first token; first touch: what that token takes longer than the second; "
    "cold: the page cache was dropped for the file and checked",
}


class Results:
    """Records of runs; prints as a table of medians, one row per setting.

    records: dicts as described in rooflm.measuring.results. measured: the keys that tables and summaries show, by
    default those of the records' kind. caption: one line above the table in a notebook.
    """

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        measured: Optional[Iterable[str]] = None,
        caption: Optional[str] = None,
    ) -> None:
        self.records: list[dict[str, Any]] = [dict(r) for r in records]
        self._measured = None if measured is None else tuple(measured)
        self._caption = caption

    # ---- what is in it ----

    @property
    def measured(self) -> tuple[str, ...]:
        if self._measured is not None:
            return self._measured
        kinds = dict.fromkeys(str(r.get("kind", "bench")) for r in self.records)
        keys = dict.fromkeys(k for kind in kinds for k in MEASURED.get(kind, MEASURED["bench"]))
        return tuple(k for k in keys if any(k in r for r in self.records))

    @property
    def machine(self) -> Optional[dict[str, Any]]:
        """The machine of the first record's manifest; environments() has them all."""
        for r in self.records:
            machine = (r.get("manifest") or {}).get("machine")
            if machine:
                return dict(machine)
        return None

    def select(self, where: Optional[Callable[[dict[str, Any]], bool]] = None, **fields: Any) -> Results:
        """The records with these values, e.g. select(kv="q8_0", depth=0), and for which where(record) is true."""
        for name in fields:
            if self.records and not any(name in r for r in self.records):
                known = ", ".join(k for k, v in self.records[0].items() if not isinstance(v, (dict, list)))
                raise KeyError(f"no record has {name!r}; they have {known}")
        return self._like(
            r
            for r in self.records
            if all(r.get(k) == v for k, v in fields.items()) and (where is None or where(r))
        )

    def groups(self) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """(setting, its records) in the order in which settings first appear."""
        found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        for r in self.records:
            setting = r.get("setting") or {}
            found.setdefault(record_line(setting), (dict(setting), []))[1].append(r)
        return list(found.values())

    def summary(self) -> list[dict[str, Any]]:
        """Medians over the repetitions of each setting; no outlier is dropped."""
        rows = []
        for setting, records in self.groups():
            row = dict(setting)
            for key in self.measured:
                values = [r[key] for r in records if r.get(key) is not None]
                row[key] = statistics.median(values) if values else None
            row["repeats"] = len(records)
            rows.append(row)
        return rows

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    @overload
    def __getitem__(self, i: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, i: slice) -> Results: ...
    def __getitem__(self, i: Union[int, slice]) -> Union[dict[str, Any], Results]:
        return self._like(self.records[i]) if isinstance(i, slice) else self.records[i]

    def __add__(self, other: Results) -> Results:
        """Both sets of records, as of two machines: `Results.load(a) + Results.load(b)`."""
        if not isinstance(other, Results):
            return NotImplemented
        return self._like([*self.records, *other.records])

    def _like(self, records: Iterable[Mapping[str, Any]]) -> Results:
        return Results(records, measured=self._measured, caption=self._caption)

    # ---- comparisons ----

    @checked_keywords
    def contrast(self, a: Any, b: Any, *, by: str, metric: str = "decode_tps") -> Contrast:
        """The records with value a of fact `by` against those with value b, such as contrast("f16", "q8_0", by="kv").
        a and b may also be Results of their own. by: "kv", "model", "threads", "compute", "depth", "device", ...
        (rooflm.measuring.contrast.FACTS has them all). metric: the figure that .effect compares.

        .moved says what differs, .confounded what differs and does not follow from `by`, and .effect is b over a with
        a 95 % interval; it raises when something confounds."""
        from rooflm.measuring.contrast import Contrast, fact_name, select_by

        name = fact_name(by)
        sides = [v.records if isinstance(v, Results) else select_by(self.records, name, v) for v in (a, b)]
        return Contrast(*sides, by=by, metric=metric)

    # ---- files ----

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "records": self.records, "summary": self.summary(), "machine": self.machine}

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def save(self, path: PathLike) -> None:
        """Writes the records as lines of JSON, in place of what the file held."""
        write_whole(path, "".join(record_line(r) + "\n" for r in self.records))

    @classmethod
    def load(cls, path: PathLike) -> Results:
        """Reads lines of JSON that save() or bench(out=) wrote. A cut-off last line is left out with a warning."""
        return cls(read_records(path))

    @checked_keywords
    def to_sqlite(self, path: PathLike) -> int:
        """Adds the records that the database at path does not have yet (it is made when missing), and gives their
        number. Table runs has one row per record with the whole of it as JSON, tokens the time of each token."""
        from rooflm.measuring.exporting import write_sqlite

        return write_sqlite(self.records, path)

    @classmethod
    def from_sqlite(cls, path: PathLike) -> Results:
        from rooflm.measuring.exporting import read_sqlite

        return cls(read_sqlite(path))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per run; what is nested has dotted names, such as `sensors.others_busy`."""
        from rooflm.measuring.exporting import runs_frame

        return runs_frame(self.records)

    def tokens(self) -> pandas.DataFrame:
        """One row per token: run (position in records), the setting, repeat, token, attended (positions before it),
        time_s since the start of the prompt, gap_s since the token before."""
        from rooflm.measuring.exporting import tokens_frame

        return tokens_frame(self.records)

    def to_llama_bench(self, path: Optional[PathLike] = None) -> list[dict[str, Any]]:
        """The tests as `llama-bench -o json` writes them; to a file as well when path is given."""
        from rooflm.measuring.exporting import llama_bench

        return _written(llama_bench(self.groups()), path)

    def to_pyperf(self, path: Optional[PathLike] = None) -> dict[str, Any]:
        """A suite for `python -m pyperf compare_to`, in seconds per token; to a file as well when path is given."""
        from rooflm.measuring.exporting import pyperf_suite

        return _written(pyperf_suite(self.groups()), path)

    # ---- several machines ----

    def environments(self) -> list[dict[str, Any]]:
        """What tells the environments in which these records were measured apart: one row each."""
        from rooflm.measuring.environments import environments

        return environments(self.records)

    def merged(self, metric: str = "decode_tps") -> Merged:
        """One table over all environments: a row per setting, a column per environment with the median of metric."""
        from rooflm.measuring.environments import Merged

        return Merged(self.records, metric)

    # ---- pictures and tables ----

    def to_markdown(self) -> str:
        """The table of medians in Markdown."""
        from rooflm.measuring.exporting import markdown

        rows = self.summary()
        return markdown(rows, self._columns(rows))

    @checked_keywords
    def plot(self, ax: Optional[Axes] = None, *, y: str = "decode_tps", x: Optional[str] = None) -> Axes:
        """Each run as a dot and the median of each setting, with the range of its runs; for decode_tps the ceiling as
        well. y: a figure of the records. x: a setting; default the first number that varies."""
        from rooflm.measuring.plots import plot_results

        return plot_results(self, ax, y, x)

    def _columns(self, rows: list[dict[str, Any]]) -> tuple[str, ...]:
        """Settings that differ between the rows, then the figures; a single row shows all its settings."""
        settings = [k for k in dict.fromkeys(k for r in rows for k in r) if k not in (*self.measured, "repeats")]
        varied = [k for k in settings if len(rows) < 2 or len({record_line({"": r.get(k)}) for r in rows}) > 1]
        shown = [k for k in varied if any(r.get(k) is not None for r in rows)]
        return (*shown, *self.measured, "repeats")

    def __repr__(self) -> str:
        rows = self.summary()
        return table(rows, self._columns(rows)) if rows else "no records"

    def _repr_html_(self) -> str:
        rows = self.summary()
        kind = str(self.records[0].get("kind")) if self.records else ""
        caption = html.escape(self._caption or CAPTIONS.get(kind, "medians"))
        return f"<p>{caption}</p>{html_table(rows, self._columns(rows))}"


T = TypeVar("T")


def _written(value: T, path: Optional[PathLike]) -> T:
    if path is not None:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(plain(value), f, allow_nan=False)
    return value
