# SPDX-License-Identifier: Apache-2.0
"""Records on disk and in other forms: nothing recorded is lost, and what comes back is what went in."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest
from plots import drawn, says, words
from records import record, runs

from rooflm import FallbackWarning, Results
from rooflm.measuring.recording import RecordFile, read_records


@pytest.fixture
def results():
    return Results([*runs(3), *runs(3, kv="q8_0"), *runs(3, depth=64)])


# ---- lines of JSON ----


def test_records_come_back_as_they_were(tmp_path, results):
    results.save(tmp_path / "r.jsonl")
    assert Results.load(tmp_path / "r.jsonl").records == results.records
    assert (tmp_path / "r.jsonl").read_text().count("\n") == len(results) == 9
    assert os.listdir(tmp_path) == ["r.jsonl"]


def test_a_cut_off_last_line_is_left_out_and_overwritten(tmp_path, results):
    path = tmp_path / "r.jsonl"
    results.save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(FallbackWarning, match="line 9 is cut off"):
        assert Results.load(path).records == results.records[:8]
    with pytest.warns(FallbackWarning), RecordFile(path, resume=True) as f:
        f.append(results.records[8])
    assert Results.load(path).records == results.records


def test_a_whole_last_line_without_its_line_feed_is_kept(tmp_path, results):
    path = tmp_path / "r.jsonl"
    results.save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with RecordFile(path, resume=True) as f:
        assert len(f.records) == 9
        f.append(record(repeat=9))
    assert len(Results.load(path)) == 10


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path, results):
    path = tmp_path / "r.jsonl"
    results.save(path)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], lines[3][:-9], *lines[4:]]))
    with pytest.raises(ValueError, match="line 4: not JSON"):
        Results.load(path)
    path.write_text("[1, 2]\n")
    with pytest.raises(ValueError, match="line 1: a record must be an object, not list"):
        Results.load(path)


def test_nan_is_null(tmp_path):
    Results([record(decode_tps=float("nan"))]).save(tmp_path / "r.jsonl")
    assert "NaN" not in (tmp_path / "r.jsonl").read_text()
    assert Results.load(tmp_path / "r.jsonl")[0]["decode_tps"] is None


def test_an_existing_file_needs_resume(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("")
    with pytest.raises(FileExistsError, match="resume=True"):
        RecordFile(path)


def test_only_what_can_be_resumed_offers_it(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("")
    with pytest.raises(FileExistsError, match="resume=True goes on"):
        RecordFile(path)
    with pytest.raises(FileExistsError) as e:
        RecordFile(path, resumable=False)
    assert "choose another name" in str(e.value) and "resume=" not in str(e.value)
    with RecordFile(tmp_path / "x.jsonl", resumable=False) as f:
        os.close(f._fd)
        f._fd = os.open(os.devnull, os.O_RDONLY)  # every write fails
        with pytest.raises(OSError, match="the 0 records before it are kept") as full:
            f.append({"a": 1})
    assert "resume=" not in str(full.value)


def test_each_record_is_synced_before_the_next(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    with RecordFile(tmp_path / "r.jsonl") as f:
        for r in runs(3):
            f.append(r)
            assert synced[-1] == os.path.getsize(tmp_path / "r.jsonl")
    assert len(synced) == 3


def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path, monkeypatch):
    """The system takes a part of the line and then refuses the rest."""
    path, whole, room = tmp_path / "r.jsonl", os.pwrite, [100_000]

    def short(fd, data, at):
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        n = whole(fd, bytes(data[: room[0]]), at)
        room[0] -= n
        return n

    monkeypatch.setattr(os, "pwrite", short)
    with RecordFile(path) as f:
        f.append(record(repeat=0))
        f.append(record(repeat=1))
        room[0] = 500
        with pytest.raises(OSError, match="the 2 records before it are kept, resume=True") as e:
            f.append(record(repeat=2))
        assert e.value.errno == errno.ENOSPC and e.value.filename == str(path)
    assert path.read_bytes().endswith(b"\n")  # nothing of the third line stays
    assert [r["repeat"] for r in read_records(path)] == [0, 1]
    room[0] = 100_000
    with RecordFile(path, resume=True) as f:
        f.append(record(repeat=2))
    assert [r["repeat"] for r in read_records(path)] == [0, 1, 2]


def test_a_file_that_may_not_grow_keeps_what_it_has(tmp_path):
    """The same, refused by the system itself: a limit on the size of files."""
    path = tmp_path / "r.jsonl"
    code = """
