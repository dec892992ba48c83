// SPDX-License-Identifier: Apache-2.0
// The sampler inside a rooflm.Sampler, for sessions that sample without going through Python.
#ifndef RL_PY_SAMPLER_H
#define RL_PY_SAMPLER_H

#include "py/state.h"
#include "run/sampler.h"

/// The C sampler of a Sampler object (borrowed from it), or NULL with a TypeError set.
rl_sampler *rl_py_sampler_of(rl_state *st, PyObject *o);

#endif
