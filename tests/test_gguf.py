# SPDX-License-Identifier: Apache-2.0
"""Reading GGUF: metadata of every type, alignment, shards, laziness, and how long views live."""

from __future__ import annotations

import collections.abc
import gc
import os
import resource
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import gguf
import maker
import numpy as np
import pytest
from maker import Raw, array, text, tiny_model

import rooflm


def write(path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# --- metadata ------------------------------------------------------------------------------------------------

SCALARS = {
    maker.U8: 255,
    maker.I8: -128,
    maker.U16: 65535,
    maker.I16: -32768,
    maker.U32: 2**32 - 1,
    maker.I32: -(2**31),
    maker.F32: 0.1,
    maker.BOOL: True,
    maker.U64: 2**64 - 1,
    maker.I64: -(2**63),
    maker.F64: 0.1,
}


@pytest.mark.parametrize("version", [2, 3])
def test_every_scalar_type(tmp_path, version):
    raw = Raw(version)
    for kind, value in SCALARS.items():
        raw.key(f"k{kind}", kind, value)
    raw.key("s", maker.STRING, text("é中\0x🦙")).key("empty", maker.STRING, text("")).key("no", maker.BOOL, False)
    g = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))
    m = g.metadata
    assert g.version == version and len(m) == len(SCALARS) + 3
    for kind, value in SCALARS.items():
        want = float(np.float32(value)) if kind == maker.F32 else value
        assert m[f"k{kind}"] == want and type(m[f"k{kind}"]) is type(value)
    assert m["s"] == "é中\0x🦙" and m["empty"] == "" and m["no"] is False


DTYPES = {maker.U8: "u1", maker.I8: "i1", maker.U16: "u2", maker.I16: "i2", maker.U32: "u4", maker.I32: "i4"}
DTYPES |= {maker.F32: "f4", maker.BOOL: "?", maker.U64: "u8", maker.I64: "i8", maker.F64: "f8"}


def test_arrays(tmp_path):
    raw = Raw()
    for kind, value in SCALARS.items():
        raw.key(f"k{kind}", maker.ARRAY, array(kind, [value, 0, 1]))
    raw.key("none", maker.ARRAY, array(maker.F32, []))
    raw.key("s", maker.ARRAY, array(maker.STRING, [text("a"), text(""), text("🦙")]))
    inner = [array(maker.I16, [1, -2]), array(maker.STRING, [text("x")]), array(maker.ARRAY, [array(maker.U8, [7])])]
    raw.key("nested", maker.ARRAY, array(maker.ARRAY, inner))
    raw.key("after", maker.U8, 9)
    m = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build())).metadata
    for kind, value in SCALARS.items():
        a = m[f"k{kind}"]
        assert a.dtype == np.dtype(DTYPES[kind]) and not a.flags.writeable
        assert a.tolist() == np.array([value, 0, 1], DTYPES[kind]).tolist()
    assert m["none"].shape == (0,) and m["s"] == ["a", "", "🦙"]
    assert m["nested"][0].tolist() == [1, -2] and m["nested"][1] == ["x"] and m["nested"][2][0].tolist() == [7]
    assert m["after"] == 9


def test_bytes_that_are_not_utf8_are_kept(tmp_path):
    raw = Raw().key("s", maker.STRING, text(b"a\xff\xc3")).key(b"k\xfe", maker.U8, 1)
    m = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build())).metadata
    assert m["s"].encode("utf-8", "surrogateescape") == b"a\xff\xc3"
    assert list(m) == ["s", "k\udcfe"] and m["k\udcfe"] == 1


def test_metadata_is_a_mapping(tmp_path):
    g = rooflm.GGUF(write(tmp_path / "a.gguf", Raw().key("b", 4, 1).key("a", 4, 2).build()))
    m = g.metadata
    assert isinstance(m, collections.abc.Mapping) and dict(m) == {"b": 1, "a": 2}
    assert list(m.keys()) == ["b", "a"] and list(m.values()) == [1, 2] and list(m.items()) == [("b", 1), ("a", 2)]
    assert "a" in m and "c" not in m and 1 not in m and "a\0" not in m and "\ud800" not in m
    assert m.get("c") is None and m.get("c", 5) == 5 and m.get("a") == 2 and m.get(3, 4) == 4
    for missing in ("c", 3, "a\0b", None):
        with pytest.raises(KeyError):
            m[missing]
    with pytest.raises(TypeError):
        m["a"] = 3
    with pytest.raises(TypeError):
        type(m)()
    assert repr(m) == "<2 keys: 'b', 'a'>"


