# SPDX-License-Identifier: Apache-2.0
"""Finds an OpenBLAS to compare with. It is never needed, and never a dependency of the build."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Optional

from rooflm import _core

_SYSTEM = "libopenblas.so.0"  # looked up by the loader


def find_openblas(blas: Optional[str]) -> Optional[str]:
    """The library that `blas` asks for: None for none; "openblas" for $ROOFLM_OPENBLAS, PyPI's scipy-openblas32 or the
    system's, in this order; anything else is a path. The system's is the loader's to find."""
    if blas is None:
        return None
    if blas != "openblas":
        if os.sep in blas and not os.path.exists(blas):
            raise _core.Error(f"blas={blas!r}: there is no such file")
        return blas
    given = os.environ.get("ROOFLM_OPENBLAS")
    if given:
        return given
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec and spec.origin:
        for lib in sorted((Path(spec.origin).parent / "lib").glob("libscipy_openblas*.so")):
            return str(lib)
    return _SYSTEM
