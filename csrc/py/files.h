// SPDX-License-Identifier: Apache-2.0
// States saved to files and loaded from them, for sessions and caches alike.
#ifndef RL_PY_FILES_H
#define RL_PY_FILES_H

#include "py/state.h"
#include "run/kvcache.h"

/// Writes through `save` to a file of the name (bytes of the system). A regular file gets its new content at once when
/// all of it is written, so that a full disk costs nobody the old one. Needs no GIL.
rl_status rl_py_save_file(const char *path, rl_status (*save)(void *what, rl_write_fn, void *to, rl_err *), void *what,
                          rl_err *err);
/// Reads through `load`. Messages name the file.
rl_status rl_py_load_file(const char *path, rl_status (*load)(void *what, rl_read_fn, void *from, rl_err *), void *what,
                          rl_err *err);

#endif
