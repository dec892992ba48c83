# SPDX-License-Identifier: Apache-2.0
"""Weights read ahead, locked and counted, and the hand-over from a small model to a large one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading

import pytest
from maker import tiny_model

import rooflm
from rooflm import _core, residency
from rooflm._pages import drop_pages, resident_share


@pytest.fixture
def model(tmp_path):
    return rooflm.Model(tiny_model(tmp_path / "m.gguf", types="Q8_0", split_max_tensors=9))


def nbytes(model, part):
    return sum(t.nbytes for name, t in model.gguf.tensors.items() if part in name)


def test_what_is_read_is_there(model):
    assert model.preload(progress=False) == nbytes(model, "")
    assert model.resident() == 1.0
    assert model.preload("blk.1.*", progress=False) == nbytes(model, "blk.1.") > 0
    lines = []
    model.preload("*norm*", progress=lines.append)
    assert len(lines) == 5 and lines[0].startswith("blk.0.attn_norm.weight: 0 of")


@pytest.mark.unsanitized  # AddressSanitizer makes nothing of mlock, and an emulator counts its own pages
def test_locked_pages_count_with_their_tensors(model):
    try:
        assert model.lock("blk.0.attn_*") == nbytes(model, "blk.0.attn_")
    except OSError as e:  # the system allows no locked memory at all
        assert "ulimit" in str(e)
        return
    with open("/proc/self/status") as f:
        locked = next(int(line.split()[1]) for line in f if line.startswith("VmLck"))
    assert locked * 1024 >= nbytes(model, "blk.0.attn_")
    assert model.unlock() == nbytes(model, "")


def test_a_system_that_forbids_locking_says_what_to_do(model, monkeypatch):
    monkeypatch.setenv("ROOFLM_FAULT", "mlock")
    with pytest.raises(OSError, match="ulimit -l") as e:
        model.lock("*")
    assert e.value.errno == 1


def test_what_is_not_there(model, tmp_path):
    for call in (model.preload, model.lock, model.unlock, model.resident):
        with pytest.raises(KeyError, match="no tensor matches 'blk.9"):
            call("blk.9.*")
    other = rooflm.Model(tiny_model(tmp_path / "other.gguf"))
    with pytest.raises(ValueError, match="another file"):
        _core._tensor_pages(model.gguf, other.gguf.tensors["output_norm.weight"], "resident")
    with pytest.raises(ValueError, match="none of preload"):
        _core._tensor_pages(model.gguf, model.gguf.tensors["output_norm.weight"], "forget")
    file = rooflm.GGUF(tmp_path / "other.gguf")
    tensor = file.tensors["output_norm.weight"]
    file.close()
    with pytest.raises(ValueError, match="closed"):
        _core._tensor_pages(file, tensor, "resident")


def test_share_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"x" * (1 << 20))
    assert resident_share(path) == resident_share(str(path)) == 1.0
    left = drop_pages(path)
    if left < 0.5:  # else the file system keeps its pages
        with open(path, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            f.read(4096)
        assert left < resident_share(path) < 0.5
    path.write_bytes(b"")
    assert resident_share(path) is None
    with pytest.raises(FileNotFoundError, match="nowhere"):
        resident_share(tmp_path / "nowhere")


def test_of_files_of_others_nothing_is_known():
    """The system calls all of their pages resident. Root becomes nobody here; who is not root owns no /etc/passwd."""
    code = """
import os, sys, rooflm
from rooflm._pages import resident_share
m = rooflm.Model(sys.argv[1])
assert m.resident() == 1.0
if os.getuid() == 0:
    os.setuid(65534)
    m = rooflm.Model(m.gguf.path)
    try:
        m.resident()
    except PermissionError as e:
        assert "who owns a file" in str(e)
    else:
        sys.exit("told")
print(resident_share("/etc/passwd"))
"""
    with tempfile.TemporaryDirectory() as directory:  # tmp_path lies where nobody may look
        os.chmod(directory, 0o755)
        path = tiny_model(f"{directory}/m.gguf")
        p = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (p.stdout, p.stderr) == ("None\n", "")


def test_a_copy_is_resident_too(tmp_path):
    model = rooflm.Model(tiny_model(tmp_path / "m.gguf"), load="copy")
    assert model.preload(progress=False) > 0 and model.resident() == 1.0


@pytest.fixture
def slow_reading(monkeypatch):
    """Reading waits for permission, tensor by tensor."""
    may, read = threading.Semaphore(0), _core._tensor_pages

    def wait_first(gguf, tensor, what):
        if what == "preload":
            may.acquire()
        return read(gguf, tensor, what)

    monkeypatch.setattr(residency._core, "_tensor_pages", wait_first)
    return may


def test_the_small_model_answers_until_the_large_one_is_read(model, tmp_path, slow_reading):
    large = rooflm.Model(tiny_model(tmp_path / "large.gguf", seed=1))
    n = len(large.gguf.tensors)
    with rooflm.Handover(model, large) as h:
        assert not h.ready and h.model is model and not h.wait(0.01)
        assert h.model.session().generate([5, 6], max_tokens=3).ids
        for _ in range(n - 1):
            slow_reading.release()
        assert not h.wait(0.05) and h.model is model and h.share < 1 and "read" in repr(h)
        slow_reading.release()
        assert h.wait() and h.ready and h.model is large and h.share == 1 and "ready" in repr(h)


def test_reading_given_up(model, tmp_path, slow_reading):
    with rooflm.Handover(model, tiny_model(tmp_path / "large.gguf")) as h:
        slow_reading.release()
    assert not h.ready and h.model is model and 0 < h.share < 1 and h.error is None


def test_what_ends_the_reading_is_told(model, tmp_path, monkeypatch):
    path = tiny_model(tmp_path / "large.gguf")
    with pytest.raises(KeyError, match="no tensor matches"):
        rooflm.Handover(model, path, lock="nothing.*")
    monkeypatch.setenv("ROOFLM_FAULT", "mlock")
    with rooflm.Handover(model, path, lock="*") as h:
        with pytest.raises(OSError, match="ulimit"):
            h.wait()
        assert not h.ready and h.model is model and "failed" in repr(h)
