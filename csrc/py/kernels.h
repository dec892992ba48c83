// SPDX-License-Identifier: Apache-2.0
// The choice of kernels that Python callers make, by argument or environment.
#ifndef RL_PY_KERNELS_H
#define RL_PY_KERNELS_H

#include "kernels/api.h"
#include "py/state.h"
#include "run/linear.h"

/// Fills `d`. isa and kernels are None or str; None asks the environment (ROOFLM_ISA, ROOFLM_KERNELS). -1 with
/// KernelUnavailable set when the request cannot be met.
int rl_py_dispatch(rl_state *st, PyObject *isa, PyObject *kernels, rl_dispatch *d);

/// "auto", "int8", "int16", "f32"; -1 with ValueError set.
int rl_py_compute(const char *name, rl_compute *out);

/// Poll of regions that run with the GIL released: arg points to the PyThreadState * that PyEval_SaveThread gave, which
/// it takes for a moment to see whether a signal handler raised.
bool rl_py_poll(void *arg);

/// Runs a region with the GIL released, interruptible by signals; -1 with an exception set.
int rl_py_run(rl_state *st, rl_region_fn fn, void *arg, int n_threads);

#endif
