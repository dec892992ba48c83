# SPDX-License-Identifier: Apache-2.0
"""The commands that compare: the JSON is Python's own record, and the plain output says the main thing."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from maker import tiny_model

import rooflm
from rooflm.cli import main

TEXT = "the cat sat on the mat and the dog ate the hat " * 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("commands")
    (d / "text.txt").write_text(TEXT)
    made = {k: str(tiny_model(d / f"{k}.gguf", types=k)) for k in ("F32", "Q4_0")}
    return {**made, "text": str(d / "text.txt")}


@pytest.fixture
def run(capsys, files):
    def call(*args, code=0):
        line = [files.get(a, a) for a in args]
        assert main(line) == code
        return capsys.readouterr()

    return call


def test_compare_prints_the_record(run, files):
    got = json.loads(run("compare", "F32", "Q4_0", "--text", "text", "--ctx", "32", "--windows", "4", "--json").out)
    want = rooflm.compare(files["F32"], files["Q4_0"], TEXT, ctx=32, windows=4)[0].to_dict()
    for key in ("ppl_ref", "ppl", "kl_mean", "kl_ci95", "kl_median", "kl_max", "top1", "dp_rms"):
        assert got[key] == pytest.approx(want[key], rel=1e-12)
    assert got["windows"] == 4 and got["kl_ci95"][0] < got["kl_mean"] < got["kl_ci95"][1]
    assert "KL mean, nats" in run("compare", "F32", "Q4_0", "--text", "text", "--ctx", "32").out


def test_compare_of_a_model_with_itself_is_zero(run):
    got = json.loads(run("compare", "Q4_0", "Q4_0", "--text", "text", "--ctx", "32", "--json").out)
    assert got["kl_mean"] == got["kl_max"] == got["dp_rms"] == 0 and got["top1"] == 1


def test_compare_sweeps_and_sets_the_reference_apart(run):
    got = json.loads(run("compare", "Q4_0", "Q4_0", "--text", "text", "--ctx", "32", "--kv", "f32,q8_0", "--json").out)
    assert [r["settings"]["kv"] for r in got["records"]] == ["f32", "q8_0"]
    assert got["records"][0]["kl_mean"] == 0 < got["records"][1]["kl_mean"]
    args = ("--ref-compute", "f32", "--compute", "int8", "--ref-kv", "f32", "--kv", "q8_0")
    got = json.loads(run("compare", "Q4_0", "Q4_0", "--text", "text", "--ctx", "32", *args, "--json").out)
    assert got["reference_settings"]["compute"] == "f32" and got["settings"]["compute"] == "int8"
    assert got["reference_settings"]["kv"] == "f32" and got["settings"]["kv"] == "q8_0" and got["kl_mean"] > 0


def test_errors_are_one_line(run, files):
    err = run("compare", "F32", "Q4_0", "--text", "text", "--ctx", "4000", code=1).err
    assert "at least one window of 4000 tokens" in err and err.count("\n") == 1


def test_diff(run, files):
    got = json.loads(run("diff", "F32", "Q4_0", "--json").out)
    assert got["tensors"] and any(t["relative_error"] for t in got["tensors"])
    assert "common tensors differ" in run("diff", "F32", "Q4_0").out
    assert "relative_error" not in json.loads(run("diff", "F32", "Q4_0", "--types", "--json").out)["tensors"][0]


def test_budget(run):
    args = ("--reference", "F32", "--text", "text", "--ctx", "32", "--kv", "q8_0", "--compute", "int8")
    got = json.loads(run("budget", "Q4_0", *args, "--json").out)
    assert [s["source"] for s in got["sources"]] == ["weights", "activations", "KV cache"]
    assert "interaction" in run("budget", "Q4_0", *args).out


def test_layers(run):
    got = json.loads(run("layers", "F32", "Q4_0", "--text", "text", "--json").out)
    assert len(got["born"]) == 2 and got["kl_mean"] > 0
    assert "final_norm" in run("layers", "F32", "Q4_0", "--text", "text", "--no-isolate").out


def test_sensitivity(run):
    args = (
        "--text",
        "text",
        "--types",
        "Q4_0,Q8_0",
        "--tensors",
        "blk.0.*",
        "--kinds",
        "--ctx",
        "32",
        "--windows",
        "2",
    )
    got = json.loads(run("sensitivity", "F32", *args, "--json").out)
    assert len(got["kinds"]) == 14 and got["tensors"] == []
    assert "costliest first" in run("sensitivity", "F32", *args).out


def test_evaluate(run, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"prompt": "the cat"}\n')
    got = json.loads(run("evaluate", "F32", "Q4_0", "--limit", "1", "--json").out)
    assert {r["domain"] for r in got["summary"]} == {"arithmetic", "code", "facts", "format", "all"}
    out = run("evaluate", "F32", "Q4_0", "--items", str(mine), "-n", "4").out
    assert "0: the cat" in out and "F32.gguf: " in out


def test_info_has_histogram_and_claims(run, tmp_path):
    wrong = tiny_model(tmp_path / "m-Q4_K_M.gguf", types="F16", width=256, ffn=256)
    out = run("info", str(wrong)).out
    assert "#####" in out and "warning: file name (m-Q4_K_M.gguf) claims Q4_K_M" in out and "recommended: Q8_0" in out
    assert json.loads(run("info", str(wrong), "--json").out)["claims"]["agrees"] is False


def test_layers_takes_as_many_tokens_as_asked_for(run):
    got = json.loads(run("layers", "F32", "Q4_0", "--text", "text", "--tokens", "9", "--no-isolate", "--json").out)
    assert got["tokens"] == 9 < got["text_tokens"] and got["born"] is None
    said = run("layers", "F32", "Q4_0", "--text", "text", "--tokens", "9", "--no-isolate").out
    assert f"the first 9 of {got['text_tokens']} tokens" in said


@pytest.mark.parametrize(
    "args",
    [
        ("compare", "F32", "Q4_0", "--ctx", "32"),
        ("compare", "F32", "Q4_0", "F32", "--ctx", "32"),
        ("layers", "F32", "Q4_0", "--no-isolate"),
        ("budget", "Q4_0", "--reference", "F32", "--ctx", "32", "--windows", "2"),
        ("sensitivity", "F32", "--types", "Q5_0", "--kinds", "--ctx", "32", "--windows", "2"),
    ],
)
def test_the_picture_comes_after_the_figures(run, tmp_path, monkeypatch, args):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    assert run(*args, "--text", "text", "--plot", str(picture)).out
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    out = run(*args, "--text", "text", "--plot", str(tmp_path / "none" / "x.png"), code=1)
    assert not out.out and "x.png: there is no directory" in out.err, "said before the work"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "x.png")

    monkeypatch.setattr("rooflm._optional.save_picture", full)
    out = run(*args, "--text", "text", "--plot", str(picture), code=1)
    assert out.out and "x.png: No space left" in out.err


def test_sensitivity_quantizes_with_importance(run, tmp_path, files):
    importance = tmp_path / "i.gguf"
    rooflm.imatrix(files["F32"], TEXT, ctx=32).save(importance)
    args = ("sensitivity", "F32", "--types", "Q5_0,Q4_1", "--tensors", "*ffn_down*", "--text", "text", "--ctx", "32")
    plain, weighted = (
        json.loads(run(*args, *more, "--json").out)["tensors"] for more in ((), ("--imatrix", str(importance)))
    )
    assert [r["kl_mean"] for r in plain] != [r["kl_mean"] for r in weighted]


def test_sensitivity_goes_on_and_a_mix_takes_its_record(run, tmp_path):
    state = str(tmp_path / "s.json")
    args = ("sensitivity", "F32", "--types", "Q5_0", "--text", "text", "--ctx", "32", "--windows", "2", "--out", state)
    assert "swaps not measured: the time budget of 0 s ended; resume= goes on" in run(*args, "--budget", "0").out
    assert "exists already" in run(*args, code=1).err
    whole = json.loads(run(*args, "--resume", state, "--json").out)
    assert whole["not_measured"] == [] and whole == json.loads(Path(state).read_text())
    to = ("quantize", "F32", str(tmp_path / "mix.gguf"), "--bits", "8", "--json")
    assert json.loads(run(*to, "--by", state).out)["mix"]["by"] == "sensitivity"


def test_a_matrix_for_a_directory_that_is_not_there_is_refused_at_once(run, tmp_path):
    target = tmp_path / "none" / "i.gguf"
    err = run("imatrix", "F32", "--text", str(tmp_path / "no text either"), "--out", str(target), code=1).err
    assert err == f"rooflm: {target}: there is no directory {target.parent}\n"
