// SPDX-License-Identifier: Apache-2.0
// OpenBLAS as a measured baseline for prompts: found at run time, never linked. Weights are dequantized to float32 a
// few rows at a time, by the threads of the team, and each calls sgemm on its own block.
#ifndef RL_RUN_BLAS_H
#define RL_RUN_BLAS_H

#include "base/threads.h"
#include "run/linear.h"

// Least number of tokens that go to sgemm; fewer take the float32 rows.
#define RL_BLAS_FROM 16

/// Loads the library at `path` (a file or a name the loader knows). RL_ERR_UNSUPPORTED when it has no sgemm with
/// 32-bit integers. Sets the library to one thread per call, for the whole process: the team does the sharing.
rl_status rl_blas_open(rl_blas **out, const char *path, rl_err *err);
rl_blas *rl_blas_ref(rl_blas *b);
void rl_blas_release(rl_blas *b);

const char *rl_blas_path(const rl_blas *b);
const char *rl_blas_config(const rl_blas *b); // "OpenBLAS 0.3.30 ... MAX_THREADS=64", "" when it does not say
const char *rl_blas_core(const rl_blas *b);   // "SkylakeX", "" when it does not say

/// Whether sgemm can take a matrix of this size.
bool rl_blas_fits(const rl_mat *w);
/// Scratch bytes of one thread.
size_t rl_blas_scratch(void);
/// What stands for sgemm in reports of what ran.
const rl_kernel *rl_blas_kernel(const rl_blas *b);
/// As rl_linear_run, for calls whose linear has a blas and enough tokens; activations are RL_ACT_F32.
void rl_blas_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch);

#endif
