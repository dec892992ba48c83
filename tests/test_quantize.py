# SPDX-License-Identifier: Apache-2.0
"""Whole files in other types: recipes, the report, what other readers see, and nothing damaged when it fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from maker import tiny_model
from peer_ggml import find_library, restore

import rooflm
from rooflm import _core
from rooflm.cli import main
from rooflm.quantization import quantize as module
from rooflm.quantization import recipes


@pytest.fixture
def source(tmp_path):
    return tiny_model(tmp_path / "f16.gguf", width=256, ffn=512, n_layer=3, types="F16")


@pytest.mark.parametrize("recipe", list(recipes.NAMED))
def test_every_recipe_runs(tmp_path, source, recipe):
    dst = tmp_path / "out.gguf"
    r = rooflm.quantize(source, dst, recipe, threads=2)
    base, kind = recipes.NAMED[recipe]
    with rooflm.GGUF(dst) as g, rooflm.GGUF(source) as s:
        assert g.metadata["general.file_type"] == kind and g.metadata["general.quantization_version"] == 2
        own = {"general.file_type", "general.quantization_version"}
        assert {k: v for k, v in _plain(s).items() if k not in own} == {
            k: v for k, v in _plain(g).items() if k not in own
        }
        for row in r.rows:
            t, old = g.tensors[row["tensor"]], s.tensors[row["tensor"]]
            assert (t.type, t.nbytes, list(t.shape)) == (row["given"], row["nbytes"], row["shape"])
            assert row["bits_per_weight"] == pytest.approx(t.bits_per_weight)
            x, y = (v.dequantize().astype(float) for v in (old, t))
            error = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
            assert error == pytest.approx(row["error"] or 0.0, rel=1e-5, abs=1e-9)
            assert (row["error"] is None) == (row["given"] == row["source"])
            if row["tensor"] == "blk.1.ffn_up.weight":
                assert t.type == base
                np.testing.assert_array_equal(t.raw, _core.quantize_rows(old.dequantize(), base) if base != "F16"
                                              else old.raw)  # fmt: skip
    assert r.nbytes == os.path.getsize(dst) and not list(tmp_path.glob(".*"))
    logits = rooflm.Model(dst).session().eval([3, 4, 5])
    assert np.isfinite(logits).all()


def _plain(g):
    return {k: list(v) if hasattr(v, "__len__") and not isinstance(v, str) else v for k, v in g.metadata.items()}


def test_patterns(tmp_path, source):
    dst = tmp_path / "out.gguf"
    recipe = {"blk.0.*": "Q8_0", "*.ffn_down.weight": "Q5_0", "base": "Q4_0"}
    r = rooflm.quantize(source, dst, recipe)
    given = {row["tensor"]: row["given"] for row in r.rows}
    assert given["blk.0.ffn_down.weight"] == "Q8_0" and given["blk.1.ffn_down.weight"] == "Q5_0"
    assert given["blk.1.attn_q.weight"] == "Q4_0" and given["blk.0.attn_norm.weight"] == "F32"
    r = rooflm.quantize(source, dst, {"blk.*.attn_v.weight": "q4_k"})
    assert Counter(row["given"] for row in r.rows) == {"Q4_K": 3, "F16": 19, "F32": 7}
    with pytest.raises(ValueError, match=r"blk.7.attn_q.weight.*is 'blk.\d.attn_q.weight' meant"):
        rooflm.quantize(source, dst, {"blk.7.attn_q.weight": "Q8_0"})
    with pytest.raises(ValueError, match="cannot be written as 'IQ2_XS'"):
        rooflm.quantize(source, dst, {"*": "IQ2_XS"})
    with pytest.raises(ValueError, match="did you mean Q4_K_M"):
        rooflm.quantize(source, dst, "Q4_KM")


def test_substituted_types_are_reported_and_strict_fails(tmp_path):
    source = tiny_model(tmp_path / "s.gguf", width=64, ffn=512, n_head=4, types="F16")
    dst = tmp_path / "out.gguf"
    r = rooflm.quantize(source, dst, "Q4_K_M")
    row = next(row for row in r.rows if row["tensor"] == "blk.0.attn_q.weight")
    assert (row["asked"], row["given"]) == ("Q4_K", "Q5_0") and "64" in row["why"] and "256" in row["why"]
    down = next(row for row in r.rows if row["tensor"] == "blk.1.ffn_down.weight")
    assert down["given"] == down["asked"] and down["why"] is None
    assert row in r.fallbacks and down not in r.fallbacks and "did not get the type" in repr(r)
    before = dst.read_bytes()
    with pytest.raises(rooflm.Error, match=r"tensors cannot have the type asked for.*strict=False"):
        rooflm.quantize(source, dst, "Q4_K_M", strict=True)
    assert dst.read_bytes() == before
    odd = tiny_model(tmp_path / "odd.gguf", width=48, ffn=80, n_head=4, types="F32")
    assert set(rooflm.quantize(odd, dst, "Q8_0").types) == {"F16", "F32"}


def test_from_quantized_sources_and_back_to_floats(tmp_path, source):
    q, f = tmp_path / "q.gguf", tmp_path / "f.gguf"
    rooflm.quantize(source, q, "Q5_K_M")
    rooflm.quantize(q, f, "F32")
    with rooflm.GGUF(q) as a, rooflm.GGUF(f) as b:
        for name, t in a.tensors.items():
            assert b.tensors[name].type == "F32"
            np.testing.assert_array_equal(t.dequantize(), b.tensors[name].dequantize())
    again = rooflm.quantize(q, tmp_path / "q2.gguf", "Q5_K_M")
    assert all(row["error"] is None for row in again.rows)
    assert (tmp_path / "q2.gguf").read_bytes() == q.read_bytes()


def test_importance_reaches_the_blocks(tmp_path, source):
    ids = np.random.default_rng(0).integers(3, 300, 64)
    m = rooflm.imatrix(source, ids, ctx=32)
    plain, weighted, by_file = (tmp_path / f"{n}.gguf" for n in "abc")
    rooflm.quantize(source, plain, "Q4_K_S")
    r = rooflm.quantize(source, weighted, "Q4_K_S", imatrix=m)
    m.save(tmp_path / "m.imatrix")
    rooflm.quantize(source, by_file, "Q4_K_S", imatrix=tmp_path / "m.imatrix")
    name = "blk.1.ffn_up.weight"
    with rooflm.GGUF(source) as s, rooflm.GGUF(plain) as a, rooflm.GGUF(weighted) as b, rooflm.GGUF(by_file) as c:
        w = m.importance()[name]
        x = s.tensors[name].dequantize()
        errors = [(((g.tensors[name].dequantize() - x) ** 2) * w).sum() for g in (a, b)]
        assert errors[1] < errors[0]
        np.testing.assert_array_equal(b.tensors[name].raw, _core.quantize_rows(x, "Q4_K", w))
        np.testing.assert_array_equal(b.tensors[name].raw, c.tensors[name].raw)
        assert c.metadata["quantize.imatrix.file"] == "m.imatrix" and c.metadata["quantize.imatrix.chunks_count"] == 2
    assert next(row for row in r.rows if row["tensor"] == name)["importance"]
    with pytest.raises(ValueError, match=rf"{name} has the shape \(3,\)"):
        rooflm.quantize(source, plain, "Q4_0", imatrix={name: np.ones(3)})


def test_experts_have_importance_of_their_own(tmp_path):
    rng = np.random.default_rng(5)
    stack = rng.standard_normal((3, 40, 64)).astype(np.float16)
    source = tiny_model(tmp_path / "s.gguf", extra={"blk.0.ffn_up_exps.weight": stack})
    w = np.ones((3, 64), np.float32)
    w[1, ::2] = 1000
    name = "blk.0.ffn_up_exps.weight"
    rooflm.quantize(source, tmp_path / "d.gguf", {name: "Q4_0"}, imatrix={name: w})
    with rooflm.GGUF(tmp_path / "d.gguf") as g:
        raw = g.tensors[name].raw
        for i in range(3):
            np.testing.assert_array_equal(raw[i], _core.quantize_rows(stack[i].astype(np.float32), "Q4_0", w[i]))


def test_pieces_do_not_change_the_file(tmp_path, source, monkeypatch):
    rooflm.quantize(source, tmp_path / "a.gguf", "Q4_K_M")
    monkeypatch.setattr(module, "PIECE", 1000)
    r = rooflm.quantize(source, tmp_path / "b.gguf", "Q4_K_M", threads=3)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert r.threads == 3


def test_split_files(tmp_path, source):
    gguf = pytest.importorskip("gguf")
    whole = rooflm.quantize(source, tmp_path / "w.gguf", "Q4_0")
    r = rooflm.quantize(source, tmp_path / "p.gguf", "Q4_0", split=whole.nbytes // 4)
    assert len(r.files) > 3 and r.files[0].endswith(f"p-00001-of-{len(r.files):05d}.gguf")
    with rooflm.GGUF(r.files[2]) as g, rooflm.GGUF(tmp_path / "w.gguf") as w:
        assert len(g.shards) == len(r.files) and list(g.tensors) == list(w.tensors)
        for name in w.tensors:
            np.testing.assert_array_equal(g.tensors[name].raw, w.tensors[name].raw)
    reader = gguf.GGUFReader(r.files[1])
    assert reader.fields["split.no"].contents() == 1 and reader.fields["split.count"].contents() == len(r.files)
    assert reader.fields["split.tensors.count"].contents() == len(r.rows)
    joined = rooflm.quantize(r.files[0], tmp_path / "j.gguf", "Q4_0")
    assert (tmp_path / "j.gguf").read_bytes() == (tmp_path / "w.gguf").read_bytes() and joined.files == [joined.path]


def test_another_reader_sees_the_same_weights(tmp_path, source):
    gguf = pytest.importorskip("gguf")
    rooflm.quantize(source, tmp_path / "d.gguf", "Q3_K_L")
    with rooflm.GGUF(tmp_path / "d.gguf") as g:
        for t in gguf.GGUFReader(tmp_path / "d.gguf").tensors:
            other = gguf.quants.dequantize(t.data, t.tensor_type).reshape(g.tensors[t.name].shape)
            np.testing.assert_allclose(g.tensors[t.name].dequantize(), other, rtol=1e-5, atol=1e-9)


LOAD = """
import sys, numpy as np, llama_cpp
for path in sys.argv[1:]:
    m = llama_cpp.Llama(path, n_ctx=64, n_threads=2, logits_all=True, verbose=False)
    m.eval(list(range(3, 19)))
    np.save(path + ".npy", np.array(m.scores[:16], np.float32))
