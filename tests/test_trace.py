# SPDX-License-Identifier: Apache-2.0
"""Traces: every operation of every layer, in order and without gaps; taps of attention weights."""

from __future__ import annotations

import json
import time
import warnings

import numpy as np
import pytest
from golden_files import golden
from plots import drawn

import rooflm
from rooflm import _core
from rooflm.device.roofline import Roofs, roofline
from rooflm.tracing import STAGES

OPS = ["attn_norm", "qkv", "rope", "attention", "attn_out", "ffn_norm", "gate_up", "activation", "down"]


def test_operations_follow_each_other_without_gaps():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=2) as s:
        with s.trace() as tr:
            s.eval([3, 4, 5])
            s.eval([6])
    steps = [e for e in tr.events if e.op == "embed"]
    assert [e.n_tokens for e in steps] == [3, 1] and tr.dropped == 0
    for layer in range(m.n_layer):
        assert [e.op for e in tr.events if e.layer == layer] == OPS * 2
    first = tr.events[: len(tr.events) // 2]
    assert all(a.end_ns == b.start_ns for a, b in zip(first, first[1:]))
    assert all(0 <= e.wait_ns <= e.end_ns - e.start_ns for e in tr.events)
    assert abs(sum(r["share"] for r in tr.by_op()) - 1) < 1e-9
    assert "attention" in repr(tr)


def test_a_full_trace_counts_what_it_drops():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace(capacity=5) as tr:
            s.eval([3])
        whole = 1 + m.n_layer * len(OPS) + 2
        assert len(tr.events) == 5 and tr.dropped == whole - 5
        with s.trace() as again:
            s.eval([3])
        assert len(again.events) == whole


def test_tracing_changes_no_logit():
    m = rooflm.Model(golden("gemma3").path)
    with m.session(n_ctx=64, n_threads=2) as a, m.session(n_ctx=64, n_threads=2) as b:
        with a.trace():
            x = a.eval([3, 4, 5], logits="all")
        assert np.array_equal(x, b.eval([3, 4, 5], logits="all"))


def test_attention_weights_sum_to_one_over_what_a_token_sees():
    m = rooflm.Model(golden("gemma3").path)
    window, sliding = m.hparams["window"], m.hparams["sliding"]
    tokens = list(range(3, 3 + 40))
    with m.session(n_ctx=64, n_threads=2, n_batch=16, kv="f32", compute="f32") as s:
        with s.capture("blk.*.attn_weights") as cap:
            s.eval(tokens)
    for i, slides in enumerate(sliding):
        w = cap[f"blk.{i}.attn_weights"]
        assert w.shape == (40, m.n_head, 40)
        np.testing.assert_allclose(w.sum(-1), 1, atol=1e-5)
        past = np.arange(40)[:, None] - np.arange(40)[None]
        seen = (past >= 0) & (past < window if slides else True)
        assert (w[~np.broadcast_to(seen[:, None], w.shape)] == 0).all()
        assert (w[np.broadcast_to(seen[:, None], w.shape)] > 0).all()


# ---- bytes and operations ----

ROOFS = Roofs(read_gbs=20.0, gops={"int8": 400.0, "int16": 200.0, "f32": 100.0}, threads=2, isa="avx2")


def costs_by_op(tr):
    out = {}
    for e in tr.events:
        c = tr.cost(e)
        nbytes, operations = out.get(e.op, (0, 0))
        out[e.op] = (nbytes + c.nbytes, operations + c.operations)
    return out


@pytest.mark.parametrize("name", ["llama", "gemma3", "llama-moe", "granitemoe-shared", "phi3-short", "starcoder2"])
def test_matrices_cost_their_bytes_and_two_operations_per_weight(name):
    """Counted here from the tensors of the file alone."""
    m = rooflm.Model(golden(name).path)
    hp, tensors = m.hparams, m.gguf.tensors
    with m.session(n_ctx=64, n_threads=1) as s:
        s.eval([3, 4])
        with s.trace() as tr:
            s.eval([5])
    shares = {n: hp["n_expert_used"] / hp["n_expert"] if "_exps." in n else 1.0 for n in tensors}
    matrices = [n for n, t in tensors.items() if len(t.shape) >= 2 and n != "token_embd.weight" and "norm" not in n]
    if hp["tied_output"]:
        matrices.append("token_embd.weight")
    found = costs_by_op(tr)
    names = ("qkv", "attn_out", "router", "gate_up", "down", "head")
    weights = sum(shares.get(n, 1.0) * np.prod([int(d) for d in tensors[n].shape]) for n in matrices)
    assert sum(found[op][1] for op in names if op in found) == pytest.approx(2 * weights)
    nbytes = sum(shares.get(n, 1.0) * tensors[n].nbytes for n in matrices)
    assert sum(found[op][0] for op in names if op in found) == pytest.approx(nbytes)


def test_experts_of_a_prompt_are_counted_as_chosen():
    m = rooflm.Model(golden("llama-moe").path)
    hp = m.hparams
    with m.session(n_ctx=64, n_threads=2) as s:
        with s.trace() as tr:
            s.eval([3, 3, 3])
            s.eval(list(range(3, 43)))
    chosen = [(e.n_tokens, e.n_experts) for e in tr.events if e.op == "down"]
    assert all(hp["n_expert_used"] <= n <= hp["n_expert"] for _, n in chosen)
    assert any(n < hp["n_expert"] for t, n in chosen if t == 3), "three equal tokens do not need all of them"
    assert max(n for t, n in chosen if t == 40) == hp["n_expert"]


def test_attention_reads_what_its_tokens_see():
    m = rooflm.Model(golden("gemma3").path)
    hp = m.hparams
    window, position = hp["window"], hp["n_head_kv"][0] * (hp["head_dim_k"] + hp["head_dim_v"])
    n = window + 24
    with m.session(n_ctx=n + 1, n_threads=1, kv="q8_0/f16", n_batch=n) as s:
        with s.trace() as tr:
            s.eval(list(range(3, 3 + n)))
            s.eval([5])
    per = hp["n_head_kv"][0] * (hp["head_dim_k"] * 1.125 + hp["head_dim_v"] * 2)
    pair = 2 * hp["n_head"][0] * (hp["head_dim_k"] + hp["head_dim_v"])
    for e in tr.events:
        if e.op != "attention":
            continue
        c = tr.cost(e)
        slides = hp["sliding"][e.layer]
        if e.n_tokens == 1:
            seen = window if slides else n + 1
            assert (c.nbytes, c.operations) == (pytest.approx(seen * per), pair * seen)
        else:
            past = np.arange(n)[:, None] - np.arange(n)[None]
            pairs = int(((past >= 0) & ((past < window) | (not slides))).sum())
            assert (c.nbytes, c.operations) == (pytest.approx(n * per), pair * pairs)
        assert c.kind == "int16"
    written = sum(tr.cost(e).nbytes for e in tr.events if e.op == "rope")
    assert written == pytest.approx((n + 1) * per * m.n_layer) and position > 0


def test_the_head_counts_the_rows_that_want_logits():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace() as tr:
            s.eval([3, 4, 5], logits="none")
            s.eval([6] * 20, logits="all")
            s.eval([7])
    assert [e.n_tokens for e in tr.events if e.op == "head"] == [16, 4, 1]
    assert [e.position for e in tr.events if e.op == "embed"] == [0, 3, 23]
    assert {e.op for e in tr._of_phase("decode")} >= {"head", "qkv"}
    assert sum(e.op == "head" for e in tr._of_phase("prefill")) == 2


def test_tables_add_up():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=2) as s:
        with s.trace() as tr:
            s.eval(list(range(3, 43)))
            s.eval([6])
            s.eval([7])
    tr.roofs = ROOFS
    whole = sum(e.end_ns - e.start_ns for e in tr.events) * 1e-9
    for rows in (tr.by_op(), tr.by_layer(), tr.by_layer_and_op()):
        assert sum(r["time_s"] for r in rows) == pytest.approx(whole)
        assert sum(r["share"] for r in rows) == pytest.approx(1)
    for key in ("time_s", "operations", "bytes", "wait_s", "calls"):
        split = sum(r[key] for p in ("prefill", "decode") for r in tr.by_op(p))
        assert sum(r[key] for r in tr.by_op()) == pytest.approx(split)
    assert [r["layer"] for r in tr.by_layer()] == [*range(m.n_layer), None]
    down = next(r for r in tr.by_op("decode") if r["op"] == "down")
    assert down["gbs"] == pytest.approx(down["bytes"] / down["time_s"] / 1e9)
    assert down["bound"] == "memory" and down["roof_share"] == pytest.approx(down["bytes"] / 20e9 / down["time_s"])
    ops = sum(r["operations"] for r in tr.by_op("decode"))
    decode = tr._of_phase("decode")
    assert tr.effective_tops("decode") == pytest.approx(ops / (decode[-1].end_ns - decode[0].start_ns) / 1e3)
    assert 0 < tr.memory_bound_share("decode") <= 1
    with pytest.raises(ValueError, match="phase='dcode'"):
        tr.by_op("dcode")
    record = json.loads(json.dumps(tr.to_dict(), allow_nan=False))
    assert record["schema"] == 1 and record["roofs"]["read_gbs"] == 20.0
    frame = tr.to_pandas() if pytest.importorskip("pandas") else None
    assert len(frame) == len(tr.events) and frame.nbytes.sum() == pytest.approx(sum(r["bytes"] for r in tr.by_op()))


