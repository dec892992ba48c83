# SPDX-License-Identifier: Apache-2.0
"""Files that lie: every case in a process with an address-space limit, which must survive with a clear error.

The process opens each file by mapping and by copying, and reports the exception; an allocation of what a hostile
field claims, a signal, or a loop over such a number would show.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys

import maker
import numpy as np
import pytest
from maker import ARRAY, BOOL, F32, I32, STRING, U8, U32, Raw, array, text, tiny_model

import rooflm

LIMIT = 512 << 20

CHILD = """
import json, resource, sys
import rooflm
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))  # a loop that a length field drives ends here
for line in sys.stdin:
    path = json.loads(line)
    for load in ("mmap", "copy"):
        try:
            g = rooflm.GGUF(path, load=load)
            for t in g.tensors.values():  # whatever was accepted must be readable to its last byte
                if not t.type.startswith("unknown"):
                    t.raw[..., -1].sum(), t.raw[..., 0].sum()
            list(g.metadata.items())
            out = {"ok": len(g.tensors)}
            del g
        except rooflm.Error as e:
            where = {k: getattr(e, k, None) for k in ("key", "tensor", "offset")}
            out = {"error": type(e).__name__, "message": str(e), **where}
        except Exception as e:
            out = {"error": type(e).__name__, "message": str(e)}
        print(json.dumps(out), flush=True)
"""


class Child:
    """One process for many files; a crash of it fails the test that caused it."""

    def __init__(self):
        # sanitizers reserve terabytes of address space
        self.limit = 0 if "asan" in os.environ.get("LD_PRELOAD", "") else LIMIT
        self.process = None

    def start(self):
        command = [sys.executable, "-c", CHILD, str(self.limit)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def open(self, path) -> list[dict]:
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(str(path)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        lines = [self.process.stdout.readline() for _ in range(2)]
        assert all(lines), f"the process died with status {self.process.wait()}"
        return [json.loads(line) for line in lines]

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


@pytest.fixture(scope="module")
def child():
    c = Child()
    yield c
    c.close()


@pytest.fixture
def refuse(child, tmp_path):
    def check(data, match: str, key=None, tensor=None):
        """The file is refused by FormatError naming what is wrong, in both ways of loading."""
        path = data
        if isinstance(data, Raw):
            data = data.build()
        if isinstance(data, bytes):
            path = tmp_path / "hostile.gguf"
            path.write_bytes(data)
        for got in child.open(path):
            assert got.get("error") == "FormatError", got
            assert match in got["message"], got
            assert (got["key"], got["tensor"]) == (key, tensor), got
            assert got["offset"] is not None and got["offset"] >= 0

    return check


# --- R1, R2: element counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims, kind",
    [
        ((2**63 - 1, 2), 24),
        ((4194305, 4194305, 211106198978564), 0),
        ((2**63, 1), 24),
        ((2**64 - 1,), 24),
        ((2**62, 2), 24),
        ((2**61, 1), 0),  # the elements fit, the bytes do not
        ((2**32, 2**32), 0),
        ((2**33, 2**20, 2**9, 2**2), 30),
        ((2**41, 2**22), 12),
    ],
    ids=str,
)
def test_element_counts_that_overflow(refuse, dims, kind):
    refuse(Raw().tensor("t", dims, kind, data=bytes(64)), "63 bits", tensor="t")


@pytest.mark.parametrize("dims, kind", [((2**40,), 0), ((256, 2**40), 12), ((17, 2), 0)], ids=str)
def test_tensors_larger_than_the_file(refuse, dims, kind):
    refuse(Raw().tensor("t", dims, kind, data=bytes(64)), "cut short", tensor="t")


@pytest.mark.parametrize("n", [5, 255, 1_000_000, 2**32 - 1])
def test_number_of_dimensions(refuse, n):
    refuse(Raw().tensor("t", (1,) * 5, n_dims=n), f"{n} dimensions, at most 4", tensor="t")


@pytest.mark.parametrize("dims", [(0,), (0, 4), (4, 0), (4, 4, 0), (1, 1, 1, 0)], ids=str)
@pytest.mark.parametrize("kind", [0, 12, 99])
def test_zero_dimension(refuse, dims, kind):
    refuse(Raw().tensor("t", dims, kind), "dimension of zero", tensor="t")


@pytest.mark.parametrize("kind, cols", [(2, 33), (2, 1), (12, 128), (14, 255), (8, 31)])
def test_rows_that_are_no_multiple_of_the_block(refuse, kind, cols):
    refuse(Raw().tensor("t", (cols, 256), kind, data=bytes(100000)), "no multiple", tensor="t")


# --- R3: lengths that drive allocation -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [0xFFFFFFFFFFFF, 2**63, 2**64 - 1, 1000, 65536])
def test_key_length(refuse, n):
    refuse(Raw().key("k", U8, 1, claim=n), "key 0 claims a length of")
    refuse(struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, n)[:32], "claims 1 metadata keys" if n else "")


@pytest.mark.parametrize("n", [2**64 - 1, 2**63, 2**60, 2**32, 2**20, 100])
def test_counts_of_keys_and_tensors(refuse, n):
    head = Raw().key("k", U8, 1)
    head.claim_keys = n
    refuse(head, f"claims {n} metadata keys")
    head = Raw().tensor("t", (1,), data=bytes(4))
    head.claim_tensors = n
    refuse(head, f"claims {n} tensors")


@pytest.mark.parametrize("n", [2**64 - 1, 2**63, 2**61, 2**40, 10**6])
@pytest.mark.parametrize("kind", [U8, F32, STRING, ARRAY, maker.U64])
def test_array_counts(refuse, kind, n):
    refuse(Raw().key("k", ARRAY, array(kind, [], claim=n)), f"claims an array of {n} elements", key="k")


@pytest.mark.parametrize("n", [2**64 - 1, 2**63, 2**40, 10**6])
def test_string_lengths(refuse, n):
    refuse(Raw().key("k", STRING, text("x", claim=n)), f"claims a string of {n} bytes", key="k")
    refuse(Raw().key("k", ARRAY, array(STRING, [text("x"), text("x", claim=n)])), f"string of {n} bytes", key="k")
    refuse(Raw().tensor("t", (1,)).build().replace(text("t"), text("t", claim=n)), "tensor name 0 claims a length")


def test_counts_in_a_large_sparse_file(refuse, tmp_path):
    """The file is large enough for what it claims, so only reading on can refuse it; zeros are no keys."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 10**6, 10**6))
    os.truncate(path, 100 << 20)
    refuse(path, "key 0 is empty")


