// SPDX-License-Identifier: Apache-2.0
// What kernels of attention over pages share on every processor: asking for the page that will be read next, and groups
// of query rows.
#ifndef RL_KERNELS_ATTN_PARTS_H
#define RL_KERNELS_ATTN_PARTS_H

#include "kernels/attn.h"

/// Lines of the next page, if there is one, are asked for as this one is read: both have the same size.
static inline __attribute__((always_inline)) void rl_attn_ahead(const uint8_t *next, size_t at) {
    if (next) __builtin_prefetch(next + at, 0, 2);
}

/// The scales of a head of the next page.
static inline __attribute__((always_inline)) void rl_attn_ahead_scales(const rl_attn_side *s, const uint8_t *next) {
    for (size_t i = s->scales; i < s->head; i += 64) rl_attn_ahead(next, i);
}

/// f(a, r, n, more) for groups of n query rows from r on: `most`, 3 or 4, and what is left. n is a constant in each.
#define RL_ATTN_BY_ROWS(most, f, a, ...)                                                                               \
    for (size_t r = 0; r < (a)->nq; r += (most)) switch ((a)->nq - r) {                                                \
        case 1:                                                                                                        \
            f(a, r, 1, ##__VA_ARGS__);                                                                                 \
            break;                                                                                                     \
        case 2:                                                                                                        \
            f(a, r, 2, ##__VA_ARGS__);                                                                                 \
            break;                                                                                                     \
        case 3:                                                                                                        \
            f(a, r, 3, ##__VA_ARGS__);                                                                                 \
            break;                                                                                                     \
        default:                                                                                                       \
            f(a, r, most, ##__VA_ARGS__);                                                                              \
            break;                                                                                                     \
        }

#endif
