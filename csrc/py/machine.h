// SPDX-License-Identifier: Apache-2.0
// CPU lists of Python callers.
#ifndef RL_PY_MACHINE_H
#define RL_PY_MACHINE_H

#include <stdbool.h>

#include "py/state.h"

/// cpus as None, "0-3,6" or integers, one per thread (more are ignored), into out[n_threads]. 0: None; 1: filled; -1
/// with a ValueError or TypeError set.
int rl_py_cpus(PyObject *o, int n_threads, int *out);

// Threads of a session, where they run, and why.
typedef struct rl_py_placement {
    int n_threads;
    bool pinned; // to cpus[]
    int cpus[RL_MAX_THREADS];
    char reason[256];
} rl_py_placement;

/// From the caller's n_threads and cpus, each possibly None. Without either: the default of this machine, pinned to
/// its big cores where it has several classes. -1 with an exception set.
int rl_py_place(rl_state *st, PyObject *threads, PyObject *cpus, rl_py_placement *out);

/// threads as None (the default of this machine) or an integer from 1 to RL_MAX_THREADS; -1 with an exception set.
int rl_py_threads(rl_state *st, PyObject *o, const char *name);

#endif
