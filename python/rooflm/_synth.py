# SPDX-License-Identifier: Apache-2.0
"""Synthetic models for speed work without downloads: real shapes, valid random blocks, finite logits.

What such a model says means nothing; how fast it says it does. Bytes depend on the seed, the shape and the
tensor's name alone (NumPy promises the raw stream of its bit generators for good).
"""

from __future__ import annotations

import functools
import os
import random
import time
import zlib
from collections import Counter
from typing import Any, Iterator, Optional, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import at_least, checked_keywords, whole
from rooflm.quantization.recipes import FALLBACK, more_bits
from rooflm._gguf_write import Writer

SIZES: dict[str, dict[str, int]] = {
    "1b": {"width": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 49152, "tied": 1},
    "3b": {"width": 3072, "layers": 28, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 49152, "tied": 1},
    "7b": {"width": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 49152, "tied": 0},
    "smollm2": {"width": 576, "layers": 30, "heads": 9, "kv_heads": 3, "ffn": 1536, "vocab": 49152, "tied": 1},
}

# general.file_type of each type that can be asked for.
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 14,
    "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32,
}  # fmt: skip

# A block's header for unit scale: (field, value), mins such that the mean of a block is about zero.
_UNIT = {
    "Q4_1": (("d", 1.0), ("m", -7.5)), "Q5_1": (("d", 1.0), ("m", -15.5)), "Q2_K": (("d", 1.0), ("dmin", 1.5)),
    "Q4_K": (("d", 1.0), ("dmin", 7.5)), "Q5_K": (("d", 1.0), ("dmin", 15.5)),
}  # fmt: skip

# Codes from -8 to 7 have a mean below zero; real files have scales of both signs here.
_LOPSIDED = ("Q4_0", "Q5_0", "IQ4_NL")

_CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_PIECE = 16 << 20  # bytes made and written at once


@checked_keywords
def synth(
    out: Union[int, str, os.PathLike[str]],
    *,
    arch: str = "llama",
    size: str = "1b",
    type: str = "Q4_K_M",
    seed: int = 0,
    width: Optional[int] = None,
    layers: Optional[int] = None,
    heads: Optional[int] = None,
    kv_heads: Optional[int] = None,
    ffn: Optional[int] = None,
    vocab: Union[int, str, os.PathLike[str], None] = None,
    tied: Optional[bool] = None,
    context: int = 131072,
) -> dict[str, Any]:
    """Writes a synthetic model and returns what was written. out: a path, or an open file descriptor (then the record's
    path is None).

    size: "1b", "3b", "7b", "smollm2", or "custom" with width, layers, heads, kv_heads and ffn; any of these beside a
    named size replaces its number. type: "Q4_K_M", "Q4_K_S", "Q5_K_M" are the field's mixtures; any other, such as
    "Q8_0" or "Q2_K", is used for all matrices; the output (or tied embedding) is Q6_K beside types under 6 bits.
    Where rows are no multiple of 256, K types are replaced and listed under "substituted". vocab: the number of
    tokens of a made byte-level vocabulary, or a GGUF file whose tokenizer is copied. Weights have the spread
    1/sqrt(inputs). The record has path, nbytes, n_params, bits_per_weight, types, substituted, seconds_s, ...
    """
    start = time.perf_counter()
    if arch != "llama":
        raise ValueError(f"arch must be 'llama', not {arch!r}")
    if type not in FILE_TYPES:
        raise ValueError(f"type must be one of {', '.join(FILE_TYPES)}, not {type!r}")
    given = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}
    at_least(1, **given, context=context)
    at_least(0, seed=seed)
    shape = _shape(size, {k: v for k, v in given.items() if v is not None})
    source = None
    if isinstance(vocab, (str, os.PathLike)):
        source = _core.GGUF(vocab)
        if "tokenizer.ggml.tokens" not in source.metadata:
            raise ValueError(f"{os.fspath(vocab)} has no vocabulary")
        shape["vocab"] = len(source.metadata["tokenizer.ggml.tokens"])
    elif vocab is not None:
        shape["vocab"] = whole("vocab", vocab)
        at_least(1, vocab=shape["vocab"])
    is_tied = bool(shape.pop("tied")) if tied is None else tied
    shape.pop("tied", None)

    with Writer(out, fsync=False) as w:
        _keys(w, shape, size, type, context, source)
        plan = []
        substituted = []
        for name, dims, wanted in _tensors(shape, is_tied, type):
            used = wanted
            if dims[-1] % _core._type_info(wanted)[1]:
                used = FALLBACK.get(wanted, wanted)
                substituted.append({"tensor": name, "wanted": wanted, "used": used})
            w.declare(name, used, dims)
            plan.append((name, dims, used))
        n_params = sum(int(np.prod(d)) for _, d, _ in plan)
        bits = 0.0
        for name, dims, used in plan:
            _, block, nbytes = _core._type_info(used)
            bits += 8 * nbytes / block * int(np.prod(dims))
            for piece in _weights(name, dims, used, seed):
                w.write(piece)
    return {
        "schema": 1,
        "path": None if isinstance(out, int) else os.fspath(out),
        "nbytes": os.stat(out).st_size,
        "arch": arch,
        "size": size,
        "type": type,
        "seed": seed,
        **shape,
        "tied": is_tied,
        "n_params": n_params,
        "bits_per_weight": bits / n_params,
        "types": dict(Counter(used for _, _, used in plan)),
        "substituted": substituted,
        "seconds_s": time.perf_counter() - start,
    }