def test_nested_arrays(refuse):
    value = array(U8, [1])
    for _ in range(20):
        value = array(ARRAY, [value])
    refuse(Raw().key("k", ARRAY, value), "nests arrays more than 16 deep", key="k")
    deep = struct.pack("<IQ", ARRAY, 1) * 100_000
    refuse(Raw().key("k", ARRAY, deep), "nests arrays", key="k")
    refuse(Raw().key("k", ARRAY, struct.pack("<IQ", 13, 1) + bytes(64)), "array of unknown type 13", key="k")


def test_types_of_values(refuse):
    refuse(Raw().key("k", 13, bytes(8)), "unknown type 13", key="k")
    refuse(Raw().key("k", 2**32 - 1, bytes(8)), "unknown type 4294967295", key="k")
    refuse(Raw().key("k", BOOL, 2), "bool with the value 2", key="k")


# --- R4: alignment -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 3, 4, 12, 33, 2**21, 2**30, 2**32 - 1])
def test_alignment_values(refuse, value):
    raw = Raw().key("general.alignment", U32, value).tensor("t", (4,), data=bytes(16))
    refuse(raw, f"general.alignment is {value}; it must be", key="general.alignment")


@pytest.mark.parametrize(
    "kind, value",
    [(I32, 32), (maker.U64, 32), (U8, 32), (F32, 32.0), (BOOL, 1), (STRING, text("32")), (ARRAY, array(U32, [32]))],
    ids=str,
)
def test_alignment_of_another_type(refuse, kind, value):
    refuse(Raw().key("general.alignment", kind, value), "must be a uint32", key="general.alignment")


@pytest.mark.parametrize("offset", [1, 4, 31, 33])
def test_unaligned_offsets(refuse, offset):
    refuse(Raw().tensor("t", (4,), offset=offset, data=bytes(64)), "no multiple of the alignment 32", tensor="t")


