# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files, version 3. The file appears under its name only when it is whole: data go to a temporary
name beside it, which is renamed at the end and removed on any failure, Ctrl-C included. An open file descriptor in
place of a path is written as it is, for files that have no name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import tempfile
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence, Union

from rooflm import _core
from rooflm._whole_file import replaceable

# Type ids of metadata, by the names used here.
KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "u64": 10, "i64": 11}
KINDS["f64"] = 12
_ARRAY = 9
_FORMAT = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "u64": "Q"}
_FORMAT.update(i64="q", f64="d")


def _text(s: str) -> bytes:
    b = s.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(b)) + b


def require_directory(path: Union[str, os.PathLike[str]]) -> None:
    """FileNotFoundError that names where a file is to be written when there is no directory for it."""
    parent = Path(path).parent
    if not parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {parent}", os.fspath(path))


class Writer:
    """One file in the making. First the keys and the declarations of all tensors, then the data of each tensor in
    the order of declaration, in any number of pieces; the context manager finishes or cleans up.

        with Writer(path) as w:
            w.key("general.architecture", "str", "llama")
            w.declare("output_norm.weight", "F32", (2048,))
            w.write(data)
    """

    def __init__(self, path: Union[int, str, os.PathLike[str]], alignment: int = 32, fsync: bool = True) -> None:
        if alignment % 8 or not 8 <= alignment <= 1 << 20:
            raise ValueError(f"alignment must be a multiple of 8 from 8 to {1 << 20}, not {alignment}")
        self.path = None if isinstance(path, int) else replaceable(path)
        self._fd = path if isinstance(path, int) else -1
        self._temporary: Optional[str] = None
        self.alignment, self.fsync = alignment, fsync
        self._keys: dict[str, bytes] = {}
        self._tensors: dict[str, tuple[int, tuple[int, ...], int]] = {}  # type id, shape, bytes
        self._ends: list[int] = []  # end of each tensor's data, in the data section
        self._file: Any = None
        self._at = 0
        if alignment != 32:
            self.key("general.alignment", "u32", alignment)

    def key(self, name: str, kind: str, value: Any) -> None:
        """kind: "u32", "f32", "bool", "str", ...; a sequence of values with kind "[f32]"."""
        if kind.startswith("["):
            kind = kind[1:-1]
            head = struct.pack("<IIQ", _ARRAY, KINDS[kind], len(value))
            if kind == "str":
                body = b"".join(map(_text, value))
            else:
                body = struct.pack(f"<{len(value)}{_FORMAT[kind]}", *value)
            self.raw_key(name, head + body)
        else:
            body = _text(value) if kind == "str" else struct.pack("<" + _FORMAT[kind], value)
            self.raw_key(name, struct.pack("<I", KINDS[kind]) + body)

    def raw_key(self, name: str, value: bytes) -> None:
        """A value as it lies in a file, with its type id in front (see _core._raw_value)."""
        if not name or "\0" in name:
            raise ValueError(f"{name!r} cannot be a key")
        self._keys[name] = value

    def copy_keys(self, source: _core.GGUF, prefix: str = "") -> None:
        """Takes over the keys that begin with `prefix`, byte by byte; shard numbers and the alignment stay behind."""
        for name in source.metadata:
            if name.startswith(prefix) and not name.startswith("split.") and name != "general.alignment":
                self.raw_key(name, _core._raw_value(source, name))

    def declare(self, name: str, type: str, shape: Sequence[int]) -> int:
        """Announces a tensor, shape in NumPy's order; returns its size in bytes."""
        if self._file is not None:
            raise ValueError("all tensors must be declared before the first data")
        if name in self._tensors:
            raise ValueError(f"tensor {name} is declared twice")
        id, block, size = _core._type_info(type)
        if not shape or len(shape) > 4 or min(shape) < 1 or shape[-1] % block:
            raise ValueError(f"tensor {name} cannot be {type} in the shape {tuple(shape)}: blocks of {block}")
        nbytes = shape[-1] // block * size
        for n in shape[:-1]:
            nbytes *= n
        self._tensors[name] = (id, tuple(shape), nbytes)
        return nbytes

    def _begin(self) -> None:
        head = [b"GGUF", struct.pack("<IQQ", 3, len(self._tensors), len(self._keys))]
        for name, value in self._keys.items():
            head += [_text(name), value]
        at = 0
        for name, (id, shape, nbytes) in self._tensors.items():
            head += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], id, at)]
            self._ends.append(at + nbytes)
            at += self._padded(nbytes)
        header = b"".join(head)
        fd = self._fd
        if self.path is not None:
            try:
                fd, self._temporary = tempfile.mkstemp(".part", f".{self.path.name}.", self.path.parent)
            except OSError as e:  # of the name that the user gave
                raise OSError(e.errno, e.strerror, str(self.path)) from None
        self._file = os.fdopen(fd, "wb", buffering=1 << 20, closefd=self.path is not None)
        self._file.write(header + b"\0" * (self._padded(len(header)) - len(header)))

    def _padded(self, n: int) -> int:
        return -(-n // self.alignment) * self.alignment

    def write(self, data: Any) -> None:
        """The next bytes of the current tensor, which they must not exceed: anything with a contiguous buffer."""
        if self._file is None:
            self._begin()
        view = memoryview(data).cast("B")
        if not self._ends or self._at + len(view) > self._ends[0]:
            raise ValueError("more data than the declared tensor holds")
        with self._errors_name_the_file():
            self._file.write(view)
            self._at += len(view)
            if self._at == self._ends[0]:
                self._ends.pop(0)
                pad = self._padded(self._at) - self._at
                self._file.write(b"\0" * pad)
                self._at += pad

    @contextlib.contextmanager
    def _errors_name_the_file(self) -> Iterator[None]:
        """A full disk is told by its number alone."""
        try:
            yield
        except OSError as e:
            if e.filename is None and self.path is not None:
                e.filename = str(self.path)
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Optional[type], *rest: object) -> None:
        with self._errors_name_the_file():
            try:
                if kind is None:
                    self._finish()
            finally:
                if self._file is not None:
                    try:
                        self._file.close()  # fails on a full disk, where the last bytes are still to be written
                    finally:
                        if self._temporary and os.path.exists(self._temporary):
                            os.unlink(self._temporary)

    def _finish(self) -> None:
        if self._file is None:
            self._begin()
        if self._ends:
            raise ValueError(f"{len(self._ends)} declared tensors have not got all their data")
        self._file.flush()
        if self.fsync:
            os.fsync(self._file.fileno())
        if self.path is None or self._temporary is None:
            return
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(self._temporary, 0o666 & ~mask)  # mkstemp makes files for the owner alone
        os.replace(self._temporary, self.path)
        if self.fsync:
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
