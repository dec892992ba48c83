# SPDX-License-Identifier: Apache-2.0
"""Batches: the same logits as sessions of their own, shared prefixes, joining and leaving, limits."""

from __future__ import annotations

import numpy as np
import pytest
from golden_files import golden

import rooflm


@pytest.fixture(scope="module", params=["llama-gqa-9-3", "gemma3", "qwen3moe"])
def model(request):
    return rooflm.Model(golden(request.param).path)


def separate(model, prompt, n, **kw):
    """Greedy continuation and the logits of each of its steps, in a session of its own, token by token."""
    with model.session(n_ctx=128, n_threads=2, **kw) as s:
        for t in prompt:
            logits = s.eval([t])
        rows = [logits]
        for _ in range(n - 1):
            rows.append(s.eval([int(rows[-1].argmax())]))
    return np.stack(rows)


PROMPTS = [[5, 9, 17, 40, 3], [7], [11, 30, 12, 9, 8, 101, 77]]


@pytest.mark.parametrize("compute", ["f32", "int16"])
def test_logits_equal_separate_sessions_to_the_bit(model, compute):
    expect = [separate(model, p, 6, compute=compute) for p in PROMPTS]
    with model.batch(n_ctx=128, n_threads=2, compute=compute) as batch:
        seqs = [batch.join(p, max_tokens=50) for p in PROMPTS]
        got = [[] for _ in PROMPTS]
        # Token by token, as in the separate sessions, so that the same kernels run.
        longest = max(map(len, PROMPTS))
        for i in range(longest + 5):
            live = [k for k, p in enumerate(PROMPTS) if len(got[k]) < 6]
            tokens = [[PROMPTS[k][i]] if i < len(PROMPTS[k]) else [int(got[k][-1].argmax())] for k in live]
            logits = batch.eval([seqs[k] for k in live], tokens)
            for row, k in enumerate(live):
                if i >= len(PROMPTS[k]) - 1:
                    got[k].append(logits[row].copy())
    for e, g in zip(expect, got):
        assert np.array_equal(e, np.stack(g))


def test_generation_equals_sessions_and_ends_by_length(model):
    with model.batch(n_ctx=128, n_threads=2, compute="f32") as batch:
        seqs = [batch.join(p, max_tokens=8) for p in PROMPTS]
        batch.run()
        for s, p in zip(seqs, PROMPTS):
            rows = separate(model, p, 8, compute="f32")
            ends = set(model.tokenizer.eog_ids)
            ids = [int(r.argmax()) for r in rows]
            stop = next((i for i, t in enumerate(ids) if t in ends), None)
            assert s.ids == ids[:stop]
            assert s.stop_reason == ("length" if stop is None else "eos")


def test_a_shared_prefix_uses_its_pages_once(model):
    prefix = np.arange(100) % 200 + 5
    with model.batch(n_ctx=256, n_threads=2, kv="f16", compute="f32") as batch:
        first = batch.join(prefix, max_tokens=1)
        batch.eval([first], [prefix])
        before = first._core.kv_nbytes
        second = batch.join([9, 10], like=first, max_tokens=3)
        assert second.n_past == 100
        got = batch.eval([second], [[9, 10]])[0]
        shared = {p.address for p in first._core.kv[-1].pages} & {p.address for p in second._core.kv[-1].pages}
        assert len(shared) >= 1 and first._core.kv_nbytes == before
    with model.session(n_ctx=256, n_threads=2, kv="f16", compute="f32") as s:
        s.eval(prefix, logits="none")
        assert np.array_equal(s.eval([9, 10]), got)


def test_joining_and_leaving_while_others_run(model):
    with model.batch(n_ctx=128, n_threads=2, compute="f32") as batch:
        a = batch.join(PROMPTS[0], max_tokens=10)
        batch.step()
        b = batch.join(PROMPTS[1], max_tokens=3)
        batch.step()
        batch.leave(a)
        assert a.stop_reason == "left" and a.n_past == 0 and len(a.ids) == 2
        batch.run()
        assert len(b.ids) == 3 or b.stop_reason == "eos"
        with pytest.raises(ValueError, match="left"):
            batch.join([1], like=a)


