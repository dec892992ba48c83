# SPDX-License-Identifier: Apache-2.0
"""Drafts: whatever is proposed, the text, the sampler's random numbers and what the session holds are those without."""

from __future__ import annotations

import numpy as np
import pytest
from maker import tiny_model

import rooflm

N = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return rooflm.Model(tiny_model(tmp_path_factory.mktemp("draft") / "target.gguf", types="Q8_0", n_ctx=512))


class Oracle:
    """Knows the answer and errs at every `wrong`-th token."""

    def __init__(self, answer, prompt, wrong=0):
        self.answer, self.n_prompt, self.wrong, self.asked = answer, prompt, wrong, 0

    def propose(self, tokens, n):
        self.asked += 1
        at = len(tokens) - self.n_prompt
        right = list(self.answer[at : at + n])
        return [(t + 1) % 300 if self.wrong and (at + i) % self.wrong == 0 else t for i, t in enumerate(right)]


class Noise:
    def propose(self, tokens, n):
        return np.random.default_rng(len(tokens)).integers(0, 300, n)


class Moody:
    """A greedy sampler that fails when it is asked for the last-th time."""

    def __init__(self, last):
        self.left = last

    def sample(self, logits, history=None):
        self.left -= 1
        if not self.left:
            raise RuntimeError("no")
        return int(logits.argmax())


def samplers():
    return [
        lambda: None,
        lambda: rooflm.Sampler(temperature=1.0, seed=3),
        lambda: rooflm.Sampler(temperature=0.7, top_k=5, repeat_penalty=1.3, seed=11),
    ]


def held(session):
    return session.n_past, list(session.tokens), list(session._pending)


def continuation(model, draft, sampler, n_draft=4, compute="int8", prompt=(5, 6, 7, 5, 6), **options):
    with model.session(compute=compute, n_threads=1, n_ctx=options.pop("n_ctx", 256)) as s:
        chooser = sampler()
        g = s.generate(list(prompt), sampler=chooser, draft=draft, n_draft=n_draft, **options).run()
        state = held(s)
        return g, state, None if chooser is None else chooser.sample(np.zeros(320, np.float32))


@pytest.mark.parametrize("make", samplers())
@pytest.mark.parametrize("n_draft", [1, 4, 7])
@pytest.mark.parametrize("compute", ["int8", "f32"])
def test_no_draft_changes_anything(model, make, n_draft, compute):
    plain, state, drawn = continuation(model, None, make, compute=compute, max_tokens=N)
    answer = plain.ids
    for draft in (Oracle(answer, 5), Oracle(answer, 5, wrong=3), Noise(), rooflm.PromptLookup(shortest=1)):
        g, after, then = continuation(model, draft, make, n_draft, compute, max_tokens=N)
        assert (g.ids, g.text, g.stop_reason) == (plain.ids, plain.text, plain.stop_reason), draft
        assert after == state and then == drawn, draft
        assert len(g.token_times_s) == len(plain.token_times_s)


def test_right_guesses_save_passes_and_wrong_ones_cost_none(model):
    plain, _, _ = continuation(model, None, samplers()[0], max_tokens=N)
    assert plain.stop_reason == "length" and plain.n_passes == N - 1 and plain.tokens_per_pass == 1
    assert plain.n_proposed == 0 and plain.to_dict()["draft"] is None
    best, _, _ = continuation(model, Oracle(plain.ids, 5), samplers()[0], max_tokens=N)
    assert best.n_passes == -(-(N - 1) // 5) and best.n_accepted == best.n_proposed == N - 1 - best.n_passes
    assert best.tokens_per_pass == pytest.approx((N - 1) / best.n_passes)
    worst, _, _ = continuation(model, Oracle(plain.ids, 5, wrong=1), samplers()[0], max_tokens=N)
    assert worst.n_accepted == 0 and worst.n_passes == plain.n_passes
    assert best.to_dict()["n_accepted"] == best.n_accepted and "accepted" in best._repr_html_()


@pytest.mark.parametrize("make", samplers())
def test_ends_within_what_was_proposed(model, make):
    """Stop strings, the end of text, max_tokens and a full context: the session holds what it would hold without."""
    answer, _, _ = continuation(model, None, make, max_tokens=N)
    pieces = [model.tokenizer.decode([t]) for t in answer.ids]
    for options in (
        {"max_tokens": 7},
        {"max_tokens": 1},
        {"max_tokens": 0},
        {"max_tokens": N, "stop": pieces[6]},
        {"max_tokens": N, "stop": "".join(pieces[8:10])},
        {"max_tokens": 200, "n_ctx": 23},
    ):
        plain, state, _ = continuation(model, None, make, **options)
        g, after, _ = continuation(model, Oracle(answer.ids, 5), make, **options)
        assert (g.ids, g.text, g.stop_reason) == (plain.ids, plain.text, plain.stop_reason), options
        assert after == state, options


def test_the_end_of_text_within_what_was_proposed(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", types="Q8_0", n_ctx=512)
    first, _, _ = continuation(rooflm.Model(path), None, samplers()[0], max_tokens=N)
    end = first.ids[7]
    model = rooflm.Model(tiny_model(tmp_path / "e.gguf", types="Q8_0", n_ctx=512,
                                    metadata={"tokenizer.ggml.eos_token_id": end}))  # fmt: skip
    plain, state, _ = continuation(model, None, samplers()[0], max_tokens=N)
    g, after, _ = continuation(model, Oracle(first.ids, 5), samplers()[0], max_tokens=N)
    assert plain.stop_reason == g.stop_reason == "eos" and g.ids == plain.ids and after == state


def test_between_pieces_the_session_is_where_the_text_is(model):
    answer, _, _ = continuation(model, None, samplers()[0], max_tokens=N)
    with model.session(compute="int8", n_ctx=256) as s:
        g = s.generate([5, 6, 7, 5, 6], max_tokens=N, draft=Oracle(answer.ids, 5))
        for _ in g:
            assert s.n_past + len(s._pending) == 5 + len(g.ids)
            assert [*s.tokens, *s._pending] == [5, 6, 7, 5, 6, *g.ids]
            if len(g.ids) > 10:
                break
        kept = len(g.ids)
        s.eval([9], logits="none")  # goes on from there, and a generation given up takes nothing back
        del g
        assert list(s.tokens) == [5, 6, 7, 5, 6, *answer.ids[:kept], 9]


def test_a_failing_draft_or_sampler_leaves_the_session_whole(model):
    answer, _, _ = continuation(model, None, samplers()[0], max_tokens=N)

    class Broken(Oracle):
        def propose(self, tokens, n):
            if len(tokens) > 12:
                raise RuntimeError("no more ideas")
            return super().propose(tokens, n)

    for options in ({"draft": Broken(answer.ids, 5)}, {"draft": Oracle(answer.ids, 5), "sampler": Moody(9)}):
        with model.session(compute="int8", n_ctx=256) as s:
            g = s.generate([5, 6, 7, 5, 6], max_tokens=N, **options)
            with pytest.raises(RuntimeError, match="no"):
                g.run()
            assert g.stop_reason == "interrupted"
            assert [*s.tokens, *s._pending] == [5, 6, 7, 5, 6, *g.ids]
            rest = answer.ids[len(g.ids) :]
            given = [] if s._pending else [rest.pop(0)]
            assert s.generate(given, max_tokens=5).ids == rest[:5]


def test_lookup_finds_the_last_and_longest(model):
    lookup = rooflm.PromptLookup(longest=3, shortest=1)
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3, 7, 5, 3], 2) == [7, 5]  # one token, its last occurrence
    assert lookup.propose([1, 2, 3, 9, 1, 2, 3, 7, 5, 3, 8], 2) == []
    assert lookup.propose([4, 4], 3) == [4]  # another text; no more is known
    assert rooflm.PromptLookup().propose([1, 2, 9, 1], 4) == []  # two tokens at least
    assert repr(rooflm.PromptLookup()) == "PromptLookup(longest=3, shortest=2)"
    for bad in ({"longest": 1}, {"shortest": 0}):
        with pytest.raises(ValueError, match="shortest"):
            rooflm.PromptLookup(**bad)