"""


@pytest.mark.skipif(find_library() is None, reason="llama-cpp-python is not installed")
def test_files_run_in_llamacpp(tmp_path, source):
    """Every recipe's file loads there and gives the logits that the same file gives here."""
    paths = [tmp_path / f"{r}.gguf" for r in recipes.NAMED if r != "F32"]
    for p in paths:
        rooflm.quantize(source, p, p.stem)
    subprocess.run([sys.executable, "-c", LOAD, *map(str, paths)], check=True, capture_output=True)
    for p in paths:
        theirs = np.load(f"{p}.npy")
        ours = rooflm.Model(p).session(compute="f32", kv="f32").eval(np.arange(3, 19), logits="all")
        assert abs(ours - theirs).max() < 0.06 * abs(ours).max(), p.stem  # their activations are int8


# --- what must not happen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value, word", [(np.nan, "NaN"), (np.inf, "an infinity")])
def test_values_that_are_no_numbers(tmp_path, value, word, monkeypatch):
    bad = np.ones((40, 64), np.float32)
    bad[33, 5] = value
    source = tiny_model(tmp_path / "s.gguf", extra={"blk.0.attn_q2.weight": bad})
    dst = tmp_path / "d.gguf"
    dst.write_bytes(b"what was there")
    monkeypatch.setattr(module, "PIECE", 64 * 10)
    with pytest.raises(rooflm.FormatError, match=f"blk.0.attn_q2.weight: row 33 has {word} in column 5") as e:
        rooflm.quantize(source, dst, {"*": "Q4_0"})
    assert e.value.tensor == "blk.0.attn_q2.weight"
    assert dst.read_bytes() == b"what was there" and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["norm", "matrix"])
