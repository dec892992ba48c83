# SPDX-License-Identifier: Apache-2.0
"""Ids and texts: expected ids of five vocabularies, special tokens, bytes, round trips, streaming."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from bounded import run_steps
from hypothesis import given, settings
from hypothesis import strategies as st
from maker import tiny_model
from vocab_files import KEPT, SPACE, cases, kept, small_bpe, small_spm, tokenizer

import rooflm

fixed = settings(derandomize=True, deadline=None, max_examples=150, database=None)
BROKEN = [
    b"\xff",
    b"\xc3",
    b"\xe4\xbd",
    b"\xf0\x9f\xa6",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xf5\x80\x80\x80",
    b"\x80",
]


@pytest.fixture(params=KEPT)
def tok(request):
    return tokenizer(kept(request.param))


@pytest.fixture
def bpe(tmp_path):
    return rooflm.Tokenizer.from_gguf(small_bpe(tmp_path / "bpe.gguf"))


@pytest.fixture
def spm(tmp_path):
    return rooflm.Tokenizer.from_gguf(small_spm(tmp_path / "spm.gguf"))


# ---- expected ids ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_expected_ids(name):
    tok = tokenizer(kept(name))
    for text, expected in cases(name):
        ids = tok.encode(text, bos=False)
        assert ids.dtype == np.int32
        assert ids.tolist() == expected, repr(text)
        assert tok.encode(text.encode(), bos=False).tolist() == expected


def test_smollm_splits_digits(smollm2):
    """R21: digits one by one, fractions and other scripts too. Whole ids are compared in test_tokenizer_oracle.py."""
    tok = tokenizer(smollm2)
    for text in ("2024 12345 \u00bd \u0663", "2024", "a12b"):
        pieces = [tok.piece(i).decode("utf-8", "replace") for i in tok.encode(text)]
        assert all(sum(c.isnumeric() for c in p) <= 1 for p in pieces), pieces
    assert (
        tok.decode(tok.encode("\tI'll  \u6211\u60f3\U0001f468\u200d\U0001f469 'S"))
        == "\tI'll  \u6211\u60f3\U0001f468\u200d\U0001f469 'S"
    )


# ---- special tokens ----------------------------------------------------------------------------------------------


def test_special_tokens_only_on_request(bpe, spm):
    """R26: a control token's text from a user is ordinary text."""
    for tok, control in ((bpe, "<|end|>"), (spm, "</s>")):
        id = tok.token_to_id(control)
        plain = tok.encode(f"a{control}b", bos=False)
        assert id not in plain and tok.decode(plain) == f"a{control}b"
        parsed = tok.encode(f"a{control}b", special=True, bos=False).tolist()
        assert parsed.count(id) == 1
        assert tok.decode(parsed) == f"a{control}b"
        assert tok.decode(parsed, skip_special=True) == "ab"


def test_user_defined_tokens_always(bpe, spm):
    for tok in (bpe, spm):
        id = tok.token_to_id("<user>")
        assert tok.type(id) == "user_defined" and tok.is_special(id)
        assert tok.encode("a<user>b", bos=False).tolist().count(id) == 1
        assert tok.decode(tok.encode("a<user> b"), skip_special=True) == "a<user> b"


def test_longest_special_token_wins(tmp_path):
    tok = rooflm.Tokenizer.from_gguf(
        small_bpe(tmp_path / "f.gguf", extra=("<|", "<|a", "<|a|>"), types=[1] * 262 + [3] * 3)
    )
    assert tok.encode("<|a|><|a<|<", special=True, bos=False).tolist() == [
        264,
        263,
        262,
        tok.token_to_id("<"),
    ]


