# SPDX-License-Identifier: Apache-2.0
"""The tiny models under tests/golden/arch: unpacked once, with the logits that `transformers` gave for them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

ARCH = Path(__file__).parent / "golden" / "arch"
NAMES = sorted(p.name[: -len(".gguf.xz")] for p in ARCH.glob("*.gguf.xz"))
# which architecture each of them declares, where the name does not say it
ARCH_OF = {
    "mistral": "llama",
    "llama-moe": "llama",
    "olmo3": "olmo2",
    **{n: n.split("-")[0] for n in NAMES if "-" in n},
}

_dir = tempfile.TemporaryDirectory(prefix="rooflm-golden-")


class Golden(NamedTuple):
    path: Path
    tokens: np.ndarray  # int32, the whole prompt
    positions: np.ndarray  # where logits are kept
    logits: np.ndarray  # float32 (position, vocabulary)
    n_ctx: int


def arch_of(name: str) -> str:
    return ARCH_OF.get(name, name)


@cache
def golden(name: str) -> Golden:
    import lzma  # here, for the Python in which the wheels for musl are tried has none

    path = Path(_dir.name) / f"{name}.gguf"
    path.write_bytes(lzma.decompress((ARCH / f"{name}.gguf.xz").read_bytes()))
    return recorded(name, path)


def recorded(name: str, path: Path) -> Golden:
    """What goes with a model that has been unpacked already."""
    with np.load(ARCH / f"{name}.npz") as z:
        return Golden(path, z["tokens"], z["positions"], z["logits"], int(z["n_ctx"]))
