# SPDX-License-Identifier: Apache-2.0
"""Vocabularies that are wrong, incomplete or of another kind: an error or a warning that names the key."""

from __future__ import annotations

import struct
import warnings

import pytest
from vocab_files import BYTE, CONTROL, NORMAL, byte_alphabet, small_bpe, small_spm, write

import rooflm
from rooflm import FallbackWarning, FormatError, Tokenizer


def refused(path, key, match=None, error=FormatError):
    with pytest.raises(error, match=match) as e:
        Tokenizer.from_gguf(path)
    assert f"tokenizer.ggml.{key}" in str(e.value)
    if error is FormatError:
        assert e.value.key == f"tokenizer.ggml.{key}"


@pytest.mark.parametrize("make", [small_bpe, small_spm])
@pytest.mark.parametrize("key", ["bos", "eos", "unknown", "padding", "eot"])
@pytest.mark.parametrize("id", [300, 2**31, 2**32 - 1])
def test_ids_beyond_the_vocabulary(make, key, id, tmp_path):
    """R6."""
    refused(make(tmp_path / "f.gguf", **{f"{key}_token_id": id}), f"{key}_token_id", str(id))


def test_the_last_id_is_in_the_vocabulary(tmp_path):
    assert Tokenizer.from_gguf(small_bpe(tmp_path / "f.gguf", padding_token_id=264)).pad_id == 264
    refused(small_bpe(tmp_path / "g.gguf", padding_token_id=265), "padding_token_id")


@pytest.mark.parametrize("pre", [None, "", "default"])
def test_unnamed_pre_tokenizer_warns(pre, tmp_path):
    """R22: a BPE vocabulary that does not say how text is split is not used in silence."""
    path = small_bpe(tmp_path / "f.gguf", pre=pre)
    with pytest.warns(FallbackWarning, match="tokenizer.ggml.pre") as heard:
        tok = Tokenizer.from_gguf(path)
    assert len(heard) == 1
    assert tok.decode(tok.encode(" hello")) == " hello"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FallbackWarning):
            Tokenizer.from_gguf(path)


def test_unknown_pre_tokenizer(tmp_path):
    refused(small_bpe(tmp_path / "f.gguf", pre="qwen9"), "pre", "qwen9")


@pytest.mark.parametrize("pre", [None, "default", "qwen9"])
def test_sentencepiece_needs_no_pre_tokenizer(pre, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tok = Tokenizer.from_gguf(small_spm(tmp_path / "f.gguf", pre=pre))
    assert [tok.piece(i) for i in tok.encode("hello", bos=False)] == [b" hello"]


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "no_vocab"])
def test_other_models(model, tmp_path):
    refused(small_bpe(tmp_path / "f.gguf", model=model), "model", f"'{model}'", rooflm.Error)


def test_missing_parts(tmp_path):
    refused(small_bpe(tmp_path / "a.gguf", model=None), "model", "missing")
    refused(small_bpe(tmp_path / "b.gguf", tokens=None), "tokens", "missing")
    refused(small_bpe(tmp_path / "c.gguf", merges=None), "merges", "missing")
    refused(small_spm(tmp_path / "d.gguf", scores=None), "scores", "missing")
    refused(small_bpe(tmp_path / "e.gguf", bos_token_id=None, add_bos_token=True), "add_bos_token", "bos_token_id")
    refused(small_bpe(tmp_path / "f.gguf", eos_token_id=None, add_eos_token=True), "add_eos_token", "eos_token_id")


def test_arrays_of_the_wrong_kind(tmp_path):
    refused(small_bpe(tmp_path / "a.gguf", tokens=[1, 2, 3]), "tokens")
    refused(small_bpe(tmp_path / "b.gguf", merges=[1, 2, 3]), "merges")
    refused(small_bpe(tmp_path / "c.gguf", types=[1, 1]), "token_type", "2 entries for 265")
    refused(small_spm(tmp_path / "d.gguf", scores=[0.5]), "scores", "1 entries for 272")
    refused(small_bpe(tmp_path / "e.gguf", types=[7] + [1] * 264), "token_type", "token 0 has the unknown type 7")
    refused(small_bpe(tmp_path / "f.gguf", types=[-1] + [1] * 264), "token_type", "unknown type -1")
    refused(small_spm(tmp_path / "g.gguf", scores=[float("nan")] * 272), "scores", "not a number")
    refused(small_bpe(tmp_path / "h.gguf", types=["a"] * 265), "token_type")
    refused(small_bpe(tmp_path / "i.gguf", types=None, token_type=3), "token_type", "array")


