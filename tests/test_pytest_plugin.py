# SPDX-License-Identifier: Apache-2.0
"""The checks for users' own tests: each can pass, each can fail, and says by how much."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import record, runs

import rooflm
from rooflm import Results
from rooflm.pytest_plugin import expect

ROOT = Path(__file__).resolve().parent.parent


def test_what_holds_chains():
    result = Results(runs(3))
    checked = expect(result).no_fallback().not_throttled().share(ge=0.8).decode(ge=19, le=21)
    assert checked.prefill(ge=100).first_token(le=640).figure("read_gbs", ge=25).result is result
    expect(record()).share(ge=0.5)
    expect(runs(2)).share(ge=0.5)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda e: e.share(ge=0.81), r"ceiling_share is 0.8 \(median of n = 3 runs, .*\), expected at least 0.81"),
        (lambda e: e.share(le=0.7), "expected at most 0.7"),
        (lambda e: e.decode(ge=30), "kv f16.*decode_tps"),
        (lambda e: e.prefill(ge=101), "prefill_tps is 100"),
        (lambda e: e.first_token(le=600), "ttft_ms is 640"),
        (lambda e: e.figure("nonsense", ge=1), "no run has nonsense"),
    ],
)
def test_what_does_not_hold_says_so(check, message):
    with pytest.raises(AssertionError, match=message):
        check(expect(Results(runs(3))))


def test_one_bad_setting_is_enough():
    with pytest.raises(AssertionError, match="kv q8_0"):
        expect(Results([*runs(3), *runs(3, kv="q8_0", ceiling_share=0.4)])).share(ge=0.8)


def test_a_fallback_or_throttling_of_any_run_fails():
    bad = Results([*runs(3), record(fallbacks=["the file could not be mapped"])])
    with pytest.raises(AssertionError, match="could not be mapped"):
        expect(bad).no_fallback()
    with pytest.raises(AssertionError, match="does not say what fell back"):
        expect({"setting": {}}).no_fallback()
    hot = record(sensors={"throttled": True, "throttled_by": ["cpu0"]})
    with pytest.raises(AssertionError, match="throttled by cpu0"):
        expect(hot).not_throttled()
    unknown = record(sensors={"throttled": None, "unavailable": {"throttled": "no sign"}})
    expect(unknown).not_throttled()
    with pytest.raises(AssertionError, match="unknown: no sign"):
        expect(unknown).not_throttled(unknown=False)


def test_nothing_measured_and_nothing_expected():
    with pytest.raises(AssertionError, match="no records"):
        expect(Results([]))
    with pytest.raises(TypeError, match="say what is expected"):
        expect(record()).share()


def test_the_fixture_is_there_in_a_users_test(tmp_path):
    (tmp_path / "test_user.py").write_text(
        "def test_fast(expect):\n    expect({'ceiling_share': 0.9}).share(ge=0.8)\n"
        "def test_slow(expect):\n    expect({'ceiling_share': 0.3}).share(ge=0.8)\n"
    )
    options = "-q -p rooflm.pytest_plugin -p no:cacheprovider".split()
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    where = str(Path(rooflm.__file__).resolve().parent.parent)
    env = {**os.environ, "PYTHONPATH": where, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    out = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env).stdout
    assert "1 failed, 1 passed" in out and "ceiling_share is 0.3" in out, out
    assert 'rooflm = "rooflm.pytest_plugin"' in (ROOT / "pyproject.toml").read_text()
