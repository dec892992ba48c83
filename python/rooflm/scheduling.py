# SPDX-License-Identifier: Apache-2.0
"""Answers within a time budget: for each request the best way to run that should be fast enough, by measured costs.

    with rooflm.Scheduler(model, budget_s=0.5) as scheduler:
        answer = scheduler.request("The capital of France is", max_tokens=16)
        print(answer.text, answer.decision)
        print(scheduler.report())

A plan is a way to run: options of a session, and a draft (rooflm.drafting) where there is one. Plans stand in the order
of their quality; a request takes the first whose predicted time fits its budget, or else the fastest. What a plan costs
for a token of the prompt and for a token generated is measured once, and again by every request that takes it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

import numpy as np

from rooflm import _core
from rooflm._closing import Closing
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, table
from rooflm._text import TextOrTokens
from rooflm.stats import wilson

if TYPE_CHECKING:
    from rooflm.drafting import Draft
    from rooflm.generation import Generation
    from rooflm.model import Model

KEPT = 32  # the latest costs of a plan that count
QUANTILE = 0.9  # of them, for a prediction: a budget is to be met nearly always
CALIBRATION = (64, 12)  # tokens of the prompt and tokens generated when a plan is measured first


@dataclass(frozen=True)
class Plan:
    """A way to run: a name for the log, options of Model.session(), and a draft or None."""

    name: str
    session: Mapping[str, Any] = field(default_factory=dict)
    draft: Optional[Draft] = None
    n_draft: int = 4


def usual_plans(draft: Optional[Draft] = None, *, window: int = 512) -> list[Plan]:
    """Full attention in int16; a sliding window with int8 activations and cache; the same with a draft, if given."""
    fast = {"compute": "int8", "kv": "q8_0", "window": window}
    plans = [Plan("full", {"compute": "int16", "kv": "f16"}), Plan("window", fast)]
    return plans if draft is None else [*plans, Plan("draft", fast, draft)]


class _Costs:
    """Seconds for a token of the prompt and for one generated, of the latest requests that took a plan."""

    def __init__(self) -> None:
        self.prefill: list[float] = []
        self.decode: list[float] = []

    def add(self, generation: Generation) -> None:
        if generation.prefill_s and len(generation.prompt_ids):
            self.prefill = [*self.prefill, generation.prefill_s / len(generation.prompt_ids)][-KEPT:]
        if generation.decode_tps:
            self.decode = [*self.decode, 1 / generation.decode_tps][-KEPT:]

    def predict(self, n_prompt: int, n_tokens: int) -> float:
        """Seconds for so many tokens; the first one generated comes with the prompt's evaluation."""
        prefill = float(np.quantile(self.prefill, QUANTILE))
        decode = float(np.quantile(self.decode, QUANTILE)) if self.decode else prefill
        return n_prompt * prefill + max(n_tokens - 1, 0) * decode


@dataclass(frozen=True)
class Decision:
    """One line of the log: what a request was given, what was expected of each plan, and what came of it.

    budget_s, predicted_s (by plan), took_s: seconds; fits: whether the plan taken was expected to meet the budget
    """

    plan: str
    budget_s: float
    predicted_s: Mapping[str, float]
    fits: bool
    n_prompt: int
    n_reused: int
    max_tokens: int
    n_generated: int
    took_s: float
    longest_gap_s: Optional[float]
    stop_reason: Optional[str]

    @property
    def met(self) -> bool:
        return self.took_s <= self.budget_s


@dataclass(frozen=True)
class Answer:
    """What came of a request."""

    generation: Generation
    decision: Decision

    @property
    def text(self) -> str:
        return self.generation.text


class ScheduleReport:
    """How many requests met their budgets, with a 95 % interval, and what each plan was taken for.

    gaps_s: times between neighbouring tokens of all requests; p50, p95, p99 and the longest
    """

    def __init__(self, log: Sequence[Decision], gaps: Sequence[float]) -> None:
        self.n = len(log)
        self.n_met = sum(d.met for d in log)
        self.share_met = self.n_met / self.n if self.n else None
        self.interval = wilson(self.n_met, self.n)
        quantiles = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        self.gaps_s = {k: float(np.quantile(gaps, q)) for k, q in quantiles.items()} if len(gaps) else None
        names = list(dict.fromkeys(name for d in log for name in d.predicted_s))
        self.plans = [
            {"plan": name, "requests": len(own), "met": sum(d.met for d in own), "expected": sum(d.fits for d in own)}
            for name in names
            for own in [[d for d in log if d.plan == name]]
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "n": self.n,
            "n_met": self.n_met,
            "share_met": self.share_met,
            "interval": self.interval,
            "gaps_s": self.gaps_s,
            "plans": self.plans,
        }

    def _title(self) -> str:
        if self.interval is None:
            return "no request yet"
        lo, hi = self.interval
        share = f"{self.n_met} of {self.n} requests met their budget, {self.n_met / self.n:.1%} [{lo:.1%}, {hi:.1%}]"
        if self.gaps_s is None:
            return share
        return share + "; gaps between tokens " + ", ".join(f"{k} {1e3 * v:.1f} ms" for k, v in self.gaps_s.items())

    def __repr__(self) -> str:
        return self._title() + "\n" + table(self.plans, ("plan", "requests", "met", "expected"))

    def _repr_html_(self) -> str:
        return f"<p>{self._title()}</p>" + html_table(self.plans, ("plan", "requests", "met", "expected"))


