# SPDX-License-Identifier: Apache-2.0
# The typed truth of the extension: a test compares it with the module, name by name and signature by signature.
from __future__ import annotations

from typing import Optional

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
