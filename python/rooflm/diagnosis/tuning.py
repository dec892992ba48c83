# SPDX-License-Identifier: Apache-2.0
"""A tuning run: steps ranked by gain, each applied, verified and undone, their gains multiplied.

A change of setting is not yet a change of fact: a step counts only when what ran says that it took effect. The baseline
is measured again at the end, so that a machine that became faster or slower meanwhile does not look like a gain.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np

from rooflm._keywords import at_least, checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, show, table
from rooflm.model import Model
from rooflm.session import Session

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRIFT = 0.1  # between the baselines of the beginning and the end, above which the run says so
KEEP = 1.02  # a gain below this is noise, and the step is undone


@dataclass
class State:
    """What steps change: the file, how it is loaded, the options of the session, the tokens of context, and what was
    set in the system, for steps that change that."""

    path: str
    load: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    system: dict[str, str] = field(default_factory=dict)

    def session(self, **options: Any) -> State:
        """The same with other options of the session; replace(state, ...) changes the rest."""
        return replace(self, options={**self.options, **options})


@dataclass
class Step:
    """One step of a tuning run.

    apply   takes the State and gives the one to try; it may also change the system, and raise OSError when it cannot
    verify  takes the open Session and its State; None when the change took effect, else why not
    undo    takes back what apply changed outside of the State; runs when the step did not help, and at the end
    """

    name: str
    apply: Callable[[State], State]
    verify: Callable[[Session, State], Optional[str]]
    undo: Callable[[], None] = lambda: None


class Tuning:
    """What tune() found: `steps`, each a dict with name, status ("kept", "no gain", "not applied"), reason, tps_before,
    tps_after and gain (after over before, of interleaved runs); `gain` of all steps kept, multiplied; the baseline
    before and after the run. `options` are those of the best session, `load` and `path` the file's."""

    columns = ("step", "status", "tok/s", "gain", "in all", "note")

    def __init__(self, steps: list[dict[str, Any]], state: State, before: list[float], again: list[float],
                 best: list[float], model: str) -> None:  # fmt: skip
        self.steps, self.state, self.model = steps, state, model
        self.baseline_tps = statistics.median(before)
        self.baseline_again_tps = statistics.median(again)
        self.best_tps = statistics.median(best)
        self._samples = {"baseline": before, "baseline again": again, "best": best}

    @property
    def gain(self) -> float:
        """The product of the gains of the steps that were kept."""
        return float(math.prod(s["gain"] for s in self.steps if s["status"] == "kept"))

    @property
    def measured_gain(self) -> float:
        """The best session over the baseline, both measured at the end, interleaved."""
        return self.best_tps / self.baseline_again_tps

    @property
    def drift(self) -> float:
        """The baseline at the end over that at the beginning: what the machine itself did meanwhile."""
        return self.baseline_again_tps / self.baseline_tps

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "tuning",
            "model": self.model,
            "steps": self.steps,
            "gain": self.gain,
            "measured_gain": self.measured_gain,
            "baseline_tps": self.baseline_tps,
            "baseline_again_tps": self.baseline_again_tps,
            "best_tps": self.best_tps,
            "drift": self.drift,
            "samples": self._samples,
            "path": self.state.path,
            "load": self.state.load,
            "options": self.state.options,
            "depth": self.state.depth,
        }

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"step": "baseline", "status": "", "tok/s": self.baseline_tps, "in all": 1.0}]
        total = 1.0
        for s in self.steps:
            total *= s["gain"] if s["status"] == "kept" else 1.0
            rows.append({"step": s["name"], "status": s["status"], "tok/s": s["tps_after"], "gain": s["gain"],
                         "in all": total, "note": s["reason"] or ""})  # fmt: skip
        rows.append({"step": "baseline again", "status": "", "tok/s": self.baseline_again_tps, "gain": None,
                     "in all": None, "note": f"drift of the machine {self.drift:.2f}"})  # fmt: skip
        rows.append({"step": "best again", "status": "", "tok/s": self.best_tps, "gain": self.measured_gain,
                     "in all": None, "note": "measured beside the baseline"})  # fmt: skip
        return rows

    def __repr__(self) -> str:
        text = table(self._rows(), self.columns)
        if abs(math.log(self.drift)) > math.log(1 + DRIFT):
            text += f"\nthe machine changed by {self.drift - 1:+.0%} during the run: repeat it when it is quiet"
        shown = ", ".join(f"{k}={v!r}" for k, v in self.state.options.items() if v is not None)
        return f"{text}\nbest: load={self.state.load!r}{', ' if shown else ''}{shown}"

    def _repr_html_(self) -> str:
        return f"<p>x {show(self.measured_gain)} over the baseline</p>{html_table(self._rows(), self.columns)}"

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """A waterfall: the speed after each step, and what the step added to it."""
        ax = axes(ax, figsize=(7, 4))
        ax.bar(0, self.baseline_tps, color="tab:gray")
        names, level = ["baseline"], self.baseline_tps
        for i, s in enumerate(self.steps, 1):
            note = s["status"]
            if s["status"] == "kept":
                after = level * s["gain"]
                ax.bar(i, after - level, bottom=level, color="tab:green")
                level, note = after, f"x {s['gain']:.2f}"
            ax.plot([i - 0.9, i + 0.4], [level, level], color="tab:gray", linewidth=0.8)
            ax.text(i, level, note, ha="left", va="bottom", rotation=40, rotation_mode="anchor", fontsize="small")
            names.append(s["name"])
        for name, color in (("best", "tab:blue"), ("baseline again", "tab:gray")):
            i, values = len(names), self._samples[name]
            middle = statistics.median(values)
            bar = [[middle - min(values)], [max(values) - middle]]
            ax.bar(i, middle, yerr=bar, capsize=3, color=color)
            names.append(name)
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.margins(y=0.3)  # room for the notes
        ax.set_ylabel("decode (tokens/s)")
        ax.set_xlabel("step")
        n = len(self._samples["best"])
        ax.set_title(
            f"{self.model}: gains multiplied x {self.gain:.2f}, measured x {self.measured_gain:.2f}\n"
            f"bars of best and baseline again: median and range of n = {n} runs", fontsize="medium"
        )  # fmt: skip
        return ax


