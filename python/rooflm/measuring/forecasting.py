# SPDX-License-Identifier: Apache-2.0
"""Memory before loading: what a process with this model and this context will take, anonymous and file pages apart.

Anonymous memory counts against the limits of phones and containers. File pages are shared with the page cache and can
be given back and read again. Both are counted as /proc/self/smaps_rollup shows them, with what this process has now.
"""

from __future__ import annotations

import math
import os
import struct
import warnings
from typing import Any, Mapping, Optional, Union

from rooflm import _core, _eviction
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, megabytes, table
from rooflm.device.files import Files
from rooflm.measuring.sizes import ModelArg, kv_size, opened
from rooflm.model import Model
from rooflm.session import default_n_ctx

# Measured on three vocabularies: tables of the tokenizer, per token and per merge.
TOKENIZER_TOKEN_BYTES = 47
TOKENIZER_MERGE_BYTES = 26
# Code of the extension and of the modules that loading and running bring in, and what the allocator keeps for them.
CODE_BYTES = 7_000_000
PYTHON_BYTES = 3_700_000
FAULT_AROUND_BYTES = 65536  # file pages that the kernel maps at one fault, where they are in the page cache


def process_memory(root: Union[str, os.PathLike[str]] = "/") -> Optional[dict[str, int]]:
    """This process now: anonymous_bytes, file_bytes and peak_bytes; None where /proc does not tell."""
    files = Files(root)
    resident, anonymous = (files.kilobytes("proc/self/smaps_rollup", k) for k in ("Rss", "Anonymous"))
    peak = files.kilobytes("proc/self/status", "VmHWM")
    if resident is None or anonymous is None or peak is None:
        return None
    return {"anonymous_bytes": anonymous, "file_bytes": resident - anonymous, "peak_bytes": peak}


class Forecast:
    """anonymous_bytes, file_bytes and peak_bytes of the process once the model is loaded and n_ctx positions are used.
    `parts` says what they are made of, `fits` whether what is added finds room here (None where the system does not
    tell)."""

    def __init__(self, parts: list[dict[str, Any]], about: Mapping[str, Any]) -> None:
        self.parts = parts
        self.about = dict(about)
        self.anonymous_bytes = sum(p["bytes"] for p in parts if p["kind"] == "anonymous")
        self.file_bytes = sum(p["bytes"] for p in parts if p["kind"] == "file")
        self.peak_bytes = max(self.anonymous_bytes + self.file_bytes, about["peak_now_bytes"] or 0)
        new = sum(p["bytes"] for p in parts if not p["part"].startswith("this process"))
        room = about["room_bytes"]
        self.fits = None if room is None else new <= room

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            **self.about,
            "anonymous_bytes": self.anonymous_bytes,
            "file_bytes": self.file_bytes,
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "parts": self.parts,
        }

    def _rows(self) -> list[dict[str, Any]]:
        sums = [
            {"part": "together", "kind": "anonymous", "bytes": self.anonymous_bytes},
            {"part": "together", "kind": "file", "bytes": self.file_bytes},
            {"part": "peak", "kind": "both", "bytes": self.peak_bytes},
        ]
        return [{**r, "size": megabytes(r["bytes"])} for r in (*self.parts, *sums)]

    def __repr__(self) -> str:
        a = self.about
        kept = f", evict {a['evict']}" if a["evict"] else ""
        head = f"{a['model']}: {a['n_ctx']} positions, kv {a['kv']}{kept}, {a['threads']} threads"
        room = "unknown" if a["room_bytes"] is None else megabytes(a["room_bytes"])
        verdict = {True: "fits", False: "DOES NOT FIT", None: "cannot be judged"}[self.fits]
        return f"{head}\n{table(self._rows(), ('part', 'kind', 'size'))}\nroom here {room}: {verdict}"

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("part", "kind", "size"))


