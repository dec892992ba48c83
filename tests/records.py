# SPDX-License-Identifier: Apache-2.0
"""Made-up records of benchmarks, complete as bench() writes them. Not a test by itself."""

from __future__ import annotations

import copy
from typing import Any

RECORD: dict[str, Any] = {
    "schema": 1,
    "kind": "bench",
    "block": "one",
    "finished": "2026-01-02T03:04:05Z",
    "prefill_tps": 100.0,
    "decode_tps": 20.0,
    "ttft_ms": 640.0,
    "bytes_per_token": 1.0e9,
    "weight_bytes_per_token": 0.8e9,
    "kv_bytes_per_token": 0.2e9,
    "read_gbs": 25.0,
    "ceiling_tps": 25.0,
    "ceiling_share": 0.8,
    "isa": "avx2",
    "kernels": {"decode": {"attn_q": ["rows_q4"]}, "prefill": {"attn_q": ["tile_q4"]}},
    "fallbacks": [],
    "sensors": {
        "throttled": False,
        "clock_ghz": {"start": 3.0, "end": 3.0},
        "others_busy": 0.01,
        "steal": 0.0,
        "temperature_c": {"start": 50.0, "end": 55.0, "max": 56.0},
        "freq_mhz": {"min": 3000.0, "median": 3000.0},
    },
    "token_times_s": [0.64, 0.69, 0.74, 0.79],
    "manifest": {
        "schema": 1,
        "model": {
            "file": "m.gguf",
            "name": "M",
            "arch": "llama",
            "sha256": "aa",
            "bits_per_weight": 4.5,
            "n_params": 1_000_000,
            "tensor_bytes": 562_500,
            "file_bytes": 600_000,
            "types": {"Q4_K": 0.9, "F32": 0.1},
        },
        "engine": {"n_ctx": 100, "n_batch": 512, "mapped": True, "load": "auto"},
        "placement": {"cpus": None, "ran_on": [0, 1]},
        "machine": {"cpu": "X", "board": None, "os": "Debian", "kernel": "6.1", "libc": "glibc 2.36", "governor": "p"},
        "build": {"rooflm": "0.1.0", "compiler": "gcc 12", "flags": "-O3", "asserts": False},
    },
}
SETTING = {"model": "m.gguf", "prompt": 64, "gen": 4, "depth": 0, "kv": "f16", "compute": "auto", "threads": 2}


def record(**changes: Any) -> dict[str, Any]:
    """A record; keys of the setting go there as well, dotted keys (as manifest__model__sha256) into nested dicts."""
    r = copy.deepcopy(RECORD)
    r["repeat"] = changes.pop("repeat", 0)
    setting = {k: changes.pop(k, v) for k, v in SETTING.items()}
    for key, value in changes.items():
        *path, last = key.split("__")
        at = r
        for part in path:
            at = at[part]
        at[last] = value
    r.update(setting=setting, asked={**setting, "seed": 0}, **setting)
    return r


def runs(n: int = 4, values=None, **changes: Any) -> list[dict[str, Any]]:
    """n repetitions whose decode speeds are `values`, or wobble by a percent around 20."""
    values = values or [20.0 * (1 + 0.01 * ((i * 7) % 3 - 1)) for i in range(n)]
    return [record(repeat=i, decode_tps=v, **changes) for i, v in enumerate(values)]
