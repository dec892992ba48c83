# SPDX-License-Identifier: Apache-2.0
"""The kernels of this CPU side by side on the shapes of a model, with OpenBLAS beside them, and the choice that
can be kept from it (kernel_choice.py)."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np

from rooflm import _core
from rooflm._blas import find_openblas
from rooflm._kernels import kernels
from rooflm.device.machine import machine
from rooflm.diagnosis.sweeps import as_list, shuffled_runs
from rooflm.measuring.recording import PathLike
from rooflm.model import Model

COMPUTES = ("int8", "int16", "f32")
LEAST_S = 0.004  # of one timing: products are repeated until it is that long
TURNS = 3  # of such a timing
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
    blas = OpenBlas.find()
    jobs = []
    for (type, rows, columns, tensor), n in itertools.product(shapes(model), counts):
        x = np.random.default_rng(0).standard_normal((n, columns), np.float32)
        out = np.empty((n, rows), np.float32)
        for name, compute, seconds in _candidates(type, tensor, x, out, used, blas):
            setting = {"type": type, "rows": rows, "columns": columns, "tokens": n, "threads": used, "kernel": name,
                       "compute": compute}  # fmt: skip
            jobs.append((setting, tensor.nbytes, seconds))
    seen: list[dict[str, Any]] = []
    for repeat, (setting, nbytes, seconds) in shuffled_runs(jobs, repeats, seed):
        say(f"{setting['kernel']} on {setting['rows']} x {setting['columns']}, repetition {repeat + 1} of {repeats}")
        took = _timed(seconds)
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


Seconds = Callable[[int], float]  # of one product, when so many are made one after the other


def _candidates(
    type: str, tensor: Any, x: np.ndarray, out: np.ndarray, threads: int, blas: Optional[OpenBlas]
) -> Iterator[tuple[str, str, Seconds]]:
    """(kernel, activations, seconds): for one token every kernel of rows, for several what each tier runs."""

    def own(compute: str, kernel: Optional[str], isa: Optional[str]) -> Seconds:
        head = (x, tensor.raw, type, tensor.shape[0], out, compute, kernel, threads, isa, None)
        return lambda repeats: _core._linear_seconds(*head, repeats)

    table = kernels().select(family="rows", type=type, available=True)
    if len(x) == 1:
        for k in table:
            if k.act in COMPUTES and k.isa != "ref":
                yield k.name, k.act, own(k.act, k.name, None)
    else:
        acts = {k.act for k in table}
        for isa in [t for t in _core._isa()["available"] if t != "ref"]:
            for compute in [c for c in COMPUTES if c in acts]:
                yield f"tile, {isa}", compute, own(compute, None, isa)
    if blas and 4 * tensor.shape[0] * tensor.shape[1] <= BLAS_MOST:
        yield "openblas", "f32", blas.multiply(tensor, x, out, threads)


def _timed(seconds: Seconds) -> float:
    """Seconds of one product: the median of turns after a short one that warms up. The threads run already, as in a
    session, so that small matrices are not judged by what it takes to start a team."""
    repeats = max(3, int(LEAST_S / max(seconds(3), 1e-9)))
    return statistics.median(seconds(repeats) for _ in range(TURNS))


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

    def multiply(self, tensor: Any, x: np.ndarray, out: np.ndarray, threads: int) -> Seconds:
        weights: list[np.ndarray] = []  # made when first used

        def seconds(repeats: int) -> float:
            if not weights:
                weights.append(tensor.dequantize(threads=threads))
            self._threads(threads)
            n, rows, columns = len(x), out.shape[1], x.shape[1]
            pointer, one, zero = ctypes.c_void_p, ctypes.c_float(1.0), ctypes.c_float(0.0)
            args = (101, 111, 112, n, rows, columns, one, pointer(x.ctypes.data), columns,
                    pointer(weights[0].ctypes.data), columns, zero, pointer(out.ctypes.data), rows)  # fmt: skip
            start = time.perf_counter()
            for _ in range(repeats):
                self._sgemm(*args)
            return (time.perf_counter() - start) / repeats

        return seconds
