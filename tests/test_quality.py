# SPDX-License-Identifier: Apache-2.0
"""The arithmetic around perplexity: windows, BOS, intervals. What the models give is tested with the engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rooflm import stats
from rooflm._keywords import checked_keywords
from rooflm._text import as_tokens


@pytest.mark.parametrize(
    "df, t", [(1, 12.706205), (2, 4.302653), (5, 2.570582), (7, 2.364624), (19, 2.093024), (120, 1.979930)]
)
def test_t_quantile_against_tables(df, t):
    assert stats.t_quantile(0.975, df) == pytest.approx(t, rel=1e-6)
    assert stats.t_quantile(0.025, df) == pytest.approx(-t, rel=1e-6)
    assert stats.t_cdf(t, df) == pytest.approx(0.975, abs=1e-7)


def test_interval_of_window_means():
    """Worked by hand: mean 2, s = 1, n = 3, half width 4.302653 / sqrt(3)."""
    lo, hi = stats.t_interval([1.0, 2.0, 3.0])
    half = 4.302653 / math.sqrt(3)
    assert (lo, hi) == (pytest.approx(2 - half, rel=1e-6), pytest.approx(2 + half, rel=1e-6))
    assert stats.t_interval([1.0]) is None and stats.mean_and_se([1.0]) == (1.0, None)


def test_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = sum(lo <= 0 <= hi for lo, hi in (stats.t_interval(rng.normal(size=6)) for _ in range(2000)))
    assert 0.935 < hits / 2000 < 0.965


class Bytes:
    def encode(self, text, special=False, bos=None, eos=None):
        return ([1] if bos is not False else []) + list(text.encode())


def test_text_is_text_a_path_is_a_file_and_integers_are_tokens(tmp_path):
    f = tmp_path / "a.txt"
    f.write_text("hi")
    assert as_tokens("hi", Bytes).tolist() == [1, 104, 105]
    assert as_tokens(f, Bytes, bos=False).tolist() == [104, 105]
    assert as_tokens(str(f), Bytes, bos=False).tolist() == list(str(f).encode())
    assert as_tokens([5, 6], Bytes).tolist() == [5, 6]
    assert as_tokens(np.array([5, 6], np.uint64), Bytes).dtype == np.int32
    assert as_tokens([], Bytes).tolist() == []


@pytest.mark.parametrize("bad", [b"bytes", [1.5], [[1]], None, 3, ["a"]])
def test_other_kinds_of_text_are_type_errors(bad):
    with pytest.raises(TypeError):
        as_tokens(bad, Bytes)


def test_impossible_ids_and_files(tmp_path):
    for bad in ([-1], [2**40]):
        with pytest.raises(ValueError, match="ids lie between"):
            as_tokens(bad, Bytes)
    f = tmp_path / "latin"
    f.write_bytes(b"abc\xe9")
    with pytest.raises(ValueError, match="byte 3 is 0xe9"):
        as_tokens(f, Bytes)


@checked_keywords
def example(*, n_threads=1, n_ctx=2, max_tokens=3, temperature=0.0):
    return n_threads


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("threads", "n_threads"),
        ("n_thread", "n_threads"),
        ("ctx", "n_ctx"),
        ("max_new_tokens", "max_tokens"),
        ("temp", "temperature"),
        ("temprature", "temperature"),
    ],
)
def test_unknown_keyword_suggests_the_right_one(wrong, right):
    with pytest.raises(TypeError, match=rf"example\(\) has no keyword '{wrong}'; did you mean '{right}'"):
        example(**{wrong: 1})


def test_unknown_keyword_without_a_near_one_lists_them():
    with pytest.raises(TypeError, match="it takes n_threads, n_ctx"):
        example(zzz=1)
    assert example(n_threads=4) == 4