def test_a_key_that_is_not_there_names_the_nearest(tmp_path):
    raw = Raw().key("general.name", 4, 1).tensor("blk.0.attn_q.weight", (4,), 0, data=bytes(16))
    g = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))
    with pytest.raises(KeyError, match="no tensor 'blk.0.attn_q.weigth'; did you mean 'blk.0.attn_q.weight'"):
        g.tensors["blk.0.attn_q.weigth"]
    with pytest.raises(KeyError, match="no key 'general.nme'; did you mean 'general.name'"):
        g.metadata["general.nme"]
    with pytest.raises(KeyError, match="no key 'zz'$|no key 'zz'\"$"):
        g.metadata["zz"]


def test_a_name_without_a_file_leads_to_fetch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for opened in (rooflm.GGUF, rooflm.Model):
        with pytest.raises(FileNotFoundError, match=r"rooflm\.fetch\(name\)"):
            opened("smollm2")
        with pytest.raises(FileNotFoundError) as e:
            opened("smollm2.gguf")
        assert "fetch" not in str(e.value)


def test_metadata_equals_the_gguf_package(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", metadata={"x.list": [1.5, 2.5], "x.i64": np.int64(-5)})
    ours = rooflm.GGUF(path).metadata
    theirs = {f.name: f.contents() for f in gguf.GGUFReader(path).fields.values() if not f.name.startswith("GGUF.")}
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        mine = ours[key].tolist() if isinstance(ours[key], np.ndarray) else ours[key]
        assert mine == value, key


def test_values_are_decoded_once(tmp_path):
    m = rooflm.GGUF(tiny_model(tmp_path / "m.gguf")).metadata
    assert m["tokenizer.ggml.tokens"] is m["tokenizer.ggml.tokens"]


# --- tensors, alignment --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", [8, 32, 24, 64, 4096, 1 << 20])
def test_alignment(tmp_path, alignment):
    raw = Raw(align=alignment).key("general.alignment", maker.U32, alignment)
    values = np.arange(7, dtype=np.float32)
    for i in range(3):
        raw.tensor(f"t{i}", (7,), data=(values + i).tobytes())
    g = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))
    assert g.alignment == alignment
    for i in range(3):
        assert np.array_equal(g.tensors[f"t{i}"].dequantize(), values + i)


def test_tensors_are_a_mapping_in_the_order_of_the_file(tmp_path):
    raw = Raw()
    for name in ("z", "a", "m"):
        raw.tensor(name, (4,), data=np.full(4, ord(name), np.float32).tobytes())
    g = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))
    assert list(g.tensors) == ["z", "a", "m"] and [t.name for t in g.tensors.values()] == ["z", "a", "m"]
    assert g.tensors["a"] is g.tensors["a"] and "b" not in g.tensors and len(g.tensors) == 3
    t = g.tensors["m"]
    assert repr(t) == "<rooflm.Tensor 'm': F32 (4,), 16 bytes, 32 bits per weight>"
    for attribute in ("name", "shape", "type", "nbytes", "blocks", "raw"):
        with pytest.raises(AttributeError):
            setattr(t, attribute, 1)
    with pytest.raises(TypeError):
        type(t)()


def test_integer_tensors_and_a_scalar(tmp_path):
    raw = Raw()
    for kind, dtype in ((24, "i1"), (25, "i2"), (26, "i4"), (27, "i8"), (28, "f8")):
        raw.tensor(dtype, (3, 2), kind, data=np.arange(6, dtype=dtype).tobytes())
    raw.tensor("scalar", (), 0, data=np.float32(5).tobytes())
    g = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))
    for dtype in ("i1", "i2", "i4", "i8", "f8"):
        t = g.tensors[dtype]
        assert t.blocks.dtype == dtype and t.blocks.tolist() == [[0, 1, 2], [3, 4, 5]]
        with pytest.raises(rooflm.FormatError, match="cannot be dequantized") as e:
            t.dequantize()
        assert e.value.tensor == dtype
    assert g.tensors["scalar"].shape == () and g.tensors["scalar"].dequantize() == 5


