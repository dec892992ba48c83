# SPDX-License-Identifier: Apache-2.0
"""Copies a GGUF with changes, through the outside `gguf` package: for files that are wrong on purpose."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import gguf
import numpy as np


def rewrite(
    src: Any,
    dst: Any,
    keys: dict[str, Any] | None = None,
    drop: Iterable[str] = (),
    tensor: Callable[[str, np.ndarray], np.ndarray | None] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    arch: str | None = None,
    quantize: gguf.GGMLQuantizationType | None = None,
) -> None:
    """Writes `dst` as `src` with keys set (floats as float32, ints as uint32) or dropped, tensors changed (None
    drops one) or added, another architecture name, or float matrices quantized (embeddings included).
    """
    keys = dict(keys or {})
    reader = gguf.GGUFReader(src)
    name = arch or reader.fields["general.architecture"].contents()
    w = gguf.GGUFWriter(dst, name)
    for f in reader.fields.values():
        if f.name.startswith("GGUF.") or f.name == "general.architecture" or f.name in drop or f.name in keys:
            continue
        sub = f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None
        w.add_key_value(f.name, f.contents(), f.types[0], sub_type=sub)
    for key, value in keys.items():
        if isinstance(value, bool):
            w.add_bool(key, value)
        elif isinstance(value, int):
            w.add_uint32(key, value)
        elif isinstance(value, float):
            w.add_float32(key, value)
        elif isinstance(value, str):
            w.add_string(key, value)
        else:
            w.add_array(key, value)
    for t in reader.tensors:
        shape = tuple(int(n) for n in t.shape[::-1])
        data = t.data.reshape(shape) if t.data.size == np.prod(shape) else t.data  # blocks stay bytes
        value = tensor(t.name, data) if tensor else data
        if value is None:
            continue
        matrix = value.ndim >= 2 and "norm" not in t.name and "ffn_gate_inp" not in t.name
        if quantize is not None and matrix:
            w.add_tensor(t.name, gguf.quants.quantize(np.ascontiguousarray(value), quantize), raw_dtype=quantize)
        else:
            w.add_tensor(t.name, np.ascontiguousarray(value))
    for tensor_name, value in (extra or {}).items():
        w.add_tensor(tensor_name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
