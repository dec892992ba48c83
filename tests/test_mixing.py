# SPDX-License-Identifier: Apache-2.0
"""Mixes that meet a target, and types side by side."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from maker import tiny_model
from plots import drawn

import rooflm
from rooflm.cli import main
from rooflm.quantization import formats, losses, mixing


@pytest.fixture
def source(tmp_path):
    return tiny_model(tmp_path / "f16.gguf", width=256, ffn=512, n_layer=6, n_vocab=600, types="F16")


@pytest.fixture(autouse=True)
def small_working_set(monkeypatch):
    monkeypatch.setattr(formats, "WORKING_SET", 2 << 20)


@pytest.mark.parametrize("seed", range(4))
def test_solved_as_well_as_by_trying_all(seed):
    rng = np.random.default_rng(seed)
    costs = [np.sort(rng.integers(1, 60, 4)).astype(float) for _ in range(6)]
    losses = [np.sort(rng.random(4))[::-1] for _ in range(6)]
    budget = float(sum(c.min() for c in costs) + rng.integers(10, 120))
    best = min(
        (sum(x[k] for x, k in zip(losses, pick)), pick)
        for pick in itertools.product(range(4), repeat=6)
        if sum(c[k] for c, k in zip(costs, pick)) < budget
    )
    pick = mixing.solve(costs, losses, budget)
    # Costs are rounded to steps of a 16384th of the room, so a budget may be missed by a few of them either way.
    assert sum(c[k] for c, k in zip(costs, pick)) <= budget * 1.001
    assert sum(x[k] for x, k in zip(losses, pick)) <= best[0] + 1e-12
    with pytest.raises(ValueError, match="least possible"):
        mixing.solve(costs, losses, sum(c.min() for c in costs) - 1)


@pytest.mark.parametrize("share", [0.2, 0.3, 0.42, 0.5])
def test_the_file_has_the_size_asked_for(tmp_path, source, share):
    wanted = share * os.path.getsize(source)
    m = rooflm.mix(source, size_bytes=wanted)
    r = rooflm.quantize(source, tmp_path / "d.gguf", m)
    assert abs(r.nbytes / wanted - 1) < 0.01 and abs(m.nbytes / r.nbytes - 1) < 1e-3
    assert r.recipe.startswith("mix for size_bytes") and not r.fallbacks
    assert m.bits_per_weight == pytest.approx(r.bits_per_weight)
    assert {row["tensor"]: row["given"] for row in r.rows if row["tensor"] in m} == dict(m)
    assert m.bytes_per_token == pytest.approx(rooflm.Model(tmp_path / "d.gguf").weight_bytes_per_token, rel=0.01)


def test_more_bytes_lose_less(source):
    losses = [rooflm.mix(source, bits=b).loss for b in (3, 4, 5, 6, 8)]
    assert losses == sorted(losses, reverse=True) and losses[0] > 10 * losses[-1]


def test_bits_and_limits(source):
    m = rooflm.mix(source, bits=4.6)
    assert abs(m.bits_per_weight / 4.6 - 1) < 0.01
    with pytest.raises(ValueError, match=r"bits=2 cannot be reached with these types: the limit is 2\.\d+ bits"):
        rooflm.mix(source, bits=2)
    with pytest.raises(ValueError, match="more than these types fill: the most is"):
        rooflm.mix(source, bits=20)
    with pytest.raises(ValueError, match="size_bytes=1000 cannot be reached"):
        rooflm.mix(source, size_bytes=1000)
    with pytest.raises(ValueError, match="exactly one"):
        rooflm.mix(source, bits=4, size_bytes=1e6)
    assert set(rooflm.mix(source, bits=5, types=["Q4_0", "Q8_0"]).values()) == {"Q4_0", "Q8_0"}
    with pytest.raises(TypeError, match="did you mean 'size_bytes'"):
        rooflm.mix(source, size_byte=1)


def test_norms_move_the_bits(source):
    """Layer 2 matters ten times as much: it gets more bits, and others fewer."""
    flat = rooflm.mix(source, bits=4.5)
    m = rooflm.mix(source, bits=4.5, by={"blk.2.*": 10.0, "*": 1.0})

    def mean_bits(mix, own):
        return np.mean([r["bits_per_weight"] for r in mix.rows if r["tensor"].startswith("blk.2.") == own])

    assert mean_bits(m, True) > mean_bits(flat, True) + 0.5 and mean_bits(m, False) < mean_bits(flat, False)
    ones = {r["tensor"]: r["sensitivity"] for r in rooflm.mix(source, bits=4.5, by={"*": 1.0}).rows}
    ratios = {r["tensor"]: r["sensitivity"] / ones[r["tensor"]] for r in m.rows}
    assert all(v == pytest.approx(100 if n.startswith("blk.2.") else 1) for n, v in ratios.items()) and m.by == "norms"
    # A norm meets the mean squared error of weights, not their relative one.
    squares = {n: (t.dequantize() ** 2).mean() for n, t in rooflm.GGUF(source).tensors.items() if n in ones}
    assert all(ones[n] == pytest.approx(v, rel=0.2) for n, v in squares.items())
    kinds = rooflm.mix(source, bits=4.5, by={"down": 10.0, "*": 1.0})
    weighted = {r["tensor"].split(".")[-2] for r in kinds.rows if r["sensitivity"] > 50 * ones[r["tensor"]]}
    assert weighted == {"ffn_down"}
    with pytest.raises(ValueError, match="names no tensor"):
        rooflm.mix(source, bits=4.5, by={"nonsense": 1.0})
    with pytest.raises(ValueError, match="finite and not negative"):
        rooflm.mix(source, bits=4.5, by={"*": float("nan")})


def test_rule_by_threshold(tmp_path, source):
    with rooflm.GGUF(source) as g:
        recipe = mixing.by_threshold(g, {"blk.0.*": 1e-4, "blk.5.*": 2e-4, "down": 5e-4, "*": 1e-2})
        assert recipe["blk.0.attn_q.weight"] == recipe["blk.3.ffn_down.weight"] == "Q4_K"
        assert recipe["blk.3.attn_q.weight"] == recipe["token_embd.weight"] == "Q8_0"
        with pytest.raises(ValueError, match="no entry for token_embd.weight"):
            mixing.by_threshold(g, {"blk.*": 1.0})
    r = rooflm.quantize(source, tmp_path / "d.gguf", recipe)
    assert r.types == {"Q8_0": 25, "Q4_K": 18, "F32": 13}


def errors_of(**squared):
    """Errors by use, of one type each or a dict of types; "output" and "embd" without a layer."""
    names = {"output": losses.OUTPUT, "embd": losses.EMBEDDING}
    found = {}
    for name, e in squared.items():
        layer, _, part = name.partition("_")
        use = names.get(name) or f"blk.{layer[1:]}.{part}.weight"
        found[use] = losses.Errors(e if isinstance(e, dict) else {"Q4_0": e}, 1.0, None, None)
    return found


def test_measured_swaps_become_sensitivities():
    errors = errors_of(
        l0_ffn_down={"Q4_0": 0.01, "Q2_K": 0.1}, l1_ffn_down={"Q4_0": 0.03, "Q2_K": 0.3}, l0_attn_v=0.02, embd=0.01,
        output=0.005,
    )  # fmt: skip
    rows = [
        {"tensor": None, "kind": "down", "type": "Q4_0", "kl_mean": 0.08},
        {"tensor": "blk.0.ffn_down.weight", "kind": "down", "type": "Q4_0", "kl_mean": 0.05},
        {"tensor": "blk.0.ffn_down.weight", "kind": "down", "type": "Q2_K", "kl_mean": 0.7},
        {"tensor": None, "kind": "embedding", "type": "Q4_0", "kl_mean": 0.001},
        {"tensor": "output.weight", "kind": "output", "type": "Q4_0", "kl_mean": 0.002},
        {"tensor": None, "kind": "q", "type": "Q6_K", "kl_mean": None},
    ]
    s, title = losses.sensitivities(rows, errors, True, 2)
    assert title == "sensitivity"
    assert s["blk.0.ffn_down.weight"] == pytest.approx(6)  # the median of 5 and 7: its own before its kind's
    assert s["blk.1.ffn_down.weight"] == pytest.approx(0.08 / 0.04)
    assert s[losses.EMBEDDING] == pytest.approx(0.1) and s[losses.OUTPUT] == pytest.approx(0.4)  # two uses
    # Unknown: what its place says, a third, in the scale of the others. Known ratios: 18, 6, 0.2, 0.4.
    assert s["blk.0.attn_v.weight"] == pytest.approx((0.4 + 6) / 2 / 3)

    rows.append({"tensor": "blk.4.ffn_down.weight", "kind": "down", "type": "Q4_0", "kl_mean": 0.0375})
    errors |= errors_of(l2_ffn_down=0.1, l4_ffn_down=0.1)
    between, _ = losses.sensitivities(rows, errors, True, 5)
    assert between["blk.2.ffn_down.weight"] == pytest.approx(1.5)  # half the way from 6 to 0.375, by ratios
    assert between["blk.1.ffn_down.weight"] == pytest.approx(3)


def test_a_kind_of_which_some_tensors_were_swapped_is_judged_by_those():
    errors = errors_of(l0_ffn_down=0.01, l1_ffn_down=0.03, l2_ffn_down=0.04)
    rows = [{"tensor": None, "tensors": ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"], "kind": "down",
             "type": "Q4_0", "kl_mean": 0.08}]  # fmt: skip
    assert losses.from_swaps(rows, errors) == pytest.approx(dict.fromkeys(errors, 2.0))


def test_swaps_to_a_type_that_the_mix_may_not_use_count_all_the_same(source):
    rows = [{"tensor": None, "kind": "down", "type": "Q4_0", "kl_mean": 5.0},
            {"tensor": None, "kind": "up", "type": "Q4_0", "kl_mean": 1e-4}]  # fmt: skip
    m = rooflm.mix(source, bits=6.5, types=["Q8_0", "Q5_0"], by=rows)
    assert set(m.values()) == {"Q8_0", "Q5_0"} and m.by == "sensitivity"
    kinds = {r["tensor"].split(".")[-2]: r["sensitivity"] for r in m.rows}
    assert kinds["ffn_down"] > 1e3 * kinds["ffn_up"]


def test_without_measurements_a_matrix_counts_by_its_place():
    errors = errors_of(l0_ffn_down=0.1, l1_ffn_down=0.1, l0_attn_v=0.1, l1_attn_v=0.1, embd=0.1, output=0.1)
    s, title = losses.sensitivities(None, errors, True, 2)
    assert title == "error"
    assert s == {**dict.fromkeys(errors, 0.25), losses.EMBEDDING: 0.5, losses.OUTPUT: 1.0}


def test_the_loss_of_the_output_matrix_is_half_the_variance_of_the_logits_errors(source):
    """Checked by its definition, in nats: importance is the mean square of each input column."""
    rng = np.random.default_rng(0)
    with rooflm.GGUF(source) as g:
        w = g.tensors[losses.EMBEDDING].dequantize()
        importance = {losses.EMBEDDING: rng.gamma(1.0, size=w.shape[1]).astype(np.float32)}
        errors = losses.measure(g, [losses.EMBEDDING], ["Q4_0"], importance, len(w), True)
    blocks = rooflm._core.quantize_rows(w, "Q4_0", importance[losses.EMBEDDING])
    e = formats.restore(blocks, "Q4_0", w.shape[1]).astype(np.float64) - w
    variance = (e**2).mean(0) @ importance[losses.EMBEDDING].astype(np.float64)
    s, title = losses.sensitivities(None, errors, True, 6)
    assert title == "importance"
    assert s[losses.OUTPUT] * errors[losses.OUTPUT].squared["Q4_0"] == pytest.approx(variance / 2, rel=1e-5)
    # Looked up, all columns count alike.
    assert errors[losses.EMBEDDING].squared["Q4_0"] == pytest.approx((e**2).sum() / (w.astype(np.float64) ** 2).sum())


def test_a_mix_for_a_speed_is_made_anew_until_it_has_it(source, monkeypatch):
    """Where every byte takes half as long again as the rates say, and a token 20 µs besides."""
    rates = dict.fromkeys(mixing.TYPES, 10.0)
    tried = []

    def seconds(g, chosen, threads):
        nbytes = sum(mixing._nbytes(g.tensors[n].shape, t) for n, t in chosen.items())
        tried.append(1.5 * nbytes / 10e9 + 20e-6)
        return tried[-1]

    monkeypatch.setattr(mixing, "_speeds", lambda *_: rates)
    monkeypatch.setattr(mixing, "_trial_seconds", seconds)
    m = rooflm.mix(source, speed_tps=3000)
    with rooflm.GGUF(source) as g:
        assert seconds(g, m, 1) == pytest.approx(1 / 3000, rel=0.05) and m.tps == pytest.approx(3000, rel=0.03)
    assert 2 <= len(tried) - 1 <= mixing.TRIALS
    # Within reach by the rates, and out of it in truth: the error tells what the cheapest mix does.
    tried.clear()
    with pytest.raises(ValueError, match=r"speed_tps=5500 cannot be reached with these types: the limit is \d+") as e:
        rooflm.mix(source, speed_tps=5500)
    assert float(str(e.value).split()[-2]) == pytest.approx(1 / min(tried), rel=1e-3)


def test_speed_from_bytes_and_rates(source):
    rates = {t: 10.0 for t in mixing.TYPES} | {"Q4_K": 20.0}
    m = rooflm.mix(source, speed_tps=8000, gbs=rates)
    # The tied embedding is read whole as the output matrix.
    seconds = sum(r["nbytes"] / rates[r["type"]] / 1e9 for r in m.rows)
    assert m.tps == pytest.approx(1 / seconds) and abs(m.tps / 8000 - 1) < 0.1
    assert list(m.values()).count("Q4_K") > len(m) / 2
    with pytest.raises(ValueError, match=r"cannot be reached.*tokens/s"):
        rooflm.mix(source, speed_tps=1e9, gbs=10)
    with pytest.raises(ValueError, match="gbs has no entry"):
        rooflm.mix(source, speed_tps=100, gbs={"Q4_0": 1})
    measured = rooflm.mix(source, speed_tps=20, rows=4)  # measures; the figures are this machine's
    assert measured.tps > 0 and measured.loss <= m.loss


def test_mix_prints(source):
    m = rooflm.mix(source, bits=5)
    d = json.loads(json.dumps(m.to_dict(), allow_nan=False))
    assert d["schema"] == 1 and len(d["types"]) == len(m) == 43
    assert "bits per weight" in repr(m) and "blk.0.attn_q.weight" in m.table() and "<table>" in m._repr_html_()


def test_mix_command(tmp_path, source, capsys):
    dst = str(tmp_path / "d.gguf")
    by = tmp_path / "by.json"
    by.write_text(json.dumps({"rows": [{"tensor": None, "kind": "down", "type": "Q4_0", "kl_mean": 0.5}]}))
    assert main(["quantize", str(source), dst, "--bits", "5", "--by", str(by), "--json"]) == 0
    d = json.loads(capsys.readouterr().out)
    assert abs(d["bits_per_weight"] / 5 - 1) < 0.01 and d["mix"]["by"] == "sensitivity"
    assert main(["quantize", str(source), dst, "--size", "1.5M"]) == 0
    assert "Mix for size_bytes" in capsys.readouterr().out and abs(os.path.getsize(dst) / 1.5e6 - 1) < 0.01
    for wrong in (["--bits", "5", "--tensor", "*=Q4_0"], ["--bits", "5", "--recipe", "Q4_0"]):
        assert main(["quantize", str(source), dst, *wrong]) == 2
    before = Path(dst).read_bytes()
    for option, value in (("--bits", "0"), ("--bits", "nan"), ("--speed", "0"), ("--speed", "inf")):
        assert main(["quantize", str(source), dst, option, value]) == 1  # and no file by the default recipe
        assert "must be a finite number above 0" in capsys.readouterr().err
    assert Path(dst).read_bytes() == before
    assert main(["quantize", str(source), str(source)]) == 2


# --- formats -------------------------------------------------------------------------------------------------


def test_formats_of_a_distribution():
    f = rooflm.formats("normal", rows=64, cols=1024, speed=False)
    bits = [r["bits_per_weight"] for r in f.rows]
    assert bits == sorted(bits, reverse=True) and {r["type"] for r in f.rows} == set(formats.TYPES) - {"F32"}
    for r in f.rows:
        assert r["snr_db"] == pytest.approx(-20 * np.log10(r["error"]))
        assert r["error_weighted"] == pytest.approx(r["error"])
    # For normal values rate-distortion allows at most 6.02 dB per bit; good types come within a few dB of it.
    assert all(r["snr_db"] < 6.03 * r["bits_per_weight"] for r in f.rows)
    assert f["Q4_K"]["snr_db"] > 22 and f["Q8_0"]["snr_db"] > 45
    skewed = rooflm.formats("skewed", rows=64, cols=1024, speed=False)
    gain = {p["asymmetric"]: p["gain"] for p in skewed.asymmetry()}
    flat = {p["asymmetric"]: p["gain"] for p in f.asymmetry()}
    assert gain["Q4_1"] > 1.5 > flat["Q4_1"] and gain["Q5_1"] > 1.5
    with pytest.raises(ValueError, match="no distribution 'cauchy'"):
        rooflm.formats("cauchy")


def test_formats_of_a_tensor_with_speed(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", width=64, ffn=256, types="F16")
    with rooflm.GGUF(path) as g:
        t = g.tensors["blk.0.ffn_down.weight"]
        f = rooflm.formats(t, types=["Q4_0", "Q4_K", "Q8_0"], threads=2)
        assert f.shape == (64, 256) and [r["type"] for r in f.rows] == ["Q8_0", "Q4_K", "Q4_0"]
        for r in f.rows:
            assert r["gbs"] > 0 and r["kernel"].startswith("rl_rows_") and len(r["samples_gbs"]) == 5
            assert r["rows_per_s"] * 256 * r["bits_per_weight"] / 8 == pytest.approx(r["gbs"] * 1e9)
            assert r["tps"] == pytest.approx(r["gbs"] / r["bits_per_weight"] * 8)
        assert f.note is None and "already" not in repr(f)
        narrow = rooflm.formats(g.tensors["blk.0.attn_q.weight"], speed=False)
        assert "Q4_K" in narrow.skipped and "64" in narrow.skipped["Q4_K"]
    heavy = np.where(np.arange(256) % 8, 1, 100).astype(np.float32)
    x = formats.sample("normal", (32, 256))
    plain, weighted = (rooflm.formats(x, types=["Q4_0"], importance=w, speed=False) for w in (None, heavy))
    assert weighted["Q4_0"]["error_weighted"] < plain["Q4_0"]["error"] < weighted["Q4_0"]["error"]


def test_formats_of_weights_that_are_quantized_say_that_their_own_type_looks_exact(tmp_path):
    with rooflm.GGUF(tiny_model(tmp_path / "m.gguf", width=64, types="Q4_1")) as g:
        f = rooflm.formats(g.tensors["blk.0.attn_q.weight"], types=["Q4_0", "Q4_1"], speed=False)
    assert f["Q4_1"]["error"] == 0 < f["Q4_0"]["error"]
    assert "already" in f.note and f.note in repr(f) and "levels already" in f._repr_html_()
    assert f.to_dict()["note"] == f.note


def test_formats_plot_and_command(tmp_path, capsys):
    f = rooflm.formats("laplace", rows=16, cols=512, speed=False)
    a = drawn(f.plot)
    assert "laplace" in a.get_title() and "n = 8192" in a.get_title()
    assert a.get_xlabel() == "bits per weight" and "dB" in a.get_ylabel()
    assert "Q4_K" in repr(f) and "<table>" in f._repr_html_()
    out = tmp_path / "f.png"
    args = ["formats", "--distribution", "skewed", "--cols", "512", "--no-speed"]
    assert main([*args, "--plot", str(out), "--json"]) == 0
    d = json.loads(capsys.readouterr().out)
    assert d["source"] == "skewed distribution" and d["asymmetry"] and out.stat().st_size > 1000


def test_labels_of_near_points_are_apart():
    text = pytest.importorskip("matplotlib.text").Text
    ax = drawn(rooflm.formats("normal", rows=8, cols=512, speed=False).plot)
    boxes = [text.get_window_extent(t) for t in ax.texts]  # without the lines to the points
    assert len(boxes) == 14
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert min(a.x1, b.x1) - max(a.x0, b.x0) < 1 or min(a.y1, b.y1) - max(a.y0, b.y0) < 2
    frame = ax.get_window_extent()
    assert all(frame.x0 < b.x0 and b.x1 < frame.x1 for b in boxes)