@pytest.mark.parametrize("id", [4, 31, 42, 250, 2**32 - 1])
def test_unknown_types_leave_the_rest_readable(tmp_path, id):
    """R10: the error names the tensor and the id; metadata and the other tensors can be inspected."""
    raw = Raw().key("general.name", maker.STRING, text("x")).tensor("odd", (32,), id, data=b"\1" * 64)
    raw.tensor("fine", (4,), data=np.ones(4, np.float32).tobytes())
    g = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))
    assert g.metadata["general.name"] == "x" and g.tensors["fine"].dequantize().sum() == 4
    t = g.tensors["odd"]
    assert t.type == f"unknown({id})" and t.shape == (32,) and str(id) in repr(t)
    for use in (lambda: t.blocks, lambda: t.raw, t.dequantize, lambda: t @ np.ones(32, "f4"), lambda: t.nbytes):
        with pytest.raises(rooflm.FormatError, match=rf"odd.*{id}") as e:
            use()
        assert e.value.tensor == "odd"


def test_types_known_by_name_only(tmp_path):
    for name, (block, nbytes) in ((k.name, v) for k, v in gguf.GGML_QUANT_SIZES.items()):
        if name == "Q8_1":  # an activation format: the package still has its size from before its halves
            continue
        raw = Raw().tensor("t", (2 * block,), int(gguf.GGMLQuantizationType[name]), data=bytes(2 * nbytes))
        t = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build())).tensors["t"]
        assert t.type == name and t.nbytes == 2 * nbytes and t.bits_per_weight == 8 * nbytes / block
        assert t.blocks.shape == (1, 2) and t.blocks.dtype.itemsize == nbytes


# --- whole files ---------------------------------------------------------------------------------------------


def test_vocabulary_only(tmp_path):
    g = rooflm.GGUF(tiny_model(tmp_path / "v.gguf", weights_too=False))
    assert len(g.tensors) == 0 and len(g.metadata["tokenizer.ggml.tokens"]) == 320


def test_empty_directory(tmp_path):
    g = rooflm.GGUF(write(tmp_path / "e.gguf", Raw().build()[:24]))
    assert len(g.tensors) == len(g.metadata) == 0 and g.architecture is None
    assert repr(g.metadata) == "<0 keys: >"


def test_attributes(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", types="Q8_0")
    g = rooflm.GGUF(path)
    assert g.path == str(path) and g.nbytes == path.stat().st_size and g.architecture == "llama"
    assert g.shards == (str(path),) and g.mapped is True and g.closed is False
    assert "llama" in repr(g) and "mapped" in repr(g)
    html = g._repr_html_()
    assert "<table>" in html and "Q8_0" in html and "F32" in html
    assert rooflm.GGUF(os.fsencode(path)).path == str(path)
    with pytest.raises(TypeError):
        rooflm.GGUF(path, "copy")
    with pytest.raises(TypeError):
        rooflm.GGUF(path, lod="copy")
    with pytest.raises(ValueError, match='"auto", "mmap" or "copy"'):
        rooflm.GGUF(path, load="disk")


def test_html_escapes_what_the_file_says(tmp_path):
    raw = Raw().key("general.name", maker.STRING, text("<script>x</script>"))
    html = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build()))._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        rooflm.GGUF(tmp_path / "missing.gguf")
    with pytest.raises(IsADirectoryError):
        rooflm.GGUF(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="regular file"):
        rooflm.GGUF(tmp_path / "fifo")
    with pytest.raises(ValueError):
        rooflm.GGUF("a\0b")
    with pytest.raises(TypeError):
        rooflm.GGUF(3.0)


# --- shards --------------------------------------------------------------------------------------------------


def split_model(tmp_path, **kw):
    tiny_model(tmp_path / "whole.gguf", **kw)
    return tmp_path / "whole.gguf", tiny_model(tmp_path / "s.gguf", split_max_tensors=5, **kw)


