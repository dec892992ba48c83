# SPDX-License-Identifier: Apache-2.0
"""A step is whole or has not been: Ctrl-C between the end of an evaluation and what is noted of it, drafts before a
page is evicted, ids that a sampler makes up, and looks at a session that computes in another thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rooflm

pytest.importorskip("gguf")
from maker import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("stepping") / "llama.gguf"
    return rooflm.Model(tiny_model(path, width=96, n_head=4, n_kv=2, head_dim=24, n_ctx=4096, seed=3))


class Interrupted:
    """A session of the extension whose next evaluation is followed by Ctrl-C, as Python raises it."""

    def __init__(self, core, name):
        self.core, self.name = core, name

    def __getattr__(self, name):
        found = getattr(self.core, name)
        if name != self.name:
            return found

        def call(*args, **options):
            found(*args, **options)
            self.name = None
            raise KeyboardInterrupt

        return call


IDS = np.random.default_rng(1).integers(5, 300, 150)


def state(s):
    return s.n_past, list(s.tokens), list(s._pending)


@pytest.mark.parametrize("what", ["eval", "logprobs", "generate", "draft", "ahead", "save"])
def test_interrupted_behind_an_evaluation(model, what, tmp_path):
    with model.session(n_ctx=512, n_threads=1) as s, model.session(n_ctx=512, n_threads=1) as same:
        for one in (s, same):
            one.generate(IDS, max_tokens=3).run()
        before, core = state(s), s._open
        assert before[2]  # an id that is not evaluated yet
        s._open = Interrupted(core, {"logprobs": "logprobs", "ahead": "_ahead_finish"}.get(what, "eval"))
        draft = rooflm.PromptLookup() if what == "draft" else None
        with pytest.raises(KeyboardInterrupt):
            if what == "eval":
                s._pending = []
                before = state(s)
                s.eval(IDS[:5])
            elif what == "logprobs":
                s._pending = []
                before = state(s)
                s.logprobs(IDS[:5])
            elif what == "save":
                s.save(tmp_path / "state")
            else:
                for _ in s.generate(IDS[:4], max_tokens=5, draft=draft, overlap=what == "ahead"):
                    pass
        s._open = core
        if what != "ahead":  # which was interrupted behind its first token
            assert state(s) == before
            same._pending = list(s._pending)
            assert s.generate(IDS[:4], max_tokens=5).ids == same.generate(IDS[:4], max_tokens=5).ids
        else:
            n, tokens, pending = state(s)
            assert n == len(tokens) and tokens[: before[0]] == before[1] and len(pending) == 1
            whole = same.generate(IDS[:4], max_tokens=5).ids
            assert [*tokens, *pending][before[0] + 1 + 4 :] == whole[:1]  # once, not twice


def test_interrupted_beyond_an_eviction(model):
    """What pages are gone for stays evaluated, and is not evaluated twice."""
    with model.session(n_threads=1, evict="64+64") as s:
        s.generate(IDS, max_tokens=2).run()
        n, (token,), core = s.n_past, s._pending, s._open
        s._open = Interrupted(core, "eval")
        with pytest.raises(KeyboardInterrupt):
            s.generate(np.resize(IDS, 400), max_tokens=2).run()
        s._open = core
        assert s.n_past == n + 401 and s._pending == [] and s.tokens[n] == token


def test_interrupted_batch(model):
    with model.batch(n_ctx=256, n_threads=1) as b, model.batch(n_ctx=256, n_threads=1) as same:
        pairs = [(b.join(IDS[i:40], max_tokens=8), same.join(IDS[i:40], max_tokens=8)) for i in (0, 7)]
        b.step(), same.step()
        core = pairs[1][0]._core
        evaluate, b.eval = b.eval, None
        before = [(s._core.n_past, list(s._pending)) for s, _ in pairs]

        def interrupted(*args):
            evaluate(*args)
            raise KeyboardInterrupt

        b.eval = interrupted
        with pytest.raises(KeyboardInterrupt):
            b.step()
        b.eval = evaluate
        assert [(s._core.n_past, list(s._pending)) for s, _ in pairs] == before and pairs[1][0]._core is core
        b.run(), same.run()
        assert [s.ids for s, _ in pairs] == [t.ids for _, t in pairs]


class Guess:
    """A draft that is nearly always wrong, so that what it proposed is taken back."""

    def propose(self, tokens, n):
        return [7] * n


@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_do_not_go_beyond_an_eviction(model, overlap):
    texts = []
    for draft in (None, Guess()):
        with model.session(evict="64+64", n_threads=1, compute="f32", kv="f32") as s:
            sampler = rooflm.Sampler(temperature=1.0, seed=3)
            g = s.generate(
                np.resize(IDS[:9], 186), max_tokens=40, sampler=sampler, draft=draft, n_draft=7, overlap=overlap
            )
            texts.append(list(g) and g.ids)
            assert s.evicted
    assert texts[0] == texts[1]


def test_a_session_does_not_draft_for_itself(model):
    with model.session(n_ctx=64, n_threads=1) as s, pytest.raises(ValueError, match="a session of its own"):
        s.generate(IDS[:9], draft=rooflm.DraftModel(s))


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_id_that_is_none_leaves_the_session_usable(model, token):
    class Wrong:
        def sample(self, logits, history=()):
            return token

    with model.session(n_ctx=256, n_threads=1) as s:
        with pytest.raises(ValueError, match=f"sample\\(\\) returned {token}"):
            s.generate(IDS[:9], max_tokens=4, sampler=Wrong()).run()
        assert s.eval(IDS[:3]) is not None and s._pending == []


def test_looking_while_another_thread_computes(model, tmp_path):
    """Either what there is, or SessionBusy; never what a step is moving."""
    ids = np.resize(IDS, 3000)
    with model.session(evict="0+64", n_batch=64, n_threads=1) as s:
        thread = threading.Thread(target=lambda: s.eval(ids, logits="none"))
        thread.start()
        while thread.is_alive():
            try:
                seen = s.tokens
                assert len(seen) in (0, 3000) and s.kv_nbytes >= 0
            except rooflm.SessionBusy:
                pass
            assert repr(s).startswith("<Session")
        thread.join()
        assert np.array_equal(s.tokens, ids)


@pytest.mark.parametrize("bad", [{"overlap": 1}, {"overlap": "on"}, {"overlap": np.array([1, 2])}])
def test_overlap_is_one_of_three(model, bad):
    with model.session(n_ctx=64, n_threads=1) as s, pytest.raises(ValueError, match="True, False or 'auto'"):
        s.generate(IDS[:9], **bad)


@pytest.mark.parametrize(
    "bad, kind", [({"recent": float("nan")}, TypeError), ({"recent": 0.5}, TypeError), ({"rank": "²"}, ValueError)]
)
def test_odd_compressions(model, bad, kind):
    with model.session(n_ctx=512, n_threads=1) as s:
        s.eval(np.resize(IDS, 300))
        with pytest.raises(kind):
            s.compress(**{"rank": 8, **bad})
        assert s.compressed is None