@pytest.mark.parametrize("offset", [64, 2**40, 2**63, 2**64 - 32])
def test_offsets_beyond_the_file(refuse, offset):
    refuse(Raw().tensor("t", (4,), offset=offset, data=bytes(32)), "cut short", tensor="t")
    refuse(Raw().tensor("t", (4,), 99, offset=2**63, data=bytes(32)), "cut short", tensor="t")


# --- R5: names -----------------------------------------------------------------------------------------------


def test_names(refuse):
    refuse(Raw().key("", U8, 1), "key 0 is empty")
    refuse(Raw().key("a", U8, 1).key("", U8, 1), "key 1 is empty")
    refuse(Raw().tensor("", (1,), data=bytes(4)), "tensor name 0 is empty")
    refuse(Raw().key("a\0b", U8, 1), "key 0 contains a zero byte")
    refuse(Raw().tensor("a\0", (1,), data=bytes(4)), "tensor name 0 contains a zero byte")
    refuse(Raw().key("x" * 70000, U8, 1), "key 0 claims a length of 70000")
    refuse(Raw().key("a", U8, 1).key("b", U8, 2).key("a", U32, 3), "key a appears twice", key="a")
    refuse(Raw().tensor("t", (1,), data=bytes(4)).tensor("t", (2,), data=bytes(8)), "t appears twice", tensor="t")


def test_duplicates_are_found_in_linear_time(refuse):
    """200,000 keys and the first one again at the end."""
    raw = Raw()
    for i in range(200_000):
        raw.keys.append(text(f"key.{i}") + b"\0\0\0\0\1")
    raw.keys.append(raw.keys[0])
    refuse(raw, "key.0 appears twice", key="key.0")


# --- R6: token ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bos", "eos", "unknown", "padding", "eot", "seperator", "fim_pre"])
@pytest.mark.parametrize("id", [3, 2**31, 2**32 - 1])
def test_token_ids_beyond_the_vocabulary(refuse, name, id):
    key = f"tokenizer.ggml.{name}_token_id"
    raw = Raw().key(key, U32, id).key("tokenizer.ggml.tokens", ARRAY, array(STRING, [text("a")] * 3))
    refuse(raw, f"{key} is {id}, but the vocabulary has 3 tokens", key=key)


def test_token_ids_of_other_kinds(refuse, child, tmp_path):
    tokens = array(STRING, [text("a")] * 3)
    key = "tokenizer.ggml.eos_token_id"
    refuse(Raw().key("tokenizer.ggml.tokens", ARRAY, tokens).key(key, I32, -1), "non-negative", key=key)
    refuse(Raw().key("tokenizer.ggml.tokens", ARRAY, tokens).key(key, F32, 1.0), "non-negative", key=key)
    refuse(Raw().key("tokenizer.ggml.tokens", ARRAY, tokens).key(key, ARRAY, array(U32, [1])), "is an array", key=key)
    refuse(Raw().key("tokenizer.ggml.tokens", ARRAY, array(U32, [1])), "array of strings", key="tokenizer.ggml.tokens")
    fine = tmp_path / "fine.gguf"
    fine.write_bytes(Raw().key("tokenizer.ggml.tokens", ARRAY, tokens).key(key, U32, 2).build())
    assert all(got.get("ok") == 0 for got in child.open(fine))


# --- R7: truncation ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tiny_model(
        tmp_path_factory.mktemp("whole") / "m.gguf", types={"*attn*": "Q4_K", "*": "Q8_0"}, width=256, n_vocab=300
    )
    return path.read_bytes()


