// SPDX-License-Identifier: Apache-2.0
// Tile multiply with AMX: 16 tokens by 16 rows, a tile register of exact sums per scale, which goes through memory to
// the float step of tile.h on AVX-512 registers. Three things decide the speed (Sapphire Rapids):
//
//   A product and storing its 16 rows take 28 cycles together, however few the rows; where the one before it is
//   stored, 25.
//   While tiles are in use, and some 100 cycles longer, 512-bit float arithmetic has one port instead of two, integer
//   arithmetic keeps both. So the floats, and not the products, are the limit: 32 cycles for 16 by 16 sums with one
//   scale, 48 with a min. An integer addition makes sums floats (MAGIC), and the multiplication by d takes that back
//   exactly. Four products first and then their floats were not
//   faster: the second port takes too long to come back.
//   Latencies are long: products run two units ahead of the floats, storing one.
//
// A unit is the sums of 32 columns: one product, two where there are two scales, and as many again for 16-bit
// activations, whose high and low bytes are multiplied apart.
#if !(defined(__AMX_INT8__) || defined(__AMXINT8__)) || !defined(__AVX512BW__) // clang 14 has the latter name
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "kernels/tile.h"
#include "kernels/unroll.h"
#include "kernels/x86/amx.h"

#if defined(__FAST_MATH__)
#error "the tile kernels rely on the order of float operations"
#endif

#define INLINE static inline __attribute__((always_inline))
#define N_TOK RL_PANEL_A
#define HALF 16 // rows of a product

// tmm0 to 3 sums, 4 and 5 activations, 6 and 7 weights (4 columns of 16 rows in one row of the register).
static const amx_config config32 = {1, 0, {0}, {64, 64, 64, 64, 32, 32, 64, 64}, {16, 16, 16, 16, 16, 16, 8, 8}};
static const amx_config config16 = {1, 0, {0}, {64, 64, 64, 64, 16, 16, 64, 64}, {16, 16, 16, 16, 16, 16, 4, 4}};

typedef int32_t sums[N_TOK][HALF];

// float(MAGIC + i) = 1.5 * 2^23 + i for |i| < 2^22; 32 columns reach at most 32 * 128 * 127 = 520,192.
#define MAGIC 0x4B400000
#define MAGIC_F 12582912.0f

// What the products read next, and what all units share.
typedef struct {
    const uint8_t *w; // weights of rows 0.. and group 0; signed
    const rl_tile *tile;
    const float (*magic)[RL_TILE_ROWS]; // -MAGIC_F * d
    size_t n_groups;
    sums (*ring)[4]; // of an even and an odd unit
} work;

#define STEP_W (8 * sizeof(((rl_tile *)0)->q[0]))
#define STEP_Q sizeof(((rl_panel8a *)0)->q[0])
#define ROW_W sizeof(((rl_tile *)0)->q[0])
#define LOW sizeof(((rl_panel16a *)0)->high)

#define UNIT_Q8_G32(c)                                                                                                 \
    AMX_LOAD(4, q, 32);                                                                                                \
    AMX_LOAD(6, w, ROW_W);                                                                                             \
    AMX_ZERO(c);                                                                                                       \
    AMX_DOT(c, 4, 6)
#define UNIT_Q8_G16(c0, c1)                                                                                            \
    AMX_LOAD(4, q, 32);                                                                                                \
    AMX_LOAD(6, w, ROW_W);                                                                                             \
    AMX_ZERO(c0);                                                                                                      \
    AMX_DOT(c0, 4, 6);                                                                                                 \
    AMX_LOAD(5, q + 16, 32);                                                                                           \
    AMX_LOAD(7, w + 4 * ROW_W, ROW_W);                                                                                 \
    AMX_ZERO(c1);                                                                                                      \
    AMX_DOT(c1, 5, 7)
#define UNIT_Q16(c0, c1, from)                                                                                         \
    AMX_LOAD(4, q + (from), 32);                                                                                       \
    AMX_LOAD(6, w + (from) / 4 * ROW_W, ROW_W);                                                                        \
    AMX_ZERO(c0);                                                                                                      \
    AMX_DOT(c0, 4, 6);                                                                                                 \
    AMX_LOAD(5, q + LOW + (from), 32);                                                                                 \
    AMX_ZERO(c1);                                                                                                      \
    AMX_DOT(c1, 5, 6)

// The products of a unit, into the registers of an even or odd one.
INLINE void multiply(const int8_t *q, const uint8_t *w, int odd, int wide, int group) {
    if (wide && odd) {
        UNIT_Q16(2, 3, 0);
    } else if (wide) {
        UNIT_Q16(0, 1, 0);
    } else if (group == 16 && odd) {
        UNIT_Q8_G16(2, 3);
    } else if (group == 16) {
        UNIT_Q8_G16(0, 1);
    } else if (odd) {
        UNIT_Q8_G32(1);
    } else {
        UNIT_Q8_G32(0);
    }
}