def test_any_shard_opens_the_whole(tmp_path):
    whole, first = split_model(tmp_path)
    shards = sorted(tmp_path.glob("s-*.gguf"))
    assert len(shards) == 4 and first == shards[0]
    one = rooflm.GGUF(whole)
    for load in ("mmap", "copy"):
        for shard in shards:
            g = rooflm.GGUF(shard, load=load)
            assert g.shards == tuple(map(str, shards)) and g.nbytes == sum(s.stat().st_size for s in shards)
            assert g.mapped is (load == "mmap") and g.metadata["split.no"] == 0
            assert {k: str(v) for k, v in g.metadata.items() if "split" not in k} == {
                k: str(v) for k, v in one.metadata.items()
            }
            assert list(g.tensors) == list(one.tensors)
            for name, t in one.tensors.items():
                assert np.array_equal(g.tensors[name].raw, t.raw), name


def damage(path, key, value, kind="H"):
    """Changes a number of a shard's header."""
    import struct

    data = path.read_bytes()
    at = data.index(text(key)) + len(text(key)) + 4
    new = struct.pack("<" + kind, value)
    path.write_bytes(data[:at] + new + data[at + len(new) :])


def test_wrong_shards(tmp_path):
    _, first = split_model(tmp_path)
    shards = sorted(tmp_path.glob("s-*.gguf"))
    kept = [s.read_bytes() for s in shards]

    def fails(error, match, key=None, path=first):
        with pytest.raises(error, match=match) as e:
            rooflm.GGUF(path)
        assert getattr(e.value, "key", None) == key
        for s, b in zip(shards, kept):
            s.write_bytes(b)
        assert len(rooflm.GGUF(first).tensors) > 5

    shards[2].unlink()
    fails(FileNotFoundError, "00003-of-00004")
    damage(shards[2], "split.no", 1)
    fails(rooflm.FormatError, "split.no is 1", "split.no")
    damage(shards[3], "split.count", 5)
    fails(rooflm.FormatError, "split.count is 5", "split.count")
    damage(shards[0], "split.tensors.count", 7, "i")
    damage(shards[1], "split.tensors.count", 7, "i")
    fails(rooflm.FormatError, "split.tensors.count is 7", "split.tensors.count")
    damage(shards[0], "split.no", 9)
    fails(rooflm.FormatError, "split.no is 9 of", "split.no")
    shards[1].write_bytes(kept[2])
    fails(rooflm.FormatError, "split.no is 2", "split.no")
    shards[1].write_bytes(kept[1][:-40])
    fails(rooflm.FormatError, "cut short")
    renamed = tmp_path / "other.gguf"
    renamed.write_bytes(kept[0])
    fails(rooflm.FormatError, "name does not end in -00001-of-00004", "split.count", renamed)


def test_a_tensor_in_two_shards(tmp_path):
    for no in range(2):
        raw = Raw().key("split.no", maker.U16, no).key("split.count", maker.U16, 2)
        raw.tensor("t", (4,), data=bytes(16))
        write(tmp_path / f"d-{no + 1:05d}-of-00002.gguf", raw.build())
    with pytest.raises(rooflm.FormatError, match="t appears twice") as e:
        rooflm.GGUF(tmp_path / "d-00002-of-00002.gguf")
    assert e.value.tensor == "t"


def test_shards_may_add_keys_but_not_disagree(tmp_path):
    def shard(no, value):
        raw = Raw().key("split.no", maker.U16, no).key("split.count", maker.U16, 2).key("same", maker.U32, value)
        write(tmp_path / f"k-{no + 1:05d}-of-00002.gguf", raw.key(f"only{no}", maker.U8, no).build())

    shard(0, 1), shard(1, 1)
    assert {"only0", "only1", "same"} <= set(rooflm.GGUF(tmp_path / "k-00001-of-00002.gguf").metadata)
    shard(1, 2)
    with pytest.raises(rooflm.FormatError, match="same has another value") as e:
        rooflm.GGUF(tmp_path / "k-00001-of-00002.gguf")
    assert e.value.key == "same"


# --- loading -------------------------------------------------------------------------------------------------


