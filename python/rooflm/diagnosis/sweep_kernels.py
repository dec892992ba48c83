# SPDX-License-Identifier: Apache-2.0
"""The kernels of this CPU side by side on the shapes of a model, with OpenBLAS beside them, and the choice that
can be kept from it (kernel_choice.py)."""

from __future__ import annotations

import ctypes
import functools
import itertools
import statistics
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._blas import find_openblas
from rooflm._kernels import kernels, linear
from rooflm.device.machine import machine
from rooflm.diagnosis.sweeps import as_list, shuffled_runs
from rooflm.measuring.recording import PathLike
from rooflm.model import Model

COMPUTES = ("int8", "int16", "f32")
LEAST_S = 0.004  # of one timing: calls are repeated until it is that long
BLAS_MOST = 512 << 20  # bytes of float32 weights made for OpenBLAS; larger matrices are left out, and said to be


def shapes(model: Model) -> list[tuple[str, int, int, Any]]:
    """(type, rows, columns, a tensor) of each different matrix that a token multiplies."""
    found: dict[tuple[str, int, int], Any] = {}
    for name, t in model.gguf.tensors.items():
        if len(t.shape) == 2 and not (name == "token_embd.weight" and not model.hparams["tied_output"]):
            found.setdefault((str(t.type), *t.shape), t)
    return [(*key, t) for key, t in found.items()]


def records(
    model: Model,
    *,
    repeats: int,
    seed: int,
    say: Callable[[str], None],
    tokens: Union[None, int, list[int]] = None,
    threads: Optional[int] = None,
    save: bool = False,
    choices: Optional[PathLike] = None,
) -> Iterator[dict[str, Any]]:
    used = threads or machine().default_threads
    counts = as_list(tokens) if tokens is not None else [1, 64]
    if min(counts) < 1:
        raise ValueError(f"tokens={counts} must be positive")
    blas = OpenBlas.find()
    jobs = []
    for (type, rows, columns, tensor), n in itertools.product(shapes(model), counts):
        x = np.random.default_rng(0).standard_normal((n, columns), np.float32)
        out = np.empty((n, rows), np.float32)
        for name, compute, call in _candidates(type, tensor, x, out, used, blas):
            setting = {"type": type, "rows": rows, "columns": columns, "tokens": n, "threads": used, "kernel": name,
                       "compute": compute}  # fmt: skip
            jobs.append((setting, tensor.nbytes, call))
    seen: list[dict[str, Any]] = []
    for repeat, (setting, nbytes, call) in shuffled_runs(jobs, repeats, seed):
        say(f"{setting['kernel']} on {setting['rows']} x {setting['columns']}, repetition {repeat + 1} of {repeats}")
        took = _timed(call)
        work = setting["rows"] * setting["columns"] * setting["tokens"]
        record = {"setting": setting, "repeat": repeat, "time_us": took * 1e6, "gbs": nbytes / took / 1e9,
                  "gmacs": work / took / 1e9}  # fmt: skip
        if setting["kernel"] == "openblas" and blas:
            record["blas"] = {"path": blas.path, "config": blas.config}
        seen.append({**setting, **record})
        yield record
    if save:
        from rooflm.diagnosis.kernel_choice import save_choice

        save_choice(fastest(seen), choices)


def _candidates(
    type: str, tensor: Any, x: np.ndarray, out: np.ndarray, threads: int, blas: Optional[OpenBlas]
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """(kernel, activations, call). For one token every kernel of the rows family; for several what each tier runs."""
    if len(x) == 1:
        for k in kernels().select(family="rows", type=type, available=True):
            if k.act in COMPUTES and k.isa != "ref":
                call = functools.partial(linear, x, tensor, compute=k.act, kernel=k.name, threads=threads, out=out)
                yield k.name, k.act, call
    else:
        acts = {k.act for k in kernels().select(family="rows", type=type, available=True)}
        for isa in [t for t in _core._isa()["available"] if t != "ref"]:
            for compute in [c for c in COMPUTES if c in acts]:
                call = functools.partial(linear, x, tensor, compute=compute, isa=isa, threads=threads, out=out)
                yield f"tile, {isa}", compute, call
    if blas and 4 * tensor.shape[0] * tensor.shape[1] <= BLAS_MOST:
        yield "openblas", "f32", blas.multiply(tensor, x, out, threads)


def _timed(call: Callable[[], Any]) -> float:
    """Seconds of one call: the median of repeated ones after one that warms up."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < LEAST_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fastest(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per type, shape, tokens, threads and activations the kernel with the least median time. OpenBLAS is a baseline:
    it is listed where it wins, but no choice of a session for single tokens."""
    groups: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for r in records:
        key = tuple(r[k] for k in ("type", "rows", "columns", "tokens", "threads", "compute"))
        groups.setdefault(key, {}).setdefault(r["kernel"], []).append(r["time_us"])
    out = []
    for key, by_kernel in groups.items():
        ranked = sorted((statistics.median(v), name) for name, v in by_kernel.items())
        row = dict(zip(("type", "rows", "columns", "tokens", "threads", "compute"), key))
        others = ranked[1][0] / ranked[0][0] if len(ranked) > 1 else None
        out.append({**row, "kernel": ranked[0][1], "time_us": ranked[0][0], "second_takes": others})
    return out


class OpenBlas:
    """sgemm of an OpenBLAS that is there, with weights made float32 beforehand: its best case."""

    def __init__(self, library: Any, path: str) -> None:
        prefix = "scipy_" if hasattr(library, "scipy_cblas_sgemm") else ""
        self._sgemm = getattr(library, prefix + "cblas_sgemm")
        self._threads = getattr(library, prefix + "openblas_set_num_threads")
        config = getattr(library, prefix + "openblas_get_config")
        config.restype = ctypes.c_char_p
        self.path, self.config = path, config().decode()

    @classmethod
    def find(cls) -> Optional[OpenBlas]:
        path = find_openblas("openblas")
        try:
            return cls(ctypes.CDLL(path), path) if path else None
        except (OSError, AttributeError):  # none on this system, or one without 32-bit integers
            return None

    def multiply(self, tensor: Any, x: np.ndarray, out: np.ndarray, threads: int) -> Callable[[], None]:
        weights: list[np.ndarray] = []  # made when first used

        def call() -> None:
            if not weights:
                weights.append(tensor.dequantize(threads=threads))
            self._threads(threads)
            n, rows, columns = len(x), out.shape[1], x.shape[1]
            pointer, one, zero = ctypes.c_void_p, ctypes.c_float(1.0), ctypes.c_float(0.0)
            self._sgemm(101, 111, 112, n, rows, columns, one, pointer(x.ctypes.data), columns,
                        pointer(weights[0].ctypes.data), columns, zero, pointer(out.ctypes.data), rows)  # fmt: skip

        return call