def test_values_that_are_copied_are_looked_at(tmp_path, kind):
    name, shape = ("blk.0.attn_norm.weight", 64) if kind == "norm" else ("blk.0.attn_q2.weight", (40, 64))
    bad = np.ones(shape, np.float16 if kind == "matrix" else np.float32)
    bad.flat[-3] = np.nan
    source = tiny_model(tmp_path / "s.gguf", types="F16", extra={name: bad}, drop=(name,))
    row = 39 if kind == "matrix" else 0
    with pytest.raises(rooflm.FormatError, match=rf"{name}: row {row} has NaN in column 61"):
        rooflm.quantize(source, tmp_path / "d.gguf", "F16")
    assert not (tmp_path / "d.gguf").exists()


def test_values_beyond_half_precision(tmp_path):
    source = tiny_model(tmp_path / "s.gguf", extra={"blk.0.attn_q2.weight": np.full((4, 64), 1e30, np.float32)})
    with pytest.raises(rooflm.FormatError, match="blk.0.attn_q2.weight.*too large for Q4_0"):
        rooflm.quantize(source, tmp_path / "d.gguf", {"*": "Q4_0"})
    assert not (tmp_path / "d.gguf").exists()


def test_source_and_destination(tmp_path, source):
    before = source.read_bytes()
    os.symlink(source, tmp_path / "link.gguf")
    for dst in (source, tmp_path / "." / source.name, tmp_path / "link.gguf"):
        with pytest.raises(ValueError, match="is the source itself"):
            rooflm.quantize(source, dst, "Q4_0")
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        rooflm.quantize(source, tmp_path / "no" / "d.gguf")
    with pytest.raises(IsADirectoryError):
        rooflm.quantize(source, tmp_path)
    assert source.read_bytes() == before