def low_and_high(read_gbs, monkeypatch):
    """Reads that find these rates in turn, and arithmetic that limits nothing."""
    found = iter(read_gbs)
    monkeypatch.setattr(_core, "read_bandwidth", lambda *a, **k: {"gbs": next(found)})
    monkeypatch.setattr("rooflm.tracing.peak_gops", lambda threads, isa: {"int8": 1e9, "int16": 1e9, "f32": 1e9})


def short_trace():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s, s.trace() as tr:
        s.eval([3, 4, 5])
        s.eval([6])
    return tr


def test_roofs_lower_than_the_work_are_read_again_then_doubted(monkeypatch):
    tr = short_trace()
    low_and_high([1e-6, 2e-6, 1e6], monkeypatch)
    assert tr.roofs.read_gbs == 1e6 and tr.doubts == [] and tr.to_dict()["reliable"] is True
    tr = short_trace()
    low_and_high([1e-6, 3e-6, 2e-6], monkeypatch)
    assert tr.roofs.read_gbs == 3e-6
    (doubt,) = tr.doubts
    assert "ran above their roof" in doubt and "s after the trace ended" in doubt and doubt in repr(tr)
    record = tr.to_dict()
    assert record["reliable"] is False and record["doubts"] == [doubt] and doubt in tr._repr_html_()
    pytest.importorskip("matplotlib").use("Agg")
    assert "not reliable" in drawn(tr.plot).get_title()
    tr.roofs = Roofs(1e-6, {"int8": 1e9, "int16": 1e9, "f32": 1e9}, 1, "ref")
    assert "the roofs were given" in tr.doubts[0]


