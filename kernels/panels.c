// SPDX-License-Identifier: Apache-2.0
// Panels (tile.h): how the activations of each kind are packed.
#include <stddef.h>
#include <string.h>

#include "kernels/tile.h"

// What mins need of the sums b per 16 columns: `s` per 32 as rl_act has it, the rest from exact sums.
#define PUT_SCALES(p, slot, g, scale, s32, b)                                                                          \
    do {                                                                                                               \
        (p)->d[g][slot] = (scale), (p)->s[g][slot] = (s32);                                                            \
        (p)->s16[2 * (g)][slot] = (scale) * (float)(b)[0];                                                             \
        (p)->s16[2 * (g) + 1][slot] = (scale) * (float)(b)[1];                                                         \
    } while (0)
// And the bias of bytes.
#define PUT_SUMS(p, slot, g, scale, s32, b)                                                                            \
    do {                                                                                                               \
        PUT_SCALES(p, slot, g, scale, s32, b);                                                                         \
        (p)->off[g][slot] = -128 * ((b)[0] + (b)[1]);                                                                  \
        (p)->off16[2 * (g)][slot] = -32 * (b)[0], (p)->off16[2 * (g) + 1][slot] = -32 * (b)[1];                        \
    } while (0)

static int32_t sum16(const int8_t *q) {
    int32_t sum = 0;
    for (size_t i = 0; i < 16; i++) sum += q[i];
    return sum;
}

// Where the columns of a block of 256 begin, in values and in scales per 32, for one token.
static size_t value_at(const rl_act *a, size_t t, size_t block) {
    return t * a->ld_q + block * RL_TILE_K;
}
static size_t scale_at(const rl_act *a, size_t t, size_t block) {
    return t * a->ld_d + block * RL_TILE_K / 32;
}

static void put8(void *panel, size_t slot, const rl_act *a, size_t t, size_t block, size_t klen) {
    rl_panel8 *p = panel;
    const int8_t *q = a->q8 + value_at(a, t, block);
    size_t s = scale_at(a, t, block);
    for (size_t i = 0; i < klen / 4; i++) memcpy(p->q[i][slot], q + 4 * i, 4);
    for (size_t g = 0; g < klen / 32; g++) PUT_SUMS(p, slot, g, a->d8[s + g], a->s8[s + g], a->b8 + 2 * (s + g));
}

static void put_group8(void *panel, size_t g, size_t n, const int8_t *q, const float *d, const float *s) {
    rl_panel8 *p = panel;
    for (size_t slot = 0; slot < n; slot++, q += 32) {
        int32_t b[2] = {sum16(q), sum16(q + 16)};
        for (size_t i = 0; i < 8; i++) memcpy(p->q[8 * g + i][slot], q + 4 * i, 4);
        PUT_SUMS(p, slot, g, d[slot], s[slot], b);
    }
}

static void touch_group8(const void *panel, size_t g) {
    const rl_panel8 *p = panel;
    for (size_t i = 0; i < 8; i += 2) __builtin_prefetch(p->q[8 * g + i], 1, 2);
    __builtin_prefetch(p->d[g], 1, 2);
    __builtin_prefetch(p->s[g], 1, 2);
    __builtin_prefetch(p->off[g], 1, 2);
    __builtin_prefetch(p->off16[2 * g], 1, 2);
    __builtin_prefetch(p->s16[2 * g], 1, 2);
}

static void put16(void *panel, size_t slot, const rl_act *a, size_t t, size_t block, size_t klen) {
    rl_panel16 *p = panel;
    const int16_t *q = a->q16 + value_at(a, t, block);
    size_t s = scale_at(a, t, block);
    float d = a->d16[t * a->ld_d16 + block];
    for (size_t i = 0; i < klen / 4; i++) {
        int16_t *out = p->q[i][slot];
        out[0] = q[4 * i], out[1] = q[4 * i + 2], out[2] = q[4 * i + 1], out[3] = q[4 * i + 3];
    }
    for (size_t g = 0; g < klen / 32; g++) PUT_SUMS(p, slot, g, d, a->s16[s + g], a->b16 + 2 * (s + g));
}