def test_a_source_without_a_vocabulary(tmp_path):
    source = tiny_model(tmp_path / "s.gguf", vocab=None)
    with pytest.raises(rooflm.FormatError, match=r"no vocabulary.*vocabulary=False") as e:
        rooflm.quantize(source, tmp_path / "d.gguf", "Q8_0")
    assert e.value.key == "tokenizer.ggml.tokens" and not (tmp_path / "d.gguf").exists()
    assert rooflm.quantize(source, tmp_path / "d.gguf", "Q8_0", vocabulary=False).types["Q8_0"] == 15


def test_disks_that_are_too_small(tmp_path, source, monkeypatch):
    dst = tmp_path / "d.gguf"
    dst.write_bytes(b"what was there")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(OSError, match="are needed") as e:
        rooflm.quantize(source, dst, "Q8_0")
    assert e.value.errno == errno.ENOSPC
    monkeypatch.undo()
    # A limit on the size of files stands in for a disk that fills up on the way.
    code = (
        "import resource, sys, rooflm\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))\n"
        "try: rooflm.quantize(sys.argv[1], sys.argv[2], 'Q8_0')\n"
        "except OSError as e: print('refused', e.errno, e.filename == sys.argv[2])\n"
    )
    out = subprocess.run([sys.executable, "-c", code, source, dst], capture_output=True, text=True)
    assert out.stdout == f"refused {errno.EFBIG} True\n", out.stderr
    assert dst.read_bytes() == b"what was there" and not list(tmp_path.glob(".*"))


