# SPDX-License-Identifier: Apache-2.0
"""Gradient norms of every matrix of a model, for rooflm.mix(by=...).

    python tools/gradient_norms.py MODEL TEXT OUT.json [--windows 8] [--ctx 256]

Needs torch, transformers and accelerate, which read MODEL (a GGUF file of an architecture that they know) and
differentiate the mean cross-entropy of each window of the first half of TEXT. OUT is {tensor: root mean square over
windows of the norm of the tensor's gradient}; a tied embedding has the gradient of both its uses.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import rooflm
from rooflm.quantization.settings import windows_of

PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tensor_of(parameter: str) -> str:
    """The name in a GGUF file of a parameter of transformers; "" for those that no mix changes."""
    name = parameter.removesuffix(".weight")
    if name == "lm_head":
        return "output.weight"
    if name == "model.embed_tokens":
        return "token_embd.weight"
    _, _, rest = name.partition("model.layers.")
    layer, _, part = rest.partition(".")
    return f"blk.{layer}.{PARTS[part]}.weight" if part in PARTS else ""


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model", type=Path)
    p.add_argument("text", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--windows", type=int, default=8)
    p.add_argument("--ctx", type=int, default=256)
    args = p.parse_args()
    text = args.text.read_text(encoding="utf-8")
    windows = windows_of(rooflm.Model(args.model), text[: len(text) // 2], args.ctx, args.windows, "gradient_norms").ids
    model = AutoModelForCausalLM.from_pretrained(args.model.parent, gguf_file=args.model.name, dtype=torch.float32)
    names = {n: tensor_of(n) for n, _ in model.named_parameters()}
    squares: dict[str, float] = {}
    for i, ids in enumerate(windows):
        model.zero_grad()
        batch = torch.from_numpy(ids.astype(np.int64))[None]
        loss = model(batch, labels=batch).loss
        loss.backward()
        print(f"window {i + 1} of {len(windows)}: {loss.item():.3f} nats", flush=True)
        for name, parameter in model.named_parameters():
            if names[name]:
                squares[names[name]] = squares.get(names[name], 0.0) + float((parameter.grad**2).sum())
    norms = {name: (s / len(windows)) ** 0.5 for name, s in squares.items()}
    args.out.write_text(json.dumps(norms, indent=0) + "\n", encoding="utf-8")


main()