import resource, sys
from rooflm.measuring.recording import RecordFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with RecordFile(sys.argv[1]) as f:
    for i in range(100):
        f.append({"i": i, "text": "x" * 100})
"""
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "OSError" in out.stderr and "the 8 records before it are kept" in out.stderr
    assert path.read_bytes().endswith(b"\n")
    assert [r["i"] for r in read_records(path)] == list(range(8))


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null"])
def test_a_device_is_no_file_for_records(path):
    with pytest.raises(OSError, match="is not a regular file"):
        RecordFile(path, resume=True)


def test_results_do_not_replace_a_pipe(tmp_path, results):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        results.save(tmp_path / "pipe")
    assert [p.is_fifo() for p in tmp_path.iterdir()] == [True]


def test_two_processes_do_not_write_one_file(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as f:
        f.append(record())
        code = "import sys; from rooflm.measuring.recording import RecordFile; RecordFile(sys.argv[1], resume=True)"
        out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
        assert out.returncode == 1 and "is being written by another process" in out.stderr


# ---- tables ----


def test_summary_has_medians_of_every_setting(results):
    rows = results.summary()
    assert [(r["kv"], r["depth"], r["repeats"]) for r in rows] == [("f16", 0, 3), ("q8_0", 0, 3), ("f16", 64, 3)]
    assert rows[0]["decode_tps"] == 20.0
    assert "kv" in repr(results) and "threads" not in repr(results)  # only what differs
    assert results.to_markdown().splitlines()[1].startswith("|---")
    assert results._repr_html_().count("<tr>") == 4
    assert repr(Results([])) == "no records"


def test_select_and_add(results):
    assert len(results.select(kv="q8_0")) == 3 and len(results.select(lambda r: r["repeat"] == 0, depth=0)) == 2
    with pytest.raises(KeyError, match="no record has 'kvv'"):
        results.select(kvv="f16")
    both = results.select(kv="q8_0") + results.select(depth=64)
    assert len(both) == 6 and both[0] == results[3] and len(results[2:4]) == 2


def test_pandas_rows_are_runs_and_tokens(results):
    pytest.importorskip("pandas")
    frame = results.to_pandas()
    assert len(frame) == 9 and frame["manifest.model.sha256"].tolist() == ["aa"] * 9
    assert frame["sensors.clock_ghz.end"].iloc[0] == 3.0 and "token_times_s" not in frame
    tokens = results.tokens()
    assert len(tokens) == 9 * 4 and tokens["attended"].iloc[-1] == 64 + 64 + 3
    assert tokens["gap_s"].isna().sum() == 9 and tokens["gap_s"].iloc[1] == pytest.approx(0.05)


def test_sqlite_keeps_each_record_once(tmp_path, results):
    import sqlite3

    path = tmp_path / "r.db"
    assert results.to_sqlite(path) == 9 and results.to_sqlite(path) == 0
    assert Results.from_sqlite(path).records == results.records
    with sqlite3.connect(path) as db:
        (mean,) = db.execute("select avg(json_extract(record, '$.decode_tps')) from runs").fetchone()
        assert mean == pytest.approx(20.0, rel=0.01)
        assert db.execute("select count(*), max(time_s) from tokens").fetchone() == (36, 0.79)
    with pytest.raises(FileNotFoundError):
        Results.from_sqlite(tmp_path / "none.db")
    (tmp_path / "x.db").write_text("no database at all, but long enough to be looked at" * 40)
    with pytest.raises(ValueError, match="not a database of records"):
        Results.from_sqlite(tmp_path / "x.db")


def test_two_processes_add_to_one_database(tmp_path, results):
    """Neither loses a record nor fails."""
    path, n = tmp_path / "r.db", 2
    results.save(tmp_path / "r.jsonl")
    code = """
import sys, rooflm
r = rooflm.Results.load(sys.argv[1])
for i in range(10):
    rooflm.Results([{**x, "who": sys.argv[3], "turn": i} for x in r]).to_sqlite(sys.argv[2])