INLINE void store(sums *s, int odd, int wide, int group) {
    if ((wide || group == 16) && odd) {
        AMX_STORE(2, s[0], 64);
        AMX_STORE(3, s[1], 64);
    } else if (wide || group == 16) {
        AMX_STORE(0, s[0], 64);
        AMX_STORE(1, s[1], 64);
    } else if (odd) {
        AMX_STORE(1, s[0], 64);
    } else {
        AMX_STORE(0, s[0], 64);
    }
}

// Before the floats of a unit: multiplies the one two behind it, stores the one behind it. Two scales and 16 bits have
// as many products as there are registers for sums: the halves of units take turns, and the floats come first.
#define BY_HALVES(wide, group) ((wide) && (group) == 16)
INLINE void run_ahead(const work *k, const int8_t *q, const uint8_t *w, int odd, int wide, int group) {
    if (BY_HALVES(wide, group)) {
        UNIT_Q16(0, 1, 0);
        store(k->ring[!odd] + 2, 1, wide, group);
        UNIT_Q16(2, 3, 16);
        store(k->ring[odd], 0, wide, group);
    } else {
        multiply(q, w, odd, wide, group);
        store(k->ring[!odd], !odd, wide, group);
    }
}

// The first two units.
INLINE void begin(const work *k, const int8_t *q, const uint8_t *w, int wide, int group) {
    if (BY_HALVES(wide, group)) {
        UNIT_Q16(2, 3, 16);
        store(k->ring[0] + 2, 1, wide, group);
        UNIT_Q16(0, 1, 0);
        store(k->ring[0], 0, wide, group);
        q += STEP_Q, w += STEP_W;
        UNIT_Q16(0, 1, 0);
        store(k->ring[1], 0, wide, group);
        UNIT_Q16(2, 3, 16);
    } else {
        multiply(q, w, 0, wide, group);
        store(k->ring[0], 0, wide, group);
        multiply(q + STEP_Q, w + STEP_W, 1, wide, group);
    }
}

// One unit with nothing ahead.
INLINE void alone(const work *k, const int8_t *q, const uint8_t *w, int wide, int group) {
    multiply(q, w, 0, wide, group);
    store(k->ring[0], 0, wide, group);
    if (!BY_HALVES(wide, group)) return;
    UNIT_Q16(2, 3, 16);
    store(k->ring[0] + 2, 1, wide, group);
}

INLINE __m512i load_sum(const sums *s, int t, int wide) {
    if (!wide) return _mm512_load_si512(s[0][t]);
    // 256 * high + low. By a shuffle, which does not take the port of the floats. At most 32 * 128 * 32,639, below
    // 2^28.
    const __m512i up = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14));
    return _mm512_add_epi32(_mm512_shuffle_epi8(_mm512_load_si512(s[0][t]), up), _mm512_load_si512(s[1][t]));
}

// (float)i * d; with `exact`, by way of MAGIC: (MAGIC_F + i) * d - MAGIC_F * d rounded once.
INLINE __m512 scaled(__m512i i, __m512 d, __m512 magic, int exact) {
    if (!exact) return _mm512_mul_ps(_mm512_cvtepi32_ps(i), d);
    __m512 f = _mm512_castsi512_ps(_mm512_add_epi32(i, _mm512_set1_epi32(MAGIC)));
    return _mm512_fmadd_ps(f, d, magic);
}

// The float step of n tokens with group b of 32 columns and rows r0..
INLINE void add_unit(__m512 acc[], const work *k, const sums *s, const void *panel, int n, size_t b, size_t r0,
                     int wide, int group, int mins, int exact) {
    const rl_panel8a *p8 = panel;
    const rl_panel16a *p16 = panel;
    const float *dx = wide ? p16->d[b] : p8->d[b];
    const float *sx = wide ? p16->s[b] : p8->s[b], *sx16 = wide ? p16->s16[2 * b] : p8->s16[2 * b];
    const size_t g = group == 32 ? b : 2 * b;
    __m512 d = _mm512_load_ps(k->tile->d[g] + r0), d1 = d, m = d, m1 = d, magic = d;
    if (exact) magic = _mm512_load_ps(k->magic[b] + r0);
    if (mins) m = _mm512_load_ps(k->tile->m[g] + r0);
    if (group == 16) d1 = _mm512_load_ps(k->tile->d[g + 1] + r0);
    if (group == 16 && mins) m1 = _mm512_load_ps(k->tile->m[g + 1] + r0);
    RL_UNROLL
    for (int t = 0; t < n; t++) {
        __m512 f = scaled(load_sum(s, t, wide), d, magic, exact);
        if (group == 16) f = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load_sum(s + 1 + wide, t, wide)), d1, f);
        acc[t] = _mm512_fmadd_ps(f, _mm512_set1_ps(dx[t]), acc[t]);
        if (mins) acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(group == 16 ? sx16[t] : sx[t]), acc[t]);
        if (mins && group == 16) acc[t] = _mm512_fmadd_ps(m1, _mm512_set1_ps(sx16[N_TOK + t]), acc[t]);
    }
}

