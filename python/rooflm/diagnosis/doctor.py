# SPDX-License-Identifier: Apache-2.0
"""The diagnosis of one model on this machine: near the ceiling or far, what is at fault, and what to try next."""

from __future__ import annotations

import math
import os
from typing import Any, Callable, Optional, Sequence, Union

from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, megabytes, table
from rooflm.diagnosis.facts import gather
from rooflm.diagnosis.rules import Finding, judge
from rooflm.diagnosis.token_time import LABELS, account
from rooflm.model import Model

NEAR, FAR = 0.65, 0.4  # shares of the ceiling


class Diagnosis:
    """What doctor() found. `named` lists the causes at fault, the costliest first; `findings` all that were judged,
    with factor (by how much each slows the model down), evidence and next_step; `facts` what they rest on.
    `token_time` says where the time of a token goes, which is no fault: see rooflm.diagnosis.token_time.account."""

    columns = ("cause", "costs", "evidence", "next step")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.findings: list[Finding] = judge(facts)
        self.token_time = account(facts)

    @property
    def named(self) -> list[str]:
        return [f.cause for f in self.findings if f.named]

    @property
    def share(self) -> float:
        """Of the ceiling that this machine's memory sets for these bytes."""
        return float(self.facts["speed"]["share"])

    @property
    def verdict(self) -> str:
        """"near", "between" or "far"."""
        return "near" if self.share >= NEAR else "far" if self.share < FAR else "between"

    @property
    def unexplained(self) -> float:
        """The factor between ceiling and speed that the named causes leave, at least 1."""
        explained = math.prod(f.factor or 1.0 for f in self.findings if f.named and f.where == "speed")
        return max(1.0, 1 / self.share / explained)

    @property
    def next_step(self) -> str:
        first = next((f for f in self.findings if f.named), None)
        if first:
            return first.next_step
        if self.verdict == "near":
            return "faster only with fewer bytes: a smaller model, fewer bits, a shorter context or kv=\"q8_0\""
        if self.token_time and self.token_time["bound"] == "arithmetic":
            exact = any("_q16_" in k["kernel"] for k in self.facts["ran"]["kernels"])
            return "more or faster cores" + (', or compute="int8", which multiplies less exactly' if exact else "")
        return "no cause shows itself: measure again on a quiet machine, then trace by operation (Session.trace())"

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "verdict": self.verdict,
            "share": self.share,
            "named": self.named,
            "unexplained": self.unexplained,
            "token_time": self.token_time,
            "next_step": self.next_step,
            "findings": [f.to_dict() for f in self.findings],
            "facts": self.facts,
        }

    def summary(self) -> str:
        s = self.facts["speed"]
        where = {"near": "near the ceiling", "between": "below the ceiling", "far": "far below the ceiling"}
        return (
            f"{where[self.verdict]}: decode {s['decode_tps']:.1f} of {s['ceiling_tps']:.1f} tok/s ({self.share:.0%}); "
            f"{megabytes(s['bytes_per_token'])} per token at {s['read_gbs']:.1f} GB/s"
        )

    def where_time_goes(self) -> str:
        """The parts of a token's time as a sentence, and which of memory and arithmetic limits it; empty in facts that
        do not tell."""
        t = self.token_time
        if not t:
            return ""
        shares = ", ".join(f"{LABELS[name]} {s / t['token_s']:.0%}" for name, s in t["parts"].items())
        text = f"of {1e3 * t['token_s']:.2f} ms per token (traced): {shares}"
        if t["bound"] == "arithmetic":
            text += (
                f"\nkernel-bound: memory ({t['memory_gbs']:.1f} GB/s) is faster than the arithmetic of these cores "
                f"({t['kernels_gbs']:.1f} GB/s out of a cache)"
            )
        return text

    def _rows(self, every: bool) -> list[dict[str, str]]:
        return [
            {
                "cause": f.cause,
                "costs": "not known" if f.factor is None else f"x {f.factor:.2f}" if f.named else "nothing",
                "evidence": f.evidence,
                "next step": f.next_step if f.named else "",
            }
            for f in self.findings
            if every or f.named
        ]

    def __repr__(self) -> str:
        lines = [self.summary()]
        if self.verdict != "near" and self.token_time:
            lines += [self.where_time_goes()]
        for i, f in enumerate((f for f in self.findings if f.named), 1):
            lines += [f"{i}. {f.cause} (costs x {f.factor:.2f}): {f.evidence}", f"   next: {f.next_step}"]
        if not self.named:
            lines += ["nothing at fault among: " + ", ".join(f.cause for f in self.findings if f.factor is not None)]
            lines += [f"   next: {self.next_step}"]
        if self.named and self.unexplained >= 1.5:
            lines += [f"x {self.unexplained:.1f} between speed and ceiling is left unexplained"]
        unknown = [f"{f.cause} ({f.evidence})" for f in self.findings if f.factor is None]
        if unknown:
            lines += ["not judged: " + "; ".join(unknown)]
        return "\n".join(lines)

    def to_table(self) -> str:
        """Every cause judged with its evidence, as text."""
        return table(self._rows(every=True), self.columns)

    def _repr_html_(self) -> str:
        return f"<p>{self.summary()}</p>{html_table(self._rows(every=True), self.columns)}"


@checked_keywords
def doctor(
    model: Union[Model, str, os.PathLike[str], None] = None,
    *,
    facts: Optional[dict[str, Any]] = None,
    threads: Optional[int] = None,
    cpus: Union[None, str, Sequence[int]] = None,
    kernel: Optional[str] = None,
    isa: Optional[str] = None,
    compute: str = "auto",
    kv: str = "f16",
    load: str = "auto",
    depth: int = 0,
    prompt: int = 16,
    gen: int = 32,
    root: str = "/",
    progress: Optional[Callable[[str], None]] = None,
) -> Diagnosis:
    """Runs the model as asked and says whether it is near the ceiling or far from it, and what is at fault.

    model: a path (then loading is judged, too) or an open Model. threads, cpus, kernel, isa, compute, kv, load: as in
    Model and Session, the settings to judge. depth: tokens of context before the answer; prompt: tokens of the first
    evaluation; gen: tokens decoded from there (again and again, until 0.4 s are watched).
    facts: judge these, from an earlier Diagnosis or another machine, instead of running anything.
    root: another directory to read /proc and /sys from.

    Judged are file claim, loading, kernel, cores, threads, frequency, background, swap and context. A setting that is
    not the default is put back and tried for some tokens, so that what it costs is measured.
    """
    if facts is not None:
        if model is not None:
            raise TypeError("doctor() judges a model or facts, not both")
        return Diagnosis(facts)
    if model is None:
        raise TypeError("doctor() needs a model, or facts=")
    at_least(0, depth=depth)
    at_least(1, prompt=prompt)
    at_least(2, gen=gen)
    return Diagnosis(
        gather(
            model, threads=threads, cpus=cpus, kernel=kernel, isa=isa, compute=compute, kv=kv, load=load, depth=depth,
            prompt=prompt, gen=gen, root=root, progress=progress,
        )  # fmt: skip
    )
