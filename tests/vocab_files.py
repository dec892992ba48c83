# SPDX-License-Identifier: Apache-2.0
"""Vocabularies for tests: kept ones, small ones written on the spot, and outside tokenizers made from either."""

from __future__ import annotations

import functools
import lzma
import tempfile
from pathlib import Path

import gguf

import rooflm

DATA = Path(__file__).resolve().parent / "data" / "vocab"
KEPT = ("gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3")
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"

_folder = tempfile.TemporaryDirectory(prefix="rooflm-vocab-")


@functools.cache
def kept(name: str) -> Path:
    path = Path(_folder.name) / f"{name}.gguf"
    path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
    return path


@functools.cache
def tokenizer(path) -> rooflm.Tokenizer:
    return rooflm.Tokenizer.from_gguf(path)


def cases(name: str):
    """(text, expected ids) of a kept vocabulary."""
    texts = (DATA / "cases.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (DATA / f"{name}.out").read_text().split("\n")
    assert len(texts) == len(lines)
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines)]


def byte_alphabet() -> list[str]:
    """The character of each byte in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write(
    path,
    *,
    model="gpt2",
    pre="gpt-2",
    tokens=None,
    types=None,
    merges=None,
    scores=None,
    arch="llama",
    **meta,
):
    """A vocabulary-only file; keys of `meta` go below tokenizer.ggml., None leaves a default out."""
    w = gguf.GGUFWriter(str(path), arch)
    if model is not None:
        w.add_string("tokenizer.ggml.model", model)
    if pre is not None:
        w.add_string("tokenizer.ggml.pre", pre)
    if tokens is not None:
        w.add_array("tokenizer.ggml.tokens", tokens)
    if types is not None:
        w.add_array("tokenizer.ggml.token_type", types)
    if merges is not None:
        w.add_array("tokenizer.ggml.merges", merges)
    if scores is not None:
        w.add_array("tokenizer.ggml.scores", scores)
    for key, value in meta.items():
        key = f"tokenizer.ggml.{key}"
        if value is None:
            continue
        if isinstance(value, bool):
            w.add_bool(key, value)
        elif isinstance(value, int):
            w.add_uint32(key, value)
        elif isinstance(value, str):
            w.add_string(key, value)
        else:
            w.add_array(key, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    return path


def small_bpe(path, extra=("<|bos|>", "<|end|>", "<user>"), **change):
    """All bytes, a few merges, two control tokens and one user-defined token (ids 262, 263, 264)."""
    alphabet = byte_alphabet()
    pairs = ["h e", "l l", "he ll", "hell o", "\u0120 hello", "\u0120 \u0120"]
    tokens = [*alphabet, *(p.replace(" ", "") for p in pairs), *extra]
    types = [NORMAL] * (256 + len(pairs)) + [CONTROL, CONTROL, USER][: len(extra)]
    known = {"tokens": tokens, "types": types, "merges": pairs, "bos_token_id": 262, "eos_token_id": 263}
    return write(path, **{**known, **change})


def small_spm(path, **change):
    """Byte tokens, a few pieces, two control tokens and one user-defined token (id 259 + pieces)."""
    pieces = [SPACE, "h", "e", "l", "o", "he", "ll", "hell", "hello", SPACE + "hello", SPACE * 2, "\n"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, "<user>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), USER]
    scores = [0.0] * 259 + [-float(len(pieces) - i) for i in range(len(pieces))] + [0.0]
    known = {"model": "llama", "pre": "default", "tokens": tokens, "types": types, "scores": scores}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return write(path, **{**known, **ids, **change})


# ---- the outside tokenizers --------------------------------------------------------------------------------------


def outside_bpe(path, *, stages, ignore_merges=False):
    """`tokenizers` from a file's vocabulary and merges; `stages` are pre-tokenizers before the byte alphabet."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    meta = rooflm.GGUF(path).metadata
    vocab = {t: i for i, t in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    outside = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    outside.pre_tokenizer = pre_tokenizers.Sequence([*stages, last])
    return outside


def outside_spm(path):
    """`tokenizers` from a file's pieces and scores, the merges made as converters of SentencePiece files make them."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    meta = rooflm.GGUF(path).metadata
    tokens = list(meta["tokenizer.ggml.tokens"])
    scores = list(meta["tokenizer.ggml.scores"])
    types = list(meta["tokenizer.ggml.token_type"])
    vocab = {t: i for i, t in enumerate(tokens)}
    mergeable = {t: i for t, i in vocab.items() if types[i] == NORMAL}
    merges = []
    for text, i in mergeable.items():
        parts = [(text[:k], text[k:]) for k in range(1, len(text))]
        parts = [(a, b) for a, b in parts if a in mergeable and b in mergeable]
        merges += [(-scores[i], a, b) for a, b in sorted(parts, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges.sort(key=lambda m: m[0])
    unknown = tokens[meta["tokenizer.ggml.unknown_token_id"]]
    model = models.BPE(
        vocab=vocab, merges=[m[1:] for m in merges], byte_fallback=True, fuse_unk=True, unk_token=unknown
    )
    outside = Tokenizer(model)
    prefix = [normalizers.Prepend(SPACE)] if meta.get("tokenizer.ggml.add_space_prefix", True) else []
    outside.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
    outside.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == USER and t != "</s>"]
    )
    return outside