"""
    command = [sys.executable, "-c", code, str(tmp_path / "r.jsonl"), str(path)]
    started = [subprocess.Popen([*command, str(i)], stderr=subprocess.PIPE, text=True) for i in range(n)]
    for p in started:
        assert p.wait() == 0, p.stderr.read()
        p.stderr.close()
    assert len(Results.from_sqlite(path)) == n * 10 * 9


def test_llama_bench_has_two_tests_of_each_setting(tmp_path, results):
    """Names and units as its README states them: tokens/s and nanoseconds over all tokens of a test."""
    results.to_llama_bench(tmp_path / "l.json")
    tests = json.loads((tmp_path / "l.json").read_text())
    assert len(tests) == 6
    prompt, generated = tests[:2]
    assert (prompt["n_prompt"], prompt["n_gen"], prompt["n_depth"]) == (64, 0, 0)
    assert (generated["n_prompt"], generated["n_gen"], generated["n_depth"]) == (0, 4, 64)
    assert prompt["avg_ts"] == 100.0 and prompt["samples_ns"] == [640_000_000] * 3
    assert generated["avg_ts"] == pytest.approx(20.0) and generated["stddev_ts"] > 0
    assert (prompt["type_k"], tests[2]["type_k"], prompt["n_threads"]) == ("f16", "q8_0", 2)


def test_pyperf_suite_is_in_seconds(tmp_path, results):
    results.to_pyperf(tmp_path / "p.json")
    suite = json.loads((tmp_path / "p.json").read_text())
    by_name = {b["metadata"]["name"]: [v for run in b["runs"] for v in run["values"]] for b in suite["benchmarks"]}
    assert len(by_name) == 9 and all(len(v) == 3 for v in by_name.values())
    generated = next(v for k, v in by_name.items() if k.endswith("generated token") and "q8_0" in k)
    assert generated == pytest.approx([1 / 19.8, 1 / 20, 1 / 20.2], rel=0.02)


def test_pyperf_itself_reads_the_suite(tmp_path, results):
    pyperf = pytest.importorskip("pyperf")
    results.to_pyperf(tmp_path / "p.json")
    assert len(pyperf.BenchmarkSuite.load(str(tmp_path / "p.json")).get_benchmarks()) == 9


def test_one_suite_in_three_environments_is_one_table():
    """E20: the factory's older image, the heat of a car."""
    lab = runs(3)
    factory = runs(3, manifest__machine__os="Old", manifest__machine__firmware_date="2019-01-01", values=[15.0] * 3)
    car = runs(3, manifest__machine__os="Car", sensors__temperature_c={"start": 65.0, "end": 70.0, "max": 71.0})
    for r in factory:
        r["fallbacks"] = ["the file could not be mapped and was copied into memory"]
    merged = (Results(lab) + Results(factory) + Results(car)).merged()
    assert len(merged.rows) == 1
    row = merged.rows[0]
    assert (row["Debian"], row["Old"], row["Car"]) == (20.0, 15.0, 20.0)
    about = {e["environment"]: e for e in merged.environments}
    assert about["Car"]["temperature_c"] == 65.0 and about["Old"]["firmware_date"] == "2019-01-01"
    assert "could not be mapped" in about["Old"]["fallbacks"] and about["Debian"]["fallbacks"] is None
    assert "Old" in repr(merged) and "<table>" in merged._repr_html_()


# ---- pictures ----


def test_plot_says_what_it_shows(results):
    ax = drawn(results.plot)
    says(ax, x=r"context before the prompt \(tokens\)", y=r"decode \(tokens/s\)", title="m.gguf, X")
    assert "kv f16" in words(ax) and "ceiling, kv f16" in words(ax) and "n = 3 runs" in ax.get_title()
    medians = next(line for line in ax.lines if list(line.get_xdata()) == [0.0, 64.0] and line.get_linestyle() == "-")
    assert list(medians.get_ydata()) == [20.0, 20.0]
    says(drawn(results.plot, y="ttft_ms", x="kv"), x="KV cache", y=r"\(ms\)")


def test_plot_of_nothing_names_what_is_missing(results):
    with pytest.raises(ValueError, match="no record has a figure 'nonsense'"):
        results.plot(y="nonsense")
    with pytest.raises(ValueError, match="x='nonsense' is no setting"):
        results.plot(x="nonsense")
    with pytest.raises(TypeError, match="did you mean 'ax'"):
        results.plot(axs=None)
