// SPDX-License-Identifier: Apache-2.0
// A matrix of weights times a batch of activations: chooses rows or tiles by the number of tokens, shares the
// work among a team, and can say which kernel ran.
#ifndef RL_RUN_LINEAR_H
#define RL_RUN_LINEAR_H

#include "base/threads.h"
#include "kernels/api.h"

// A weight matrix where it lies (in the mapped file): rows of `cols` values, row_bytes apart. out = w @ x.
typedef struct rl_mat {
    rl_type type;
    size_t rows, cols, row_bytes;
    const uint8_t *data;
} rl_mat;

typedef enum rl_compute { RL_COMPUTE_AUTO, RL_COMPUTE_INT8, RL_COMPUTE_INT16, RL_COMPUTE_F32 } rl_compute;

typedef struct rl_blas rl_blas; // run/blas.h

// What runs for one matrix, fixed when the session is made.
typedef struct rl_linear {
    rl_mat w;
    rl_compute compute;
    const rl_kernel *rows;      // for one token
    const rl_kernel *rows_many; // for few tokens
    const rl_kernel *unpack;    // for prompts; NULL: rows are used in groups of RL_ROWS_MAX_TOK
    const rl_kernel *mul;
    const rl_kernel *mul_few; // instead of mul, for fewer tokens than many_from; of the same layout
    size_t many_from;
    size_t strip_units;  // rows of these units are read from several places by turns, of one token
    size_t tile_from;    // least number of tokens for which the tile is used
    const rl_blas *blas; // NULL, or the library that multiplies prompts instead of the tile; unpack dequantizes
} rl_linear;

typedef struct rl_linear_opts {
    rl_compute compute;
    bool wide;           // auto keeps it int16 for any number of tokens
    bool int8_single;    // auto takes int8 for one token as well: int16 would not be free here
    const char *kernel;  // NULL or the name of the kernel that must be used
    const rl_blas *blas; // NULL, or OpenBLAS for prompts; with RL_COMPUTE_F32 only
} rl_linear_opts;

rl_status rl_linear_plan(rl_linear *lin, const rl_dispatch *d, const rl_mat *w, const rl_linear_opts *opts,
                         rl_err *err);

/// Activation formats that `lin` reads when it multiplies n_tok tokens.
unsigned rl_linear_formats(const rl_linear *lin, size_t n_tok);

/// The kernel that multiplies n_tok tokens (the micro-kernel, for tiles).
const rl_kernel *rl_linear_kernel(const rl_linear *lin, size_t n_tok);

// Activations: storage is the caller's, planned before anything runs.
size_t rl_act_bytes(unsigned formats, size_t cols, size_t max_tok);
void rl_act_bind(rl_act *a, unsigned formats, size_t cols, size_t max_tok,
                 void *storage); // storage: 64-byte aligned
/// Quantizes tokens t0..t1 of x (row stride ld) into every format in a->formats. Disjoint ranges may run on
/// different threads. x is kept by reference for RL_ACT_F32.
void rl_act_fill(rl_act *a, const rl_dispatch *d, const float *x, size_t ld, size_t t0, size_t t1);

typedef struct rl_linear_call {
    const rl_linear *lin;
    const rl_act *act;
    size_t n_tok;
    float *out; // out[t * ld_out + r]
    size_t ld_out;
} rl_linear_call;

/// Scratch bytes each thread needs for any of these matrices (tile buffers).
size_t rl_linear_scratch(const rl_linear *const *lins, size_t n, size_t max_tok);

/// Begins to read what thread `ith` will read first of these matrices: for before a barrier, or work that memory has
/// no part in. Only for one token's rows.
void rl_linear_prefetch(const rl_team *team, int ith, const rl_linear *const *lins, size_t n, size_t n_tok);

/// Multiplies several matrices as one piece of parallel work, without a barrier inside. Called by every
/// thread of the team with the same arguments, but its own scratch (and, for few tokens, possibly its own
/// copy of act). The caller meets at a barrier before it reads `out`.
void rl_linear_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch);

typedef void (*rl_gated_fn)(const float *gate, const float *up, float *out, size_t n);

// Gate and up of a prompt, and what becomes of them: activate(gate x, up x), quantized for `down` while both are in the
// cache. Floats of the whole width, which may be more than the caches hold, are never written. The values are those
// that rl_linear_run, activate and rl_act_fill give.
typedef struct rl_linear_gated {
    rl_linear_call gate, up; // of one activation; out is NULL
    rl_gated_fn activate;
    const rl_dispatch *d;
    rl_act *down; // bound to the panels of `down` alone (rl_linear_gated_format)
} rl_linear_gated;

/// Whether they can go that way: all three take tiles for n_tok tokens, `down` with int8 activations.
bool rl_linear_gated_fits(const rl_linear *gate, const rl_linear *up, const rl_linear *down, size_t n_tok);

/// The format of the activations of `down` that is made then.
unsigned rl_linear_gated_format(const rl_linear *down, size_t n_tok);

/// Called as rl_linear_run; the caller meets at a barrier before it multiplies with g->down.
void rl_linear_run_gated(rl_team *team, int ith, const rl_linear_gated *g, void *scratch);

#endif