// n tokens of a panel, both halves of the rows; an even number of groups. `next` is the panel that follows, or any.
INLINE void panel_tokens(const work *k, const void *panel, const void *next, int n, float *c, int wide, int group,
                         int mins, int exact) {
    for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += HALF) {
        __m512 acc[N_TOK];
        const int8_t *q = (const int8_t *)panel + 2 * STEP_Q;
        const uint8_t *w = k->w + 4 * r0 + 2 * STEP_W;
        RL_UNROLL
        for (int t = 0; t < n; t++) acc[t] = _mm512_load_ps(c + (size_t)t * RL_TILE_ROWS + r0);
        for (size_t b = 0; b < k->n_groups; b += 2, q += 2 * STEP_Q, w += 2 * STEP_W) {
            if (b + 2 == k->n_groups) { // the other rows, or the first ones of the next panel
                q = r0 ? next : panel;
                w = k->w + 4 * (HALF - r0);
            }
            // The sums of the next panel, which wait in the second-level cache.
            RL_UNROLL
            for (size_t i = 0; i < 4; i++) __builtin_prefetch(c + (N_TOK + 2 * b + i) * RL_TILE_ROWS + r0, 1, 3);
            if (!BY_HALVES(wide, group)) run_ahead(k, q, w, 0, wide, group);
            add_unit(acc, k, k->ring[0], panel, n, b, r0, wide, group, mins, exact);
            if (BY_HALVES(wide, group)) run_ahead(k, q, w, 0, wide, group);
            if (!BY_HALVES(wide, group)) run_ahead(k, q + STEP_Q, w + STEP_W, 1, wide, group);
            add_unit(acc, k, k->ring[1], panel, n, b + 1, r0, wide, group, mins, exact);
            if (BY_HALVES(wide, group)) run_ahead(k, q + STEP_Q, w + STEP_W, 1, wide, group);
        }
        RL_UNROLL
        for (int t = 0; t < n; t++) _mm512_store_ps(c + (size_t)t * RL_TILE_ROWS + r0, acc[t]);
    }
}

// The same with any number of groups and nothing ahead: for the odd number that ends some rows.
INLINE void panel_slowly(const work *k, const void *panel, float *c, int wide, int group, int mins) {
    for (size_t r0 = 0; r0 < RL_TILE_ROWS; r0 += HALF) {
        __m512 acc[N_TOK];
        RL_UNROLL
        for (int t = 0; t < N_TOK; t++) acc[t] = _mm512_load_ps(c + (size_t)t * RL_TILE_ROWS + r0);
        for (size_t b = 0; b < k->n_groups; b++) {
            alone(k, (const int8_t *)panel + b * STEP_Q, k->w + 4 * r0 + b * STEP_W, wide, group);
            add_unit(acc, k, k->ring[0], panel, N_TOK, b, r0, wide, group, mins, 0);
        }
        RL_UNROLL
        for (int t = 0; t < N_TOK; t++) _mm512_store_ps(c + (size_t)t * RL_TILE_ROWS + r0, acc[t]);
    }
}

// n tokens by way of a copy of c, whose further rows nobody reads.
#define IN_A_COPY(n, c, own, ...)                                                                                      \
    do {                                                                                                               \
        _Alignas(64) float own[N_TOK][RL_TILE_ROWS];                                                                   \
        for (size_t t = 0; t < N_TOK; t++)                                                                             \
            for (size_t r = 0; r < RL_TILE_ROWS; r++) own[t][r] = t < (n) ? (c)[t * RL_TILE_ROWS + r] : 0;             \
        __VA_ARGS__;                                                                                                   \
        for (size_t t = 0; t < (n); t++)                                                                               \
            for (size_t r = 0; r < RL_TILE_ROWS; r++) (c)[t * RL_TILE_ROWS + r] = own[t][r];                           \
    } while (0)

INLINE void last_tokens(const work *k, const void *panel, size_t n, float *c, int wide, int group, int mins,
                        int exact) {
    if (n <= 4)
        IN_A_COPY(n, c, own, panel_tokens(k, panel, panel, 4, own[0], wide, group, mins, exact));
    else if (n <= 8)
        IN_A_COPY(n, c, own, panel_tokens(k, panel, panel, 8, own[0], wide, group, mins, exact));
    else if (n <= 12)
        IN_A_COPY(n, c, own, panel_tokens(k, panel, panel, 12, own[0], wide, group, mins, exact));
    else
        IN_A_COPY(n, c, own, panel_tokens(k, panel, panel, 16, own[0], wide, group, mins, exact));
}

