// SPDX-License-Identifier: Apache-2.0
// How the other Python types get at the C objects inside GGUF and Tensor.
#ifndef RL_PY_GGUF_H
#define RL_PY_GGUF_H

#include "io/gguf.h"
#include "py/state.h"

/// The open directory of a rooflm.GGUF (borrowed), or NULL with TypeError, or ValueError when it is closed.
rl_gguf *rl_py_gguf_get(rl_state *st, PyObject *gguf);

/// A new rooflm.GGUF around an open directory; takes over one reference of `g`.
PyObject *rl_py_gguf_wrap(rl_state *st, rl_gguf *g);

/// The tensor inside a rooflm.Tensor (borrowed, valid while the object lives), or NULL with TypeError set.
const rl_tensor *rl_py_tensor_get(rl_state *st, PyObject *tensor);

// Types and helpers that gguf.c, metadata.c and tensor.c share.
PyObject *rl_py_tensor_new(rl_state *st, rl_gguf *g, const rl_tensor *t);
PyObject *rl_py_file_map_new(rl_state *st, rl_gguf *g, int of_tensors);
/// Text of a file: UTF-8, bytes that are not become lone surrogates (surrogateescape), so nothing is lost.
PyObject *rl_py_text(const char *s, size_t n);
int rl_py_add_tensor(PyObject *m, rl_state *st);
int rl_py_add_metadata(PyObject *m, rl_state *st);

#endif
