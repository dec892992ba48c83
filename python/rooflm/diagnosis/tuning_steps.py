# SPDX-License-Identifier: Apache-2.0
"""The usual steps of a tuning run, from those that cost nothing to those that cost quality or context."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Optional, Sequence, Union

from rooflm.device.machine import machine
from rooflm.device.files import Files
from rooflm.diagnosis.facts import kernels_of
from rooflm.diagnosis.tuning import State, Step
from rooflm.session import Session


def default_steps(
    *,
    files: Sequence[Union[str, os.PathLike[str]]] = (),
    context: Optional[int] = None,
    root: Union[str, os.PathLike[str]] = "/",
) -> list[Step]:
    """Loading, kernels, activations, threads, governor (below root), KV cache; then other files, then less context."""
    governor = Governor(root)
    steps = [
        Step("mapped file", lambda s: replace(s, load="mmap") if s.load == "copy" else s, _mapped),
        Step("best kernels", lambda s: s.session(kernel=None, isa=None), _best_kernels),
        Step("compute auto", lambda s: s.session(compute="auto"), _compute_auto),
        Step("threads on the big cores", lambda s: s.session(n_threads=None, cpus=None), _default_threads),
        Step("governor performance", governor.apply, governor.verify, governor.undo),
        Step("8-bit KV cache", _with_q8_cache, _q8_cache),
    ]
    for file in files:
        path = os.fspath(file)
        steps.append(Step(f"file {os.path.basename(path)}", lambda s, path=path: replace(s, path=path), _runs_file))  # type: ignore[misc]
    if context is not None:
        steps.append(Step(f"context {context}", lambda s: replace(s, depth=min(s.depth, context)), _runs_file))
    return steps


def _mapped(session: Session, state: State) -> Optional[str]:
    return None if session.model.gguf.mapped else "the system refused to map the file"


def _best_kernels(session: Session, state: State) -> Optional[str]:
    slow = [k for k in kernels_of(session) if k["isa"] != k["best_isa"]]
    return f"{slow[0]['kernel']} still runs: ROOFLM_ISA or ROOFLM_KERNELS is set" if slow else None


def _compute_auto(session: Session, state: State) -> Optional[str]:
    return None if session.compute == "auto" else f"{session.compute} still runs"


def _default_threads(session: Session, state: State) -> Optional[str]:
    want = machine().default_threads
    return None if session.n_threads == want else f"{session.n_threads} threads run, not {want}"


def _with_q8_cache(state: State) -> State:
    if not state.depth and state.options.get("kv") != "q8_0":
        raise ValueError("nothing to gain without context in use: depth is 0")
    return state.session(kv="q8_0")


def _q8_cache(session: Session, state: State) -> Optional[str]:
    return None if session.kv_type == "q8_0" else f"the cache is {session.kv_type}"


def _runs_file(session: Session, state: State) -> Optional[str]:
    path = str(session.model.gguf.path)
    return None if path == state.path else f"{path} runs"


class Governor:
    """Every CPU's governor set to performance, which takes root's rights; undo() sets what was there before."""

    def __init__(self, root: Union[str, os.PathLike[str]] = "/") -> None:
        self.files = Files(root)
        self.before: dict[str, str] = {}

    def _paths(self) -> list[str]:
        base = "sys/devices/system/cpu"
        all = [f"{base}/{n}/cpufreq/scaling_governor" for n in self.files.names(base) if n[3:].isdigit()]
        return [p for p in all if self.files.text(p) is not None]

    def apply(self, state: State) -> State:
        paths = self._paths()
        if not paths:
            raise OSError("this system has no cpufreq")
        for path in paths:
            now = self.files.text(path)
            if now and now != "performance":
                try:
                    (self.files.root / path).write_text("performance")
                except OSError as e:
                    self.undo()
                    raise OSError(f"/{path}: {e.strerror}") from None
                self.before[path] = now
        return replace(state, system={**state.system, "governor": "performance"}) if self.before else state

    def verify(self, session: Session, state: State) -> Optional[str]:
        others = {t for p in self._paths() if (t := self.files.text(p)) != "performance"}
        return f"the governor is still {', '.join(sorted(map(str, others)))}" if others else None

    def undo(self) -> None:
        for path, value in self.before.items():
            (self.files.root / path).write_text(value)
        self.before = {}