SLOW_RUN = """
import sys, time, rooflm
from rooflm.quantization import quantize as module
real = module._core.quantize_rows
class Slow:
    def __getattr__(self, name): return getattr(rooflm._core, name)
    def quantize_rows(self, *a, **k):
        print("piece", flush=True)
        time.sleep(0.2)
        return real(*a, **k)
module._core = Slow()
rooflm.quantize(sys.argv[1], sys.argv[2], "Q4_0")
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_leaves_what_was_there(tmp_path, source, sent):
    dst = tmp_path / "d.gguf"
    dst.write_bytes(b"what was there")
    p = subprocess.Popen([sys.executable, "-c", SLOW_RUN, source, dst], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        assert p.stdout.readline() == b"piece\n"
    p.send_signal(sent)
    p.communicate(timeout=60)
    assert p.returncode != 0 and dst.read_bytes() == b"what was there"
    if sent == signal.SIGINT:  # a killed process cannot clean up
        assert not list(tmp_path.glob(".*"))


def test_ctrl_c_within_one_piece():
    """The signal ends the work inside one call, with the other threads at work, too."""
    code = (
        "import numpy as np, signal, threading, os\n"
        "from rooflm import _core\n"
        "x = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float32)\n"
        "threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    while True: _core.quantize_rows(x, 'IQ4_XS', threads=2, isa='ref')\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    begun = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout == "interrupted\n", out.stderr
    assert time.perf_counter() - begun < 100


# --- the report and the command ------------------------------------------------------------------------------


def test_report(tmp_path, source):
    r = rooflm.quantize(source, tmp_path / "d.gguf", "Q4_K_M")
    d = json.loads(json.dumps(r.to_dict(), allow_nan=False))
    assert d["schema"] == 1 and d["recipe"] == "Q4_K_M" and len(d["tensors"]) == len(r.rows)
    values = sum(int(np.prod(t["shape"])) for t in d["tensors"])
    assert d["bits_per_weight"] == pytest.approx(8 * sum(t["nbytes"] for t in d["tensors"]) / values)
    assert "bits per weight" in repr(r) and "blk.2.ffn_down.weight" in r.table() and "<table>" in r._repr_html_()
    with pytest.raises(TypeError, match="did you mean 'imatrix'"):
        rooflm.quantize(source, tmp_path / "d.gguf", imatrx=None)


def test_command(tmp_path, source, capsys):
    dst = str(tmp_path / "d.gguf")
    assert main(["quantize", str(source), dst, "--recipe", "Q4_K_M", "--json"]) == 0
    d = json.loads(capsys.readouterr().out)
    assert d["types"]["Q6_K"] >= 1 and d["path"] == dst
    assert main(["quantize", str(source), dst, "Q8_0", "--json"]) == 0
    assert "Q6_K" not in json.loads(capsys.readouterr().out)["types"]
    assert main(["quantize", str(source), dst, "Q8_0", "--recipe", "Q4_0"]) == 2
    assert main(["quantize", str(source), dst, "Q8_0", "--bits", "5"]) == 2
    patterns = ["--tensor", "*.attn_v.weight=Q8_0", "--tensors"]
    assert main(["quantize", str(source), dst, "--recipe", "Q4_0", *patterns]) == 0
    out = capsys.readouterr().out
    assert "blk.1.attn_v.weight" in out and "Q8_0" in out
    (tmp_path / "r.json").write_text('{"base": "Q4_0", "blk.0.*": "Q8_0"}')
    assert main(["quantize", str(source), dst, "--recipe", str(tmp_path / "r.json"), "--json"]) == 0
    types = {t["tensor"]: t["given"] for t in json.loads(capsys.readouterr().out)["tensors"]}
    assert types["blk.0.attn_q.weight"] == "Q8_0" and types["blk.1.attn_q.weight"] == "Q4_0"
    assert main(["quantize", str(source), dst, "--tensor", "nonsense"]) == 2
    assert main(["quantize", str(source), str(source)]) == 2
    text = tmp_path / "t.txt"
    text.write_text("to be or not to be, that is the question. " * 20)
    file = str(tmp_path / "m.imatrix")
    assert main(["imatrix", str(source), "--text", str(text), "--ctx", "32", "--out", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chunks"] > 2
    assert main(["imatrix", file, "--add", file]) == 0
    assert "attn_q" in capsys.readouterr().out
    assert main(["quantize", str(source), dst, "--imatrix", file, "--json"]) == 0
    assert restore(rooflm.GGUF(dst).tensors["blk.0.attn_q.weight"].raw, "Q4_K", 256).shape == (256, 256)