class Scheduler(Closing):
    """Runs requests on one model within time budgets; a context manager that closes its sessions.

    budget_s   of a request that names none
    plans      the best first; default: usual_plans(draft)
    draft      for the last of the usual plans, such as DraftModel(small.session())
    options    of all sessions: n_ctx, n_threads, ...

    The first thing it does is to measure each plan: 64 tokens of a prompt and 12 generated. The caches of all plans
    stay, and what a prompt shares with the one before it on the same plan is not evaluated again.
    """

    @checked_keywords
    def __init__(
        self,
        model: Model,
        *,
        budget_s: float,
        plans: Optional[Sequence[Plan]] = None,
        draft: Optional[Draft] = None,
        options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        _check_budget(budget_s)
        if plans is not None and draft is not None:
            raise ValueError("give the draft to a Plan, or leave out plans")
        chosen = usual_plans(draft) if plans is None else list(plans)
        if not chosen or len({p.name for p in chosen}) < len(chosen):
            raise ValueError("plans must be one at least, each with a name of its own")
        self.model = model
        self.budget_s = budget_s
        self.plans = {p.name: p for p in chosen}
        self.log: list[Decision] = []
        self._gaps: list[float] = []
        self._costs = {p.name: _Costs() for p in chosen}
        self._sessions: dict[str, Any] = {}
        try:
            for p in chosen:
                self._sessions[p.name] = model.session(**{**(options or {}), **p.session})
                self._measure(p)
        except BaseException:
            self.close()
            raise

    def _measure(self, plan: Plan) -> None:
        session = self._sessions[plan.name]
        n_prompt, n_tokens = CALIBRATION
        n_prompt = max(1, min(n_prompt, session.n_ctx - n_tokens))
        prompt = np.random.default_rng(0).integers(0, self.model.n_vocab, n_prompt, dtype=np.int32)
        endless = _core.Sampler(temperature=0, logit_bias={i: -np.inf for i in self.model.tokenizer.eog_ids})
        for counts in (False, True):  # once to warm up
            session.rewind(0)
            run = session.generate(
                prompt, max_tokens=n_tokens, sampler=endless, draft=plan.draft, n_draft=plan.n_draft
            ).run()
            if counts:
                self._costs[plan.name].add(run)
        session.rewind(0)

    @checked_keywords
    def predict(self, n_prompt: int, n_tokens: int) -> dict[str, float]:
        """Seconds that each plan should take for a prompt of n_prompt new tokens and n_tokens generated."""
        at_least(0, n_prompt=n_prompt, n_tokens=n_tokens)
        return {name: c.predict(n_prompt, n_tokens) for name, c in self._costs.items()}

    @checked_keywords
    def request(
        self,
        prompt: TextOrTokens,
        *,
        max_tokens: int = 64,
        budget_s: Optional[float] = None,
        sampler: Any = None,
        stop: Sequence[str] = (),
    ) -> Answer:
        """Answers a prompt by the best plan that should take no longer than the budget, and logs the decision.

        The budget decides how it is run, not how long: an answer that comes late is finished, and logged as late.
        """
        budget = self.budget_s if budget_s is None else budget_s
        _check_budget(budget)
        if not self._sessions:
            raise ValueError("this scheduler is closed")
        start = time.perf_counter()
        first = next(iter(self._sessions.values()))
        ids = first._ids(prompt)
        reused = {name: s._in_common(ids) for name, s in self._sessions.items()}
        predicted = {name: c.predict(len(ids) - reused[name], max_tokens) for name, c in self._costs.items()}
        fitting = [name for name, seconds in predicted.items() if seconds <= budget]
        name = fitting[0] if fitting else min(predicted, key=lambda n: predicted[n])
        plan, session = self.plans[name], self._sessions[name]
        same = session._back_to(reused[name])
        run = session.generate(
            ids[same:], max_tokens=max_tokens, sampler=sampler, stop=stop, draft=plan.draft, n_draft=plan.n_draft
        ).run()
        gaps = np.diff(run.token_times_s)
        decision = Decision(
            plan=name,
            budget_s=budget,
            predicted_s=predicted,
            fits=bool(fitting),
            n_prompt=len(ids),
            n_reused=same,
            max_tokens=max_tokens,
            n_generated=len(run.ids),
            took_s=time.perf_counter() - start,
            longest_gap_s=float(gaps.max()) if len(gaps) else None,
            stop_reason=run.stop_reason,
        )
        self._costs[name].add(run)
        self._gaps.extend(gaps.tolist())
        self.log.append(decision)
        return Answer(run, decision)

    def report(self) -> ScheduleReport:
        """The requests so far."""
        return ScheduleReport(self.log, self._gaps)

    def close(self) -> None:
        """Frees the caches; log and report stay. Sessions of drafts are their makers'."""
        for s in self._sessions.values():
            s.close()
        self._sessions = {}

    def __repr__(self) -> str:
        return f"<Scheduler {self.budget_s} s, plans {', '.join(self.plans)}; {self.report()._title()}>"


def _check_budget(seconds: float) -> None:
    if not seconds > 0:
        raise ValueError(f"budget_s={seconds} must be above 0 seconds")
