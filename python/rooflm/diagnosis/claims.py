# SPDX-License-Identifier: Apache-2.0
"""What a model file says of itself, by its name and by its metadata, beside what is in it."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Optional

from rooflm import _core
from rooflm._synth import FILE_TYPES
from rooflm.inspecting import type_histogram

# The type of most matrices, by the first letters of a claim: "Q4_K_M" is Q4_K in most places.
_CLAIM = re.compile(
    r"(?<![A-Za-z0-9])(I?Q[2-8]_(?:[01]|K|NL|XS|XXS|S|M)(?:_(?:XS|S|M|L))?|BF16|FP?16|FP?32)(?![A-Za-z0-9])", re.I
)
_SMALL_PARTS = ("token_embd", "output.weight")  # often kept in a finer type, as mixtures do


def claimed_type(text: str) -> Optional[str]:
    """The last name of a type in a file name, in GGUF's spelling, or None."""
    found = [m.group(1).upper().replace("FP", "F") for m in _CLAIM.finditer(text)]
    return found[-1] if found else None


def base_type(claim: str) -> Optional[str]:
    """The type of most matrices under a claim: Q4_K of Q4_K_M. None for types this library has no bits of."""
    for name in (claim, claim.rpartition("_")[0]):
        try:
            _core._type_info(name)
        except (ValueError, KeyError, _core.Error):
            continue
        return name
    return None


def bits(type: str) -> float:
    """Bits per weight of a type, headers included."""
    _, block, nbytes = _core._type_info(type)
    return 8.0 * nbytes / block


def file_claim(gguf: _core.GGUF) -> dict[str, Any]:
    """The claims of a file and its content.

    claims: [{"where": "file name" or "general.file_type", "type", "base", "bits"}]; layer_bits: bits per weight of the
    matrices in the layers (embedding and output matrix are left out, since mixtures keep those finer); types: the
    histogram of the whole file.
    """
    names = {n: t for n, t in FILE_TYPES.items() if n != "Q4_K"}
    stated = {number: name for name, number in names.items()}
    claims = []
    for where, claim in (
        ("file name", claimed_type(os.path.basename(os.fspath(gguf.path)))),
        ("general.file_type", stated.get(gguf.metadata.get("general.file_type", -1))),
    ):
        base = base_type(claim) if claim else None
        if claim and base:
            claims.append({"where": where, "type": claim, "base": base, "bits": bits(base)})
    matrices = _layer_matrices(gguf.tensors)
    elements = sum(t.nbytes * 8.0 / t.bits_per_weight for t in matrices.values())
    every = type_histogram(gguf.tensors)
    return {
        "claims": claims,
        "layer_bits": 8.0 * sum(t.nbytes for t in matrices.values()) / elements if elements else None,
        "types": every,
        "bits_per_weight": 8.0 * sum(r["nbytes"] for r in every) / max(1, sum(r["elements"] for r in every)),
    }


def _layer_matrices(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {
        n: t for n, t in tensors.items() if len(t.shape) > 1 and not any(n.startswith(part) for part in _SMALL_PARTS)
    }
