# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: what importing it costs, and that what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rooflm

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("matplotlib", "pandas", "jinja2", "gguf", "tokenizers", "torch", "scipy", "sqlite3", "tqdm")


def python(code: str) -> str:
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


def test_import_brings_no_heavy_module():
    code = f"import sys, rooflm; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize("use, more", [("pass", []), ("rooflm.GGUF", ["rooflm._core"])])
def test_import_brings_nothing_and_the_first_use_the_extension_alone(use, more):
    """What an import costs is what it brings along; bench/start.py has the time that takes."""
    code = f"import sys, numpy; old = set(sys.modules); import rooflm; {use}; print(sorted(set(sys.modules) - old))"
    assert python(code) == str(["__future__", "rooflm", *more])


def test_every_public_name_exists():
    missing = [n for n in rooflm.__all__ if getattr(rooflm, n, None) is None]
    assert missing == []
    assert sorted(set(rooflm.__all__)) == sorted(rooflm.__all__)
    assert set(rooflm._LAZY) <= set(rooflm.__all__)
    assert set(rooflm.__all__) <= set(dir(rooflm))


def test_public_names_survive_the_import_of_their_modules():
    """A submodule of the same name would replace a function when something imports it."""
    code = """
import importlib, pkgutil, rooflm
before = {n: getattr(rooflm, n) for n in rooflm.__all__}
for m in pkgutil.iter_modules(rooflm.__path__):
    if m.name not in ("__main__", "_core"):
        try:
            importlib.import_module("rooflm." + m.name)
        except ImportError:
            pass
print([n for n in before if getattr(rooflm, n) is not before[n]])
"""
    assert python(code) == "[]"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rooflm.nonsense  # noqa: B018


def test_versions_agree():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.+)"$', text, re.M).group(1) == rooflm.__version__


def test_documentation_points_to_files_that_exist():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


PAGES = [
    "README.md",
    "docs/comparing.md",
    "docs/diagnosis.md",
    "docs/loading.md",
    "docs/machine.md",
    "docs/measuring.md",
    "docs/quantizing.md",
    "docs/performance.md",
    "docs/session.md",
    "docs/tokenizers.md",
    "docs/tracing.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_the_documentation_run_as_written(page, smollm2, tmp_path, monkeypatch):
    """Pasted one after the other, as a reader would."""
    monkeypatch.chdir(tmp_path)  # some write files
    examples = re.findall(r"^```python\n(.+?)^```", (ROOT / page).read_text(), re.M | re.S)
    assert examples
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)


def test_readme_names_the_test_command():
    """.ci/run takes its test command from the README, so that the two cannot differ."""
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"<!-- ci: test -->\n```bash\n(.+\n)*python -m pytest\n```", readme)