static void putf(void *panel, size_t slot, const rl_act *a, size_t t, size_t block, size_t klen) {
    rl_panelf *p = panel;
    const float *x = a->f32 + t * a->ld_f32 + block * RL_FTILE_K;
    for (size_t k = 0; k < klen; k++) p->x[k][slot] = x[k];
}

static void put8a(void *panel, size_t slot, const rl_act *a, size_t t, size_t block, size_t klen) {
    rl_panel8a *p = panel;
    const int8_t *q = a->q8 + value_at(a, t, block);
    size_t s = scale_at(a, t, block);
    for (size_t g = 0; g < klen / 32; g++) {
        memcpy(p->q[g][slot], q + 32 * g, 32);
        PUT_SCALES(p, slot, g, a->d8[s + g], a->s8[s + g], a->b8 + 2 * (s + g));
    }
}

static void put_group8a(void *panel, size_t g, size_t n, const int8_t *q, const float *d, const float *s) {
    rl_panel8a *p = panel;
    memcpy(p->q[g], q, 32 * n);
    for (size_t slot = 0; slot < n; slot++, q += 32) {
        int32_t b[2] = {sum16(q), sum16(q + 16)};
        PUT_SCALES(p, slot, g, d[slot], s[slot], b);
    }
}

static void touch_group8a(const void *panel, size_t g) {
    const rl_panel8a *p = panel;
    for (size_t t = 0; t < RL_PANEL_A; t += 2) __builtin_prefetch(p->q[g][t], 1, 2);
    __builtin_prefetch(p->d[g], 1, 2);
    __builtin_prefetch(p->s[g], 1, 2);
    __builtin_prefetch(p->s16[2 * g], 1, 2);
    __builtin_prefetch(p->s16[2 * g + 1], 1, 2);
}

static void put16a(void *panel, size_t slot, const rl_act *a, size_t t, size_t block, size_t klen) {
    rl_panel16a *p = panel;
    const int16_t *q = a->q16 + value_at(a, t, block);
    size_t s = scale_at(a, t, block);
    float d = a->d16[t * a->ld_d16 + block];
    for (size_t g = 0; g < klen / 32; g++) {
        for (size_t i = 0; i < 32; i++) {
            int8_t low = (int8_t)q[32 * g + i]; // compilers keep the low bits
            p->low[g][slot][i] = low;
            p->high[g][slot][i] = (int8_t)((q[32 * g + i] - low) / 256); // no remainder
        }
        PUT_SCALES(p, slot, g, d, a->s16[s + g], a->b16 + 2 * (s + g));
    }
}

#define KIND(format, n, k, type, values, put, group, touch)                                                            \
    {                                                                                                                  \
        format, n, k, sizeof(type), values, sizeof(((type *)0)->d), sizeof(((type *)0)->s), sizeof(((type *)0)->s16),  \
            put, group, touch                                                                                          \
    }
static const rl_panels kinds[RL_PANEL_KINDS] = {
    [RL_PANEL_Q8T] =
        KIND(RL_ACT_Q8T, RL_PANEL, RL_TILE_K, rl_panel8, offsetof(rl_panel8, d), put8, put_group8, touch_group8),
    [RL_PANEL_Q16T] = KIND(RL_ACT_Q16T, RL_PANEL, RL_TILE_K, rl_panel16, offsetof(rl_panel16, d), put16, NULL, NULL),
    [RL_PANEL_F32T] = {RL_ACT_F32T, RL_PANEL, RL_FTILE_K, sizeof(rl_panelf), sizeof(rl_panelf), 0, 0, 0, putf, NULL,
                       NULL},
    [RL_PANEL_Q8A] =
        KIND(RL_ACT_Q8A, RL_PANEL_A, RL_TILE_K, rl_panel8a, offsetof(rl_panel8a, d), put8a, put_group8a, touch_group8a),
    [RL_PANEL_Q16A] =
        KIND(RL_ACT_Q16A, RL_PANEL_A, RL_TILE_K, rl_panel16a, offsetof(rl_panel16a, d), put16a, NULL, NULL),
};

const rl_panels *rl_panels_of(rl_panel_kind kind) {
    return &kinds[kind];
}

rl_panel_kind rl_panel_kind_of(const rl_kernel *mul) {
    int kind = 0;
    while (kind + 1 < RL_PANEL_KINDS && !(mul->act & kinds[kind].format)) kind++;
    return (rl_panel_kind)kind;
}
