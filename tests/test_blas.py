# SPDX-License-Identifier: Apache-2.0
"""OpenBLAS as a baseline for prompts: the same logits as our float32 path, named in the result, clear errors."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from golden_files import golden

import rooflm

PROMPT = [int(t) for t in np.arange(40) % 200 + 5]


def openblas(model, **kw):
    try:
        return model.session(n_ctx=64, n_threads=2, kv="f32", compute="f32", blas="openblas", **kw)
    except rooflm.Error as e:
        if importlib.util.find_spec("scipy_openblas32"):
            raise
        pytest.skip(f"no OpenBLAS here: {e}")


@pytest.mark.parametrize("name", ["llama-gqa-9-3", "gemma3", "qwen3moe"])
def test_logits_are_those_of_the_exact_path(name):
    model = rooflm.Model(golden(name).path)
    with openblas(model) as s, model.session(n_ctx=64, n_threads=2, kv="f32", compute="f32") as ours:
        got, expect = s.eval(PROMPT, logits="all"), ours.eval(PROMPT, logits="all")
        assert np.abs(got - expect).max() < 1e-4 * np.abs(expect).max()
        assert {k["kernel"] for k in s.kernels(512)} == {"openblas_sgemm"}
        assert "openblas_sgemm" not in {k["kernel"] for k in s.kernels(1)}
        assert "OpenBLAS" in s.blas["config"] and s.blas["core"] and s.blas["path"]
        assert ours.blas is None


def test_it_goes_with_the_exact_path_only():
    model = rooflm.Model(golden("llama").path)
    openblas(model).close()
    with pytest.raises(ValueError, match="compute 'f32'"):
        model.session(n_ctx=64, compute="int8", blas="openblas")


def test_what_is_no_blas_is_refused(tmp_path):
    model = rooflm.Model(golden("llama").path)
    with pytest.raises(rooflm.Error, match="no such file"):
        model.session(compute="f32", blas=str(tmp_path / "libnone.so"))
    fake = tmp_path / "libfake.so"
    fake.write_bytes(b"not a library")
    with pytest.raises(rooflm.Error, match="libfake.so"):
        model.session(compute="f32", blas=str(fake))
    with pytest.raises(rooflm.Error, match="cblas_sgemm"):
        model.session(compute="f32", blas="libm.so.6")