def test_prompts_longer_than_a_step_go_in_pieces(model):
    prompt = [int(t) for t in np.arange(50) % 200 + 3]
    with model.batch(n_ctx=128, n_threads=2, n_batch=16, compute="f32") as batch:
        s = batch.join(prompt, max_tokens=1)
        steps = 0
        while not s.ids and s.stop_reason is None:
            batch.step()
            steps += 1
        assert steps == 4 and s.n_past == 50


def test_limits_are_clear_and_change_nothing(model):
    with model.batch(n_ctx=16, n_threads=1, n_batch=8) as batch:
        with pytest.raises(rooflm.ContextFull) as e:
            batch.join(list(range(3, 20)))
        assert (e.value.n_ctx, e.value.needed) == (16, 17)
        a = batch.join([5, 6], max_tokens=4)
        with pytest.raises(rooflm.SessionBusy):
            batch.eval([a, a], [[1], [2]])
        with pytest.raises(ValueError, match="n_batch"):
            batch.eval([a], [list(range(3, 12))])
        with pytest.raises(ValueError, match="token 0"):
            batch.eval([a], [[10**6]])
        assert a.n_past == 0
        other = model.session(n_ctx=16, n_threads=1)
        with pytest.raises(ValueError, match="another engine"):
            rooflm._core.Session._step_many([a._core, other._c], [[5], [6]])
        batch.run()
        assert a.n_past == 2 + len(a.ids) - (a.stop_reason == "length")


class Broken:
    """A sampler that fails, or says what is no id."""

    def __init__(self, result):
        self.result = result

    def sample(self, logits, history=None):
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [ZeroDivisionError("own"), -1, 10**9, 10**30, None], ids=repr)
def test_a_sampler_that_fails_ends_its_own_sequence_only(model, result):
    """And nothing is evaluated twice, nor waited for in vain."""
    with model.batch(n_ctx=64, n_threads=1, compute="f32") as batch:
        alone = batch.join(PROMPTS[0], max_tokens=4)
        batch.run()
        n_past = alone.n_past
    with model.batch(n_ctx=64, n_threads=1, compute="f32") as batch:
        bad = batch.join(PROMPTS[1], sampler=Broken(result))
        good = batch.join(PROMPTS[0], max_tokens=4)
        with pytest.raises((ZeroDivisionError, ValueError, TypeError)):
            batch.step()
        assert (bad.stop_reason, bad.ids) == ("interrupted", [])
        batch.run()
        assert good.ids == alone.ids and good.n_past == n_past


def test_an_interruption_leaves_no_sequence_that_never_ends(model):
    with model.batch(n_ctx=64, n_threads=1) as batch:
        seqs = [batch.join(PROMPTS[0], sampler=Broken(KeyboardInterrupt())), batch.join(PROMPTS[1])]
        with pytest.raises(KeyboardInterrupt):
            batch.step()
        assert batch.run() == seqs and not batch.running
    with model.batch(n_ctx=64, n_threads=1) as batch, pytest.raises(TypeError, match="sampler must be"):
        batch.join(PROMPTS[0], sampler="greedy")


def test_a_list_that_changes_while_it_is_read(model):
    """Reading ids may run code of the caller's own, which empties the list of sessions."""

    class Ids:
        def __array__(self, *args, **kwargs):
            sessions.clear()
            return np.array([5], np.int32)

    sessions = [model.session(n_ctx=8, n_threads=1)._c]
    sessions.append(sessions[0].fork())
    logits = rooflm._core.Session._step_many(sessions, [Ids(), [7]])
    assert logits.shape == (2, model.n_vocab) and not sessions
