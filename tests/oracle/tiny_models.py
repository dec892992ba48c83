# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of every supported architecture: `transformers` defines the logits, `gguf` writes the file.

Nothing here uses the product. Each case states a configuration of `transformers`, the metadata a GGUF of that
architecture carries, and how its tensors are laid out there (which rows of Q and K are permuted, which norms
include their +1). Weights are seeded and drawn from few levels, so that the files compress; norms and biases are
random too, because zeros and ones hide mistakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable

import gguf
import numpy as np
import torch
import transformers

VOCAB = 272
PROMPT = 72
WINDOW = 20  # smaller than the prompt
ORIG_CTX = 32  # scaling limit, smaller than the prompt


@dataclass
class Case:
    """One tiny model: how `transformers` builds it and how its GGUF differs from the common form."""

    name: str
    arch: str
    model: str  # prefix of the transformers classes
    config: dict[str, Any]
    keys: dict[str, Any] = field(default_factory=dict)  # metadata beyond the common ones, without the prefix
    permute: bool = False  # Q and K rows in neighbouring pairs
    norm_plus_one: bool = False
    freq_base: bool = True
    layernorm: bool = False  # layer_norm_epsilon instead of layer_norm_rms_epsilon
    extra: Callable[[transformers.PretrainedConfig, torch.nn.Module], dict[str, np.ndarray]] | None = None
    levels: float = 4.0
    n_ctx: int = 128
    tolerance: float = 1e-4  # of llama.cpp against transformers, relative to the largest logit
    scale: dict[str, float] = field(default_factory=dict)  # by part of the name: factor on the weight's spread


