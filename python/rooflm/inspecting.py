# SPDX-License-Identifier: Apache-2.0
"""What is in a model file: counts, types, bits per weight, and whether it can run and if not, why."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional, Union

from rooflm import _core


def type_histogram(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per tensor type: tensors, elements, bytes, share of the bytes; largest first."""
    rows: dict[str, dict[str, Any]] = {}
    for t in tensors.values():
        row = rows.setdefault(str(t.type), {"type": str(t.type), "tensors": 0, "elements": 0, "nbytes": 0})
        row["tensors"] += 1
        row["elements"] += _elements(t)
        row["nbytes"] += t.nbytes
    total = sum(r["nbytes"] for r in rows.values())
    for r in rows.values():
        r["share"] = r["nbytes"] / total if total else None
    return sorted(rows.values(), key=lambda r: -int(r["nbytes"]))


def _elements(tensor: Any) -> int:
    n = 1
    for d in tensor.shape:
        n *= int(d)
    return n


def describe_file(path: Union[str, os.PathLike[str]], *, metadata: bool = True) -> dict[str, Any]:
    """Record of a GGUF file. `can_run` says whether Model(path) works, `why_not` its error if not."""
    g = _core.GGUF(path)
    meta, tensors = g.metadata, g.tensors
    arch = meta.get("general.architecture")
    types = type_histogram(tensors)
    elements = sum(r["elements"] for r in types)
    nbytes = sum(r["nbytes"] for r in types)
    tokens = meta.get("tokenizer.ggml.tokens")
    from rooflm.quantization.claims import check_claims

    hparams, why_not = _try_model(g, len(tensors))
    record: dict[str, Any] = {
        "schema": 1,
        "path": os.fspath(path),
        "file_bytes": g.nbytes,
        "version": g.version,
        "name": meta.get("general.name"),
        "arch": arch,
        "n_params": elements,
        "tensor_bytes": nbytes,
        "bits_per_weight": 8.0 * nbytes / elements if elements else None,
        "n_tensors": len(tensors),
        "n_ctx_train": meta.get(f"{arch}.context_length"),
        "vocabulary": len(tokens) if tokens is not None else None,
        "tokenizer": meta.get("tokenizer.ggml.model"),
        "pre_tokenizer": meta.get("tokenizer.ggml.pre"),
        "chat_template": "tokenizer.chat_template" in meta,
        "types": types,
        "claims": check_claims(g),
        "can_run": why_not is None,
        "why_not": why_not,
        "hparams": hparams,
    }
    if metadata:
        record["metadata"] = {k: _short(v) for k, v in meta.items()}
    return record


def _try_model(g: Any, n_tensors: int) -> tuple[Optional[dict[str, Any]], Optional[str]]:
    if not n_tensors:
        return None, "the file has a vocabulary and no weights"
    from rooflm.model import Model

    try:
        return dict(Model(g).hparams), None
    except (_core.Error, ValueError) as e:
        return None, str(e)


def _short(value: Any) -> Any:
    """Long arrays (vocabularies) as their length and first elements."""
    if hasattr(value, "__len__") and not isinstance(value, (str, bytes)) and len(value) > 16:
        return {"count": len(value), "first": [v for v in value[:8]]}
    return value
