// SPDX-License-Identifier: Apache-2.0
// No tile kernels are built: prompts run through the rows kernels in groups of tokens.
#include "run/linear_tile.h"

void rl_linear_tile_plan(rl_linear *lin, const rl_dispatch *d, int head) {
    (void)d, (void)head;
    lin->unpack = lin->mul = NULL;
    lin->tile_from = SIZE_MAX;
}
unsigned rl_linear_tile_formats(const rl_linear *lin) {
    return lin->rows->act;
}
size_t rl_act_packed_bytes(unsigned formats, size_t cols, size_t max_tok) {
    (void)formats, (void)cols, (void)max_tok;
    return 0;
}
void rl_act_packed_bind(rl_act *a, void *storage) {
    (void)a, (void)storage;
}
void rl_act_packed_put(rl_act *a, size_t t) {
    (void)a, (void)t;
}
size_t rl_linear_tile_scratch(size_t max_tok) {
    (void)max_tok;
    return 0;
}
void rl_linear_tile_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch) {
    (void)team, (void)ith, (void)calls, (void)n_calls, (void)scratch;
}
