// SPDX-License-Identifier: Apache-2.0
// What the Python types share about KV caches: the view of one layer, which a session hands out as s.kv[i].
#ifndef RL_PY_KVCACHE_H
#define RL_PY_KVCACHE_H

#include "py/state.h"
#include "run/kvcache.h"

/// The cache of a living owner; NULL with an exception set when it is closed or in use by another thread.
typedef const rl_kv *(*rl_py_kv_get)(PyObject *owner);

/// A view of one layer: .k(raw=False), .v(raw=False), .pages, .length, .first. It holds a reference to `owner`
/// and asks `get` for the cache each time; pages that were handed out keep their memory by themselves.
PyObject *rl_py_kv_layer(rl_state *st, PyObject *owner, rl_py_kv_get get, size_t layer);

/// float32 array (pos, kv_head, dim) of the positions a layer holds.
PyObject *rl_py_kv_values(rl_state *st, const rl_kv *kv, size_t layer, bool want_v, bool raw);
/// List of KVPage: zero-copy, read-only arrays over the pages a layer holds.
PyObject *rl_py_kv_pages(rl_state *st, const rl_kv *kv, size_t layer);

/// "f16", "q8_0/f16" ... to types; -1 with ValueError set. And back, into a buffer of 16 bytes.
int rl_py_kv_parse(const char *text, rl_kv_type *k, rl_kv_type *v);
void rl_py_kv_format(rl_kv_type k, rl_kv_type v, char *out);

/// The cache inside a KVCache object, marked as in use: until rl_py_kvcache_release nobody else may touch it.
/// NULL with TypeError or SessionBusy set.
rl_kv *rl_py_kvcache_acquire(rl_state *st, PyObject *obj);
void rl_py_kvcache_release(PyObject *obj);

int rl_py_add_kvlayer(PyObject *m, rl_state *st);
int rl_py_add_attention(PyObject *m, rl_state *st);

#endif