def test_a_model_as_draft(model, tmp_path):
    """Itself guesses everything right; its session follows the text, whatever became of its guesses."""
    plain, state, _ = continuation(model, None, samplers()[0], max_tokens=N)
    with model.session(compute="int8", n_ctx=256) as small:
        draft = rooflm.DraftModel(small)
        g, after, _ = continuation(model, draft, samplers()[0], max_tokens=N)
        assert g.ids == plain.ids and after == state and g.n_accepted == g.n_proposed > 0
        g, _, _ = continuation(model, draft, samplers()[1], max_tokens=N)  # draws otherwise
        assert g.ids == continuation(model, None, samplers()[1], max_tokens=N)[0].ids and g.n_accepted < g.n_proposed
    with model.session(compute="int8", n_ctx=16) as small:  # a draft that runs out of positions
        g, _, _ = continuation(model, rooflm.DraftModel(small), samplers()[0], max_tokens=N)
        assert g.ids == plain.ids


def test_a_draft_of_another_vocabulary_is_refused(model, tmp_path):
    for name, options, says in (
        ("larger", {"n_vocab": 400}, "400 tokens, the model's 320"),
        ("other", {"vocab": "spm"}, "to the draft and"),
    ):
        other = rooflm.Model(tiny_model(tmp_path / f"{name}.gguf", **options))
        with other.session() as small, model.session() as s, pytest.raises(ValueError, match=says):
            s.generate([5], draft=rooflm.DraftModel(small))


def test_what_is_no_draft(model):
    with model.session() as s:
        with pytest.raises(TypeError, match=r"propose\(tokens, n\)"):
            s.generate([5], draft="lookup")
        with pytest.raises(ValueError, match="n_draft=-1"):
            s.generate([5], draft=rooflm.PromptLookup(), n_draft=-1)
        assert s.generate([5], draft=rooflm.PromptLookup(), n_draft=0, max_tokens=3).n_proposed == 0


def test_the_same_text_from_a_real_model(smollm2):
    text = "def area(width, height):\n    return width * height\n\n"
    prompt = text + "# the same once more:\n"
    with rooflm.Model(smollm2).session(compute="int8") as s:
        plain = s.generate(prompt, max_tokens=24).run()
        s.rewind(0)
        g = s.generate(prompt, max_tokens=24, draft=rooflm.PromptLookup(), n_draft=6).run()
    assert g.ids == plain.ids and g.n_accepted > 4 and g.tokens_per_pass > 1.2


def test_drafts_on_the_command_line(command, answer, model, tmp_path):
    path = str(model.gguf.path)
    plain = answer("run", path, "-p", "abc", "-n", "12", "--compute", "int8", "--json")
    for draft in ("lookup", path):
        drafted = answer("run", path, "-p", "abc", "-n", "12", "--compute", "int8", "--json", "--draft", draft,
                         "--n-draft", "3")  # fmt: skip
        assert drafted["ids"] == plain["ids"] and drafted["draft"]
    assert drafted["n_accepted"] == drafted["n_proposed"] > 0
    _, _, err = command("run", path, "-p", "abc", "-n", "12", "--compute", "int8", "--draft", path, "--stats")
    assert "proposed accepted" in err
