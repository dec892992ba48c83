# SPDX-License-Identifier: Apache-2.0
"""Threads of a session: defaults with a reason, pinning as asked, one warning when the system refuses."""

from __future__ import annotations

import os
import warnings

import pytest
from golden_files import golden

import rooflm


@pytest.fixture(scope="module")
def model():
    return rooflm.Model(golden("llama").path)


def test_default_comes_with_a_reason(model):
    with model.session(n_ctx=16) as s:
        assert 1 <= s.n_threads == s.placement["n_threads"]
        assert s.placement["reason"] and s.placement["reason"] != "as asked"
    with model.session(n_ctx=16, n_threads=1) as s:
        assert s.n_threads == 1 and s.placement["reason"] == "as asked" and s.placement["cpus"] is None


def test_threads_run_where_they_are_pinned(model):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with model.session(n_ctx=16, cpus=cpus) as s:
            s.eval([3, 4])
            assert s.n_threads == 2 and s.placement["cpus"] == cpus
            assert s.placement["ran_on"] == cpus
        with model.session(n_ctx=16, cpus=cpus[::-1]) as s:
            s.eval([3, 4])
            assert s.placement["ran_on"] == cpus[::-1]
    with model.session(n_ctx=16, cpus=f"{cpus[0]},{cpus[1]}") as s:
        assert s.placement["cpus"] == cpus


def test_one_thread_is_pinned_while_it_computes(model):
    before = os.sched_getaffinity(0)
    for cpu in sorted(before)[:2]:
        with model.session(n_ctx=16, cpus=[cpu]) as s:
            s.eval([3, 4])
            assert s.placement["ran_on"] == [cpu] and os.sched_getaffinity(0) == before


@pytest.mark.parametrize("others", [[], [0]])
def test_a_refused_pin_is_one_warning(model, others):
    with model.session(n_ctx=16, cpus=[*(min(os.sched_getaffinity(0)) for _ in others), 900]) as s:
        with pytest.warns(rooflm.FallbackWarning, match="could not be pinned to CPU 900"):
            s.eval([3])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            s.eval([4])


BAD = [("3-1", "ascending"), ("x", "0-3,6"), ([], "0 CPUs"), ([-1], "no CPU"), (5, "cpus")]


@pytest.mark.parametrize("bad, said", BAD)
def test_bad_lists_are_refused(model, bad, said):
    with pytest.raises((ValueError, TypeError), match=said):
        model.session(n_ctx=16, cpus=bad, n_threads=2)


def test_as_many_threads_as_cpus(model):
    with pytest.raises(ValueError, match="2 CPUs for 3 threads"):
        model.session(n_ctx=16, n_threads=3, cpus=[0, 1])
