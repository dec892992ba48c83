// SPDX-License-Identifier: Apache-2.0
// Tiles (prompts): 32 rows of weights by 256 columns are unpacked once into plain bytes, and multiplied with
// every token of the batch. The tile (12 KB) stays in the first-level cache while the activations, packed in
// panels of 6 tokens, stream past it. A weight type needs one unpack per ISA; the multiply kernels know only
// the layout:
//
//   u8b128.g32   bytes q + 128, one scale per 32 columns
//   u5.g32.min   bytes 0..31, one scale and one min per 32 columns
//   u6b32.g16    bytes q + 32 in 0..63, one scale per 16 columns
//   u5.g16.min   bytes 0..31, one scale and one min per 16 columns
//   f32          float columns (rl_ftile)
//
// One order of float operations holds for every ISA, so that all entries of a layout agree to the bit. Per
// 32 columns, with i the exact integer sub-sum of q * x:
//   g32: acc = fma((float)i * d, dx, acc)
//   g16: acc = fma(fma((float)i1, d1, (float)i0 * d0), dx, acc)
//   min: acc = fma(m, sx, acc) after it, once per scale of a group of columns, in column order
//   f32: sub = fma(w, x, sub) over 128 columns from 0, then acc = acc + sub
#ifndef RL_KERNELS_TILE_H
#define RL_KERNELS_TILE_H

#include <stdbool.h>

#include "kernels/api.h"

#define RL_TILE_ROWS 32
#define RL_TILE_K 256
#define RL_FTILE_K 128
#define RL_PANEL 6 // tokens

typedef struct rl_tile {
    uint8_t q[RL_TILE_K / 4][RL_TILE_ROWS][4];
    float d[RL_TILE_K / 16][RL_TILE_ROWS]; // [0..8) for groups of 32
    float m[RL_TILE_K / 16][RL_TILE_ROWS]; // added: w = d * q + m
} rl_tile;

typedef struct rl_ftile {
    float w[RL_FTILE_K][RL_TILE_ROWS];
} rl_ftile;

// 256 columns of 6 tokens of RL_ACT_Q8, as the multiply kernels read them. off = -128 * sum of q over 32
// columns, off16 = -32 * sum over 16: what the bias of the bytes adds to a sub-sum.
typedef struct rl_panel8 {
    int8_t q[RL_TILE_K / 4][RL_PANEL][4];
    float d[RL_TILE_K / 32][RL_PANEL];
    float s[RL_TILE_K / 32][RL_PANEL];
    int32_t off[RL_TILE_K / 32][RL_PANEL];
    int32_t off16[RL_TILE_K / 16][RL_PANEL];
    float s16[RL_TILE_K / 16][RL_PANEL];
} rl_panel8;

// The same for RL_ACT_Q16. Four neighbouring columns are kept in the order 0 2 1 3, so that bytes widened to
// 16 bits by a mask and a shift meet them.
typedef struct rl_panel16 {
    int16_t q[RL_TILE_K / 4][RL_PANEL][4];
    float d[RL_TILE_K / 32][RL_PANEL]; // the scale per 256, repeated
    float s[RL_TILE_K / 32][RL_PANEL];
    int32_t off[RL_TILE_K / 32][RL_PANEL];
    int32_t off16[RL_TILE_K / 16][RL_PANEL];
    float s16[RL_TILE_K / 16][RL_PANEL];
} rl_panel16;

typedef struct rl_panelf {
    float x[RL_FTILE_K][RL_PANEL];
} rl_panelf;

// 256 columns of 16 tokens of RL_ACT_Q8, 32 columns of a token side by side: the first operand of AMX. There are no
// offsets, because its kernels take the bias of the bytes away beforehand.
#define RL_PANEL_A 16 // tokens
typedef struct rl_panel8a {
    int8_t q[RL_TILE_K / 32][RL_PANEL_A][32];
    float d[RL_TILE_K / 32][RL_PANEL_A];
    float s[RL_TILE_K / 32][RL_PANEL_A];
    float s16[RL_TILE_K / 16][RL_PANEL_A];
} rl_panel8a;