@checked_keywords
def tune(
    model: Union[str, os.PathLike[str]],
    *,
    steps: Optional[Sequence[Step]] = None,
    files: Sequence[Union[str, os.PathLike[str]]] = (),
    context: Optional[int] = None,
    threads: Optional[int] = None,
    cpus: Union[None, str, Sequence[int]] = None,
    kernel: Optional[str] = None,
    isa: Optional[str] = None,
    compute: str = "auto",
    kv: str = "f16",
    load: str = "auto",
    depth: int = 0,
    gen: int = 16,
    repeats: int = 3,
    progress: Optional[Callable[[str], None]] = None,
) -> Tuning:
    """Tries steps one after the other from the settings given, which are the baseline; keeps those that gain at least
    2 %, and multiplies the gains.

    steps: rooflm.diagnosis.tuning.Step objects; by default those of tuning_steps.default_steps(): mapped file, best
    kernels, activations, threads on the big cores, governor, 8-bit KV cache, each other file of `files` (a smaller
    quantization, say), a context of `context` tokens instead of depth. depth: tokens of context at which decode is
    measured. gen: tokens per run; repeats: runs of each side of a step, which take turns.

    A step whose effect does not show in what ran is "not applied", whatever the clock says. What steps changed in the
    system is taken back at the end.
    """
    at_least(0, depth=depth)
    at_least(1, repeats=repeats, context=context)
    at_least(2, gen=gen)
    if steps is None:
        from rooflm.diagnosis.tuning_steps import default_steps

        steps = default_steps(files=files, context=context)
    say = progress or (lambda text: None)
    options = {"n_threads": threads, "cpus": cpus, "kernel": kernel, "isa": isa, "compute": compute, "kv": kv}
    first = state = State(os.fspath(model), load, options, depth)
    say("baseline")
    before = _interleaved([state], gen, repeats)[0]
    done: list[dict[str, Any]] = []
    undos: list[Callable[[], None]] = []
    try:
        for step in steps:
            say(step.name)
            record, state, kept = _try(step, state, gen, repeats)
            done.append(record)
            if kept:
                undos.append(step.undo)
        say("baseline again")
        if state.system == first.system:
            best, again = _interleaved([state, first], gen, repeats)
        else:  # both sides cannot be there at once
            best = _interleaved([state], gen, repeats)[0]
    finally:
        for undo in reversed(undos):
            undo()
    if state.system != first.system:
        again = _interleaved([first], gen, repeats)[0]
    return Tuning(done, state, before, again, best, os.path.basename(os.fspath(model)))


def _try(step: Step, state: State, gen: int, repeats: int) -> tuple[dict[str, Any], State, bool]:
    """The record of a step, the state to go on from, and whether it is kept."""
    record: dict[str, Any] = {"name": step.name, "status": "not applied", "reason": None, "tps_before": None,
                              "tps_after": None, "gain": None}  # fmt: skip
    try:
        changed = step.apply(state)
    except (OSError, ValueError) as e:
        return {**record, "reason": str(e)}, state, False
    if changed == state:
        return {**record, "reason": "already so"}, state, False
    try:
        with _session(changed, gen) as session:
            session.eval([1])
            why_not = step.verify(session, changed)
    except (OSError, ValueError, RuntimeError) as e:  # such as a kernel that this CPU lacks
        why_not = str(e)
    if why_not:
        step.undo()
        return {**record, "reason": why_not}, state, False
    if changed.system == state.system:
        old, new = (statistics.median(v) for v in _interleaved([state, changed], gen, repeats))
    else:  # the system is one or the other: the old one first, then the change again
        step.undo()
        old = statistics.median(_interleaved([state], gen, repeats)[0])
        step.apply(state)
        new = statistics.median(_interleaved([changed], gen, repeats)[0])
    record.update(tps_before=old, tps_after=new, gain=new / old)
    if new / old < KEEP:
        step.undo()
        return {**record, "status": "no gain"}, state, False
    return {**record, "status": "kept"}, changed, True


def _session(state: State, gen: int) -> Session:
    model = Model(state.path, load=state.load)
    return model.session(n_ctx=state.depth + gen + 2, **state.options)


def _interleaved(states: Sequence[State], gen: int, repeats: int) -> list[list[float]]:
    """Tokens per second of each state, repeats of each, taking turns; the open sessions stay warm between."""
    sessions = [_session(s, gen) for s in states]
    out: list[list[float]] = [[] for _ in states]
    try:
        for session, state in zip(sessions, states):
            ids = np.random.default_rng(0).integers(0, session.model.n_vocab, state.depth + 1, dtype=np.int32)
            for at in range(0, len(ids), session.n_batch):
                session.eval(ids[at : at + session.n_batch], logits="none")
        for repeat in range(repeats):
            order = range(len(states)) if repeat % 2 == 0 else range(len(states) - 1, -1, -1)
            for i in order:
                session, one, logits = sessions[i], np.ones(1, np.int32), None
                session.rewind(states[i].depth + 1)
                session.eval(one)  # threads awake
                start = time.perf_counter()
                for _ in range(gen):
                    logits = session.eval(one, out=logits)
                out[i].append(gen / (time.perf_counter() - start))
    finally:
        for session in sessions:
            session.close()
    return out