def test_bos_and_eos(tmp_path):
    """R27: no BOS key, no BOS; a text that begins with BOS gets one only."""
    tok = rooflm.Tokenizer.from_gguf(small_bpe(tmp_path / "a.gguf"))
    assert not tok.add_bos and tok.encode("he").tolist() == [256]
    assert tok.encode("he", bos=True, eos=True).tolist() == [262, 256, 263]
    assert tok.encode("<|bos|>he<|end|>", special=True, bos=True, eos=True).tolist() == [262, 256, 263]
    assert tok.encode("<|bos|><|bos|>", special=True, bos=True).tolist() == [262, 262]
    assert tok.encode("<|bos|>he", bos=True).tolist().count(262) == 1  # as text it is no BOS
    assert tok.encode("", bos=True).tolist() == [262] and tok.encode("").tolist() == []

    asks = rooflm.Tokenizer.from_gguf(small_bpe(tmp_path / "b.gguf", add_bos_token=True, add_eos_token=True))
    assert asks.encode("he").tolist() == [262, 256, 263]
    assert asks.encode("he", bos=False, eos=False).tolist() == [256]
    assert asks.decode([262, 256, 263]) == "he"  # what encode() added
    assert asks.decode([262, 263, 256]) == "<|end|>he" and asks.decode([256, 262]) == "he<|bos|>"

    spm = rooflm.Tokenizer.from_gguf(small_spm(tmp_path / "c.gguf"))
    assert spm.add_bos and spm.encode("hello").tolist()[0] == 1
    none = rooflm.Tokenizer.from_gguf(small_bpe(tmp_path / "d.gguf", bos_token_id=None))
    assert none.bos_id is None and none.encode("he").tolist() == [256]
    with pytest.raises(ValueError, match="no beginning-of-text"):
        none.encode("he", bos=True)


def test_end_of_generation(smollm2, gemma3):
    s, g = tokenizer(smollm2), tokenizer(gemma3)
    assert (s.eos_id, s.eot_id, s.eog_ids) == (2, 2, (0, 2))
    assert (g.eos_id, g.eot_id) == (1, 106) and {1, 106} <= set(g.eog_ids)
    assert tokenizer(kept("llama-bpe")).eog_ids == (128001, 128009)
    html = tokenizer(kept("qwen2"))  # has </s> as an ordinary token, which ends nothing
    assert html.eog_ids == (151643, 151645) and html.type(html.token_to_id("</s>")) == "normal"


def test_phi3_drops_space_after_special():
    tok = tokenizer(kept("phi-3"))
    user, end = tok.token_to_id("<|user|>"), tok.token_to_id("<|end|>")
    ids = tok.encode("<|user|>\n Hi<|end|>\n", special=True, bos=False).tolist()
    assert ids == [user, *tok.encode("Hi", bos=False), end]


# ---- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("bad", BROKEN)
def test_bytes_that_are_not_utf8(name, bad):
    """R23: bytes are kept as they are, and nothing ends at a NUL."""
    tok = tokenizer(kept(name))
    text = b"caf\xc3\xa9 " + bad + b"\0x " + bad
    assert tok.decode_bytes(tok.encode(text)) == text
    assert tok.decode(tok.encode(text)) == text.decode("utf-8", "replace")


def test_lone_surrogates(bpe):
    with pytest.raises(UnicodeEncodeError):
        bpe.encode("a\ud800b")
    assert bpe.encode("he").tolist() == [256]


@pytest.mark.parametrize("name", KEPT)
@fixed
@given(data=st.binary(max_size=60))
def test_any_bytes_round_trip(name, data):
    tok = tokenizer(kept(name))
    assert tok.decode_bytes(tok.encode(data)) == data


def test_bytes_without_a_token(smollm2):
    """SmolLM2 has no token for some control characters: left out, as its own tokenizer does, but not in silence."""
    tok = tokenizer(smollm2)
    with pytest.warns(rooflm.FallbackWarning, match="2 of 4 bytes"):
        ids = tok.encode("a\x04\x06b")
    assert ids.tolist() == tok.encode("a").tolist() + tok.encode("b").tolist()