def test_dropped_events_are_a_doubt(monkeypatch):
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s, s.trace(capacity=5) as tr:
        s.eval([3])
    tr.roofs = Roofs(1e6, {"int8": 1e9, "int16": 1e9, "f32": 1e9}, 1, "ref")
    assert len(tr.doubts) == 1 and f"{tr.dropped} events were dropped" in tr.doubts[0]


def test_roofs_of_this_machine_are_measured():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace() as tr:
            s.eval([3])
    assert tr.roofs.read_gbs > 0 and tr.roofs.threads == 1
    if tr.roofs.isa != "ref":
        assert tr.roofs.gops["int8"] > 0 and tr.roofs.gops["f32"] > 0
    assert all(r["roof_share"] > 0 for r in tr.by_op() if r["bytes"])


def test_the_layer_of_the_report():
    """E1: 4096 x 4096 in INT8, 128 tokens, 1.8 ms on an accelerator rated 30 TOPS beside a memory of 25 GB/s."""
    r = roofline(2 * 4096 * 4096 * 128, 4096 * 4096, 1.8e-3, read_gbs=25, peak_gops=30_000, wait_s=1e-4)
    assert r["effective_tops"] == pytest.approx(2.386, abs=1e-3)
    assert r["memory_s"] == pytest.approx(0.671e-3, abs=1e-6) and r["compute_s"] == pytest.approx(0.143e-3, abs=1e-6)
    assert r["bound"] == "memory" and r["roof_share"] == pytest.approx(0.373, abs=1e-3)
    assert r["memory_s"] + r["wait_s"] + r["other_s"] == pytest.approx(1.8e-3)
    assert roofline(1.0, 1.0, 1.0)["bound"] is None and roofline(1e9, 0, 1.0, peak_gops=2)["bound"] == "compute"
    with pytest.raises(ValueError, match="time_s=0"):
        roofline(1, 1, 0)


