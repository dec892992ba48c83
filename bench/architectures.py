# SPDX-License-Identifier: Apache-2.0
"""Speed of every dense architecture at one shape, beside llama's: the same quantized matrices under each family's
names, with the norms, biases and scales it adds. Needs the `gguf` package, which writes the files.

    python bench/architectures.py --threads 2 --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

import rooflm

WIDTH, LAYERS, HEADS, KV, FFN, VOCAB = 1024, 12, 16, 8, 4096, 32000
HEAD = WIDTH // HEADS
# What a family adds to llama's tensors and keys: names of vectors with their lengths, and metadata.
NORMS2 = {"post_attention_norm.weight": WIDTH, "post_ffw_norm.weight": WIDTH}
QK = {"attn_q_norm.weight": HEAD, "attn_k_norm.weight": HEAD}
FAMILIES: dict[str, dict] = {
    "llama": {},
    "qwen2": {"add": {"attn_q.bias": WIDTH, "attn_k.bias": KV * HEAD, "attn_v.bias": KV * HEAD}},
    "qwen3": {"add": QK},
    "gemma2": {"add": NORMS2, "keys": {"attention.sliding_window": 4096}},
    "gemma3": {"add": {**NORMS2, **QK}, "keys": {"attention.sliding_window": 4096}},
    "phi3": {"fused": True},
    "smollm3": {},
    "olmo2": {
        "add": {**NORMS2, "attn_q_norm.weight": WIDTH, "attn_k_norm.weight": KV * HEAD},
        "drop": ("attn_norm.weight", "ffn_norm.weight"),
    },
    "granite": {"keys": {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0, "attention.scale": 0.1}},
    "mistral3": {},
    "stablelm": {
        "add": {"attn_norm.bias": WIDTH, "ffn_norm.bias": WIDTH},
        "keys": {"attention.layer_norm_epsilon": 1e-5},
    },
}


def write(path: Path, arch: str, base: rooflm.GGUF) -> None:
    """The base file's matrices as a model of `arch`."""
    family = FAMILIES[arch]
    w = gguf.GGUFWriter(str(path), arch)
    for key, value in {
        "block_count": LAYERS, "context_length": 8192, "embedding_length": WIDTH, "feed_forward_length": FFN,
        "attention.head_count": HEADS, "attention.head_count_kv": KV, "rope.dimension_count": HEAD,
    }.items():  # fmt: skip
        w.add_uint32(f"{arch}.{key}", value)
    other = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e5, **family.get("keys", {})}
    for key, value in other.items():
        (w.add_uint32 if isinstance(value, int) else w.add_float32)(f"{arch}.{key}", value)

    def matrix(name: str, raws: list[np.ndarray], kind: str) -> None:
        w.add_tensor(name, np.concatenate(raws), raw_dtype=gguf.GGMLQuantizationType[kind])

    def rows(t: rooflm.Tensor) -> np.ndarray:
        return np.asarray(t.raw).reshape(t.shape[0], -1)

    fused = {"attn_q": ("attn_qkv", ("attn_q", "attn_k", "attn_v")), "ffn_gate": ("ffn_up", ("ffn_gate", "ffn_up"))}
    swallowed = ("attn_k", "attn_v", "ffn_up") if family.get("fused") else ()
    for name, t in base.tensors.items():
        last = name.split(".", 2)[-1]
        if last in family.get("drop", ()) or last.removesuffix(".weight") in swallowed:
            continue
        kind = last.removesuffix(".weight")
        if family.get("fused") and kind in fused:
            new, parts = fused[kind]
            prefix = name[: -len(last)]
            matrix(f"{prefix}{new}.weight", [rows(base.tensors[f"{prefix}{p}.weight"]) for p in parts], t.type)
        elif t.type == "F32":
            w.add_tensor(name, t.dequantize().reshape(-1))
        else:
            matrix(name, [rows(t)], t.type)
    rng = np.random.default_rng(0)
    for i in range(LAYERS):
        for name, n in family.get("add", {}).items():
            w.add_tensor(f"blk.{i}.{name}", (rng.standard_normal(n) * 0.1 + ("norm.w" in name)).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=None)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--gen", type=int, default=32)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        base = Path(d) / "base.gguf"
        shape = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "kv_heads": KV, "ffn": FFN, "vocab": VOCAB}
        rooflm.synth(base, size="custom", type="Q4_K", **shape)
        file = rooflm.GGUF(base)
        sessions = {}
        for arch in FAMILIES:
            write(Path(d) / f"{arch}.gguf", arch, file)
            sessions[arch] = rooflm.Model(Path(d) / f"{arch}.gguf").session(n_ctx=1024, n_threads=a.threads)
        prompt = np.random.default_rng(1).integers(0, VOCAB, 512, dtype=np.int32)
        prefill: dict[str, list[float]] = {arch: [] for arch in FAMILIES}
        decode: dict[str, list[float]] = {arch: [] for arch in FAMILIES}
        for repeat in range(-1, a.repeats):  # -1 warms up
            for arch, s in sessions.items():
                s.rewind(0)
                t0 = time.perf_counter()
                s.eval(prompt)
                t1 = time.perf_counter()
                for i in range(a.gen):
                    s.eval([i])
                if repeat >= 0:
                    prefill[arch].append(512 / (t1 - t0))
                    decode[arch].append(a.gen / (time.perf_counter() - t1))
        print(f"isa {sessions['llama'].isa}, {sessions['llama'].n_threads} threads, medians of {a.repeats} in turns")
        for arch in FAMILIES:
            pre, dec = statistics.median(prefill[arch]), statistics.median(decode[arch])
            of_pre, of_dec = pre / statistics.median(prefill["llama"]), dec / statistics.median(decode["llama"])
            print(f"{arch:9s} prefill {pre:7.1f} tok/s, {of_pre:.3f} of llama; decode {dec:6.1f} tok/s, {of_dec:.3f}")


if __name__ == "__main__":
    main()
