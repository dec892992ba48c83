# SPDX-License-Identifier: Apache-2.0
"""Whether a file is what its name and its metadata say: real bits per weight and types beside the claim."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Optional, Union

import numpy as np

from rooflm import _core
from rooflm._output import show, table
from rooflm.inspecting import type_histogram
from rooflm.quantization.recipes import FLOATS

# Bits per weight that a name stands for: of a type its blocks, of a mix what it gives a 7B model, where the embedding
# hardly counts. Mixes as llama.cpp names them.
CLAIMED_BITS = {
    "F32": 32.0,
    "F16": 16.0,
    "BF16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.56,
    "Q5_K_M": 5.69,
    "Q5_K_S": 5.54,
    "Q5_K": 5.5,
    "Q5_1": 6.0,
    "Q5_0": 5.5,
    "Q4_K_M": 4.85,
    "Q4_K_S": 4.58,
    "Q4_K": 4.5,
    "Q4_1": 5.0,
    "Q4_0": 4.5,
    "IQ4_NL": 4.5,
    "IQ4_XS": 4.25,
    "Q3_K_L": 4.27,
    "Q3_K_M": 3.91,
    "Q3_K_S": 3.5,
    "Q3_K": 3.44,
    "Q2_K_S": 2.9,
    "Q2_K": 3.0,
}
# general.file_type of the files in the wild.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    21: "Q2_K_S",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
}
TOLERANCE = 0.25  # share by which real bits per weight may be off before it is said

_NAMES = "|".join(sorted(CLAIMED_BITS, key=len, reverse=True))
_TYPE_IN_NAME = re.compile(rf"(?<![A-Za-z0-9])({_NAMES}|FP16|FP32)(?![A-Za-z0-9])", re.IGNORECASE)
_BITS_IN_NAME = re.compile(
    r"(?<![0-9])([2-8])[-_ ]?bits?(?![A-Za-z])|(?<![A-Za-z])(?:int|w)([48])(?![0-9])", re.IGNORECASE
)


def claim_in(text: str) -> Optional[tuple[str, float]]:
    """The claim that a name makes, as ("Q4_K_M", bits per weight) or ("4-bit", 4.5), or None."""
    found = _TYPE_IN_NAME.search(text)
    if found:
        name = found.group(1).upper().replace("FP", "F")
        return name, CLAIMED_BITS[name]
    bits = _BITS_IN_NAME.search(text)
    if bits:
        n = int(bits.group(1) or bits.group(2))
        return f"{n}-bit", n + 0.5  # a scale for 32 values adds half a bit
    return None


def _claims(g: _core.GGUF) -> list[dict[str, Any]]:
    claims = []
    named = {"file name": os.path.basename(os.fspath(g.path)), "general.name": g.metadata.get("general.name")}
    for source, text in named.items():
        claim = claim_in(text) if isinstance(text, str) else None
        if claim:
            claims.append({"source": source, "text": text, "claim": claim[0], "bits_per_weight": claim[1]})
    file_type = g.metadata.get("general.file_type")
    if file_type is not None and int(file_type) in FILE_TYPES:
        name = FILE_TYPES[int(file_type)]
        claims.append(
            {
                "source": "general.file_type",
                "text": str(file_type),
                "claim": name,
                "bits_per_weight": CLAIMED_BITS[name],
            }
        )
    return claims


def _bits(tensors: Mapping[str, Any]) -> Optional[float]:
    """Bits per weight of the matrices; norms and biases are no weights that one quantizes."""
    rows = type_histogram({k: t for k, t in tensors.items() if len(t.shape) > 1})
    elements = sum(r["elements"] for r in rows)
    return 8.0 * sum(r["nbytes"] for r in rows) / elements if elements else None


class ClaimCheck(dict[str, Any]):
    """The record of check_claims(); prints as a table with its warnings."""

    def __repr__(self) -> str:
        head = (
            f"{self['path']}: {show(self['bits_per_weight'])} bits per weight, of the layers alone "
            f"{show(self['bits_per_weight_layers'])}; mostly {self['dominant_type']} ({show(self['dominant_share'])} "
            "of the weights)"
        )
        claims = [f"claims {c['claim']} by {c['source']} ({c['text']})" for c in self["claims"]] or ["claims nothing"]
        lines = [head, *claims, table(self["types"], ("type", "tensors", "elements", "nbytes", "share"))]
        lines += [f"warning: {w}" for w in self["warnings"]]
        if self["recommendation"]:
            lines.append(f"recommended: {self['recommendation']['text']}")
        return "\n".join(lines)


def check_claims(file: Union[str, os.PathLike[str], _core.GGUF]) -> ClaimCheck:
    """What a GGUF file says it is, by its name, general.name and general.file_type, beside what it holds.

    bits_per_weight counts all matrices, bits_per_weight_layers those of the layers alone (in a small model the
    embedding can be most of the file). A claim that is off by more than TOLERANCE gives a warning; `agrees` is
    None where nothing is claimed. `recommendation` has its evidence: bits, and the error of both types measured on a
    tensor of this very file where it is of floats, else on values of a normal distribution.
    """
    g = file if isinstance(file, _core.GGUF) else _core.GGUF(file)
    types = type_histogram(g.tensors)
    matrices = {k: t for k, t in g.tensors.items() if len(t.shape) > 1}
    bits, layers = _bits(g.tensors), _bits({k: t for k, t in matrices.items() if k.startswith("blk.")})
    by_weights = sorted(type_histogram(matrices), key=lambda r: -int(r["elements"]))
    total = sum(r["elements"] for r in by_weights)
    dominant = by_weights[0] if by_weights else None
    claims = _claims(g)
    warnings = []
    for c in claims:
        if bits is None or abs(bits / c["bits_per_weight"] - 1) <= TOLERANCE:
            c["agrees"] = True
            continue
        c["agrees"] = False
        largest = ", ".join(f"{r['elements'] / total:.0%} {r['type']}" for r in by_weights[:3])
        where = ""
        if layers is not None and abs(layers / c["bits_per_weight"] - 1) <= TOLERANCE:
            where = f"; the layers alone have {layers:.2f}, so it is the embedding or output matrix that differs"
        warnings.append(
            f"{c['source']} ({c['text']}) claims {c['claim']}, about {c['bits_per_weight']:g} bits per weight, "
            f"and the file has {bits:.2f} ({largest}){where}"
        )
    return ClaimCheck(
        schema=1,
        path=os.fspath(g.path),
        claims=claims,
        agrees=all(c["agrees"] for c in claims) if claims else None,
        bits_per_weight=bits,
        bits_per_weight_layers=layers,
        dominant_type=dominant["type"] if dominant else None,
        dominant_share=dominant["elements"] / total if dominant else None,
        types=types,
        warnings=warnings,
        recommendation=_recommendation(g, matrices, dominant, total),
    )


# What is better than a type at about its bits; where rows are no multiple of 256, the K types cannot be had, and a
# recipe falls back to types of more bits than the one that is there.
BETTER = {"Q4_0": "Q4_K", "Q4_1": "Q4_K", "Q5_0": "Q5_K", "Q5_1": "Q5_K", "F32": "Q8_0", "F16": "Q8_0", "BF16": "Q8_0"}


def _recommendation(
    g: _core.GGUF, matrices: Mapping[str, Any], dominant: Optional[Mapping[str, Any]], total: int
) -> Optional[dict[str, Any]]:
    if dominant is None or dominant["type"] not in BETTER:
        return None
    now, then = str(dominant["type"]), BETTER[str(dominant["type"])]
    of_type = {k: t for k, t in matrices.items() if t.type == now and k != "token_embd.weight"}
    fitting = {k: t for k, t in of_type.items() if t.shape[-1] % _core._type_info(then)[1] == 0}
    if not fitting or sum(t.nbytes for t in fitting.values()) < 0.9 * sum(t.nbytes for t in of_type.values()):
        return None
    name, tensor = max(fitting.items(), key=lambda item: int(item[1].nbytes))
    floats = now in FLOATS
    if floats:
        rows = min(tensor.shape[-2], 256)
        sample = tensor.dequantize(slice(0, rows)).reshape(-1, tensor.shape[-1])[:rows]
    else:
        sample = np.random.default_rng(0).standard_normal((256, tensor.shape[-1]), dtype=np.float32)
    errors = {t: quantization_error(np.ascontiguousarray(sample), t) for t in (now, then)}
    bits = {t: type_bits(t) for t in (now, then)}
    evidence = {
        "measured_on": f"{len(sample)} rows of {name}" if floats else "256 rows of a normal distribution",
        "relative_error": errors,
        "bits_per_weight": bits,
        "share_of_weights": dominant["elements"] / total,
    }
    if floats:
        text = (
            f"{then} instead of {now}: {bits[now] / bits[then]:.2f} times fewer bytes per weight, so that much faster "
            f"decode at the memory roof, for a relative error of {errors[then]:.2%} in {evidence['measured_on']}"
        )
    elif errors[then] < errors[now] or bits[then] < bits[now]:
        text = (
            f"{then} (recipe {then}_M) instead of {now}: {bits[then]:g} bits per weight for {bits[now]:g}, relative "
            f"error {errors[then]:.2%} for {errors[now]:.2%} on {evidence['measured_on']}; requantize from the "
            "original floats, not from this file"
        )
    else:
        return None
    return {"from": now, "to": then, "text": text, "evidence": evidence}


def type_bits(type: str) -> float:
    """Bits per weight of a type's blocks."""
    _, values, nbytes = _core._type_info(type)
    return 8.0 * nbytes / values


def quantization_error(x: np.ndarray, type: str) -> float:
    """Root of the sum of squared errors over the sum of squares, of float32 rows quantized to a type."""
    errors = np.zeros((len(x), 2))
    _core.quantize_rows(x, type, errors=errors)
    error, size = errors.sum(axis=0)
    return float(np.sqrt(error / size)) if size > 0 else 0.0
