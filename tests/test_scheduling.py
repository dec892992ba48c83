# SPDX-License-Identifier: Apache-2.0
"""Requests within a budget: which plan is taken, what costs are remembered, and what the log and the report say."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from maker import tiny_model

import rooflm
from rooflm._output import plain
from rooflm.scheduling import KEPT, ScheduleReport, _Costs, usual_plans

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return rooflm.Model(tiny_model(tmp_path_factory.mktemp("schedule") / "m.gguf", types="Q8_0", n_ctx=256))


@pytest.fixture
def scheduler(model):
    with rooflm.Scheduler(model, budget_s=1.0, draft=rooflm.PromptLookup(), options={"n_threads": 1}) as s:
        yield s


def fix_costs(scheduler, **decode_s):
    """Costs that do not depend on the machine, and stay: seconds of a generated token, a tenth of it in the prompt."""
    for name, seconds in decode_s.items():
        costs = _Costs()
        costs.prefill, costs.decode = [seconds / 10], [seconds]
        costs.add = lambda generation: None
        scheduler._costs[name] = costs


def test_the_best_plan_that_fits_else_the_fastest(scheduler):
    fix_costs(scheduler, full=3.0, window=2.0, draft=1.0)
    for budget, plan, fits in ((9.0, "full", True), (6.0, "window", True), (4.0, "draft", True), (1.0, "draft", False)):
        for session in scheduler._sessions.values():
            session.rewind(0)
        d = scheduler.request(PROMPT, max_tokens=3, budget_s=budget).decision
        assert (d.plan, d.fits, d.budget_s) == (plan, fits, budget)
        assert d.predicted_s == pytest.approx({"full": 7.5, "window": 5.0, "draft": 2.5})
        assert (d.n_prompt, d.n_reused, d.n_generated, d.max_tokens) == (5, 0, len([1, 2, 3]), 3)
    fix_costs(scheduler, full=3.0, window=1.0, draft=2.0)  # the fastest is not the last
    assert scheduler.request(PROMPT, max_tokens=3, budget_s=0.1).decision.plan == "window"


def test_text_is_that_of_the_plan(model, scheduler):
    for name, plan in scheduler.plans.items():
        fix_costs(scheduler, **{n: 1e-9 if n == name else 9.0 for n in scheduler.plans})
        answer = scheduler.request(PROMPT, max_tokens=12)
        assert answer.decision.plan == name
        with model.session(n_threads=1, **plan.session) as s:
            assert answer.text == s.generate(PROMPT, max_tokens=12).text


def test_what_a_prompt_shares_is_not_evaluated_again(scheduler):
    fix_costs(scheduler, full=1e-3, window=9.0, draft=9.0)
    first = scheduler.request(PROMPT, max_tokens=2)
    again = scheduler.request([*PROMPT, 10, 11], max_tokens=2)
    assert first.decision.n_reused == 0 and again.decision.n_reused == 5
    assert len(again.generation.prompt_ids) == 2
    assert again.decision.predicted_s["full"] == pytest.approx(2 * 1e-4 + 1e-3)
    assert again.decision.predicted_s["window"] == pytest.approx(7 * 0.9 + 9)  # it has not seen the prompt
    assert scheduler.request(PROMPT, max_tokens=2).decision.n_reused == 4  # the last one gives the logits
    fresh = scheduler.request([8, 8], max_tokens=2)
    assert fresh.decision.n_reused == 0 and fresh.text == scheduler.request([8, 8], max_tokens=2).text


def test_costs_are_of_the_latest_requests_and_careful():
    costs = _Costs()
    for i in range(KEPT + 10):
        costs.add(SimpleNamespace(prefill_s=4.0 * (i + 1), prompt_ids=[0] * 4, decode_tps=1 / (i + 1)))
    assert len(costs.prefill) == len(costs.decode) == KEPT and min(costs.prefill) == 11.0
    assert costs.predict(1, 1) == pytest.approx(11 + 0.9 * (KEPT - 1))  # the 90th percentile of 11..42
    assert costs.predict(2, 3) == pytest.approx(4 * costs.predict(1, 1))
    costs.add(SimpleNamespace(prefill_s=None, prompt_ids=[], decode_tps=None))  # nothing was measured
    assert len(costs.decode) == KEPT


def test_every_plan_is_measured_first_and_requests_are_measured_too(model, scheduler):
    assert list(scheduler.plans) == ["full", "window", "draft"]
    for name, costs in scheduler._costs.items():
        assert costs.prefill[0] > 0 and costs.decode[0] > 0, name
        assert scheduler._sessions[name].n_past == 0
    assert [p.name for p in usual_plans()] == ["full", "window"]
    full = scheduler._costs["full"]
    fix_costs(scheduler, window=9.0, draft=9.0)
    scheduler.request(PROMPT, max_tokens=4, budget_s=100.0)
    assert len(full.prefill) == len(full.decode) == 2


def test_the_log_says_whether_budgets_were_met(scheduler):
    fix_costs(scheduler, full=1e-9, window=9.0, draft=9.0)
    assert scheduler.request(PROMPT, max_tokens=5, budget_s=1000.0).decision.met
    late = scheduler.request(PROMPT, max_tokens=5, budget_s=1e-7).decision
    assert not late.met and late.stop_reason == "length" and late.longest_gap_s > 0
    scheduler.close()
    report = scheduler.report()
    assert (report.n, report.n_met, report.share_met) == (2, 1, 0.5)
    assert report.interval[0] < 0.5 < report.interval[1]
    assert report.plans[0] == {"plan": "full", "requests": 2, "met": 1, "expected": 2}
    assert report.gaps_s["p50"] <= report.gaps_s["p99"] <= report.gaps_s["max"]
    record = json.loads(json.dumps(plain(report)))
    assert record["schema"] == 1 and record["share_met"] == 0.5
    assert "1 of 2 requests met their budget, 50.0%" in repr(report) and "<table>" in report._repr_html_()
    assert "1 of 2" in repr(scheduler)
    with pytest.raises(ValueError, match="closed"):
        scheduler.request(PROMPT)


def test_without_requests():
    report = ScheduleReport([], [])
    assert report.share_met is None and report.interval is None and "no request" in repr(report)
    assert json.loads(json.dumps(plain(report)))["gaps_s"] is None


def test_what_makes_no_scheduler(model):
    for options, says in (
        ({"budget_s": 0.0}, "budget_s=0.0"),
        ({"budget_s": float("nan")}, "budget_s=nan"),
        ({"budget_s": 1.0, "plans": []}, "one at least"),
        ({"budget_s": 1.0, "plans": [rooflm.Plan("a"), rooflm.Plan("a")]}, "name of its own"),
        ({"budget_s": 1.0, "plans": [rooflm.Plan("a")], "draft": rooflm.PromptLookup()}, "to a Plan"),
    ):
        with pytest.raises(ValueError, match=says):
            rooflm.Scheduler(model, **options)
    with pytest.raises(TypeError, match="kv"):
        rooflm.Scheduler(model, budget_s=1.0, plans=[rooflm.Plan("a", {"kw": "f16"})])
    with rooflm.Scheduler(model, budget_s=1.0, plans=[rooflm.Plan("only", {"compute": "int8"})]) as s:
        with pytest.raises(ValueError, match="budget_s=-1"):
            s.request(PROMPT, budget_s=-1)
        assert s.request(PROMPT, max_tokens=2).decision.plan == "only"
