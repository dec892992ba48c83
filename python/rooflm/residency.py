# SPDX-License-Identifier: Apache-2.0
"""Weights in memory before they are needed, kept there, and a small model that answers while a large one is read.

    model.preload(progress=True)              # read the file now and not with the first tokens
    model.lock("blk.*.attn_*")                # pages that the system must not give up
    with rooflm.Handover("small.gguf", "large.gguf") as h:
        h.model.session().generate(...)       # the small model, and the large one from when it is in memory

A mapped model is read where its pages are first touched: the first tokens of a cold file wait for the disk.
"""

from __future__ import annotations

import fnmatch
import os
import threading
from typing import TYPE_CHECKING, Iterator, Optional, Union

from rooflm import _core
from rooflm._closing import Closing
from rooflm._progress import Progress, ProgressArg

if TYPE_CHECKING:
    from rooflm.model import Model


def matching(gguf: _core.GGUF, pattern: str) -> list[_core.Tensor]:
    """Tensors whose names match, in the order of the file; KeyError where none does."""
    found = [t for name, t in gguf.tensors.items() if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise KeyError(f"no tensor matches {pattern!r}; see model.gguf.tensors")
    return found


def preload(gguf: _core.GGUF, pattern: str = "*", *, progress: ProgressArg = None) -> int:
    """See Model.preload()."""
    return sum(_each_preloaded(gguf, pattern, progress))


def _each_preloaded(gguf: _core.GGUF, pattern: str, progress: ProgressArg) -> Iterator[int]:
    tensors = matching(gguf, pattern)
    total, done = sum(t.nbytes for t in tensors), 0
    bar = Progress(len(tensors), progress)
    try:
        for t in tensors:
            bar.show(f"{t.name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB read")
            done += _core._tensor_pages(gguf, t, "preload")
            bar.step()
            yield t.nbytes
    finally:
        bar.close()


def lock(gguf: _core.GGUF, pattern: str) -> int:
    """See Model.lock()."""
    try:
        return sum(_core._tensor_pages(gguf, t, "lock") for t in matching(gguf, pattern))
    except OSError as e:
        raise OSError(
            e.errno, f"{e.strerror or e}: the system limits what may be locked; see ulimit -l, or lock fewer tensors"
        ) from e


def unlock(gguf: _core.GGUF, pattern: str = "*") -> int:
    """See Model.unlock()."""
    return sum(_core._tensor_pages(gguf, t, "unlock") for t in matching(gguf, pattern))


def resident(gguf: _core.GGUF, pattern: str = "*") -> float:
    """See Model.resident()."""
    tensors = matching(gguf, pattern)
    here = sum(_core._tensor_pages(gguf, t, "resident") for t in tensors)
    return here / max(sum(t.nbytes for t in tensors), 1)


class Handover(Closing):
    """Two models of which the small one answers until the large one has been read into memory.

    small, large   paths, or Models
    lock           tensors of the large model to lock when they have been read, such as "*"; None for none

    The large file is read by a thread of its own, without the GIL; both share the memory bandwidth meanwhile. A context
    manager that waits for the thread.
    model     the one to ask now; look anew for each request
    ready     whether it is the large one
    share     of the large model read so far
    error     what ended the reading, if anything did: then the small model stays
    """

    def __init__(
        self,
        small: Union[Model, str, os.PathLike[str]],
        large: Union[Model, str, os.PathLike[str]],
        *,
        lock: Optional[str] = None,
    ) -> None:
        from rooflm.model import Model

        self.small, self.large = (m if isinstance(m, Model) else Model(m) for m in (small, large))
        self.error: Optional[BaseException] = None
        self._lock_pattern = lock
        self._read, self._size = 0, sum(t.nbytes for t in self.large.gguf.tensors.values())
        if lock is not None:
            matching(self.large.gguf, lock)  # before anything is read
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rooflm handover", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for n in _each_preloaded(self.large.gguf, "*", False):
                self._read += n
                if self._stop.is_set():
                    return
            if self._lock_pattern is not None:
                lock(self.large.gguf, self._lock_pattern)
            self._ready.set()
        except BaseException as e:
            self.error = e

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def share(self) -> float:
        return self._read / self._size if self._size else 1.0

    @property
    def model(self) -> Model:
        return self.large if self.ready else self.small

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the large model is ready, or so many seconds; whether it is. Raises what ended the reading."""
        self._thread.join(timeout)
        if self.error is not None:
            raise self.error
        return self.ready

    def close(self) -> None:
        """Ends the reading after the tensor at hand; both models stay usable."""
        self._stop.set()
        self._thread.join()

    def __repr__(self) -> str:
        state = "ready" if self.ready else f"failed: {self.error}" if self.error else f"{self.share:.0%} read"
        return f"<Handover to {os.path.basename(self.large.gguf.path)}, {state}>"
