# SPDX-License-Identifier: Apache-2.0
"""Quantized language models under the memory roof."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.1.0"

# Public name -> module that defines it, imported when first asked for: `import rooflm` stays fast, and the command is
# there to take Ctrl-C before NumPy and the extension are loaded.
_LAZY = {
    "GGUF": "rooflm._core",
    "ContextFull": "rooflm._core",
    "Error": "rooflm._core",
    "FallbackWarning": "rooflm._core",
    "FormatError": "rooflm._core",
    "KernelUnavailable": "rooflm._core",
    "KVCache": "rooflm._core",
    "Sampler": "rooflm._core",
    "SessionBusy": "rooflm._core",
    "Tensor": "rooflm._core",
    "Tokenizer": "rooflm._core",
    "attention": "rooflm._core",
    "quantize_rows": "rooflm._core",
    "formats": "rooflm.quantization.formats",
    "mix": "rooflm.quantization.mixing",
    "IMatrix": "rooflm.quantization.imatrix",
    "imatrix": "rooflm.quantization.imatrix",
    "quantize": "rooflm.quantization.quantize",
    "fetch": "rooflm.fetching",
    "FetchError": "rooflm.fetching",
    "kernels": "rooflm._kernels",
    "linear": "rooflm._kernels",
    "Model": "rooflm.model",
    "Session": "rooflm.session",
    "Plan": "rooflm.scheduling",
    "Handover": "rooflm.residency",
    "Scheduler": "rooflm.scheduling",
    "perplexity": "rooflm.quality",
    "Generation": "rooflm.generation",
    "DraftModel": "rooflm.drafting",
    "PromptLookup": "rooflm.drafting",
    "bench": "rooflm.measuring.bench",
    "Results": "rooflm.measuring.results",
    "zip_grid": "rooflm.measuring.grid",
    "bytes_per_token": "rooflm.measuring.sizes",
    "kv_size": "rooflm.measuring.sizes",
    "ceiling": "rooflm.measuring.roofs",
    "whatif": "rooflm.measuring.roofs",
    "forecast": "rooflm.measuring.forecasting",
    "explain": "rooflm.measuring.explain",
    "load_times": "rooflm.measuring.loading",
    "synth": "rooflm._synth",
    "machine": "rooflm.device.machine",
    "latency_ladder": "rooflm.device.latency",
    "memory_bandwidth": "rooflm.device.measure",
    "random_latency": "rooflm.device.latency",
    "roofline": "rooflm.device.roofline",
    "stride_ladder": "rooflm.device.latency",
    "doctor": "rooflm.diagnosis.doctor",
    "kernel_choice": "rooflm.diagnosis.kernel_choice",
    "sweep": "rooflm.diagnosis.sweeps",
    "tune": "rooflm.diagnosis.tuning",
    "compare": "rooflm.quantization.compare",
    "KvLoss": "rooflm.quantization.kv_loss",
    "kv_loss": "rooflm.quantization.kv_loss",
    "Comparison": "rooflm.quantization.compare",
    "diff_files": "rooflm.quantization.diff",
    "check_claims": "rooflm.quantization.claims",
    "error_budget": "rooflm.quantization.budget",
    "ErrorBudget": "rooflm.quantization.budget",
    "health": "rooflm.diagnosis.health",
    "soak": "rooflm.diagnosis.soak",
    "sensitivity": "rooflm.quantization.sensitivity",
    "Sensitivity": "rooflm.quantization.sensitivity",
    "compare_layers": "rooflm.quantization.layers",
    "evaluate": "rooflm.quantization.tasks",
    "Evaluation": "rooflm.quantization.tasks",
}

if _TYPE_CHECKING:
    from rooflm._core import (
        GGUF,
        ContextFull,
        Error,
        FallbackWarning,
        FormatError,
        KernelUnavailable,
        KVCache,
        Sampler,
        SessionBusy,
        Tensor,
        Tokenizer,
        attention,
        quantize_rows,
    )
    from rooflm.quantization.tasks import Evaluation, evaluate
    from rooflm.quantization.layers import compare_layers
    from rooflm.quantization.sensitivity import Sensitivity, sensitivity
    from rooflm.quantization.formats import formats
    from rooflm.quantization.mixing import mix
    from rooflm.quantization.budget import ErrorBudget, error_budget
    from rooflm.quantization.claims import check_claims
    from rooflm.quantization.diff import diff_files
    from rooflm.quantization.imatrix import IMatrix, imatrix
    from rooflm.quantization.quantize import quantize
    from rooflm.quantization.compare import Comparison, compare
    from rooflm.quantization.kv_loss import KvLoss, kv_loss
    from rooflm._kernels import kernels, linear
    from rooflm.measuring.bench import bench
    from rooflm.measuring.explain import explain
    from rooflm.measuring.forecasting import forecast
    from rooflm.measuring.grid import zip_grid
    from rooflm.measuring.loading import load_times
    from rooflm.measuring.results import Results
    from rooflm.measuring.roofs import ceiling, whatif
    from rooflm.measuring.sizes import bytes_per_token, kv_size
    from rooflm._synth import synth
    from rooflm.device.latency import latency_ladder, random_latency, stride_ladder
    from rooflm.device.machine import machine
    from rooflm.device.measure import memory_bandwidth
    from rooflm.device.roofline import roofline
    from rooflm.diagnosis.doctor import doctor
    from rooflm.diagnosis.kernel_choice import kernel_choice
    from rooflm.diagnosis.sweeps import sweep
    from rooflm.diagnosis.tuning import tune
    from rooflm.diagnosis.health import health
    from rooflm.diagnosis.soak import soak
    from rooflm.drafting import DraftModel, PromptLookup
    from rooflm.fetching import FetchError, fetch
    from rooflm.generation import Generation
    from rooflm.model import Model
    from rooflm.session import Session
    from rooflm.quality import perplexity
    from rooflm.residency import Handover
    from rooflm.scheduling import Plan, Scheduler

__all__ = [
    "Comparison",
    "ContextFull",
    "DraftModel",
    "Error",
    "ErrorBudget",
    "Evaluation",
    "FallbackWarning",
    "FetchError",
    "FormatError",
    "GGUF",
    "Generation",
    "Handover",
    "IMatrix",
    "KVCache",
    "KernelUnavailable",
    "Model",
    "Plan",
    "PromptLookup",
    "Results",
    "Sampler",
    "Scheduler",
    "Sensitivity",
    "Session",
    "SessionBusy",
    "Tensor",
    "Tokenizer",
    "attention",
    "bench",
    "bytes_per_token",
    "ceiling",
    "check_claims",
    "compare",
    "KvLoss",
    "kv_loss",
    "compare_layers",
    "diff_files",
    "doctor",
    "error_budget",
    "evaluate",
    "explain",
    "fetch",
    "forecast",
    "formats",
    "health",
    "imatrix",
    "kernel_choice",
    "kernels",
    "kv_size",
    "latency_ladder",
    "linear",
    "load_times",
    "machine",
    "memory_bandwidth",
    "mix",
    "perplexity",
    "quantize",
    "quantize_rows",
    "random_latency",
    "roofline",
    "sensitivity",
    "soak",
    "stride_ladder",
    "sweep",
    "synth",
    "whatif",
    "tune",
    "zip_grid",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'rooflm' has no attribute {name!r}")
    value = getattr(_importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
