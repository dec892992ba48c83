# SPDX-License-Identifier: Apache-2.0
"""Swaps that were measured before: what an earlier record of rooflm.sensitivity must agree in to be gone on with."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from rooflm import _core
from rooflm.measuring.manifest import model_hash
from rooflm.quantization.settings import Windows

Earlier = Any  # a Sensitivity, its record, or the path of one

# Facts of a record that decide what a swap costs, and what they are called.
DECISIVE = {
    "reference_sha256": "the reference file",
    "model_sha256": "the file whose tensors are put in",
    "ctx": "ctx",
    "windows": "windows",
    "text_sha256": "the text",
    "compute": "compute",
    "kv": "kv",
    "imatrix_sha256": "imatrix",
}


def hash_importance(importance: Optional[Mapping[str, np.ndarray]]) -> Optional[str]:
    if not importance:
        return None
    digest = hashlib.sha256()
    for name in sorted(importance):
        values = np.ascontiguousarray(importance[name], np.float32)
        digest.update(f"{name} {values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def hashes(
    reference: _core.GGUF, model: Optional[_core.GGUF], cut: Windows, importance: Optional[Mapping[str, np.ndarray]]
) -> dict[str, Optional[str]]:
    """SHA-256 of what a record only names. model: the file whose own tensors are put in, if they are. text_sha256 is
    that of the ids of all windows."""
    return {
        "reference_sha256": model_hash(reference)[0],
        "model_sha256": None if model is None else model_hash(model)[0],
        "text_sha256": hashlib.sha256(cut.ids.astype(np.int32).tobytes()).hexdigest(),
        "imatrix_sha256": hash_importance(importance),
    }


def read_record(earlier: Earlier) -> Mapping[str, Any]:
    """The record of a Sensitivity, of a file of JSON, or as it is."""
    if isinstance(earlier, (str, os.PathLike)):
        try:
            record = json.loads(Path(earlier).read_text(encoding="utf-8"))
        except ValueError as e:
            raise ValueError(f"{os.fspath(earlier)} is no record of a sensitivity: not JSON: {e}") from None
        return check_record(record, os.fspath(earlier))
    return check_record(earlier.to_dict() if hasattr(earlier, "to_dict") else earlier, "resume")


def check_record(record: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping) or not is_record(record):
        raise ValueError(f"{name} is no record of a sensitivity: it must be an object with kinds and tensors")
    missing = [k for k in DECISIVE if k not in record]
    if missing:
        raise ValueError(f"{name} cannot be gone on with: it does not say {missing[0]}")
    return record


def is_record(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(k), list) for k in ("kinds", "tensors"))


def rows_of(swaps: Any) -> Optional[Sequence[Mapping[str, Any]]]:
    """The rows of a Sensitivity, of its record, or given as they are; None for what holds no swaps."""
    if is_record(swaps):
        return [*swaps["kinds"], *swaps["tensors"]]
    rows = getattr(swaps, "rows", swaps)
    if isinstance(rows, Mapping):
        rows = rows.get("rows")
        return rows if isinstance(rows, list) else None
    return list(rows)


def check_same(record: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """ValueError that names the first decisive fact in which an earlier record differs."""
    for key, name in DECISIVE.items():
        if record[key] == now[key]:
            continue
        how = "is another one" if key.endswith("sha256") else f"was {record[key]!r} and is now {now[key]!r}"
        if record[key] is None or now[key] is None:
            how = "was given and is not now" if now[key] is None else "was not given and is now"
        raise ValueError(
            f"resume: {name} {how}. Swaps of different measurements do not go into one table; leave resume out to "
            "begin anew"
        )
