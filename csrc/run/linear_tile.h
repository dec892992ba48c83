// SPDX-License-Identifier: Apache-2.0
// The tile path of a linear layer (prompts): weights are unpacked 32 rows at a time and multiplied with every
// token. rl_linear_* (linear.h) calls this for batches of at least lin->tile_from tokens.
#ifndef RL_RUN_LINEAR_TILE_H
#define RL_RUN_LINEAR_TILE_H

#include "run/linear.h"

/// Sets lin->unpack, mul and tile_from from lin->w and lin->compute; leaves NULL where no tile exists. For
/// float types and RL_COMPUTE_F32 `unpack` is the dequantizer of the type. `head` as in rl_linear_opts.
void rl_linear_tile_plan(rl_linear *lin, const rl_dispatch *d, bool keep_wide);

/// The multiply for that many tokens. Its `act` are the formats it reads: rows and, made of them, panels.
const rl_kernel *rl_linear_tile_mul(const rl_linear *lin, size_t n_tok);
/// The format of the panels alone.
unsigned rl_linear_tile_panels(const rl_linear *lin, size_t n_tok);

// Packed activations: part of rl_act. act_bytes, bind and fill of linear.c call these for the packed formats;
// `put` packs token t from the row formats that are already filled.
size_t rl_act_packed_bytes(unsigned formats, size_t cols, size_t max_tok);
void rl_act_packed_bind(rl_act *a, void *storage); // a->formats, cols, max_tok set; storage 64-byte aligned
void rl_act_packed_put(rl_act *a, size_t t);

/// Scratch bytes of one thread.
size_t rl_linear_tile_scratch(size_t max_tok);

/// As rl_linear_run, for calls that all take the tile path.
void rl_linear_tile_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch);

/// Whether gate or up can go through rl_linear_run_gated: without cutting their columns.
bool rl_linear_tile_gated_fits(const rl_linear *lin, size_t n_tok);

#endif