// The same for RL_ACT_Q16: value = 256 * high + low, both signed bytes.
typedef struct rl_panel16a {
    int8_t high[RL_TILE_K / 32][RL_PANEL_A][32];
    int8_t low[RL_TILE_K / 32][RL_PANEL_A][32];
    float d[RL_TILE_K / 32][RL_PANEL_A]; // the scale per 256, repeated
    float s[RL_TILE_K / 32][RL_PANEL_A];
    float s16[RL_TILE_K / 16][RL_PANEL_A];
} rl_panel16a;

/// Unpacks klen columns (a multiple of the block size, at most 256) of 32 rows; row[i] points at the first
/// block wanted of row i. Pointers may repeat, where a matrix has fewer rows left.
typedef void (*rl_tile_unpack_fn)(const uint8_t *const row[RL_TILE_ROWS], size_t klen, rl_tile *tile);

/// What a multiplication asks memory for while it works, a share before each panel: 32 rows are more streams than the
/// hardware follows, and all their lines at once are more than it has room for.
typedef struct rl_ahead {
    const uint8_t *weights; // n_rows rows of `bytes` bytes that are unpacked next
    size_t n_rows, row_bytes, bytes;
    bool cold;  // the panels are not in the cache yet
    float *out; // n_tok rows of out_bytes bytes that the sums go to next, or NULL
    size_t ld_out, out_bytes;
} rl_ahead;

static inline void rl_look_at(const void *p, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const uint8_t *)p + at, 0, 2);
    if (bytes) __builtin_prefetch((const uint8_t *)p + bytes - 1, 0, 2);
}

/// To be called before token `tok` of n_tok, the first of the panel of `tokens` at `panel`.
static inline void rl_look_ahead_of(const rl_ahead *a, size_t tokens, const void *panel, size_t panel_size, size_t tok,
                                    size_t n_tok) {
    if (!a) return;
    size_t i = tok / tokens, n = (n_tok + tokens - 1) / tokens;
    for (size_t r = a->n_rows * i / n; r < a->n_rows * (i + 1) / n; r++)
        rl_look_at(a->weights + r * a->row_bytes, a->bytes);
    if (a->cold && i + 1 < n) rl_look_at((const uint8_t *)panel + panel_size, panel_size);
    for (size_t t = tok; a->out && t < tok + tokens && t < n_tok; t++) {
        const uint8_t *out = (const uint8_t *)(a->out + t * a->ld_out);
        for (size_t at = 0; at < a->out_bytes; at += 64) __builtin_prefetch(out + at, 1, 2);
    }
}

static inline void rl_look_ahead(const rl_ahead *a, const void *panel, size_t panel_size, size_t tok, size_t n_tok) {
    rl_look_ahead_of(a, RL_PANEL, panel, panel_size, tok, n_tok);
}

/// c[t][r] += tile (rl_tile or rl_ftile) times the panel of token t, for n_tok tokens; klen columns: a multiple of 32,
/// for rl_ftile any number up to 128. c is 64-byte aligned. ahead may be NULL.
typedef void (*rl_tile_mul_fn)(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,
                               const rl_ahead *ahead);

/// What the loops around the kernels know of a kind of panels. A multiply names its kind by a bit of `act`; its
/// tile_cols are the tokens.
typedef struct rl_panels {
    unsigned format;                     // RL_ACT_...
    size_t tokens, columns, size;        // of a panel, and its bytes
    size_t values, scales, sums, sums16; // bytes of what one layout reads: q, d and either s or s16
    /// Puts columns block * columns.. (klen of them) of token t into slot `slot` of a panel.
    void (*put)(void *panel, size_t slot, const rl_act *a, size_t t, size_t block, size_t klen);
    /// Puts 32 columns of n tokens of int8 (q: 32 values each) into group g, slots 0..n; NULL for other kinds.
    void (*put_group)(void *panel, size_t g, size_t n, const int8_t *q, const float *d, const float *s);
    /// Asks for the lines that put_group will write.
    void (*touch_group)(const void *panel, size_t g);
} rl_panels;

#define RL_PANEL_MAX 16 // tokens of any kind

const rl_panels *rl_panels_of(rl_panel_kind kind);
/// The kind that a tile multiply reads.
rl_panel_kind rl_panel_kind_of(const rl_kernel *mul);

#endif
