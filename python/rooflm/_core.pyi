# SPDX-License-Identifier: Apache-2.0
# The typed truth of the extension: a test compares it with the module, name by name and signature by signature.
from __future__ import annotations

from typing import Any, Optional

class Error(Exception): ...

class FormatError(Error, ValueError):
    key: Optional[str]
    tensor: Optional[str]
    offset: Optional[int]

class ContextFull(Error, RuntimeError):
    n_ctx: Optional[int]
    needed: Optional[int]

class SessionBusy(Error, RuntimeError): ...
class KernelUnavailable(Error, ValueError): ...
class FallbackWarning(UserWarning): ...

def _kernel_table(isa: Optional[str] = None, kernels: Optional[str] = None, /) -> list[tuple[Any, ...]]: ...
def _linear(
    x: Any,
    raw: Any,
    type: str,
    rows: int,
    out: Any,
    compute: str,
    kernel: Optional[str],
    threads: int,
    isa: Optional[str] = None,
    kernels: Optional[str] = None,
    /,
) -> str: ...
def _rows(
    kernel: str,
    w: Any,
    row_bytes: int,
    n_rows: int,
    x: Any,
    out: Any,
    repeats: int = 1,
    isa: Optional[str] = None,
    /,
) -> float: ...
def _act(x: Any, formats: int, isa: Optional[str] = None, /) -> dict[str, Optional[bytes]]: ...
