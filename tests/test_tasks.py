# SPDX-License-Identifier: Apache-2.0
"""Tasks: likelihoods of choices against whole logits, the statistics against outside figures, texts side by side."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from maker import tiny_model
from plots import drawn

import rooflm
from rooflm.quantization import tasks
from rooflm.stats import wilson


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("tasks")
    return {k: tiny_model(d / f"{k}.gguf", types=k) for k in ("F32", "Q4_0")}


ITEMS = [{"prompt": "the cat", "choices": [" sat", " on the mat and slept", "s"], "answer": 1}] * 2


# ---- likelihoods ----


def by_hand(model, prompt, choice):
    """Sum of log-probabilities behind the prompt's tokens, from whole logits."""
    base, ids = (model.tokenizer.encode(t) for t in (prompt, prompt + choice))
    n = next((i for i in range(min(len(base), len(ids))) if base[i] != ids[i]), min(len(base), len(ids)))
    with model.session(n_ctx=64, compute="f32", kv="f32") as s:
        x = s.eval(ids, logits="all").astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    n = min(n, len(ids) - 1)
    return sum(x[i - 1, ids[i]] for i in range(n, len(ids)))


def test_choices_have_the_likelihood_of_whole_logits(files):
    m = rooflm.Model(files["F32"])
    choices = [" sat", " sat down", " on", "s", "!"]
    with m.session(n_ctx=64, compute="f32", kv="f32") as s:
        got = tasks.choice_logprobs(s, "the cat", choices)
    assert got == pytest.approx([by_hand(m, "the cat", c) for c in choices], abs=1e-4)


def test_a_token_that_spans_prompt_and_choice_counts_to_the_choice(smollm2):
    m = rooflm.Model(smollm2)
    assert len(m.tokenizer.encode("hello")) < len(m.tokenizer.encode("he")) + len(m.tokenizer.encode("llo"))
    with m.session(n_ctx=64, compute="f32", kv="f32") as s:
        got = tasks.choice_logprobs(s, "I said he", ["llo", " did"])
    assert got == pytest.approx([by_hand(m, "I said he", c) for c in ("llo", " did")], abs=1e-3)


def test_acc_and_acc_norm_pick_by_sum_and_by_byte(files):
    e = rooflm.evaluate({"model": files["F32"], "compute": "f32"}, ITEMS)
    a = e.answers[0][0]
    lp, per_byte = np.array(a.logprobs), np.array(a.logprobs) / [4, 21, 1]
    assert a.picked == lp.argmax() and a.picked_norm == per_byte.argmax()
    assert a.right == float(lp.argmax() == 1) and a.right_norm == float(per_byte.argmax() == 1)


# ---- statistics ----


def test_mcnemar_against_the_binomial():
    assert tasks.mcnemar(0, 0) == 1 and tasks.mcnemar(5, 5) == 1
    assert tasks.mcnemar(0, 5) == pytest.approx(2 / 32) and tasks.mcnemar(0, 6) == pytest.approx(2 / 64)
    assert tasks.mcnemar(3, 12) == pytest.approx(0.03515625)  # R: binom.test(3, 15)


def test_wilson_against_published_figures():
    assert wilson(81, 263) == pytest.approx([0.2553, 0.3662], abs=5e-5)  # Newcombe 1998, method 3
    assert wilson(0, 20) == pytest.approx([0, 0.1611], abs=5e-5) and wilson(0, 0) is None


def test_chance_is_the_binomial_tail_and_mixes():
    want = sum(math.comb(20, k) * 0.25**k * 0.75 ** (20 - k) for k in range(9, 21))
    assert tasks.above_chance(9, [0.25] * 20) == pytest.approx(want)
    assert tasks.above_chance(2, [0.5, 0.25]) == pytest.approx(0.125)


def test_a_detectable_difference_is_detected_as_often_as_it_says():
    rng = np.random.default_rng(0)
    n, share = 400, 0.2
    effect = tasks.detectable(n, round(share * n))
    up, down = (share + effect) / 2, (share - effect) / 2
    hits = 0
    for lost, won, _ in rng.multinomial(n, [up, down, 1 - up - down], size=1000):
        hits += tasks.mcnemar(int(lost), int(won)) < 0.05
    assert 0.72 < hits / 1000 < 0.88
    assert tasks.detectable(10, 0) == 0.6


def evaluation(right, n_choices=4):
    """An Evaluation of these rights: one list of booleans per model."""
    items = [{"id": str(i), "domain": "d", "prompt": "x", "choices": ["a"] * n_choices, "answer": 0} for i in right[0]]

    class Named:
        file, options, name = "m", {}, "m"

        def label(self, reference):
            return "m"

    return tasks.Evaluation(
        [Named() for _ in right], items, [[tasks.Answer(float(r), float(r)) for r in row] for row in right], 0.0
    )


def test_no_verdict_where_the_reference_is_at_chance():
    rows = evaluation([[True] * 6 + [False] * 18, [False] * 24]).summary()
    assert rows[1]["p"] < 0.05 and rows[1]["verdict"] is None and "chance" in rows[1]["no_verdict"]
    rows = evaluation([[True] * 20 + [False] * 4, [True] * 6 + [False] * 18]).summary()
    assert rows[1]["verdict"] == "worse" and (rows[1]["lost"], rows[1]["won"]) == (14, 0)
    rows = evaluation([[True] * 20 + [False] * 4, [True] * 19 + [False] * 5]).summary()
    assert rows[1]["verdict"] == "no difference shown" and rows[0]["verdict"] is None


