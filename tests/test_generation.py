# SPDX-License-Identifier: Apache-2.0
"""Streaming: stop strings, ends, characters that span tokens, timing, and what a session still holds afterwards.

A scripted session stands in for a model, so that every case can be written down; the real one is tested with models.
"""

from __future__ import annotations

import codecs
import itertools

import numpy as np
import pytest

from rooflm.generation import Generation

EOS = 999


class Tokenizer:
    """Ids are bytes; the decoder holds back incomplete characters, as the real one does."""

    eog_ids = (EOS,)

    class Decoder:
        def __init__(self, *, continues):
            assert continues  # a leading space of the continuation belongs to it
            self.d = codecs.getincrementaldecoder("utf-8")("replace")

        def feed(self, token):
            return self.d.decode(bytes([token]))

        def flush(self):
            return self.d.decode(b"", final=True)

    decoder = Decoder


class Script:
    """A session whose 'model' says the given ids whatever it is fed."""

    _tracer = None

    def __init__(self, ids, n_ctx=1000, fail_at=None):
        self.model = self
        self.tokenizer = Tokenizer()
        self.ids, self.n_ctx, self.n_past, self.fail_at = list(ids), n_ctx, 0, fail_at
        self._pending, self.calls = [], 0
        self.tokens, self.repeat_penalty, self.histories = [7], 1.0, []

    @property
    def room(self):
        return self.n_ctx - self.n_past

    def _evaluate(self, ids, out=None):
        if self.fail_at == self.calls:
            raise KeyboardInterrupt
        self.n_past += len(ids) + len(self._pending)
        self._pending = []
        self.calls += 1
        return np.eye(1, EOS + 1, self.ids[self.calls - 1], dtype=np.float32)[0]

    def _keep(self, n):
        assert n == self.n_past  # nothing is proposed here

    def sample(self, logits, history=None):
        self.histories.append(history)
        return np.argmax(logits)


def generation(ids, max_tokens=100, stop=(), prompt=3, **kw):
    s = Script(ids, **kw)
    return s, Generation(
        s, np.arange(prompt, dtype=np.int32), max_tokens=max_tokens, sampler=s, stop=stop, tokenize_s=0.25
    )


def say(text):
    return list(text.encode())


@pytest.mark.parametrize("text", ["🦙é中", "plain", "a🦙", "é"])
def test_pieces_never_split_a_character(text):
    _, g = generation(say(text) + [EOS])
    pieces = list(g)
    assert "".join(pieces) == text and "\ufffd" not in "".join(pieces) and "" not in pieces
    assert g.stop_reason == "eos" and g.ids == say(text)


def test_incomplete_character_is_flushed_at_the_end():
    _, g = generation(say("a") + say("é")[:1] + [EOS])
    assert g.text == "a\ufffd"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_length_counts_tokens(n):
    s, g = generation(say("abc"), max_tokens=n)
    assert g.text == "abc"[:n] and g.stop_reason == "length" and s.calls == n


def test_stop_string_across_pieces_is_not_part_of_the_text():
    s, g = generation(say("one END two"), stop=("END",))
    assert g.text == "one " and g.stop_reason == "stop" and s.calls == 7


def test_beginning_of_a_stop_string_is_held_back_only_while_it_may_be_one():
    _, g = generation(say("aENxENDb"), stop=("END",))
    seen = []
    for piece in g:
        seen.append(piece)
        assert "END" not in "".join(seen)
    assert "".join(seen) == "aENx" and g.stop_reason == "stop"


def test_held_back_text_comes_out_when_generation_ends_without_the_stop():
    _, g = generation(say("xEN") + [EOS], stop=("END",))
    assert g.text == "xEN" and g.stop_reason == "eos"
    _, g = generation(say("xEN"), stop=("END",), max_tokens=3)
    assert g.text == "xEN" and g.stop_reason == "length"


@pytest.mark.parametrize("stop", list(itertools.permutations(("abc", "b", "cab"))))
def test_first_of_several_stop_strings_wins(stop):
    _, g = generation(say("xxabc"), stop=stop)
    assert g.text == "xxa"


def test_full_context_ends_it_and_leaves_the_last_token_to_the_next_call():
    s, g = generation(say("abcdef"), n_ctx=5)
    assert g.text == "abc" and g.stop_reason == "context" and s.n_past == 5 and s._pending == [ord("c")]


def test_interruption_keeps_what_was_there_and_says_so():
    s, g = generation(say("abcdef"), fail_at=2)
    got = []
    with pytest.raises(KeyboardInterrupt):
        for piece in g:
            got.append(piece)
    assert got == ["a", "b"] and g.text == "ab" and g.stop_reason == "interrupted" and s._pending == [ord("b")]


def test_nothing_runs_before_it_is_asked_for():
    s, g = generation(say("ab") + [EOS])
    assert s.calls == 0 and "not started" in repr(g)
    assert g.text == "ab" and s.calls == 3


def test_results_during_iteration_are_those_so_far():
    _, g = generation(say("ab") + [EOS])
    assert next(g) == "a"
    assert g.text == "a" and g.stop_reason is None
    assert list(g) == ["b"] and g.text == "ab"


def test_times_are_kept_apart():
    _, g = generation(say("abc") + [EOS], prompt=7)
    d = g.to_dict()
    assert d["n_prompt"] == 7 and d["n_generated"] == 3
    assert d["ttft_s"] == pytest.approx(0.25 + d["token_times_s"][0])
    assert d["prefill_tps"] == pytest.approx(7 / d["prefill_s"])
    t = d["token_times_s"]
    assert len(t) == 4 and d["decode_tps"] == pytest.approx(3 / (t[-1] - t[0]))
    _, one = generation(say("a"), max_tokens=1)
    assert one.to_dict()["decode_tps"] is None


def test_max_tokens_zero_evaluates_the_prompt_and_says_nothing():
    s, g = generation(say("a"), max_tokens=0)
    assert g.text == "" and g.ids == [] and g.stop_reason == "length" and s.n_past == 3


def test_history_goes_to_a_sampler_that_penalizes_and_only_as_far_as_it_looks():
    s, g = generation(say("abc") + [EOS])
    g.run()
    assert s.histories == [None] * 4
    s, g = generation(say("abc") + [EOS])
    s.repeat_penalty, s.repeat_last_n = 1.1, 5
    g.run()
    assert s.histories == [[7, 0, 1, 2], [7, 0, 1, 2, 97], [0, 1, 2, 97, 98], [1, 2, 97, 98, 99]]
