# SPDX-License-Identifier: Apache-2.0
"""Models as users see them, over the types of the extension: a loaded file with its hyper-parameters, tokenizer and
weights. What runs one is a session, see rooflm.session.
"""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm import _core, residency
from rooflm._keywords import checked_keywords
from rooflm._output import html_table, show_layers
from rooflm._progress import ProgressArg
from rooflm.session import Session

if TYPE_CHECKING:
    from rooflm.batch import Batch

# What stands in for a tensor: another one, or its type and raw blocks.
Replacement = Union[_core.Tensor, "tuple[str, np.ndarray]"]


class Model:
    """A GGUF model: `Model("m.gguf")`, a Path, or an open GGUF.

    load: "auto" maps the file (buffered where mapping is refused), "mmap", or "copy" (read into memory of its own,
    which then no longer shares pages with other processes).
    replace: tensors in memory instead of the file's own, by name: a Tensor of another file, or (type, raw blocks).
    Norms and biases can be replaced, too. "output.weight" may be added to a model that ties it to the embedding.
    Raises FormatError for a file that is wrong, Error for one whose architecture or types cannot run.
    """

    @checked_keywords
    def __init__(
        self,
        path: Union[str, os.PathLike[str], _core.GGUF],
        *,
        load: str = "auto",
        replace: Optional[Mapping[str, Replacement]] = None,
    ) -> None:
        self._c = _core.Model(path, load=load, replace=None)
        rows = _replacements(self._c.gguf, replace) if replace else []
        if rows:
            self._c = _core.Model(self._c.gguf, replace=rows)
        self.replaced: dict[str, str] = {name: type for name, type, _, _ in rows}  #: tensor: type, not the file's
        shapes = {t.name: (t.type, t.shape) for t in self._c.gguf.tensors.values()}
        shapes.update((name, (type, tuple(shape))) for name, type, shape, _ in rows)
        self._matrices = {(type, shape[-1]) for type, shape in shapes.values() if len(shape) > 1}

    gguf = property(lambda self: self._c.gguf, doc="The open file: metadata and tensors.")
    tokenizer = property(lambda self: self._c.tokenizer, doc="Made from the file's metadata when first asked for.")
    arch = property(lambda self: self._c.arch, doc='"llama", "gemma3", ...')
    n_layer = property(lambda self: self._c.n_layer, doc="Transformer blocks.")
    n_embd = property(lambda self: self._c.n_embd, doc="Width of the residual stream.")
    n_head = property(lambda self: self._c.n_head, doc="Query heads.")
    n_head_kv = property(lambda self: self._c.n_head_kv, doc="Key and value heads.")
    n_vocab = property(lambda self: self._c.n_vocab, doc="Rows of the output matrix.")
    n_ctx_train = property(lambda self: self._c.n_ctx_train, doc="Context length stated by the file.")
    head_dim = property(lambda self: self._c.head_dim, doc="Values of a key head.")
    hparams = property(lambda self: self._c.hparams, doc="All hyper-parameters as a dict.")
    notes = property(lambda self: self._c.notes, doc="What the file states and the engine does not use.")
    weight_bytes_per_token = property(
        lambda self: self._c.weight_bytes_per_token,
        doc="Bytes of weights one token reads: each matrix once, of experts the chosen ones, of the embedding one row.",
    )

    @checked_keywords
    def session(
        self,
        *,
        n_ctx: Optional[int] = None,
        kv: str = "f16",
        n_threads: Optional[int] = None,
        n_batch: int = 512,
        compute: Union[str, Mapping[str, str]] = "auto",
        cpus: Union[None, str, Sequence[int]] = None,
        kernel: Optional[str] = None,
        layout: str = "tile",
        rope_base: Optional[float] = None,
        isa: Optional[str] = None,
        blas: Optional[str] = None,
        window: Optional[int] = None,
        evict: Optional[str] = None,
    ) -> Session:
        """A new, empty session.

        n_ctx      positions it can hold; default the model's own, at most 4096. Memory is used as pages fill.
        kv         "f32", "f16", "q8_0", or K and V apart: "q8_0/f16"
        n_threads  default: the free big cores of this machine
        n_batch    most tokens evaluated at once
        compute    "int8" or "int16" activations, "f32" the exact path, "auto" the more exact of the integer ones
                   wherever it costs no speed (Session.auto says where, and why);
                   or one for each operation, {"attn_*": "int16", "blk.0.ffn_down": "f32"}:
                   patterns over the names of kernels(), the last that matches holds, "auto" where none does
        cpus       pin the workers: "0-3,6" or a sequence of numbers
        kernel     name of the kernel that must run; or several, comma-separated, to prefer where they fit
        layout     inside a KV page: "tile", "token" or "head"
        rope_base  another base for RoPE than the file's (what that costs is measured, not assumed)
        isa        best instruction-set tier to use, such as "avx2"; default ROOFLM_ISA or no limit
        blas       "openblas" or the path of one: it multiplies prompts, as a baseline for compute="f32" (install
                   rooflm[blas], or the system's); see Session.blas for what was found
        window     no layer attends further back than this many tokens; default the file's own windows
        evict      "64+960": the talk may go on for ever, and the cache keeps the first 64 and at least the latest 960
                   positions (64 more at most), see docs/session.md; multiples of 64. n_ctx is then what the cache
                   holds. Default None: nothing is ever dropped, a full context is ContextFull
        """
        return Session(
            self,
            n_ctx=n_ctx,
            kv=kv,
            n_threads=n_threads,
            n_batch=n_batch,
            compute=compute,
            cpus=cpus,
            kernel=kernel,
            layout=layout,
            rope_base=rope_base,
            isa=isa,
            blas=blas,
            window=window,
            evict=evict,
        )

    def batch(self, **options: Any) -> Batch:
        """Several sequences computed in one step; see rooflm.batch. Takes the options of session()."""
        from rooflm.batch import Batch

        return Batch(self, options)

    def preload(self, pattern: str = "*", *, progress: ProgressArg = None) -> int:
        """Reads the tensors whose names match into memory, so that the first tokens need not wait for the disk; their
        bytes. Ctrl-C stops it. progress: as everywhere, a bar where somebody can see it, False for none."""
        return residency.preload(self.gguf, pattern, progress=progress)

    def lock(self, pattern: str) -> int:
        """Keeps the tensors whose names match in memory whatever else needs it, until unlock() or the end; their bytes.
        OSError where the system does not allow so much (ulimit -l)."""
        return residency.lock(self.gguf, pattern)

    def unlock(self, pattern: str = "*") -> int:
        """Gives up what lock() keeps; the bytes of the tensors whose names match."""
        return residency.unlock(self.gguf, pattern)

    def resident(self, pattern: str = "*") -> float:
        """Share of the bytes of the tensors whose names match that is in memory now, 0 to 1 (mincore). PermissionError
        for a mapped file that the user neither owns nor may write: of such a one the system tells nothing."""
        return residency.resident(self.gguf, pattern)

    def taps(self) -> list[dict[str, Any]]:
        """What Session.capture can take: a list of records with name, shape and dtype. In a shape None stands for the
        tokens evaluated, and for the positions attended to."""
        return self._c.taps()

    def __repr__(self) -> str:
        return (
            f"<Model {self.arch}: {self.n_layer} layers, width {self.n_embd}, "
            f"{self.n_head} heads over {self.n_head_kv}, vocabulary {self.n_vocab}>"
        )

    def _repr_html_(self) -> str:
        rows = [{"hyper-parameter": k, "value": show_layers(v)} for k, v in self.hparams.items()]
        return html_table(rows, ("hyper-parameter", "value"))


def _replacements(file: _core.GGUF, replace: Mapping[str, Replacement]) -> list[tuple[Any, ...]]:
    """What the extension takes: (name, type, shape, buffer)."""
    rows = []
    for name, value in replace.items():
        own = file.tensors.get(name)
        if own is None and name == "output.weight":
            own = file.tensors.get("token_embd.weight")
        if isinstance(value, _core.Tensor):
            rows.append((name, value.type, value.shape, value.raw))
            continue
        if own is None:
            near = difflib.get_close_matches(name, list(file.tensors), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"there is no tensor {name!r} in {file.path} to replace{hint}")
        type, raw = value
        rows.append((name, type, own.shape, np.ascontiguousarray(raw)))
    return rows
