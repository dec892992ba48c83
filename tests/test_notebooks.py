# SPDX-License-Identifier: Apache-2.0
"""The notebooks of examples/ run from top to bottom in a fresh kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rooflm

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_notebooks_are_kept_without_output():
    nbformat = pytest.importorskip("nbformat")
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        nb = nbformat.read(path, as_version=4)
        nbformat.validate(nb)
        assert all(not c.outputs and c.execution_count is None for c in nb.cells if c.cell_type == "code"), path.name


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path, smollm2, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel draws into the notebook
    # The kernel starts in another folder: what is imported here must be found from there.
    monkeypatch.setenv("PYTHONPATH", str(Path(rooflm.__file__).resolve().parent.parent))
    nb = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(nb, timeout=1800, resources={"metadata": {"path": str(ROOT / "examples")}}).execute()
    images = [o for c in nb.cells if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})]
    assert images, "a notebook of measurements shows pictures"
    if os.environ.get("ROOFLM_PLOTS"):
        nbformat.write(nb, Path(os.environ["ROOFLM_PLOTS"]) / path.name)