# ---- texts ----


def test_texts_side_by_side_with_the_first_difference(files):
    prompts = [{"prompt": "the cat sat"}, {"prompt": "on a", "answer": "never"}]
    e = rooflm.evaluate(
        [files["F32"], {"name": "again"}, {"model": files["Q4_0"], "name": "q4"}], prompts, max_tokens=12
    )
    rows = e.side_by_side()
    for row, item in zip(rows, prompts):
        with rooflm.Model(files["F32"]).session(n_ctx=64) as s:
            g = s.generate(item["prompt"], max_tokens=12)
            list(g)
        assert row["texts"]["F32.gguf"] == g.text
        assert row["against_first"]["again"] == {"same": True, "first_token": None, "first_char": None}
    assert e.exact_match()["again"] == 1.0
    ids = [[a.ids for a in answers] for answers in e.answers]
    for i, row in enumerate(rows):
        first = row["against_first"]["q4"]["first_token"]
        assert first is None or (ids[0][i][:first] == ids[2][i][:first] and ids[0][i][first] != ids[2][i][first])
    assert e.answers[0][0].right is None and e.answers[0][1].right == 0.0
    assert e.summary()[0]["n"] == 1
    json.loads(e.to_json())


@pytest.mark.parametrize("a, b, first", [("abc", "abd", 2), ("ab", "abc", 2), ("", "", None), ("ab", "ab", None)])
def test_first_difference(a, b, first):
    assert tasks._first_difference(a, b) == first


def test_score_judges_texts(files, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "one", "want": ""}\n\n{"prompt": "two", "want": "\\u0000"}\n')
    e = rooflm.evaluate(files["F32"], path, score=lambda item, text: item["want"] in text, max_tokens=4)
    assert [a.right for a in e.answers[0]] == [1.0, 0.0] and e.summary()[0]["acc"] == 0.5
    with pytest.raises(ValueError, match="score\\(\\) gave 3.0"):
        rooflm.evaluate(files["F32"], path, score=lambda item, text: 3, max_tokens=1)


# ---- items ----


def test_the_bundled_items():
    items = tasks.load_items()
    assert len(items) >= 200 and len({i["id"] for i in items}) == len(items)
    assert len({i["prompt"] for i in items}) == len(items)
    by = Counter(i["domain"] for i in items)
    assert set(by) == {"arithmetic", "code", "facts", "format"} and min(by.values()) >= 45
    for i in items:
        assert len(set(i["choices"])) == 4
        right = i["choices"][i["answer"]].strip()
        if i["domain"] == "arithmetic":
            assert eval(i["prompt"].splitlines()[-1].rstrip("= ")) == int(right)
        if i["domain"] == "code":
            assert repr(eval(i["prompt"].splitlines()[-1][4:])) == right
    positions = Counter(i["answer"] for i in items)
    assert max(positions.values()) < 2 * min(positions.values())


@pytest.mark.parametrize(
    "items, message",
    [
        ([], "no items"),
        ([{"q": 1}], "item 0 has no prompt"),
        ([{"prompt": "x", "choices": ["a"], "answer": 0}], "at least two"),
        ([{"id": "z", "prompt": "x", "choices": ["a", "b"], "answer": 2}], "item z: answer is 2"),
        ([{"prompt": "x", "choices": ["a", "b"], "answer": True}], "answer is True"),
    ],
)
def test_wrong_items_are_named(items, message):
    with pytest.raises(ValueError, match=message):
        tasks.load_items(items)


def test_wrong_files_and_arguments(files, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n{"prompt": \n')
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        tasks.load_items(bad)
    with pytest.raises(TypeError, match="pathlib.Path"):
        tasks.load_items("mine.jsonl")
    with pytest.raises(TypeError, match="list of dicts or a pathlib.Path .* not int"):
        tasks.load_items(10)
    with pytest.raises(ValueError, match="no item of domain"):
        rooflm.evaluate(files["F32"], ITEMS, domains="poetry")
    with pytest.raises(ValueError, match="limit=0"):
        rooflm.evaluate(files["F32"], ITEMS, limit=0)


def test_plot(files):
    a = drawn(rooflm.evaluate([files["F32"], files["Q4_0"]], limit=2).plot)
    assert "Wilson" in a.get_title() and [t.get_text() for t in a.get_xticklabels()][-1] == "all\nn = 8"


def test_items_without_a_domain_count_with_all(files):
    choice = {"prompt": "a", "choices": ["b", "c"], "answer": 0}
    e = rooflm.evaluate(files["F32"], [choice, {**choice, "domain": "x"}, {**choice, "domain": "x"}])
    assert [(r["domain"], r["n"]) for r in e.summary()] == [("x", 2), ("all", 3)]
    assert [r["domain"] for r in rooflm.evaluate(files["F32"], [choice]).summary()] == ["all"]


@pytest.mark.slow
def test_a_real_model_knows_more_than_chance(smollm2):
    rows = {r["domain"]: r for r in rooflm.evaluate(smollm2).summary()}
    assert rows["all"]["n"] >= 200 and rows["all"]["chance_p"] < 1e-6 and rows["facts"]["acc"] > 0.6
