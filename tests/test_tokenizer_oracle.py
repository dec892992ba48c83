# SPDX-License-Identifier: Apache-2.0
"""Ids against the `tokenizers` package built from the same vocabulary, on random Unicode and on English."""

from __future__ import annotations

import functools
import pydoc_data.topics
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_pre_tokenizers import PUBLISHED
from vocab_files import SPACE, kept, outside_bpe, outside_spm, tokenizer

import rooflm

fixed = settings(derandomize=True, deadline=None, max_examples=250, database=None)
ENGLISH = "\n\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))[:60_000]
PROBES = [
    "2024 12345 \u00bd \u0663",
    "I've been 'told he's there, 'RE you sure? We'Ve a'lL y'all",
    "\tdef f(x):\n\t\treturn x  # \u4e2d\u6587 \U0001f468\u200d\U0001f469\u200d\U0001f467\r\n\r\n  end   ",
    " ".join(
        [
            "\u043f\u0440\u0438\u0432\u0435\u0442",
            "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1",
            "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
            "\u0645\u0631\u062d\u0628\u0627",
            "\u0928\u092e\u0938\u094d\u0924\u0947",
        ]
    ),
    "<p> </p> > </ x> </div> </div>",  # Gemma has a token with a space inside
    "a" * 300 + " " * 300 + "\n" * 70 + "=" * 200,
]
# Any character; and characters that meet at the borders of rules, in repetitions that long words are made of.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE), max_size=60) | st.lists(
    st.builds(str.__mul__, st.sampled_from(list("aAeZ 't\n\t.7\u00e9\u4e2d\U0001f680-")), st.integers(1, 30)),
    max_size=8,
).map("".join)


@functools.cache
def bpe_pair(name, path):
    from tokenizers import Regex, pre_tokenizers

    if name == "smollm":  # as the model itself has it
        stages = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
        from tokenizers import Tokenizer, models

        meta = rooflm.GGUF(path).metadata
        vocab = {t: i for i, t in enumerate(meta["tokenizer.ggml.tokens"])}
        outside = Tokenizer(
            models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]])
        )
        outside.pre_tokenizer = pre_tokenizers.Sequence(stages)
    else:
        stages = [pre_tokenizers.Split(Regex(r), "isolated") for r in PUBLISHED[name]]
        outside = outside_bpe(path, stages=stages, ignore_merges=name == "llama-bpe")
    return tokenizer(path), outside


def same(pair, text):
    ours, outside = pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rooflm.FallbackWarning)  # bytes without a token: left out by both
        ids = ours.encode(text, bos=False).tolist()
    assert ids == outside.encode(text, add_special_tokens=False).ids, ascii(text)


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2"])
@fixed
@given(text=texts)
def test_bpe(name, text):
    same(bpe_pair(name, kept(name)), text)


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2"])
def test_bpe_on_texts(name):
    pair = bpe_pair(name, kept(name))
    for text in [*PROBES, ENGLISH]:
        same(pair, text)


def test_smollm2(smollm2):
    pair = bpe_pair("smollm", smollm2)
    for text in [*PROBES, ENGLISH]:
        same(pair, text)

    @fixed
    @given(text=texts)
    def random_unicode(text):
        same(pair, text)

    random_unicode()


@functools.cache
def spm_pair(path):
    return tokenizer(path), outside_spm(path)


@fixed
@given(text=texts)
def test_sentencepiece(text):
    if text:  # the outside normalizer puts the prefix before nothing, too
        same(spm_pair(kept("llama-spm")), text)


def test_sentencepiece_on_texts():
    for text in [*PROBES, ENGLISH]:
        same(spm_pair(kept("llama-spm")), text)


def test_gemma3(gemma3):
    pair = spm_pair(gemma3)
    for text in [*PROBES, ENGLISH]:
        same(pair, text)

    @fixed
    @given(text=texts)
    def random_unicode(text):
        same(pair, text)

    random_unicode()