def _shape(size: str, given: dict[str, int]) -> dict[str, int]:
    if size not in (*SIZES, "custom"):
        raise ValueError(f"size must be one of {', '.join(SIZES)} or custom, not {size!r}")
    shape = {**(SIZES[size] if size != "custom" else {"vocab": 49152, "tied": 1}), **given}
    missing = [k for k in ("width", "layers", "heads", "kv_heads", "ffn") if k not in shape]
    if missing:
        raise ValueError(f"size 'custom' needs {', '.join(missing)}")
    if shape["width"] % shape["heads"] or shape["heads"] % shape["kv_heads"]:
        raise ValueError("width must be a multiple of heads, and heads of kv_heads")
    if shape["width"] // shape["heads"] % 2:
        raise ValueError("the head size, width / heads, must be even")
    for name in ("width", "ffn"):
        if shape[name] % 32:
            raise ValueError(f"{name} must be a multiple of 32, the smallest block of weights")
    return shape


# --- which tensors, in which type ----------------------------------------------------------------------------


def _mixed(type: str, part: str, layer: int, n: int) -> str:
    if type in ("Q4_K_M", "Q5_K_M"):
        more = part in ("attn_v", "ffn_down") and more_bits(layer, n)
        return "Q6_K" if more else type[:4]
    if type == "Q4_K_S":
        more = (part == "attn_v" and layer < 4) or (part == "ffn_down" and layer < n // 8)
        return "Q5_K" if more else "Q4_K"
    return type


def _tensors(s: dict[str, int], tied: bool, type: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    n, width, kv = s["layers"], s["width"], s["width"] // s["heads"] * s["kv_heads"]
    plain = type in ("F32", "F16", "BF16", "Q8_0", "Q6_K")
    head = type if plain else "Q6_K"
    yield "token_embd.weight", (s["vocab"], width), head if tied else _mixed(type, "token_embd", 0, n)
    for i in range(n):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (width,), "F32"
        for part, rows, cols in (
            ("attn_q", width, width),
            ("attn_k", kv, width),
            ("attn_v", kv, width),
            ("attn_output", width, width),
            ("ffn_gate", s["ffn"], width),
            ("ffn_up", s["ffn"], width),
            ("ffn_down", width, s["ffn"]),
        ):
            yield f"{b}{part}.weight", (rows, cols), _mixed(type, part, i, n)
        yield b + "ffn_norm.weight", (width,), "F32"
    yield "output_norm.weight", (width,), "F32"
    if not tied:
        yield "output.weight", (s["vocab"], width), head


# --- weights -------------------------------------------------------------------------------------------------


def _raw(rng: Any, nbytes: int) -> np.ndarray:
    """Random bytes."""
    words: np.ndarray = rng.random_raw(-(-nbytes // 8))
    return words.view(np.uint8)[:nbytes]


def _set_header(blocks: np.ndarray, kind: str, scale: Any) -> None:
    for field, value in _UNIT.get(kind, (("d", 1.0),)):
        blocks[field] = np.asarray(scale * value).astype(blocks[field].dtype)
    if kind == "Q8_K":
        blocks["bsums"] = blocks["qs"].reshape(len(blocks), 16, 16).sum(axis=2, dtype=np.int16)


@functools.cache
def _spread(kind: str) -> float:
    """Standard deviation of the values of random blocks with unit scale, measured with the reference."""
    dtype = np.dtype(_core._block_dtype(kind))
    blocks = _raw(np.random.SFC64(1), 4096 * dtype.itemsize).view(dtype).copy()
    _set_header(blocks, kind, 1.0)
    values = np.empty(4096 * _core._type_info(kind)[1], np.float32)
    family = kind.lower().replace("_k", "k").replace("iq4_", "iq4")
    _core._dequantize(f"rl_dequant_{family}_ref", blocks.view(np.uint8), values)
    return float(values.std())


def _weights(name: str, dims: tuple[int, ...], kind: str, seed: int) -> Iterator[np.ndarray]:
    """The bytes of a tensor in pieces."""
    rng = np.random.SFC64([seed, zlib.crc32(name.encode())])
    n = int(np.prod(dims))
    if len(dims) == 1:  # a norm: near one
        yield (0.95 + 0.1 * _uniform(rng, n)).astype(np.float32)
        return
    target = dims[-1] ** -0.5
    if kind in ("F32", "F16", "BF16"):
        step = _PIECE // 4
        for at in range(0, n, step):
            values = ((_uniform(rng, min(step, n - at)) - 0.5) * (12**0.5 * target)).astype(np.float32)
            if kind == "F32":
                yield values
            elif kind == "F16":
                yield values.astype(np.float16)
            else:
                yield (values.view(np.uint32) >> 16).astype(np.uint16)
        return
    block = _core._type_info(kind)[1]
    dtype = np.dtype(_core._block_dtype(kind))
    unit = target / _spread(kind)
    total, step = n // block, _PIECE // dtype.itemsize
    for at in range(0, total, step):
        count = min(step, total - at)
        blocks = _raw(rng, count * dtype.itemsize).view(dtype)
        scale = unit * (0.75 + 0.5 * _uniform(rng, count))
        if kind in _LOPSIDED:
            scale[_raw(rng, count) & 1 == 1] *= -1
        _set_header(blocks, kind, scale)
        yield blocks.view(np.uint8)


def _uniform(rng: Any, n: int) -> np.ndarray:
    """0 to 1 in steps of 1/65536, from the raw stream."""
    bits: np.ndarray = _raw(rng, 2 * n).view(np.uint16)
    return bits.astype(np.float32) * np.float32(1 / 65536)


# --- metadata ------------------------------------------------------------------------------------------------


def _keys(w: Writer, s: dict[str, int], size: str, type: str, context: int, source: Optional[_core.GGUF]) -> None:
    w.key("general.architecture", "str", "llama")
    w.key("general.type", "str", "model")
    w.key("general.name", "str", f"synthetic llama {size} {type}")
    w.key("general.file_type", "u32", FILE_TYPES[type])
    w.key("general.quantization_version", "u32", 2)
    head = s["width"] // s["heads"]
    for name, value in (
        ("block_count", s["layers"]),
        ("context_length", context),
        ("embedding_length", s["width"]),
        ("feed_forward_length", s["ffn"]),
        ("attention.head_count", s["heads"]),
        ("attention.head_count_kv", s["kv_heads"]),
        ("rope.dimension_count", head),
        ("vocab_size", s["vocab"]),
    ):
        w.key(f"llama.{name}", "u32", value)
    w.key("llama.rope.freq_base", "f32", 500000.0)
    w.key("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5)
    if source is not None:
        w.copy_keys(source, "tokenizer.")
        return
    tokens, merges = byte_vocab(s["vocab"])
    t = "tokenizer.ggml."
    w.key(t + "model", "str", "gpt2")
    w.key(t + "pre", "str", "smollm")
    w.key(t + "tokens", "[str]", tokens)
    w.key(t + "token_type", "[i32]", [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    w.key(t + "merges", "[str]", merges)
    for name, id in (("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 2)):
        w.key(f"{t}{name}_token_id", "u32", id)
    w.key(t + "add_bos_token", "bool", False)
    w.key("tokenizer.chat_template", "str", _CHAT)


SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_vocab(n: int) -> tuple[list[str], list[str]]:
    """n tokens of a byte-level BPE and its merges: specials, the 256 bytes, then pieces shaped like words, each made
    of two earlier ones, common letters first."""
    if n < len(SPECIALS) + 256:
        raise ValueError(f"a byte-level vocabulary needs at least {len(SPECIALS) + 256} tokens, not {n}")
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in shown}
    letters.update((b, chr(256 + i)) for i, b in enumerate(b for b in range(256) if b not in letters))
    space = letters[32]
    tokens = [*SPECIALS, *(letters[b] for b in range(256))]
    merges = []
    known = set(tokens)
    rng = random.Random(1)
    vowels, consonants = "eaoiu", "tnsrhldcmfpgwybvk"
    pool = [space, *vowels, *consonants]
    while len(tokens) < n:
        # the square favours short, early pieces, as real vocabularies do
        a = pool[int(len(pool) * rng.random() ** 2)]
        b = pool[int(len(pool) * rng.random() ** 2)]
        if b[0] == space or len(a + b) > 12 or (a[-1] in vowels) == (b[0] in vowels) or a + b in known:
            continue
        known.add(a + b)
        tokens.append(a + b)
        merges.append(f"{a} {b}")
        pool.append(a + b)
    return tokens, merges