def _dense(**kw: Any) -> dict[str, Any]:
    base = dict(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    base.update(kw)
    return base


def _theta(theta: float = 10000.0, **kw: Any) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_type": "default", **kw}


def _llama3_factors(cfg: transformers.PretrainedConfig, model: torch.nn.Module) -> dict[str, np.ndarray]:
    """What divides each frequency, taken from the frequencies that transformers itself uses."""
    rotary = model.model.rotary_emb
    dim = cfg.head_dim or cfg.hidden_size // cfg.num_attention_heads
    plain = 1.0 / (cfg.rope_parameters["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float64) / dim))
    return {"rope_freqs.weight": (plain / rotary.inv_freq.double().numpy()).astype(np.float32)}


def _phi3_factors(cfg: transformers.PretrainedConfig, model: torch.nn.Module) -> dict[str, np.ndarray]:
    p = cfg.rope_parameters
    return {
        "rope_factors_long.weight": np.array(p["long_factor"], np.float32),
        "rope_factors_short.weight": np.array(p["short_factor"], np.float32),
    }


def _stacked_qk_norms(cfg: transformers.PretrainedConfig, model: torch.nn.Module) -> dict[str, np.ndarray]:
    """StableLM norms each head with weights of its own: one matrix per layer in the file."""
    out = {}
    for i, layer in enumerate(model.model.layers):
        for part in "qk":
            norms = getattr(layer.self_attn, f"{part}_layernorm").norms
            out[f"blk.{i}.attn_{part}_norm.weight"] = np.stack([n.weight.detach().numpy() for n in norms])
    return out


def _phi3(name: str, orig: int) -> Case:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.1, 1.25, 1.5],
        "long_factor": [1.0, 1.7, 2.9, 4.6],
        "original_max_position_embeddings": orig,
        "factor": 512 / orig,
    }
    cfg = _dense(
        rope_parameters=rope,
        max_position_embeddings=512,
        original_max_position_embeddings=orig,
        sliding_window=None,
        pad_token_id=0,
    )
    attn = math.sqrt(1 + math.log(512 / orig) / math.log(orig))
    keys = {
        "rope.dimension_count": 8,
        "rope.scaling.original_context_length": orig,
        "rope.scaling.attn_factor": attn,
        "attention.sliding_window": 0,
    }
    return Case(name, "phi3", "Phi3", cfg, keys, extra=_phi3_factors)


def _cases() -> list[Case]:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": ORIG_CTX}
    yarn_keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": ORIG_CTX,
    }
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIG_CTX,
    }
    ministral = {
        **yarn,
        "rope_theta": 1000000.0,
        "beta_fast": 0.5,
        "beta_slow": 0.05,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    gemma = dict(hidden_activation="gelu_pytorch_tanh", head_dim=32, query_pre_attn_scalar=32, sliding_window=WINDOW)
    gemma_keys = {"attention.sliding_window": WINDOW, "attention.key_length": 32, "attention.value_length": 32}
    deep = dict(
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        tie_word_embeddings=True,
    )
    moe = dict(num_hidden_layers=2, intermediate_size=64)
    moe_keys = {"expert_count": 6, "expert_used_count": 2}
    return [
        Case("llama", "llama", "Llama", _dense(rope_parameters=_theta()), permute=True),
        Case(
            "llama-tied-bias",
            "llama",
            "Llama",
            _dense(rope_parameters=_theta(100000.0), tie_word_embeddings=True, attention_bias=True),
            permute=True,
        ),
        Case(
            "llama-rope-freqs",
            "llama",
            "Llama",
            _dense(rope_parameters=llama3, tie_word_embeddings=True),
            permute=True,
            extra=_llama3_factors,
        ),
        Case(
            "llama-linear",
            "llama",
            "Llama",
            _dense(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            permute=True,
        ),
        Case("llama-yarn", "llama", "Llama", _dense(rope_parameters=yarn), yarn_keys, permute=True),
        Case(
            "llama-gqa-9-3",
            "llama",
            "Llama",
            _dense(
                hidden_size=288,
                num_attention_heads=9,
                num_key_value_heads=3,
                rope_parameters=_theta(),
                tie_word_embeddings=True,
                num_hidden_layers=1,
            ),
            permute=True,
            levels=2.0,
        ),
        Case(
            "llama-head-128",
            "llama",
            "Llama",
            _dense(
                hidden_size=96,
                num_attention_heads=16,
                num_key_value_heads=2,
                head_dim=128,
                rope_parameters=_theta(),
                tie_word_embeddings=True,
                num_hidden_layers=1,
            ),
            {"attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128},
            permute=True,
            levels=2.0,
        ),
        Case(
            "mistral",
            "llama",
            "Mistral",
            _dense(rope_parameters=_theta(1000000.0), sliding_window=None, head_dim=32),
            {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32},
            permute=True,
        ),
        Case("qwen2", "qwen2", "Qwen2", _dense(rope_parameters=_theta(1000000.0), tie_word_embeddings=True)),
        Case(
            "qwen3",
            "qwen3",
            "Qwen3",
            _dense(rope_parameters=_theta(1000000.0), head_dim=32, tie_word_embeddings=True),
            {"attention.key_length": 32, "attention.value_length": 32},
        ),
        Case(
            "gemma2",
            "gemma2",
            "Gemma2",
            _dense(
                **gemma,
                num_hidden_layers=4,
                intermediate_size=64,
                rope_parameters=_theta(),
                attn_logit_softcapping=5.0,
                final_logit_softcapping=6.0,
                tie_word_embeddings=True,
            ),
            {**gemma_keys, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0},
            norm_plus_one=True,
            freq_base=False,
            tolerance=1e-3,
            scale={"q_proj": 3.0},
        ),
        Case(
            "gemma3",
            "gemma3",
            "Gemma3",
            _dense(
                **gemma,
                num_hidden_layers=7,
                intermediate_size=64,
                num_key_value_heads=1,
                rope_parameters={
                    "full_attention": _theta(1000000.0),
                    "sliding_attention": _theta(10000.0),
                },
                tie_word_embeddings=True,
            ),
            gemma_keys,
            norm_plus_one=True,
            tolerance=1e-3,
        ),
        Case(
            "gemma3-linear",
            "gemma3",
            "Gemma3",
            _dense(
                **gemma,
                num_hidden_layers=6,
                intermediate_size=64,
                num_key_value_heads=1,
                rope_parameters={
                    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                    "sliding_attention": _theta(10000.0),
                },
                tie_word_embeddings=True,
            ),
            {**gemma_keys, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
            norm_plus_one=True,
            tolerance=1e-3,
        ),
        # the largest of each family scale attention by width / heads, which files say by their number of layers
        Case(
            "gemma2-46",
            "gemma2",
            "Gemma2",
            _dense(
                **{**gemma, "query_pre_attn_scalar": 16},
                **deep,
                num_hidden_layers=46,
                rope_parameters=_theta(),
                attn_logit_softcapping=50.0,
                final_logit_softcapping=30.0,
            ),
            {**gemma_keys, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            norm_plus_one=True,
            freq_base=False,
            tolerance=5e-3,
            levels=2.0,
        ),
        Case(
            "gemma3-62",
            "gemma3",
            "Gemma3",
            _dense(
                **{**gemma, "query_pre_attn_scalar": 16},
                **deep,
                num_hidden_layers=62,
                rope_parameters={
                    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                    "sliding_attention": _theta(10000.0),
                },
            ),
            {**gemma_keys, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
            norm_plus_one=True,
            tolerance=5e-3,
            levels=2.0,
        ),
        _phi3("phi3-long", ORIG_CTX),
        _phi3("phi3-short", 256),
        Case(
            "smollm3",
            "smollm3",
            "SmolLM3",
            _dense(rope_parameters=_theta(2000000.0), num_hidden_layers=5, intermediate_size=64, pad_token_id=0),
            permute=True,
        ),
        Case("olmo2", "olmo2", "Olmo2", _dense(rope_parameters=_theta(500000.0))),
        Case(
            "olmo3",
            "olmo2",
            "Olmo3",
            _dense(
                num_hidden_layers=5,
                intermediate_size=64,
                sliding_window=WINDOW,
                rope_parameters={"full_attention": yarn, "sliding_attention": _theta()},
            ),
            {**yarn_keys, "attention.sliding_window": WINDOW},
        ),
        Case(
            "granite",
            "granite",
            "Granite",
            _dense(
                rope_parameters=_theta(),
                embedding_multiplier=3.0,
                attention_multiplier=0.2,
                residual_multiplier=0.4,
                logits_scaling=5.0,
                tie_word_embeddings=True,
            ),
            {"embedding_scale": 3.0, "attention.scale": 0.2, "residual_scale": 0.4, "logit_scale": 5.0},
            permute=True,
        ),
        Case(
            "mistral3",
            "mistral3",
            "Ministral3",
            _dense(rope_parameters=ministral, head_dim=32, sliding_window=None),
            {
                **yarn_keys,
                "rope.scaling.yarn_beta_fast": 0.5,
                "rope.scaling.yarn_beta_slow": 0.05,
                "rope.scaling.yarn_log_multiplier": 1.0,
                "attention.temperature_scale": 0.1,
                "attention.key_length": 32,
                "attention.value_length": 32,
                "rope.dimension_count": 32,
            },
            permute=True,
        ),
        Case(
            "starcoder2",
            "starcoder2",
            "Starcoder2",
            _dense(rope_parameters=_theta(100000.0), tie_word_embeddings=True, sliding_window=None),
            layernorm=True,
            tolerance=1e-3,
        ),
        Case(
            "stablelm",
            "stablelm",
            "StableLm",
            _dense(
                hidden_size=96,
                num_attention_heads=3,
                num_key_value_heads=3,
                rope_parameters=_theta(partial_rotary_factor=0.25),
                use_qkv_bias=True,
            ),
            {"use_parallel_residual": False, "rope.dimension_count": 8},
            layernorm=True,
        ),
        Case(
            "stablelm-parallel",
            "stablelm",
            "StableLm",
            _dense(
                hidden_size=96,
                num_attention_heads=6,
                num_key_value_heads=3,
                rope_parameters=_theta(partial_rotary_factor=0.5),
                qk_layernorm=True,
                use_parallel_residual=True,
            ),
            {"use_parallel_residual": True, "rope.dimension_count": 8},
            layernorm=True,
            extra=_stacked_qk_norms,
        ),
        Case(
            "llama-moe",
            "llama",
            "Mixtral",
            _dense(**moe, rope_parameters=_theta(), num_local_experts=6, num_experts_per_tok=2, sliding_window=None),
            moe_keys,
            permute=True,
        ),
        Case(
            "qwen3moe",
            "qwen3moe",
            "Qwen3Moe",
            _dense(
                **moe,
                rope_parameters=_theta(1000000.0),
                head_dim=32,
                num_experts=6,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                norm_topk_prob=True,
            ),
            {
                **moe_keys,
                "expert_feed_forward_length": 32,
                "attention.key_length": 32,
                "attention.value_length": 32,
            },
        ),
        Case(
            "granitemoe",
            "granitemoe",
            "GraniteMoe",
            _dense(
                **moe,
                rope_parameters=_theta(),
                num_local_experts=6,
                num_experts_per_tok=2,
                embedding_multiplier=3.0,
                attention_multiplier=0.2,
                residual_multiplier=0.4,
                logits_scaling=5.0,
                tie_word_embeddings=True,
            ),
            {
                **moe_keys,
                "embedding_scale": 3.0,
                "attention.scale": 0.2,
                "residual_scale": 0.4,
                "logit_scale": 5.0,
            },
            permute=True,
        ),
        Case(
            "granitemoe-shared",
            "granitemoe",
            "GraniteMoeShared",
            _dense(
                **moe,
                rope_parameters=_theta(),
                num_local_experts=6,
                num_experts_per_tok=2,
                shared_intermediate_size=32,
                attention_multiplier=0.25,
                logits_scaling=2.0,
            ),
            {**moe_keys, "attention.scale": 0.25, "logit_scale": 2.0, "expert_shared_feed_forward_length": 32},
            permute=True,
        ),
        Case(
            "olmoe",
            "olmoe",
            "Olmoe",
            _dense(
                **moe,
                num_key_value_heads=4,
                rope_parameters=_theta(),
                num_experts=6,
                num_experts_per_tok=2,
                norm_topk_prob=False,
            ),
            moe_keys,
        ),
    ]


CASES = {c.name: c for c in _cases()}


def build(case: Case) -> torch.nn.Module:
    """The model of `transformers` in float32, with seeded weights of few levels."""
    config_class = {"Gemma3": "Gemma3TextConfig"}.get(case.model, case.model + "Config")
    cfg = getattr(transformers, config_class)(**case.config)
    cfg._attn_implementation = "eager"
    model = getattr(transformers, case.model + "ForCausalLM")(cfg).float().eval()
    rng = np.random.default_rng(sum(map(ord, case.name)))
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            z = np.round(rng.standard_normal(tuple(p.shape)) * case.levels) / case.levels
            if "norm" in name and name.endswith(".weight"):
                # wide enough that a norm left out, or one applied twice, cannot pass
                value = z * 0.25 + (0.0 if case.norm_plus_one else 1.0)
            elif p.ndim == 1:
                value = z * 0.25
            else:
                spread = 1.0 if "embed_tokens" in name else p.shape[-1] ** -0.5
                for part, factor in case.scale.items():
                    spread *= factor if part in name else 1.0
                value = z * np.float32(spread)
            p.copy_(torch.from_numpy(value.astype(np.float32)))
    return model


def prompt(case: Case) -> np.ndarray:
    return np.random.default_rng(len(case.name)).integers(0, 256, PROMPT).astype(np.int32)


def logits(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
    """float32 logits of every position, all tokens at once."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0].float().numpy()


def _permute(w: np.ndarray, heads: int) -> np.ndarray:
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tensors(case: Case, model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Tensors under their GGUF names, as the file holds them."""
    cfg = model.config
    n_layer = cfg.num_hidden_layers
    arch = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[case.arch]
    names = gguf.get_tensor_name_map(arch, n_layer)
    out: dict[str, np.ndarray] = {}
    for hf_name, p in model.state_dict().items():
        w = p.float().numpy()
        if hf_name == "lm_head.weight" and cfg.tie_word_embeddings:
            continue
        if "_layernorm.norms." in hf_name:
            continue  # stacked by the case itself
        stem, _, suffix = hf_name.rpartition(".")
        if ".experts." in hf_name or "moe.router" in hf_name:
            blk = "blk." + hf_name.split(".")[2]
            if hf_name.endswith("gate_up_proj"):
                half = w.shape[1] // 2
                out[blk + ".ffn_gate_exps.weight"] = w[:, :half]
                out[blk + ".ffn_up_exps.weight"] = w[:, half:]
            elif hf_name.endswith("down_proj"):
                out[blk + ".ffn_down_exps.weight"] = w
            else:
                out[blk + ".ffn_gate_inp.weight"] = w
            continue
        if "shared_mlp" in hf_name:
            blk = "blk." + hf_name.split(".")[2]
            half = w.shape[0] // 2
            if "input_linear" in hf_name:
                out[blk + ".ffn_gate_shexp.weight"] = w[:half]
                out[blk + ".ffn_up_shexp.weight"] = w[half:]
            else:
                out[blk + ".ffn_down_shexp.weight"] = w
            continue
        name = names.get_name(stem)
        if name is None:
            raise KeyError(f"{case.name}: no GGUF name for {hf_name}")
        if case.permute and stem.endswith("q_proj"):
            w = _permute(w, cfg.num_attention_heads)
        if case.permute and stem.endswith("k_proj"):
            w = _permute(w, cfg.num_key_value_heads)
        if case.norm_plus_one and "norm" in stem:
            w = w + np.float32(1.0)
        out[f"{name}.{suffix}"] = w
    if case.extra is not None:
        out.update(case.extra(cfg, model))
    return out


def _byte_alphabet() -> list[str]:
    """The printable stand-ins of the 256 bytes in byte-level BPE vocabularies."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(spare)) for b in range(256)]


def add_vocabulary(w: gguf.GGUFWriter) -> None:
    """The least a byte-level BPE vocabulary needs to load: bytes, a few merges, two control tokens."""
    alphabet = _byte_alphabet()
    space = alphabet[32]
    merges = ["t h", "i n", "e r", "a n", "o n", f"{space} t", f"{space} a", f"{space}t h e"][:7]
    tokens = [*alphabet, *(m.replace(" ", "") for m in merges)]
    tokens += [f"<|unused{i}|>" for i in range(VOCAB - 2 - len(tokens))] + ["<|bos|>", "<|eos|>"]
    types = [1] * (256 + len(merges))
    types += [3] * (VOCAB - len(types))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(VOCAB - 2)
    w.add_eos_token_id(VOCAB - 1)
    w.add_add_bos_token(False)


def write_gguf(case: Case, model: torch.nn.Module, path: str) -> None:
    cfg = model.config
    head_dim = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
    keys: dict[str, Any] = {
        "vocab_size": VOCAB,
        "context_length": cfg.max_position_embeddings,
        "embedding_length": cfg.hidden_size,
        "block_count": cfg.num_hidden_layers,
        "feed_forward_length": cfg.intermediate_size,
        "attention.head_count": cfg.num_attention_heads,
        "attention.head_count_kv": cfg.num_key_value_heads,
    }
    if case.arch in ("llama", "granite", "granitemoe", "mistral3", "smollm3"):
        keys["rope.dimension_count"] = head_dim
    rope = cfg.rope_parameters
    if case.freq_base:
        keys["rope.freq_base"] = float(rope.get("full_attention", rope)["rope_theta"])
    eps = next(getattr(cfg, k) for k in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon") if hasattr(cfg, k))
    keys["attention.layer_norm_epsilon" if case.layernorm else "attention.layer_norm_rms_epsilon"] = float(eps)
    keys.update(case.keys)

    w = gguf.GGUFWriter(path, case.arch)
    w.add_name("tiny random model")  # llama.cpp treats vocabularies of models with some names apart
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in keys.items():
        full = f"{case.arch}.{key}"
        if isinstance(value, bool):
            w.add_bool(full, value)
        elif isinstance(value, int):
            w.add_uint32(full, value)
        elif isinstance(value, float):
            w.add_float32(full, value)
        else:
            w.add_string(full, value)
    add_vocabulary(w)
    for name, value in tensors(case, model).items():
        w.add_tensor(name, np.ascontiguousarray(value, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
