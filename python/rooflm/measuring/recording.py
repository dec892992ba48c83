# SPDX-License-Identifier: Apache-2.0
"""Records as lines of JSON in a file, each on the disk before the next run begins.

A line that a crash or a full disk cut off is the last one by construction: it is left out when the file is read and
cut away before the next record is written, so nothing that was recorded before it is lost.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import warnings
from pathlib import Path
from typing import Any, Mapping, Union

from rooflm import _core
from rooflm._closing import Closing
from rooflm._output import plain

PathLike = Union[str, "os.PathLike[str]"]


def record_line(record: Mapping[str, Any]) -> str:
    """One line of JSON: no NaN, no line feed inside."""
    return json.dumps(plain(record), ensure_ascii=False, allow_nan=False)


def read_records(path: PathLike) -> list[dict[str, Any]]:
    """The records of a file. A last line that is cut off is left out with a FallbackWarning; anything else that is not
    a JSON object is a ValueError with its line number."""
    name = os.fspath(path)
    data = Path(path).read_bytes()
    records = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as e:
            if number == len(lines):
                warnings.warn(
                    _core.FallbackWarning(f"{name}: line {number} is cut off and left out"), stacklevel=2
                )
                break
            raise ValueError(f"{name}, line {number}: not JSON: {e}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{name}, line {number}: a record must be an object, not {type(record).__name__}")
        records.append(record)
    return records


class RecordFile(Closing):
    """Appends records to a file, one line each, written and synced before append() returns. A context manager.

    resume=False refuses a file that exists already; resume=True goes on behind its last whole line, and `records` has
    what is there. One process writes at a time: a second one gets an OSError. resumable: whether errors offer resume=.
    """

    def __init__(self, path: PathLike, *, resume: bool = False, resumable: bool = True) -> None:
        self.path = os.fspath(path)
        self._resumable = resumable
        self._fd = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if resume else os.O_EXCL)
        try:
            self._fd = os.open(self.path, flags, 0o666)
        except FileExistsError:
            way = "resume=True goes on with it, or choose another name" if resumable else "choose another name"
            raise FileExistsError(errno.EEXIST, f"exists already: {way}", self.path) from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file: records cannot be kept there", self.path)
            self._lock()
            self.records = read_records(self.path)
            self._end = self._whole_lines()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise OSError(e.errno, "is being written by another process", self.path) from None
            # File systems without locks exist; then nobody is told apart, and records still append whole.

    def _whole_lines(self) -> int:
        """Cuts off what the last writer left of a line, or ends a whole last line; gives the length."""
        with open(self.path, "rb") as f:
            data = f.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            try:
                json.loads(data[end:])
            except ValueError:
                os.ftruncate(self._fd, end)
                return end
            os.pwrite(self._fd, b"\n", len(data))
            return len(data) + 1
        return end

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one record and waits until it is on the disk. When that fails (a full disk), the file is cut back to
        the records before, and the error says how many they are."""
        data = (record_line(record) + "\n").encode("utf-8", "surrogateescape")
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._end + written)
            os.fsync(self._fd)
        except OSError as e:
            try:
                os.ftruncate(self._fd, self._end)
            except OSError:
                pass  # the cut-off line is left out when the file is read
            kept = f"the {len(self.records)} records before it are kept"
            kept += ", resume=True goes on" if self._resumable else ""
            raise OSError(e.errno, f"{os.strerror(e.errno or 0)}; {kept}", self.path) from e
        self._end += len(data)
        self.records.append(dict(record))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