@checked_keywords
def forecast(
    path: ModelArg,
    *,
    n_ctx: Optional[int] = None,
    kv: str = "f16",
    evict: Optional[str] = None,
    threads: Optional[int] = None,
    n_batch: int = 512,
    load: str = "auto",
    logits: int = 1,
) -> Forecast:
    """Memory of this process with the model loaded and all n_ctx positions in use (default the model's own context, at
    most 4096), prompts of n_batch tokens and single tokens evaluated, and a tokenizer. No weight is read for it: the
    file is mapped, its metadata is parsed, and a session is planned.

    evict: as in Model.session(), "64+960": of a talk that has gone on beyond its cache; n_ctx is what the cache holds.
    load: as in Model(). "auto" is taken for "mmap" unless mapping is refused here; then the file counts as anonymous.
    logits: arrays of logits alive at once.
    """
    at_least(1, n_ctx=n_ctx, n_batch=n_batch)
    at_least(0, logits=logits)
    before = process_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _core.FallbackWarning)  # of the file just looked at; the parts say it
        model = opened(path)
    copied = load == "copy" or not model.gguf.mapped
    if n_ctx is None:
        kept = _eviction.kept_by(evict)
        n_ctx = kept.n_ctx if kept else default_n_ctx(model)
    with model.session(n_ctx=n_ctx, kv=kv, evict=evict, n_threads=threads, n_batch=min(n_batch, n_ctx)) as s:
        n_ctx, scratch, n_threads = int(s.n_ctx), s.scratch_used_nbytes, s.n_threads
    length = n_ctx if evict is None else 2 * n_ctx  # of the text: with evict, something is gone by then
    meta = model.gguf.metadata
    merges = 0
    if "tokenizer.ggml.merges" in meta:  # their number, without making 50,000 strings
        merges = struct.unpack_from("<Q", _core._raw_value(model.gguf, "tokenizer.ggml.merges"), 8)[0]
    tokenizer = model.n_vocab * TOKENIZER_TOKEN_BYTES + merges * TOKENIZER_MERGE_BYTES
    weights = _touched(model, math.inf if evict else n_ctx, copied)
    parts = [
        _part("weights, copied", "anonymous", weights) if copied else _part("weights", "file", weights),
        _part("KV cache", "anonymous", kv_size(model, n_ctx=length, kv=kv, evict=evict, n_batch=n_batch).held_bytes),
        _part("scratch", "anonymous", scratch),
        _part("logits", "anonymous", 4 * model.n_vocab * logits),
        _part("tokenizer", "anonymous", tokenizer),
        _part("code", "file", CODE_BYTES),
        _part("modules and tables", "anonymous", PYTHON_BYTES),
    ]
    if before:
        parts += [
            _part("this process now", "anonymous", before["anonymous_bytes"]),
            _part("this process now", "file", before["file_bytes"]),
        ]
    about = {
        "model": os.path.basename(str(model.gguf.path)),
        "n_ctx": n_ctx,
        "kv": kv,
        "evict": evict,
        "threads": n_threads,
        "n_batch": n_batch,
        "load": load,
        "peak_now_bytes": before["peak_bytes"] if before else None,
        "room_bytes": room_bytes(),
    }
    return Forecast(parts, about)


def _part(part: str, kind: str, n: float) -> dict[str, Any]:
    return {"part": part, "kind": kind, "bytes": int(n)}


def _touched(model: Model, n_ctx: float, copied: bool) -> float:
    """Bytes of the file that evaluating n_ctx tokens brings into memory: all of it, but of an embedding that is not the
    output matrix only the rows of the tokens, each with the pages that the kernel maps around it."""
    whole = float(model.gguf.nbytes)
    embedding = float(model.gguf.tensors["token_embd.weight"].nbytes)
    if copied or model.hparams["tied_output"]:
        return whole
    return whole - embedding * math.exp(-n_ctx * FAULT_AROUND_BYTES / embedding)


def room_bytes() -> Optional[int]:
    """Memory that is available here: of the machine, or what a control group's limit leaves."""
    from rooflm import machine

    facts = machine()
    known = [facts["memory_available_bytes"], facts["cgroup"]["memory_limit_bytes"]]
    return min((int(v) for v in known if v), default=None)