def cut_points(data):
    """Every 1 %, one byte before the end of each tensor, and odd places in the header."""
    import gguf  # offsets from the outside reader

    reader_path = cut_points.path
    ends = [int(t.data_offset) + int(t.n_bytes) - 1 for t in gguf.GGUFReader(reader_path).tensors]
    header = list(range(0, 64)) + [int(n) for n in np.linspace(64, min(ends), 60)]
    return sorted({len(data) * i // 100 for i in range(100)} | set(ends) | set(header))


def test_truncated_files(child, whole, tmp_path):
    full = tmp_path / "full.gguf"
    full.write_bytes(whole)
    cut_points.path = full
    assert all(got.get("ok", 0) > 10 for got in child.open(full))
    points = cut_points(whole)
    assert len(points) > 200
    path = tmp_path / "cut.gguf"
    for n in points:
        path.write_bytes(whole[:n])
        for got in child.open(path):
            assert got.get("error") == "FormatError", (n, got)
            assert (
                "ends at byte" in got["message"] or "cut short" in got["message"] or "claims" in got["message"] or n < 8
            ), (n, got)


def test_random_damage(child, whole, tmp_path):
    """Bytes of the header replaced at random: any outcome but a crash, a hang or another kind of exception."""
    rng = random.Random(1)
    path = tmp_path / "damaged.gguf"
    head = whole.index(b"output_norm.weight") + 100
    accepted = 0
    for _ in range(400):
        data = bytearray(whole[: head + 200_000])
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(4, head)
            data[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        path.write_bytes(data)
        for got in child.open(path):
            assert got.get("error") in (None, "FormatError", "FileNotFoundError"), got
            accepted += "ok" in got
    assert accepted < 800


# --- R8: versions and other files ----------------------------------------------------------------------------


def test_versions(refuse, child, tmp_path):
    refuse(Raw(version=1), "version 1, which is obsolete")
    refuse(Raw(version=0), "GGUF version 0; versions 2 and 3")
    refuse(Raw(version=4), "GGUF version 4; versions 2 and 3")
    for v in (2, 3):
        refuse(struct.pack(">4sIQQ", b"GGUF", v, 0, 0), "big-endian")
    path = tmp_path / "v2.gguf"
    path.write_bytes(Raw(version=2).tensor("t", (8,), data=bytes(32)).build())
    assert all(got.get("ok") == 1 for got in child.open(path))


@pytest.mark.parametrize(
    "data", [b"", b"G", b"GGU", b"\0" * 100, b"ggjt\1\0\0\0", b"PK\3\4", b"FUGG\0\0\0\3"], ids=repr
)
def test_files_that_are_not_gguf(refuse, data):
    refuse(data, "not a GGUF file")


def test_lfs_pointer(refuse):
    refuse(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer")


@pytest.mark.parametrize("n", range(4, 24))
def test_headers_of_any_length(refuse, n):
    refuse(Raw().build()[:n], "ends at byte" if n < 24 else "")


# --- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("no, count", [(0, 65535), (70000, 70001), (2**32 - 1, 2), (0, 2**32 - 1)])
def test_split_counts(child, tmp_path, no, count):
    path = tmp_path / f"s-{no + 1:05d}-of-{count:05d}.gguf"
    path.write_bytes(Raw().key("split.no", U32, no).key("split.count", U32, count).build())
    for got in child.open(path):
        assert got["error"] in ("FormatError", "FileNotFoundError"), got


# --- the limit itself ----------------------------------------------------------------------------------------


def test_the_limit_is_real(child, tmp_path):
    """A copy of more than the limit fails in the child with MemoryError, and the child lives on."""
    if not child.limit:
        pytest.skip("no address-space limit under a sanitizer")
    path = tmp_path / "big.gguf"
    path.write_bytes(Raw().tensor("t", (4,), data=bytes(16)).build())
    os.truncate(path, LIMIT + 4096)
    mapped, copied = child.open(path)
    assert mapped["error"] == "OSError" and copied["error"] == "MemoryError"
    os.truncate(path, 4096)
    assert all("ok" in got for got in child.open(path))


def test_warnings_show_names_that_are_not_utf8(tmp_path):
    """A key that is not understood is warned about by its name, whatever bytes that has."""
    path = tiny_model(tmp_path / "m.gguf", metadata={".unheard_of": 1})
    path.write_bytes(path.read_bytes().replace(b"llama.unheard_of", b"llama.unheard\xffof"))
    with pytest.warns(rooflm.FallbackWarning, match="'llama.unheard\N{REPLACEMENT CHARACTER}of' is not understood"):
        rooflm.Model(path)


def test_errors_of_models_name_the_file(tmp_path):
    for name, options, match in (
        ("a", {"drop": ("blk.0.attn_q.weight",)}, "blk.0.attn_q.weight"),
        ("b", {"metadata": {".block_count": None}}, "llama.block_count"),
        ("c", {"metadata": {"tokenizer.ggml.pre": "unheard of"}}, "pre-tokenizer"),
        ("d", {"arch": "unheard"}, "architecture"),
    ):
        path = tiny_model(tmp_path / f"{name}.gguf", **options)
        with pytest.raises(rooflm.Error, match=f"{name}.gguf: .*{match}"):
            rooflm.Model(path).tokenizer.encode("x")
