# SPDX-License-Identifier: Apache-2.0
"""Quantized language models under the memory roof."""

from rooflm._core import ContextFull, Error, FallbackWarning, FormatError, KernelUnavailable, SessionBusy

__version__ = "0.1.0"

__all__ = ["ContextFull", "Error", "FallbackWarning", "FormatError", "KernelUnavailable", "SessionBusy"]
