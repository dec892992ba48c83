# SPDX-License-Identifier: Apache-2.0
"""Steps run ahead: text, random numbers and what the session shows and does are those without, however a generation
ends and whatever happens between two pieces; nothing of it outlives the generation; the trace says what overlapped."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from maker import tiny_model
from test_drafting import Moody, Noise, Oracle, held, samplers

import rooflm
from rooflm import overlapping
from rooflm.tracing import STAGES, TAKEN_BACK

PROMPT = [5, 6, 7, 5, 6]
N = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("overlap") / "m.gguf", types="Q8_0", n_ctx=512)


@pytest.fixture(scope="module")
def model(path):
    return rooflm.Model(path)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory):
    return rooflm.Model(tiny_model(tmp_path_factory.mktemp("overlap") / "g.gguf", "gemma3", n_layer=6, window=64,
                                   vocab="spm", n_ctx=1024))  # fmt: skip


def session(model, **options):
    return model.session(**{"compute": "int8", "n_threads": 1, "n_ctx": 256, **options})


def whole_state(s):
    """What a session shows, and what it computes next."""
    shown = (*held(s), s.kv_nbytes, s.kv[0].k().tobytes(), s.kv[-1].v().tobytes())
    return *shown, s.eval([9]).tobytes(), held(s)


def threads():
    return sorted(os.listdir("/proc/self/task"))


def both(model, act, options=None, prompt=PROMPT, make=None, **generate):
    """What act(session, generation) and the session say without overlap and with it; (results, the generation with)."""
    found, generation = [], None
    for overlap in (False, True):
        with session(model, **(options or {})) as s:
            chooser = (make or samplers()[1])()
            generation = s.generate(prompt, overlap=overlap, sampler=chooser, **{"max_tokens": N, **generate})
            said = act(s, generation)
            drawn = None if chooser is None else chooser.sample(np.zeros(model.n_vocab, np.float32))
            found.append((said, generation.ids, generation.text, generation.stop_reason, whole_state(s), drawn))
    return found, generation


def consume(s, generation):
    return list(generation)


def take(n):
    def act(s, generation):
        return [p for _, p in zip(range(n), generation)]  # asks for no more than it takes, and leaves it open

    return act


@pytest.mark.parametrize("make", samplers())
@pytest.mark.parametrize("n_threads", [1, 2])
def test_nothing_changes(model, make, n_threads):
    (plain, with_it), g = both(model, consume, {"n_threads": n_threads}, make=make)
    assert plain == with_it
    assert g.n_ahead == N - 1 and g.n_taken_back == 0 and g.n_passes == N - 1


def test_every_way_to_end(model, tmp_path):
    with session(model) as s:
        ids = s.generate(PROMPT, max_tokens=N, sampler=samplers()[1]()).ids
    pieces = [model.tokenizer.decode([t]) for t in ids]
    ends_at = rooflm.Model(tiny_model(tmp_path / "e.gguf", types="Q8_0", n_ctx=512,
                                      metadata={"tokenizer.ggml.eos_token_id": ids[7]}))  # fmt: skip
    for m, options, reason, taken_back in (
        (model, {"max_tokens": 0}, "length", 0),
        (model, {"max_tokens": 1}, "length", 0),
        (model, {"max_tokens": 7}, "length", 0),
        (model, {"stop": pieces[6]}, "stop", 1),
        (model, {"stop": "".join(pieces[8:11])}, "stop", 1),
        (ends_at, {}, "eos", 0),
    ):
        (plain, with_it), g = both(m, consume, **options)
        assert plain == with_it and g.stop_reason == reason and g.n_taken_back == taken_back, options
    with session(model, n_ctx=len(PROMPT) + 9) as s, session(model, n_ctx=len(PROMPT) + 9) as t:
        a, b = s.generate(PROMPT, overlap=False).run(), t.generate(PROMPT, overlap=True)
        assert list(b) and (b.ids, b.stop_reason, held(t)) == (a.ids, "context", held(s)) and len(b.ids) == 10


@pytest.mark.parametrize("close", ["open", "close", "error", "session"])
def test_a_consumer_that_stops_early(model, close):
    def act(s, generation):
        got = take(4)(s, generation)
        if close == "close":
            generation._pieces_to_come.close()
        elif close == "error":
            with pytest.raises(RuntimeError, match="mine"):
                for piece in generation:
                    got.append(piece)
                    raise RuntimeError("mine")
        return got

    before = threads()
    (plain, with_it), g = both(model, act)
    assert plain == with_it and g.n_ahead >= 3
    if close == "session":
        s = session(model)
        g = s.generate(PROMPT, overlap=True)
        next(g)
        assert len(threads()) == len(before) + 1
        s.close()
        assert threads() == before
        with pytest.raises(rooflm.Error, match="closed"):
            next(g)
    del g
    assert threads() == before, "no thread outlives its generation"


USES = {
    "fork": lambda s: [w.tobytes() for w in fork_and_look(s)],
    "eval": lambda s: s.eval([11, 12]).tobytes(),
    "logprobs": lambda s: s.logprobs([11, 12, 13], top=2).next.tobytes(),
    "rewind": lambda s: s.rewind(6),
    "compress": lambda s: s.compress(rank=8, recent=0)["tokens"] + s.compress(recent=0)["tokens"],
    "rewind to here": lambda s: s.rewind(s.n_past),
    "contrast": lambda s: s._c.eval([3]).tobytes(),
    "generate": lambda s: s.generate([4, 5], max_tokens=5).text,
    "generate ahead": lambda s: list(s.generate([4, 5], max_tokens=5, overlap=True)),
    "generate a little": lambda s: next(s.generate([4, 5], max_tokens=5, overlap=True)),
    "facts": lambda s: (s.n_past, s.tokens.tolist(), s.kv_nbytes, repr(s), s.kernels(1)[0]["kernel"]),
    "cache": lambda s: [layer.k().tobytes() for layer in s.kv],
    "batch": lambda s: step_of_a_batch(s),
}


def fork_and_look(s):
    with s.fork() as twin:
        yield twin.tokens
        yield twin.kv[0].k()
        yield twin.eval([2])
        yield twin.kv[0].k()


def step_of_a_batch(s):
    with s.model.batch(n_ctx=64, n_threads=1, compute="int8") as b:
        one = b.join([4, 5, 6], max_tokens=3)
        b.run()
        return one.ids


@pytest.mark.parametrize("use", USES)
def test_other_uses_between_two_pieces(model, use):
    """Each sees and does what it would without; so does the generation if it goes on."""

    def act(s, generation):
        got = take(4)(s, generation)
        try:
            got.append(USES[use](s))
        except Exception as e:
            got.append(repr(e))
        got.append(held(s))
        try:
            got += take(5)(s, generation)
        except Exception as e:
            got.append(repr(e))
        return got

    for at in (len(PROMPT), 59, 140):  # the second has the end of a page among the steps, the third old pages
        (plain, with_it), _ = both(model, act, prompt=(PROMPT * 28)[:at])
        assert plain == with_it, use


def test_saved_states_are_the_same_bytes(model, tmp_path):
    def act(s, generation):
        take(4)(s, generation)
        s.save(tmp_path / "state")
        return (tmp_path / "state").read_bytes(), held(s)

    (plain, with_it), _ = both(model, act)
    assert plain == with_it


def test_a_page_begun_ahead_is_not_in_use(model):
    def act(s, generation):
        next(generation)
        return s.kv_nbytes, s.n_past

    (plain, with_it), _ = both(model, act, prompt=(PROMPT * 13)[:64])
    assert plain == with_it and plain[0][1] == 64


def test_sliding_windows_give_up_no_page_for_a_step_taken_back(sliding):
    """Wherever the caller stops, the session can go back as far as without."""

    def reach(s, generation):
        got = consume(s, generation) if stop == 0 else take(stop)(s, generation)
        can = []
        for n in range(s.n_past - 60, s.n_past - 160, -12):
            with s.fork() as twin:
                try:
                    twin.rewind(n)
                    can.append(n)
                except ValueError as e:
                    can.append(str(e))
        return got, can

    options = {"n_batch": 16, "n_ctx": 1024, "compute": "f32"}
    for stop in (0, 41, 42, 43, 44):
        (plain, with_it), g = both(sliding, reach, options, prompt=PROMPT * 20, max_tokens=120)
        assert plain == with_it, stop
        if stop == 0:
            assert g.n_passes - 3 <= g.n_ahead < g.n_passes, "steps that give up a page are not run ahead"


class Letters:
    """Draws letters by turns, so that each id makes a piece."""

    drawn = 0

    def sample(self, logits, history=None):
        self.drawn += 1
        return 70 + self.drawn % 20


@pytest.mark.parametrize("at", [*range(190, 195), *range(254, 259)])  # about the first eviction and the second
def test_a_full_cache_evicts_no_page_for_a_step_taken_back(model, at):
    def act(s, generation):
        for _ in generation:
            if s.n_past >= at:
                return s.evicted, s.room, s.n_past

    (plain, with_it), g = both(model, act, {"n_ctx": 192, "evict": "64+64"}, make=Letters, max_tokens=400)
    assert plain == with_it and plain[0][2] == at
    assert g.n_ahead >= g.n_passes - 2 - g.n_taken_back, "only the step that evicts waits, and the one that grows"


@pytest.mark.parametrize("make", samplers())
def test_drafts(model, make):
    (plain, _), _ = both(model, consume, make=make)
    answer = plain[1]
    for draft in (Oracle(answer, 5), Oracle(answer, 5, wrong=3), Noise(), rooflm.PromptLookup(shortest=1)):
        (without, with_it), g = both(model, consume, make=make, draft=draft)
        assert without == with_it and with_it[1:4] == plain[1:4], draft
        assert g.n_ahead == g.n_passes and g.n_taken_back == 0
        (without, with_it), _ = both(model, take(3), make=make, draft=draft)
        assert without == with_it, draft
    for draft in (Oracle(answer, 5), Noise()):
        stop = model.tokenizer.decode(answer[6:7])
        (without, with_it), _ = both(model, consume, make=make, draft=draft, stop=stop)
        assert without == with_it and without[3] == "stop"


def test_a_small_model_drafts_ahead(model, path):
    with session(rooflm.Model(path)) as small:
        (plain, with_it), g = both(model, consume, make=samplers()[0], draft=rooflm.DraftModel(small), n_draft=3)
    assert plain == with_it and g.n_accepted > 0 and g.n_ahead == g.n_passes


def test_errors_come_with_the_piece_that_needs_the_step(model, path, tmp_path):
    class Broken(Noise):
        def propose(self, tokens, n):
            if len(tokens) == 9:
                raise RuntimeError("no more ideas")
            return super().propose(tokens, n)

    def act(s, generation):
        got = []
        with pytest.raises(RuntimeError, match="no"):
            for piece in generation:
                got.append(piece)
        return got

    for make in (lambda: {"draft": Broken()}, lambda: {"sampler": Moody(5)}):
        ends = []
        for overlap in (False, True):
            with session(model) as s:
                g = s.generate(PROMPT, max_tokens=N, overlap=overlap, **make())
                ends.append((act(s, g), g.ids, g.stop_reason, whole_state(s)))
        assert ends[0] == ends[1] and ends[0][2] == "interrupted"

    # A step that fails by itself: the file has become shorter.
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(Path(path).read_bytes())
    before = threads()
    with session(rooflm.Model(copy)) as s:
        g = s.generate(PROMPT, overlap=True)
        next(g)
        assert s.kv_nbytes  # the step that runs ahead has ended
        os.truncate(copy, copy.stat().st_size - 1)
        next(g)
        ids = g.ids
        with pytest.raises(OSError, match="became shorter"):
            next(g)
        assert g.stop_reason == "interrupted" and g.ids == ids and threads() == before
        assert [*s.tokens, *s._pending] == [*PROMPT, *ids]


def test_ctrl_c_while_it_waits(smollm2):
    """A step of reference kernels takes long enough to be interrupted for sure."""
    m = rooflm.Model(smollm2)
    with m.session(n_ctx=64, compute="f32", isa="ref", n_threads=1) as s:
        g = s.generate([504, 3575], overlap=True)
        next(g)
        before = held(s)
        timer = threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(g)
        timer.join()
        assert held(s) == before and g.stop_reason == "interrupted" and g.n_taken_back == 1
        assert s._c._ahead_take_back(1) is None and s.eval([5]).shape == (m.n_vocab,)


def test_another_thread_waits_for_the_step(model):
    with session(model) as s, session(model) as t:
        g, h = s.generate(PROMPT, overlap=True), t.generate(PROMPT, overlap=False)
        assert take(3)(s, g) == take(3)(t, h)
        found = []
        other = threading.Thread(target=lambda: found.append(s.eval([8])))
        other.start()
        other.join()
        assert (found[0] == t.eval([8])).all() and held(s) == held(t)


def test_a_forked_process_goes_on(model):
    with session(model, n_threads=2) as s:
        whole = s.generate(PROMPT, max_tokens=N).text
        s.rewind(0)
        g = s.generate(PROMPT, max_tokens=N, overlap=True)
        take(3)(s, g)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # where it waits for what the fork left behind
            try:
                os.write(write, "".join([g.text, *g]).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as f:
            assert f.read().decode() == whole
        assert os.waitpid(child, 0)[1] == 0
        rest = list(g)
        assert g.text == whole and rest


def test_captures_show_no_step_that_was_taken_back(model):
    def act(s, generation):
        with s.capture("blk.0.resid_post") as cap:
            take(4)(s, generation)
            return cap["blk.0.resid_post"].tobytes()

    (plain, with_it), g = both(model, act)
    assert plain == with_it and g.n_ahead == 0
    with session(model) as s:
        g = s.generate(PROMPT, max_tokens=9, overlap=True)
        take(3)(s, g)
        with s.capture("final_norm") as cap:
            list(g)
        assert len(cap["final_norm"]) == 8 - g.n_ahead and g.n_ahead >= 3 and g.n_taken_back == 1


def test_logits_that_a_sampler_kept_stay_while_the_caller_has_the_piece(model):
    class Keeper:
        def sample(self, logits, history=None):
            self.logits, self.copy = logits, logits.copy()
            return int(logits.argmax())

    for draft in (None, Noise()):
        keeper = Keeper()
        with session(model) as s:
            for _ in s.generate(PROMPT, max_tokens=N, sampler=keeper, overlap=True, draft=draft):
                assert s.kv_nbytes  # waits for the step
                assert (keeper.logits == keeper.copy).all()


def test_auto_runs_ahead_for_a_caller_who_takes_long(model, monkeypatch):
    with session(model) as s:
        monkeypatch.setattr(overlapping, "WORTH_NS", 0)
        g = s.generate(PROMPT, max_tokens=N)
        pieces = list(g)
        assert g.n_ahead == N - 1
        s.rewind(0)
        monkeypatch.setattr(overlapping, "WORTH_NS", 20_000_000)
        g = s.generate(PROMPT, max_tokens=N)
        for i, _ in enumerate(g):
            if i == 3:
                time.sleep(0.03)
        assert 0 < g.n_ahead <= N - 1 - 4, "from the piece after the long one on"
        s.rewind(0)
        g = s.generate(PROMPT, max_tokens=N)
        assert g.text == "".join(pieces) and g.n_ahead == 0, "without iterating there is nothing to run beside"
        with pytest.raises(ValueError, match="overlap='yes'"):
            s.generate(PROMPT, overlap="yes")
        with pytest.raises(ValueError, match="overlap='yes'"):
            s.chat([{"role": "user", "content": "Hi"}], overlap="yes", template="{{ messages[0].content }}")


def test_chats(model):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    found = []
    for overlap in (False, True):
        with session(model) as s:
            messages = [{"role": "user", "content": "abc"}]
            for _ in range(3):
                g = s.chat(messages, max_tokens=6, template=template, overlap=overlap)
                messages += [{"role": "assistant", "content": "".join(g)}, {"role": "user", "content": "more"}]
            found.append((messages, whole_state(s)))
            assert g.n_ahead == (5 if overlap else 0)
    assert found[0] == found[1]


# ---- the extension ----


def test_steps_are_numbered_and_checked(model):
    with session(model, n_batch=8) as s:
        c = s._c
        s.eval(PROMPT)
        number, logits = c._ahead_start([8, 9], 1)
        assert c.n_past == 5 and c.tokens.tolist() == PROMPT and logits.shape == (1, 320)
        start_ns, end_ns = c._ahead_finish(number)
        assert 0 < start_ns <= end_ns <= time.monotonic_ns() and c.tokens.tolist() == [*PROMPT, 8, 9]
        s.rewind(5)
        assert (s.eval([8, 9], logits="all")[1] == logits[0]).all()
        assert c._ahead_finish(number) is None, "fetched before"
        later, _ = c._ahead_start([3], 0)
        assert c._ahead_take_back(number) is None and c._ahead_finish(later) is not None, "another's is left alone"
        assert c._ahead_start(list(range(9)), 0) is None, "more than n_batch"
        with pytest.raises(ValueError, match="out must be"):
            c._ahead_start([3], 0, np.zeros((2, 320), np.float32))
        with pytest.raises(ValueError, match="from token 1 on of 1"):
            c._ahead_start([3], 1)
        wrong, _ = c._ahead_start([320], 0)
        n = c.n_past
        with pytest.raises(ValueError, match="ids are 0 to 319"):
            c._ahead_finish(wrong)
        assert c.n_past == n and c._ahead_take_back(wrong) is None


# ---- what the trace says ----


def traced(model, overlap, pause_s=0.004, **options):
    with session(model) as s, s.trace() as tr:
        g = s.generate(PROMPT, max_tokens=8, overlap=overlap, **options)
        for _ in g:
            time.sleep(pause_s)
    return tr, g


def test_the_trace_says_what_overlapped(model, tmp_path):
    tr, g = traced(model, True)
    found = tr.overlap()
    assert found["steps"] == g.n_ahead == 7 and found["taken_back"] == 0 and found["taken_back_s"] == 0
    assert found["hidden_s"] == pytest.approx(g.hidden_s) and 0 < found["hidden_s"] <= found["time_s"]
    rows = {r["span"]: r for r in tr.stages()}
    assert set(rows) <= {*STAGES} and rows["decode"]["calls"] == 7
    assert rows["decode"]["hidden_s"] == pytest.approx(found["hidden_s"]) and rows["render"]["hidden_s"] == 0
    assert sum(r["share"] for r in rows.values()) == pytest.approx(1)
    ahead = [s for s in tr.spans if s.ahead]
    sampled = [s for s in tr.spans if s.name == "sample"]
    for before, step, after in zip(sampled, ahead, sampled[1:]):
        assert before.end_ns <= step.start_ns and step.end_ns <= after.start_ns
        assert 0 <= step.hidden_ns <= step.end_ns - step.start_ns
    embeds = [e for e in tr.events if e.op == "embed"][1:]
    assert all(s.start_ns <= e.start_ns <= e.end_ns <= s.end_ns for s, e in zip(ahead, embeds))
    line = "7 steps run ahead, "
    assert line in repr(tr) and line in tr._repr_html_() and "caller's code" in repr(tr)
    assert tr.to_dict()["overlap"] == found and json.dumps(tr.to_dict()["overlap"], allow_nan=False)

    tr.to_chrome(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lines = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    steps = [e for e in events if e["ph"] == "X" and e["tid"] == lines["steps ahead"]]
    assert [e["name"] for e in steps] == ["decode"] * 7
    assert sum(e["args"]["hidden_us"] for e in steps) == pytest.approx(1e6 * found["hidden_s"])
    assert all(0 <= e["args"]["hidden_share"] <= 1 for e in steps)
    assert not any(e["name"] == "decode" for e in events if e.get("tid") == lines["stages"])


def test_a_trace_without_overlap_does_not_speak_of_it(model):
    tr, g = traced(model, False)
    assert tr.overlap() is None and tr.to_dict()["overlap"] is None and "ahead" not in repr(tr)
    assert g.hidden_s == 0 and {r["hidden_s"] for r in tr.stages()} == {0.0}


def test_a_step_taken_back_is_in_the_trace(model):
    with session(model) as s:
        piece = list(s.generate(PROMPT, max_tokens=8))[5]
    tr, g = traced(model, True, stop=piece)
    found = tr.overlap()
    assert g.stop_reason == "stop" and g.n_taken_back == found["taken_back"] == 1 and found["taken_back_s"] > 0
    assert found["steps"] == g.n_ahead and "; 1 taken back, " in repr(tr)
    assert tr.stages()[-1]["span"] == TAKEN_BACK and g.to_dict()["n_taken_back"] == 1


def test_the_picture_of_stages_shows_what_was_hidden(model):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    tr, _ = traced(model, True)
    ax = tr.plot(kind="stages")
    legend = [t.get_text() for t in ax.get_legend().get_texts()]
    assert legend == ["passed beside other stages"]
    tr, _ = traced(model, False)
    assert tr.plot(kind="stages").get_legend() is None
    pyplot.close("all")