@pytest.mark.parametrize("text", ["<0x1>", "<0x0G>", "x", "<0xFFF>"])
def test_byte_tokens_that_name_no_byte(text, tmp_path):
    path = write(tmp_path / "f.gguf", model="llama", tokens=[text, "a"], types=[BYTE, NORMAL], scores=[0.0, 1.0])
    refused(path, "tokens", "token 0 is of type byte")


@pytest.mark.parametrize("line", ["he", "h", " ", "h ", " e", "h\u4e2d e"])
def test_merges_that_are_no_pairs(line, tmp_path):
    refused(small_bpe(tmp_path / "f.gguf", merges=["h e", line]), "merges", "line 1")


def test_merges_of_strings_that_are_no_tokens(tmp_path):
    """The merge counts, as its string may lead to a token; what stays of it is given as bytes."""
    path = small_bpe(tmp_path / "f.gguf", merges=["h e", "l o", "he lo"])
    with pytest.warns(FallbackWarning, match="2 strings"):
        tok = Tokenizer.from_gguf(path)
    assert [tok.piece(i) for i in tok.encode("helo")] == [b"h", b"e", b"l", b"o"]
    tokens = [*byte_alphabet(), "he", "helo"]
    path = write(tmp_path / "g.gguf", tokens=tokens, merges=["h e", "l o", "he lo"])
    with pytest.warns(FallbackWarning, match="1 strings"):
        assert Tokenizer.from_gguf(path).encode("helo").tolist() == [257]


def test_array_that_ends_early(tmp_path):
    """Lengths of strings inside an array are checked like all others."""
    path = small_bpe(tmp_path / "f.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<Q", 1) + b"!")
    for bad in (2**63, 2**40, 2**64 - 1):
        data[at : at + 8] = struct.pack("<Q", bad)
        path.write_bytes(data)
        with pytest.raises(FormatError):
            Tokenizer.from_gguf(path)


def test_end_marker_of_the_wrong_type(tmp_path):
    """A file that has <|im_end|> as text that users may write would let them end a turn."""
    path = small_bpe(tmp_path / "f.gguf", extra=("<|im_end|>", "</s>", "<x>"), types=[NORMAL] * 263 + [4, CONTROL])
    tok = Tokenizer.from_gguf(path)
    assert tok.type(262) == tok.type(263) == "control" and tok.eot_id == 262
    assert not {262, 263} & set(tok.encode("<|im_end|></s>").tolist())


def test_empty_and_repeated_tokens(tmp_path):
    tokens = [*byte_alphabet(), "", "", "a", "he"]
    tok = Tokenizer.from_gguf(write(tmp_path / "f.gguf", tokens=tokens, merges=["h e"]))
    assert tok.encode("ahe").tolist() == [97, 259] and tok.decode([256, 257, 258]) == "a"


def test_a_file_without_token_types(tmp_path):
    tok = Tokenizer.from_gguf(small_bpe(tmp_path / "f.gguf", types=None))
    assert tok.encode("hello").tolist() == [259]


def test_chat_templates(tmp_path):
    import gguf

    w = gguf.GGUFWriter(str(tmp_path / "f.gguf"), "llama")
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_string("tokenizer.ggml.pre", "gpt-2")
    w.add_array("tokenizer.ggml.tokens", byte_alphabet())
    w.add_array("tokenizer.ggml.merges", ["a b"])
    w.add_string("tokenizer.chat_template", "main")
    w.add_string("tokenizer.chat_template.tool_use", "tools")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    with pytest.warns(FallbackWarning):
        tok = Tokenizer.from_gguf(tmp_path / "f.gguf")
    assert tok.chat_template == "main" and tok.chat_templates == {"tool_use": "tools"}


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Tokenizer.from_gguf(tmp_path / "none.gguf")
    with pytest.raises(TypeError):
        Tokenizer.from_gguf(3)