# ---- stages, spans, export ----


def test_generate_records_its_stages(smollm2, tmp_path):
    m = rooflm.Model(smollm2)
    (tmp_path / "prompt.txt").write_text("The capital of France is")
    with m.session(n_ctx=128, n_threads=1) as s:
        with s.trace() as tr:
            with tr.span("mine"):
                for _ in s.generate(tmp_path / "prompt.txt", max_tokens=4):
                    time.sleep(0.002)
            s.chat([{"role": "user", "content": "Hi"}], max_tokens=2).run()
    calls = {r["span"]: r["calls"] for r in tr.stages()}
    assert list(calls) == [*STAGES, "mine"]
    assert calls["sample"] == 6 and calls["decode"] == 4 and calls["first_token"] == 2 and calls["preprocess"] == 1
    by_name = {r["span"]: r for r in tr.stages()}
    rendered = [x for x in tr.spans if x.name == "render" and x.end_ns - x.start_ns >= 2_000_000]
    assert 1 <= len(rendered) <= 4, "what the caller does between two pieces is rendering"
    assert by_name["mine"]["share"] is None and sum(r["share"] for r in tr.stages() if r["stage"]) == pytest.approx(1)
    mine = next(x for x in tr.spans if x.name == "mine")
    assert all(mine.start_ns <= x.start_ns and x.end_ns <= mine.end_ns for x in tr.spans if x.name == "input")
    # Evaluations lie inside the stages that ask for them: one clock for both.
    steps = [e for e in tr.events if e.op == "embed"]
    asked = [x for x in tr.spans if x.name in ("first_token", "decode")]
    assert len(steps) == len(asked)
    assert all(any(x.start_ns <= e.start_ns and e.end_ns <= x.end_ns for x in asked) for e in steps)


def test_nothing_is_recorded_without_a_trace():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace() as tr:
            s.eval([3])
            with pytest.raises(_core.Error, match="traced already"):
                s.trace().__enter__()
        n = len(tr.events)
        s.eval([4])
        assert len(tr.events) == n and tr.spans == [] and s._tracer is None
        with s.fork() as twin:
            assert twin._tracer is None


def test_a_span_ends_with_its_block_whatever_happens():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with pytest.raises(ZeroDivisionError):
            with s.trace() as tr:
                s.eval([3])
                with tr.span("sample"):
                    1 / 0  # noqa: B018
    assert [(x.name, x.stage) for x in tr.spans] == [("sample", True)] and tr.events

def test_closing_a_session_inside_its_trace_loses_nothing():
    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace(capacity=40) as tr:
            s.eval([3, 4, 5])
            s.eval([6])
            s.close()
            assert len(tr.events) == 40 and tr.dropped > 0
    assert len(tr.events) == 40 and tr.events[0].n_tokens == 3
    assert tr.cost(tr.events[0]).nbytes > 0
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace() as tr:
            s.close()
    assert tr.events == []


