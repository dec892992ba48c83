# SPDX-License-Identifier: Apache-2.0
"""Records in the forms of other tools: pandas, SQLite, Markdown, and the JSON of llama-bench and pyperf."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from contextlib import closing
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

from rooflm._optional import need
from rooflm._output import show
from rooflm.measuring.recording import PathLike, record_line

if TYPE_CHECKING:
    import pandas

Records = Sequence[Mapping[str, Any]]
LISTS = ("token_times_s",)  # per token: their own table
BUSY_S = 30.0  # how long a database that another process writes is waited for

# ---- pandas ----


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted names; lists of plain values as text, without those that have a value per token."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if name not in ("setting", "asked"):  # their values are columns already
                out.update(flat(value, f"{name}."))
        elif isinstance(value, (list, tuple)):
            if key not in LISTS:
                nested = any(isinstance(v, (Mapping, list)) for v in value)
                out[name] = json.dumps(value) if nested else ", ".join(map(str, value))
        else:
            out[name] = value
    return out


def runs_frame(records: Records) -> pandas.DataFrame:
    return need("pandas").DataFrame([flat(r) for r in records])


def token_rows(records: Records) -> Iterable[dict[str, Any]]:
    for run, r in enumerate(records):
        times = r.get("token_times_s") or ()
        base = r.get("depth", 0) + r.get("prompt", 0)
        for i, t in enumerate(times):
            yield {
                "run": run,
                **(r.get("setting") or {}),
                "repeat": r.get("repeat"),
                "token": i,
                "attended": base + i,
                "time_s": t,
                "gap_s": t - times[i - 1] if i else None,
            }


def tokens_frame(records: Records) -> pandas.DataFrame:
    return need("pandas").DataFrame(list(token_rows(records)))


# ---- SQLite ----

SQL = """
create table if not exists runs (
    id text primary key,      -- SHA-256 of the record: storing it twice changes nothing
    kind text, finished text, model text, machine text,
    record text not null      -- the whole record as JSON; json_extract(record, '$.decode_tps') reads from it
);
create table if not exists tokens (
    run text not null references runs(id), token integer not null, time_s real not null,
    primary key (run, token)
) without rowid;
"""


def write_sqlite(records: Records, path: PathLike) -> int:
    """Adds the records that the database does not have yet; gives their number. Several processes may do so at once."""
    import sqlite3

    with closing(sqlite3.connect(os.fspath(path), timeout=BUSY_S)) as db:
        added = 0
        with db:
            for statement in SQL.split(";\n"):
                db.execute(statement)
            for r in records:
                text = record_line(r)
                key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
                machine = ((r.get("manifest") or {}).get("machine") or {}).get("cpu")
                row = (key, r.get("kind"), r.get("finished"), r.get("model"), machine, text)
                if db.execute("insert or ignore into runs values (?, ?, ?, ?, ?, ?)", row).rowcount:
                    added += 1
                    times = enumerate(r.get("token_times_s") or ())
                    db.executemany("insert into tokens values (?, ?, ?)", ((key, i, t) for i, t in times))
    return added


def read_sqlite(path: PathLike) -> list[dict[str, Any]]:
    """All records, in the order in which they were stored."""
    import sqlite3

    if not os.path.isfile(path):
        raise FileNotFoundError(2, os.strerror(2), os.fspath(path))
    with closing(sqlite3.connect(os.fspath(path), timeout=BUSY_S)) as db:
        try:
            return [json.loads(text) for (text,) in db.execute("select record from runs order by rowid")]
        except sqlite3.DatabaseError as e:
            raise ValueError(f"{os.fspath(path)}: not a database of records: {e}") from None


# ---- Markdown ----


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    right = [all(isinstance(r.get(c), (int, float)) or r.get(c) is None for r in rows) for c in columns]
    rule = "|" + "|".join("---:" if r else "---" for r in right) + "|"
    return "\n".join([line(columns), rule, *(line(show(r.get(c)) for c in columns) for r in rows)])


# ---- llama-bench ----


def llama_bench(groups: Iterable[tuple[Mapping[str, Any], Records]]) -> list[dict[str, Any]]:
    """What `llama-bench -o json` writes: one object for the prompt and one for the generated tokens of each setting,
    times in nanoseconds over all tokens of a test. Fields that name its build or a GPU say what is true here."""
    out = []
    for setting, records in groups:
        first = records[0]
        model, machine = (first["manifest"].get(part) or {} for part in ("model", "machine"))
        k, _, v = str(setting.get("kv")).partition("/")
        build, engine = (first["manifest"].get(part) or {} for part in ("build", "engine"))
        base = {
            "build_commit": f"rooflm {build.get('rooflm')}",
            "build_number": 0,
            "cpu_info": machine.get("cpu") or "",
            "gpu_info": "",
            "backends": "BLAS" if setting.get("blas") else "CPU",
            "model_filename": model.get("file"),
            "model_type": f"{model.get('arch')} {_largest_type(model)}",
            "model_size": model.get("tensor_bytes"),
            "model_n_params": model.get("n_params"),
            "n_batch": engine.get("n_batch"),
            "n_ubatch": engine.get("n_batch"),
            "n_threads": setting.get("threads"),
            "type_k": k,
            "type_v": v or k,
            "n_gpu_layers": 0,
            "use_mmap": engine.get("mapped"),
            "test_time": first.get("finished"),
        }
        decoded = [r for r in records if r.get("decode_tps")]
        depth, prompt = setting["depth"], setting["prompt"]
        out.append(_llama_test({**base, "n_depth": depth}, prompt, 0, [r["prefill_tps"] for r in records]))
        if decoded:  # tokens are generated behind the prompt, so that it is part of their depth
            rates = [r["decode_tps"] for r in decoded]
            out.append(_llama_test({**base, "n_depth": depth + prompt}, 0, setting["gen"], rates))
    return out


def _largest_type(model: Mapping[str, Any]) -> str:
    types = model.get("types") or {}
    return max(types, key=lambda t: types[t]) if types else "?"


def _llama_test(base: Mapping[str, Any], n_prompt: int, n_gen: int, rates: Sequence[float]) -> dict[str, Any]:
    ns = [1e9 * (n_prompt + n_gen) / r for r in rates]

    def spread(values: Sequence[float]) -> float:
        return statistics.stdev(values) if len(values) > 1 else 0.0

    return {
        **base,
        "n_prompt": n_prompt,
        "n_gen": n_gen,
        "avg_ns": round(statistics.fmean(ns)),
        "stddev_ns": round(spread(ns)),
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": spread(rates),
        "samples_ns": [round(n) for n in ns],
        "samples_ts": list(rates),
    }


# ---- pyperf ----

PYPERF = (
    ("seconds per prompt token", lambda r: 1.0 / r["prefill_tps"]),
    ("seconds to the first token", lambda r: 1e-3 * r["ttft_ms"]),
    ("seconds per generated token", lambda r: 1.0 / r["decode_tps"] if r.get("decode_tps") else None),
)


def pyperf_suite(groups: Iterable[tuple[Mapping[str, Any], Records]]) -> dict[str, Any]:
    """A suite that pyperf loads and compares (`pyperf compare_to`): three benchmarks of each setting, one run of one
    value per repetition."""
    benchmarks = []
    for setting, records in groups:
        named = ", ".join(f"{k} {v}" for k, v in setting.items() if v is not None)
        for what, value_of in PYPERF:
            values = [(r, value_of(r)) for r in records]
            runs = [
                {"metadata": {"date": r["finished"].replace("T", " ").rstrip("Z")}, "values": [v]}
                for r, v in values
                if v is not None
            ]
            if runs:
                meta = {"name": f"{named}: {what}", "unit": "second", "loops": 1}
                benchmarks.append({"metadata": meta, "runs": runs})
    return {"version": "1.0", "benchmarks": benchmarks}