# ---- round trips -------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    f" \n\thelo{SPACE}<s>/\u00e9\U0001f999", max_size=40
)


@pytest.mark.parametrize("name", KEPT)
@fixed
@given(text=texts)
def test_any_text_round_trips(name, text):
    """R25, spaces at the start and a literal U+2581 included."""
    tok = tokenizer(kept(name))
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode(text, bos=False)) == text


@fixed
@given(parts=st.lists(texts | st.sampled_from(["</s>", "<user>", " ", "  hello"]), max_size=6))
def test_round_trip_across_special_tokens(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "spm_parts.gguf"
    tok = tokenizer(path if path.exists() else small_spm(path))
    text = "".join(parts)
    assert tok.decode(tok.encode(text, special=True, bos=False), continues=False) == text.removeprefix("<s>")


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_models_round_trip(model, request):
    tok = tokenizer(request.getfixturevalue(model))
    for text in (
        " a",
        "  a",
        "a ",
        "\n\n a\t\t",
        "   ",
        "\u2581 x",
        "a<end_of_turn> b",
        "<|im_end|> c",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    ):
        assert tok.decode(tok.encode(text)) == text
        assert tok.decode(tok.encode(text, special=True)) == text


# ---- streaming ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
@fixed
@given(data=st.binary(max_size=30) | texts.map(str.encode))
def test_streaming_joins_to_one_shot(name, data):
    """R24: no piece ends inside a character, and U+FFFD only where the bytes are invalid."""
    tok = tokenizer(kept(name))
    ids = tok.encode(data)
    d = tok.decoder()
    pieces = [d.feed(i) for i in ids] + [d.flush()]
    assert "".join(pieces) == tok.decode(ids) == data.decode("utf-8", "replace")


def test_streaming_holds_characters_back(bpe):
    text = "\U0001f999\u00e9\u4e2d"
    d = bpe.decoder()
    out = [d.feed(i) for i in bpe.encode(text)]
    assert [o for o in out if o] == list(text) and d.flush() == ""
    assert [d.feed(i) for i in bpe.encode(b"\xf0\x9f")] == ["", ""] and d.flush() == "\ufffd"
    assert d.feed(bpe.token_to_id("a")) == "a"  # begins anew after a flush


def test_continuing_keeps_the_space(spm):
    ids = spm.encode("hello", bos=False)
    assert spm.decode(ids) == "hello" and spm.decode(ids, continues=True) == " hello"
    d = spm.decoder(continues=True)
    assert "".join(d.feed(i) for i in ids) == " hello"


def test_decoder_outlives_its_tokenizer(tmp_path):
    d = rooflm.Tokenizer.from_gguf(small_bpe(tmp_path / "x.gguf")).decoder()
    assert d.feed(256) == "he"
    with pytest.raises(ValueError, match="265"):
        d.feed(265)
    assert d.feed(257) == "ll"  # still usable


# ---- the object --------------------------------------------------------------------------------------------------


def test_attributes(bpe, spm, tmp_path):
    assert repr(bpe) == "<rooflm.Tokenizer gpt2, pre gpt-2, 265 tokens>"
    assert (len(bpe), bpe.n_vocab, bpe.model, bpe.pre) == (265, 265, "gpt2", "gpt-2")
    assert (bpe.bos_id, bpe.eos_id, bpe.unk_id, bpe.pad_id) == (262, 263, None, None)
    assert bpe.chat_template is None and bpe.chat_templates == {}
    assert (spm.model, spm.add_space_prefix, spm.unk_id) == ("llama", True, 0)
    assert bpe.piece(260) == b" hello" and bpe.token_to_id("\u0120hello") == 260
    assert spm.piece(spm.token_to_id(SPACE + "hello")) == b" hello"
    assert spm.piece(spm.token_to_id("<0x0A>")) == b"\n" and spm.type(spm.token_to_id("<0x0A>")) == "byte"
    assert bpe.token_to_id("nothing like it") is None and bpe.token_to_id("") is None
    for tok in (bpe, spm):
        for i in range(len(tok)):
            assert isinstance(tok.piece(i), bytes)


@pytest.mark.parametrize("name", KEPT)
def test_token_to_id_is_the_inverse(name):
    path = kept(name)
    tok = tokenizer(path)
    tokens = rooflm.GGUF(path).metadata["tokenizer.ggml.tokens"]
    wrong = [i for i in range(0, len(tokens), 97) if tok.token_to_id(tokens[i]) != i]
    assert wrong == []


def test_open_file_and_path_give_the_same():
    path = kept("gpt-2")
    with rooflm.GGUF(path) as g:
        from_open = rooflm.Tokenizer.from_gguf(g)
    assert from_open.encode("Hello world").tolist() == tokenizer(path).encode("Hello world").tolist()
    assert rooflm.Tokenizer.from_gguf(str(path)).n_vocab == len(from_open)


def test_ids_of_any_kind(bpe):
    for ids in ([256, 257], (256, 257), np.array([256, 257], np.uint16), np.array([256, 257], ">i8")):
        assert bpe.decode(ids) == "hell"
    assert bpe.decode([]) == "" and bpe.decode(np.zeros(0, np.int32)) == ""
    for bad in (265, -1, 2**31, 2**40):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            bpe.decode([bad])
        with pytest.raises(ValueError, match="not in the vocabulary"):
            bpe.piece(bad)
    for bad in (1.5, [0.5], "a", None):
        with pytest.raises(TypeError):
            bpe.decode(bad if isinstance(bad, list) else [bad])


def test_arguments(bpe):
    with pytest.raises(TypeError, match="no argument 'specials'"):
        bpe.encode("a", specials=True)
    for call in (lambda: bpe.encode(), lambda: bpe.encode(1), lambda: bpe.encode("a", True, True)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        rooflm.Tokenizer()
    assert bpe.encode(memoryview(b"he")).tolist() == [256]


# ---- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "llama-spm"])
def test_time_is_not_quadratic(name):
    """A text of one repeated character is one word, here of half a megabyte."""
    run_steps(
        """
from vocab_files import kept, tokenizer
tok = tokenizer(kept(sys.argv[1]))
units = ["a", " ", "\\n", "\\u00e9", "7", "'", "A", "\\u0301", "\\u4e2d", " a", "ab\\n", "\\U0001f999", "<", "\\u2581"]
for unit in units:
    step(ascii(unit))
    assert len(tok.encode(unit * (500_000 // len(unit.encode())))) > 1000
""",
        name,
    )


def test_one_megabyte(smollm2, gemma3):
    for path in (smollm2, gemma3):
        tok = tokenizer(path)
        ids = tok.encode("a" * 1_000_000)
        assert tok.decode(ids) == "a" * 1_000_000


def test_threads_share_a_tokenizer():
    tok = tokenizer(kept("llama-bpe"))
    text = "The quick brown fox, " * 2000
    expected = tok.encode(text).tolist()
    wrong = []

    def work():
        for _ in range(5):
            if tok.encode(text).tolist() != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize(
    "numbers", [np.array([1, 2]), np.array([1.5]), memoryview(np.array([1, 2], np.int32)), np.array([True])]
)
def test_numbers_are_no_text(tmp_path, numbers):
    """Their bytes are readable, but to encode ids instead of decoding them is a mistake."""
    tok = rooflm.Model(tiny_model(tmp_path / "m.gguf")).tokenizer
    with pytest.raises(TypeError, match="of numbers; decode"):
        tok.encode(numbers)
    for data in (b"ab", bytearray(b"ab"), memoryview(b"ab"), np.frombuffer(b"ab", np.uint8)):
        assert tok.encode(data).tolist() == tok.encode("ab").tolist()