def test_chrome_export(tmp_path):
    from rooflm.device.sampler import Clocks, Sampler

    m = rooflm.Model(golden("llama").path)
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "temp").write_text("41000")
    sampler = Sampler(root=tmp_path, clocks=lambda: Clocks(time.monotonic(), 0, 0))
    with m.session(n_ctx=64, n_threads=2) as s:
        with s.trace() as tr:
            sampler.sample()
            with tr.span("mine"):
                s.eval([3, 4])
    assert tr.stages(sampler=sampler)[0]["temperature_c"] is None, "no sample fell into the span"
    (zone / "temp").write_text("43000")
    sampler._clocks = lambda: Clocks((tr.spans[0].start_ns + tr.spans[0].end_ns) / 2e9, 0, 0)
    inside = sampler.sample()
    assert tr.stages(sampler=sampler)[0]["temperature_c"] == 43.0 and tr.stages(sampler=sampler)[0]["power_w"] is None
    sampler.samples.remove(inside)
    tr.to_chrome(tmp_path / "t.json", sampler=sampler)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lines = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    assert set(lines) == {"operations", "stages", "spans", "steps ahead"}
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(tr.events) + 1
    mine = next(e for e in complete if e["tid"] == lines["spans"])
    inside = [e for e in complete if e["tid"] == lines["operations"]]
    assert all(mine["ts"] <= e["ts"] and e["ts"] + e["dur"] <= mine["ts"] + mine["dur"] + 1e-3 for e in inside)
    assert inside[0]["args"]["tokens"] == 2 and any(e["args"]["bytes"] > 0 for e in inside)
    (counter,) = [e for e in events if e["ph"] == "C"]
    assert counter["args"] == {"value": 41.0} and counter["ts"] <= mine["ts"]


def test_pictures():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    m = rooflm.Model(golden("llama").path)
    with m.session(n_ctx=64, n_threads=1) as s:
        with s.trace() as tr:
            for _ in range(2):
                s.eval([3, 4])
                s.eval([5])
            with tr.span("render"):
                pass
    tr.roofs = ROOFS
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax = drawn(tr.plot)
        ax.figure.canvas.draw()
        assert ax.get_xlabel() == "operations per byte from memory" and ax.get_ylabel() == "G operations/s"
        multiplied = sum(bool(tr.cost(e).operations) for e in tr.events)
        assert f"n = {multiplied} operations" in ax.get_title() and "20.0 GB/s" in ax.get_title()
        labels = [t.get_text() for t in ax.get_legend().get_texts()]
        assert any(x.startswith("decode down: ") and "% of its roof" in x for x in labels)
        _, own = pyplot.subplots()
        ax = tr.plot(own, kind="time", phase="decode")
        assert ax is own and ax.get_ylabel() == "ms per step" and "n = 2 steps" in ax.get_title()
        assert len(ax.patches) == len({e.op for e in tr.events}) * (m.n_layer + 1)
        ax = drawn(tr.plot, kind="stages")
        assert ax.get_xlabel() == "time (ms)" and [t.get_text() for t in ax.get_yticklabels()] == ["render (n = 1)"]
    assert dict(matplotlib.rcParams) == before
    pyplot.close("all")
    with pytest.raises(ValueError, match="kind='pie'"):
        tr.plot(kind="pie")
    with pytest.raises(TypeError, match="did you mean 'phase'"):
        tr.plot(phases="decode")


def test_commands_write_and_print_traces(tmp_path, capsys):
    from rooflm import cli

    path = str(golden("llama").path)
    chrome, picture = tmp_path / "c.json", tmp_path / "p.png"
    args = ["trace", path, "--prompt", "40", "--gen", "3", "--threads", "1", "--chrome", str(chrome)]
    assert cli.main([*args, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["by_op"]["decode"][0]["calls"] >= 3 and record["dropped"] == 0
    assert json.loads(chrome.read_text())["traceEvents"]
    pytest.importorskip("matplotlib").use("Agg")
    assert cli.main([*args, "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "prefill: " in said and "effective TOPS" in said and "roofs: " in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_running_and_chatting_can_be_traced(smollm2, tmp_path, monkeypatch, capsys):
    import io

    from rooflm import cli

    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    assert cli.main(["chat", str(smollm2), "-n", "2", "--trace", str(tmp_path / "t.json")]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "stages"} == set(STAGES)
    assert any(e["name"] == "qkv" for e in events)
    assert cli.main(["run", str(smollm2), "-p", "Hi", "-n", "1", "--trace", str(tmp_path / "no" / "t.json")]) == 1
    assert "No such file" in capsys.readouterr().err