def test_copy_equals_mmap(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", types="Q4_0")
    a, b = rooflm.GGUF(path, load="mmap"), rooflm.GGUF(path, load="copy")
    assert a.mapped and not b.mapped
    for name, t in a.tensors.items():
        assert np.array_equal(t.raw, b.tensors[name].raw)
        assert b.tensors[name].raw.ctypes.data % 32 == 0
    # the copy does not change with the file
    path.write_bytes(path.read_bytes()[:-64] + b"\7" * 64)
    last = list(b.tensors.values())[-1]
    assert not (last.raw[-32:] == 7).all()


def test_refused_mmap_falls_back_with_one_warning(tmp_path, monkeypatch):
    """R11: the system refuses to map."""
    path = tiny_model(tmp_path / "m.gguf")
    want = rooflm.GGUF(path).tensors["token_embd.weight"].dequantize()
    monkeypatch.setenv("ROOFLM_FAULT", "mlock,mmap")
    with pytest.warns(rooflm.FallbackWarning, match="could not be mapped") as caught:
        g = rooflm.GGUF(path)
    assert len(caught) == 1 and g.mapped is False
    assert np.array_equal(g.tensors["token_embd.weight"].dequantize(), want)
    with pytest.raises(OSError, match="cannot map") as e:
        rooflm.GGUF(path, load="mmap")
    assert e.value.errno == 22
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rooflm.GGUF(path, load="copy")
        with pytest.raises(rooflm.FallbackWarning):
            rooflm.GGUF(path)
    monkeypatch.setenv("ROOFLM_FAULT", "mmapx,xmmap,")
    assert rooflm.GGUF(path).mapped


def test_opening_a_large_file_reads_its_header_only(tmp_path):
    """1 GB (sparse); the weight pages stay out of memory. bench/start.py has the time."""
    raw = Raw()
    for i in range(8):
        raw.tensor(f"t{i}", (1 << 25,), offset=i << 27)
    path = write(tmp_path / "big.gguf", raw.build())
    os.truncate(path, (1 << 30) + 4096)
    rooflm.GGUF(path, load="mmap")  # what Python itself touches for the first time
    before = resource.getrusage(resource.RUSAGE_SELF)
    g = rooflm.GGUF(path, load="mmap")
    assert len(g.tensors) == 8 and g.nbytes > 1 << 30
    assert g.tensors["t7"].raw.shape == (1 << 27,)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt < 200


def test_a_large_vocabulary_costs_nothing_until_asked(tmp_path):
    tokens = [text(f"token{i}") for i in range(262144)]
    path = write(
        tmp_path / "v.gguf", Raw().key("tokenizer.ggml.tokens", maker.ARRAY, array(maker.STRING, tokens)).build()
    )
    blocks = sys.getallocatedblocks()
    g = rooflm.GGUF(path)
    assert sys.getallocatedblocks() - blocks < 1000  # no object per token
    assert g.metadata["tokenizer.ggml.tokens"][-1] == "token262143"


# --- life ----------------------------------------------------------------------------------------------------


def mappings(path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc/self/maps")
def test_views_keep_the_file_and_nothing_else_does(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", types="Q4_0")
    g = rooflm.GGUF(path)
    t = g.tensors["blk.0.attn_q.weight"]
    blocks, raw, tail = t.blocks, t.raw, t.raw[3:]
    want = raw.copy()
    assert blocks.base is t
    g.close()
    assert g.closed and "closed" in repr(g) and "closed" in g._repr_html_()
    g.close()
    for name in ("metadata", "tensors", "version", "architecture", "nbytes", "shards", "mapped", "alignment"):
        with pytest.raises(ValueError, match="closed"):
            getattr(g, name)
    with pytest.raises(ValueError, match="closed"):
        g.__enter__()
    del g, t, raw
    gc.collect()
    assert mappings(path) > 0
    assert np.array_equal(tail, want[3:]) and blocks["qs"].any()
    del blocks, tail
    gc.collect()
    assert mappings(path) == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc/self/maps")
def test_context_manager_and_cycles_of_loading(tmp_path):
    path = tiny_model(tmp_path / "m.gguf")
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with rooflm.GGUF(path) as g:
            g.metadata["tokenizer.ggml.tokens"], g.tensors["output_norm.weight"].blocks
        assert g.closed
    del g
    gc.collect()
    assert mappings(path) == 0 and len(os.listdir("/proc/self/fd")) == fds


def test_a_cycle_through_metadata_is_collected(tmp_path):
    g = rooflm.GGUF(write(tmp_path / "a.gguf", Raw().key("l", maker.ARRAY, array(maker.STRING, [text("a")])).build()))

    class Marker:
        pass

    marker = Marker()
    gone = weakref.ref(marker)
    g.metadata["l"].extend([g.metadata, marker])
    del g, marker
    gc.collect()
    assert gone() is None


def test_arrays_of_the_file_cannot_be_written(tmp_path):
    t = rooflm.GGUF(tiny_model(tmp_path / "m.gguf")).tensors["output_norm.weight"]
    for a in (t.raw, t.blocks):
        with pytest.raises(ValueError):
            a[0] = 0
        with pytest.raises(ValueError):
            a.flags.writeable = True


def test_dequantize_runs_beside_python_threads(tmp_path):
    """The GIL is released: another thread gets on while a large tensor is taken apart. With the GIL held it could at
    most step in before and after the call."""
    raw = Raw().tensor("t", (4096, 4096), 12, data=bytes(4096 * 16 * 144))
    t = rooflm.GGUF(write(tmp_path / "a.gguf", raw.build())).tensors["t"]
    ticks, stop = [0], threading.Event()

    def spin():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        out = np.zeros((4096, 4096), np.float32)
        most = 0
        for _ in range(100):  # on a busy machine the thread may have no CPU during one call
            before = ticks[0]
            t.dequantize(out=out, threads=1)
            most = max(most, ticks[0] - before)
            if most > 5:
                break
    finally:
        stop.set()
        thread.join()
    assert most > 5


def test_reading_the_same_file_from_many_threads(tmp_path):
    code = """
import sys, threading, rooflm, numpy as np
g = rooflm.GGUF(sys.argv[1]); want = {k: t.dequantize() for k, t in g.tensors.items()}; bad = []
def work():
    h = rooflm.GGUF(sys.argv[1])
    for k in h.tensors:
        if not np.array_equal(g.tensors[k].dequantize(threads=2), want[k]): bad.append(k)
ts = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
assert not bad
"""
    path = tiny_model(tmp_path / "m.gguf", types="Q8_0")
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_a_file_that_was_shortened_is_an_error_not_a_signal(tmp_path):
    """Mapped pages behind the end of a file raise SIGBUS, which ends the process; a copy stays readable."""
    path = tiny_model(tmp_path / "m.gguf", types={"*": "Q8_0"})
    g, copied = rooflm.GGUF(path), rooflm.GGUF(path, load="copy")
    model = rooflm.Model(g)
    session = model.session(n_ctx=16, n_threads=1)
    session.eval([1])
    t = g.tensors["blk.0.attn_q.weight"]
    t.dequantize()
    size = path.stat().st_size
    os.truncate(path, 4096)
    for use in (
        lambda: session.eval([1]),
        lambda: session.logprobs([1, 2]),
        lambda: session.save(tmp_path / "s"),
        lambda: t.dequantize(),
        lambda: t.raw,
        lambda: t.blocks,
        lambda: t @ np.ones(64, np.float32),
        lambda: g.metadata["tokenizer.ggml.tokens"],
        lambda: model.tokenizer,
        lambda: rooflm.Model(g),
    ):
        with pytest.raises(OSError, match=f"m.gguf became shorter while it was mapped .from {size} to 4096"):
            use()
    assert t.nbytes == 64 * 68 and session.n_past == 1
    assert copied.tensors["blk.0.attn_q.weight"].dequantize().shape == (64, 64)
    with open(path, "ab") as f:  # whole again in length
        f.truncate(size)
    assert session.eval([1]).shape == (model.n_vocab,)


def test_closed_files_give_their_descriptors_back(tmp_path):
    path = tiny_model(tmp_path / "m.gguf")
    before = len(os.listdir("/proc/self/fd"))
    for load in ("mmap", "copy"):
        for _ in range(20):
            with rooflm.GGUF(path, load=load):
                pass
    assert len(os.listdir("/proc/self/fd")) == before
