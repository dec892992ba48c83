# SPDX-License-Identifier: Apache-2.0
"""The one maker of synthetic files for tests. Not a test by itself, and independent of the product.

`tiny_model` writes a small but whole model (metadata, vocabulary, random weights in any type) with the outside
`gguf` package. `Raw` writes a header byte by byte, so that every length and offset can be a lie.
"""

from __future__ import annotations

import fnmatch
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from blocks import BLOCKS, random_rows

# --- vocabularies --------------------------------------------------------------------------------------------


def byte_letters() -> dict[int, str]:
    """The printable letter by which byte-level BPE writes each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def bpe_vocab(n: int, seed: int = 0) -> tuple[list[str], list[str], list[int]]:
    """(tokens, merges, types) of n tokens: three specials, the 256 bytes, then merges of earlier tokens."""
    if n < 259:
        raise ValueError("a byte-level vocabulary has 259 tokens or more")
    rng = np.random.default_rng(seed)
    letters = byte_letters()
    tokens = [*SPECIALS, *(letters[b] for b in range(256))]
    known, merges = set(tokens), []
    common = [letters[b] for b in b" etaoinshrdlucmfwypvbgk"]
    pool = list(common)
    while len(tokens) < n:
        a, b = (pool[int(i)] for i in rng.integers(0, len(pool), 2))
        if a + b in known or letters[32] in b:
            continue
        tokens.append(a + b)
        known.add(a + b)
        pool.append(a + b)
        merges.append(f"{a} {b}")
    return tokens, merges, [3] * len(SPECIALS) + [1] * (n - len(SPECIALS))


def spm_vocab(n: int, seed: int = 0) -> tuple[list[str], list[float], list[int]]:
    """(tokens, scores, types): <unk>, <s>, </s>, 256 byte tokens, letters, then random words."""
    rng = np.random.default_rng(seed)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [2, 3, 3] + [6] * 256
    letters = ["\u2581", *"etaoinshrdlucmfwypvbgk"]
    words = list(letters)
    known = set(words)
    while len(tokens) + len(words) < n:
        w = words[int(rng.integers(0, len(words)))] + letters[int(rng.integers(1, len(letters)))]
        if w not in known:
            known.add(w)
            words.append(w)
    words = words[: max(0, n - len(tokens))]
    scores = [0.0] * len(tokens) + [-float(i + 1) for i in range(len(words))]
    return tokens + words, scores, types + [1] * len(words)


# --- whole models --------------------------------------------------------------------------------------------

# Quantized by the outside package; the others get random blocks, which no quantizer of that package can make.
QUANTIZED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def weights(rng: np.random.Generator, kind: str, shape: tuple[int, ...], scale: float) -> np.ndarray:
    """Random weights of a type: float32, float16, or bytes."""
    if kind in QUANTIZED:
        w = (rng.standard_normal(shape) * scale).astype(np.float32)
        return gguf.quants.quantize(w, gguf.GGMLQuantizationType[kind])
    rows = int(np.prod(shape[:-1]))
    raw = random_rows(rng, kind, rows, shape[-1])
    # random_rows has block scales near 0.01; the spread of a value follows from its type
    halves = BLOCKS[kind][2]
    b = raw.reshape(rows * (shape[-1] // BLOCKS[kind][0]), -1)
    factor = scale / {"Q2_K": 0.12, "Q3_K": 0.35, "Q4_K": 1.5, "Q5_K": 3.0, "Q6_K": 10.0, "IQ4_XS": 10.0}.get(kind, 0.7)
    for at in halves:
        h = np.ascontiguousarray(b[:, at : at + 2]).view(np.float16) * np.float16(factor)
        b[:, at : at + 2] = h.view(np.uint8)
    if kind == "Q8_K":
        d = np.ascontiguousarray(b[:, 0:4]).view(np.float32) * np.float32(factor)
        b[:, 0:4] = d.view(np.uint8)
    return b.reshape(*shape[:-1], -1)


def tiny_model(
    path: Any,
    arch: str = "llama",
    *,
    n_layer: int = 2,
    width: int = 64,
    n_head: int = 4,
    n_kv: int | None = None,
    head_dim: int | None = None,
    ffn: int = 128,
    n_vocab: int = 320,
    n_ctx: int = 256,
    tied: bool = True,
    vocab: str | None = "bpe",
    types: str | dict[str, str] = "F32",
    rope_base: float = 10000.0,
    window: int | None = None,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    drop: tuple[str, ...] = (),
    weights_too: bool = True,
    alignment: int | None = None,
    split_max_tensors: int = 0,
) -> Path:
    """Writes a whole random model of architecture llama or gemma3 (others: the llama tensors under that name).

    types: one type for all matrices, or {pattern of tensor names: type}, first match wins, "F32" otherwise; norms
    stay F32. metadata: keys to set (None drops one), without "ARCH." where they begin with a dot. extra and drop:
    tensors to add or leave out. weights_too=False writes a vocabulary-only file. With split_max_tensors the files
    are PATH-00001-of-0000N.gguf, and the path of the first is returned.
    """
    path = Path(path)
    n_kv = n_head if n_kv is None else n_kv
    head_dim = head_dim or width // n_head
    rng = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
    gemma = arch == "gemma3"

    keys: dict[str, Any] = {
        "general.name": f"tiny {arch}",
        ".context_length": n_ctx,
        ".embedding_length": width,
        ".block_count": n_layer,
        ".feed_forward_length": ffn,
        ".attention.head_count": n_head,
        ".attention.head_count_kv": n_kv,
        ".attention.layer_norm_rms_epsilon": 1e-5,
        ".rope.freq_base": rope_base,
    }
    if head_dim * n_head != width or gemma:
        keys[".attention.key_length"] = keys[".attention.value_length"] = head_dim
    if not gemma:
        keys[".rope.dimension_count"] = head_dim
        keys[".vocab_size"] = n_vocab
    if gemma or window:
        keys[".attention.sliding_window"] = window or 64
    keys.update(vocab_keys(vocab, n_vocab, seed))
    for key, value in (metadata or {}).items():
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value
    for key, value in keys.items():
        put(w, f"{arch}{key}" if key.startswith(".") else key, value)
    if alignment is not None:
        w.add_custom_alignment(alignment)

    def kind_of(name: str) -> str:
        table = {"*": types} if isinstance(types, str) else types
        return next((t for pattern, t in table.items() if fnmatch.fnmatchcase(name, pattern)), "F32")

    def matrix(name: str, out: int, inn: int) -> None:
        if name not in drop:
            kind = kind_of(name)
            data = weights(rng, kind, (out, inn), 0.7 / np.sqrt(inn))
            w.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])

    def norm(name: str, n: int) -> None:
        if name not in drop:
            w.add_tensor(name, (1 + 0.1 * rng.standard_normal(n)).astype(np.float32))

    if weights_too:
        matrix("token_embd.weight", n_vocab, width)
        for i in range(n_layer):
            b = f"blk.{i}."
            norm(b + "attn_norm.weight", width)
            matrix(b + "attn_q.weight", n_head * head_dim, width)
            matrix(b + "attn_k.weight", n_kv * head_dim, width)
            matrix(b + "attn_v.weight", n_kv * head_dim, width)
            matrix(b + "attn_output.weight", width, n_head * head_dim)
            if gemma:
                norm(b + "attn_q_norm.weight", head_dim)
                norm(b + "attn_k_norm.weight", head_dim)
                norm(b + "post_attention_norm.weight", width)
                norm(b + "post_ffw_norm.weight", width)
            norm(b + "ffn_norm.weight", width)
            matrix(b + "ffn_gate.weight", ffn, width)
            matrix(b + "ffn_up.weight", ffn, width)
            matrix(b + "ffn_down.weight", width, ffn)
        norm("output_norm.weight", width)
        if not tied:
            matrix("output.weight", n_vocab, width)
        for name, value in (extra or {}).items():
            w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    if weights_too:
        w.write_tensors_to_file()
    w.close()
    if split_max_tensors and not path.exists():
        return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
    return path


def vocab_keys(vocab: str | None, n: int, seed: int = 0) -> dict[str, Any]:
    t = "tokenizer.ggml."
    if vocab is None:
        return {}
    if vocab == "bpe":
        tokens, merges, kinds = bpe_vocab(n, seed)
        return {
            t + "model": "gpt2",
            t + "pre": "smollm",
            t + "tokens": tokens,
            t + "token_type": kinds,
            t + "merges": merges,
            t + "bos_token_id": 1,
            t + "eos_token_id": 2,
            t + "unknown_token_id": 0,
            t + "padding_token_id": 2,
            t + "add_bos_token": False,
        }
    if vocab == "spm":
        tokens, scores, kinds = spm_vocab(n, seed)
        return {
            t + "model": "llama",
            t + "tokens": tokens,
            t + "scores": scores,
            t + "token_type": kinds,
            t + "bos_token_id": 1,
            t + "eos_token_id": 2,
            t + "unknown_token_id": 0,
            t + "add_bos_token": True,
            t + "add_space_prefix": True,
        }
    raise ValueError(vocab)


def put(w: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Integers as uint32, floats as float32, NumPy scalars in their own type."""
    if isinstance(value, (bool, np.bool_)):
        w.add_bool(key, bool(value))
    elif isinstance(value, np.generic):
        kind = {"int8": "INT8", "uint8": "UINT8", "int16": "INT16", "uint16": "UINT16", "int32": "INT32"}
        kind |= {"uint32": "UINT32", "int64": "INT64", "uint64": "UINT64", "float32": "FLOAT32", "float64": "FLOAT64"}
        w.add_key_value(key, value.item(), gguf.GGUFValueType[kind[value.dtype.name]])
    elif isinstance(value, int):
        w.add_uint32(key, value)
    elif isinstance(value, float):
        w.add_float32(key, value)
    elif isinstance(value, str):
        w.add_string(key, value)
    else:
        w.add_array(key, value)


