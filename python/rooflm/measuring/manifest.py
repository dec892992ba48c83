# SPDX-License-Identifier: Apache-2.0
"""The manifest of a run: every fact that could make two results differ, so that a comparison can say which did.

Five groups: `model` (which bytes), `engine` (what ran: kernels, KV, context, loading), `placement` (threads and cores),
`machine` (hardware, system, limits) and `build` (library, compiler, flags). `defaults` names the arguments that nobody
set.
"""

from __future__ import annotations

import hashlib
import os
import platform
from typing import Any, Mapping, Optional, Union

import numpy as np

from rooflm import _core
from rooflm.device.files import Files
from rooflm.inspecting import type_histogram

SAMPLE_BYTES = 4096
FAST_HASH = "size, metadata, and of each tensor name, type, shape and 3 blocks of 4096 bytes"
FULL_HASH = "the whole file"


def model_hash(gguf: _core.GGUF, *, full: bool = False) -> tuple[str, str]:
    """(SHA-256, what it covers). The fast one reads the metadata and the first, middle and last 4096 bytes of each
    tensor, so that a change of any tensor is very likely seen; full=True reads everything."""
    digest = hashlib.sha256()
    if full:
        for shard in gguf.shards:
            with open(shard, "rb") as f:
                for block in iter(lambda: f.read(1 << 22), b""):
                    digest.update(block)
        return digest.hexdigest(), FULL_HASH
    digest.update(str(gguf.nbytes).encode())
    for key in gguf.metadata:
        digest.update(key.encode("utf-8", "surrogateescape"))
        digest.update(_core._raw_value(gguf, key))
    for name, t in gguf.tensors.items():
        digest.update(f"{name} {t.type} {t.shape}".encode("utf-8", "surrogateescape"))
        raw: Any = t.raw
        for at in (0, max(0, len(raw) // 2 - SAMPLE_BYTES // 2), max(0, len(raw) - SAMPLE_BYTES)):
            digest.update(raw[at : at + SAMPLE_BYTES])
    return digest.hexdigest(), FAST_HASH


def model_manifest(gguf: _core.GGUF, *, full_hash: bool = False) -> dict[str, Any]:
    """Which bytes a model is: hash, size, real bits per weight, types."""
    types = type_histogram(gguf.tensors)
    elements, nbytes = (sum(t[key] for t in types) for key in ("elements", "nbytes"))
    sha256, covers = model_hash(gguf, full=full_hash)
    meta = gguf.metadata
    return {
        "file": os.path.basename(os.fspath(gguf.path)),
        "name": meta.get("general.name"),
        "arch": gguf.architecture,
        "sha256": sha256,
        "sha256_of": covers,
        "file_bytes": gguf.nbytes,
        "tensor_bytes": nbytes,
        "n_params": elements,
        "bits_per_weight": 8.0 * nbytes / elements if elements else None,
        "types": {t["type"]: t["share"] for t in types},
        "file_type": meta.get("general.file_type"),
    }


def machine_manifest(facts: Mapping[str, Any], root: Union[str, os.PathLike[str]] = "/") -> dict[str, Any]:
    """What of rooflm.machine() makes results differ, with governor, firmware and container."""
    keys = (
        "cpu",
        "board",
        "arch",
        "n_cpus",
        "allowed_cpus",
        "classes",
        "caches",
        "memory_bytes",
        "page_bytes",
        "huge_pages",
        "cgroup",
        "os",
        "kernel",
        "libc",
    )
    out = {k: facts.get(k) for k in keys}
    governors = {p["governor"] for p in facts.get("cpufreq") or () if p["governor"]}
    out["governor"] = ", ".join(sorted(governors)) or None
    out["isa_available"] = (facts.get("isa") or {}).get("available")
    firmware = facts.get("firmware") or {}
    out["firmware"], out["firmware_date"] = firmware.get("version"), firmware.get("date")
    out["container"] = container(Files(root))
    return out


def container(files: Files) -> Optional[str]:
    """The kind of container around us, as far as its traces tell."""
    if ".dockerenv" in files.names(""):
        return "docker"
    if ".containerenv" in files.names("run"):
        return "podman"
    return files.text("run/systemd/container") or None


def build_manifest() -> dict[str, Any]:
    import rooflm

    return {
        "rooflm": rooflm.__version__,
        **_core._build(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def engine_manifest(
    figures: Mapping[str, Any], resolved: Mapping[str, Any], setting: Mapping[str, Any]
) -> dict[str, Any]:
    """What ran, from the figures of run_once() and what the session made of the setting."""
    return {
        "isa": figures["isa"],
        "kernels": figures["kernels"],
        "strips": _core._isa()["strips"],
        **{k: resolved[k] for k in ("kv", "compute", "n_ctx", "n_batch", "blas", "mapped")},
        "load": setting.get("load"),
        "evict": setting.get("evict"),
        "kernel_asked": setting.get("kernel"),
        "kv_nbytes": resolved["kv_nbytes"],
        "scratch_nbytes": resolved["scratch_nbytes"],
    }