INLINE void all_tokens(const work *k, const uint8_t *panel, size_t n_tok, float *c, const rl_ahead *ahead, int wide,
                       int group, int mins, int exact) {
    const size_t size = wide ? sizeof(rl_panel16a) : sizeof(rl_panel8a);
    const int odd = k->n_groups % 2;
    amx_configure(group == 16 ? &config16 : &config32);
    if (!odd) begin(k, (const int8_t *)panel, k->w, wide, group);
    for (size_t tok = 0; tok < n_tok; tok += N_TOK, panel += size, c += N_TOK * RL_TILE_ROWS) {
        const size_t n = n_tok - tok;
        rl_look_ahead_of(ahead, N_TOK, panel, size, tok, n_tok);
        if (odd)
            IN_A_COPY((n < N_TOK ? n : N_TOK), c, own, panel_slowly(k, panel, own[0], wide, group, mins));
        else if (n >= N_TOK)
            panel_tokens(k, panel, n > N_TOK ? panel + size : panel, N_TOK, c, wide, group, mins, exact);
        else
            last_tokens(k, panel, n, c, wide, group, mins, exact);
    }
    amx_release();
}

// -MAGIC_F * d for all units; whether every one of them is exact, so that `scaled` may use it. Scales of 22 bits are,
// and those are all but Q8_K's.
INLINE int magic_of(float magic[][RL_TILE_ROWS], const rl_tile *tile, size_t n_groups, int group) {
    __mmask16 off = 0;
    for (size_t b = 0; b < n_groups; b++)
        for (size_t r = 0; r < RL_TILE_ROWS; r += 16) {
            __m512 d = _mm512_load_ps(tile->d[group == 16 ? 2 * b : b] + r), one = _mm512_set1_ps(MAGIC_F);
            __m512 product = _mm512_mul_ps(d, one), rest = _mm512_fmsub_ps(d, one, product);
            off |= _mm512_cmp_ps_mask(rest, _mm512_setzero_ps(), _CMP_NEQ_UQ); // also of NaN
            _mm512_store_ps(magic[b] + r, _mm512_sub_ps(_mm512_setzero_ps(), product));
        }
    return !off;
}

// Bytes without their bias.
INLINE void unbias(uint8_t *to, const uint8_t *from, size_t bytes, int bias) {
    const __m512i v = _mm512_set1_epi8((char)bias);
    for (size_t i = 0; i < bytes; i += 64) _mm512_store_si512(to + i, _mm512_sub_epi8(_mm512_load_si512(from + i), v));
}

INLINE void mul(const rl_tile *tile, const void *panels, size_t n_tok, size_t klen, float *c, const rl_ahead *ahead,
                int wide, int group, int biased, int mins) {
    _Alignas(64) uint8_t own[sizeof tile->q];
    _Alignas(64) float magic[RL_TILE_K / 32][RL_TILE_ROWS];
    _Alignas(64) sums ring[2][4];
    if (!n_tok || klen < 32) return;
    if (biased) unbias(own, tile->q[0][0], klen * RL_TILE_ROWS, group == 16 ? 32 : 128);
    work k = {.w = biased ? own : tile->q[0][0], .tile = tile, .magic = magic, .n_groups = klen / 32, .ring = ring};
    if (!wide && k.n_groups % 2 == 0 && magic_of(magic, tile, k.n_groups, group))
        all_tokens(&k, panels, n_tok, c, ahead, wide, group, mins, 1);
    else
        all_tokens(&k, panels, n_tok, c, ahead, wide, group, mins, 0);
}

#define MUL(NAME, WIDE, GROUP, BIASED, MINS)                                                                           \
    void rl_tile_mul_##NAME##_amx(const void *tile, const void *panels, size_t n_tok, size_t klen, float *c,           \
                                  const rl_ahead *ahead) {                                                             \
        mul(tile, panels, n_tok, klen, c, ahead, WIDE, GROUP, BIASED, MINS);                                           \
    }

MUL(u8b128_g32_q8, 0, 32, 1, 0)
MUL(u5_g32_min_q8, 0, 32, 0, 1)
MUL(u6b32_g16_q8, 0, 16, 1, 0)
MUL(u5_g16_min_q8, 0, 16, 0, 1)
MUL(u8b128_g32_q16, 1, 32, 1, 0)
MUL(u5_g32_min_q16, 1, 32, 0, 1)
MUL(u6b32_g16_q16, 1, 16, 1, 0)
MUL(u5_g16_min_q16, 1, 16, 0, 1)