# --- byte by byte --------------------------------------------------------------------------------------------

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(s: str | bytes, claim: int | None = None) -> bytes:
    """A string of the format; `claim` is the length it says it has."""
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b) if claim is None else claim) + b


def array(kind: int, values: Any, claim: int | None = None) -> bytes:
    """The payload of an array value; elements of STRING and ARRAY are payloads already."""
    items = [struct.pack("<" + PACK[kind], v) if kind in PACK else v for v in values]
    return struct.pack("<IQ", kind, len(items) if claim is None else claim) + b"".join(items)


class Raw:
    """A header written by hand. Claims that are None are the truth."""

    def __init__(self, version: int = 3, magic: bytes = b"GGUF", claim_tensors=None, claim_keys=None, align: int = 32):
        self.version, self.magic, self.align = version, magic, align
        self.claim_tensors, self.claim_keys = claim_tensors, claim_keys
        self.keys: list[bytes] = []
        self.tensors: list[bytes] = []
        self.data = b""

    def key(self, name: str | bytes, kind: int, value: Any, claim: int | None = None) -> Raw:
        """value: a number, or payload bytes."""
        payload = value if isinstance(value, bytes) else struct.pack("<" + PACK[kind], value)
        self.keys.append(text(name, claim) + struct.pack("<I", kind) + payload)
        return self

    def tensor(
        self, name: str | bytes, dims, kind: int = 0, offset: int | None = None, data: bytes = b"", n_dims=None
    ) -> Raw:
        """Adds the tensor and its data, padded to the alignment."""
        at = len(self.data) if offset is None else offset
        n = len(dims) if n_dims is None else n_dims
        self.tensors.append(
            text(name) + struct.pack("<I", n) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, at)
        )
        self.data += data + b"\0" * (-len(data) % self.align)
        return self

    def build(self) -> bytes:
        n_tensors = len(self.tensors) if self.claim_tensors is None else self.claim_tensors
        n_keys = len(self.keys) if self.claim_keys is None else self.claim_keys
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys) + b"".join(self.keys + self.tensors)
        return head + b"\0" * (-len(head) % self.align) + self.data
