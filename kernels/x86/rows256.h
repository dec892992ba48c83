// SPDX-License-Identifier: Apache-2.0
// Rows kernels of 256-bit vectors, written once for three tiers (AVX2, AVX-VNNI, AVX-512VL with VNNI) and two kinds
// of activations. A file that includes this defines
//   RL_ISA        tier name for the functions
//   RL_BITS       8 or 16: int8 or int16 activations
//   RL_DPBUSD     with VNNI: (acc, unsigned bytes, signed bytes) -> acc
//   RL_DPWSSD     with VNNI: (acc, words, words) -> acc
//   RL_OWN_Q4K_Q5K, RL_OWN_Q4_1, RL_OWN_Q5_0  when these types have a file of their own
//
// The plan of every kernel: unpack 32 weights to the bytes of one vector, form the integer sums of one scale group
// (exact), convert, and FMA with block scale * sub-scale * activation scale. What is added per group (minimums, offsets
// of unsigned storage) needs only the sums of the activations: one FMA per 256 values.
//
// Worst cases of the integer sums:
//   int8, unsigned weights up to 63 (Q6_K): maddubs 2 * 63 * 127 = 16,002; two added for pairs (at most 31): 15,748
//   int8, signed weights (Q8: 128, IQ4: 127): maddubs 2 * 128 * 127 = 32,512 in int16; not added before widening
//   int16, weights up to 128: madd 2 * 128 * 32,639 = 8,355,584; four words a lane: 16,711,168
//   int16, pairs, IQ4 (up to 127): eight words a lane: 33,161,224; up to 31: 8,094,472
//   sums of sub-scale * activation sums (16 values): int8 2 * 2,032 * 4,096 = 16,646,144; int16 2 * 522,224 * 15
// All fit their lanes, and all but the pairs of IQ4 convert to float32 without rounding (below 2^24).
#ifndef RL_KERNELS_X86_ROWS256_H
#define RL_KERNELS_X86_ROWS256_H

#include "kernels/x86/prefetch.h"
#include "kernels/x86/unpack256.h"

#define RL_CAT_(a, b, c, d) a##b##c##d
#define RL_CAT(a, b, c, d) RL_CAT_(a, b, c, d)
#if RL_BITS == 8
#define RL_ROWS_NAME(T) RL_CAT(rl_rows_, T, _q8_, RL_ISA)
typedef int8_t rl_x;
#else
#define RL_ROWS_NAME(T) RL_CAT(rl_rows_, T, _q16_, RL_ISA)
typedef int16_t rl_x;
#endif

// Integer dot products of 32 weights in bytes; `sign` is a constant: signed or unsigned weights. The result has 8
// lanes; lanes 0..3 belong to the first 16 bytes. int16 activations come as even values and odd values.
#if RL_BITS == 8
RL_INLINE __m256i widen(__m256i w, __m256i x) {
#ifdef RL_DPBUSD
    return RL_DPBUSD(_mm256_setzero_si256(), w, x);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
#endif
}
RL_INLINE __m256i dot(__m256i w, const rl_x *x, const int sign) {
    __m256i v = load256(x);
    return sign ? widen(_mm256_abs_epi8(w), _mm256_sign_epi8(v, w)) : widen(w, v);
}
// Two vectors whose products belong together: x0 for lo, 64 values on for hi.
RL_INLINE __m256i dot_pair(__m256i lo, __m256i hi, const rl_x *x, const int sign) {
    __m256i a = load256(x), b = load256(x + 64);
    if (sign) {
        a = _mm256_sign_epi8(a, lo), lo = _mm256_abs_epi8(lo);
        b = _mm256_sign_epi8(b, hi), hi = _mm256_abs_epi8(hi);
    }
#ifdef RL_DPBUSD
    return RL_DPBUSD(RL_DPBUSD(_mm256_setzero_si256(), lo, a), hi, b);
#else
    if (sign) return _mm256_add_epi32(widen(lo, a), widen(hi, b));
    __m256i s = _mm256_add_epi16(_mm256_maddubs_epi16(lo, a), _mm256_maddubs_epi16(hi, b));
    return _mm256_madd_epi16(s, _mm256_set1_epi16(1));
#endif
}
#else
RL_INLINE __m256i mul_add(__m256i acc, __m256i w, const rl_x *x) {
#ifdef RL_DPWSSD
    return RL_DPWSSD(acc, w, load256(x));
#else
    return _mm256_add_epi32(acc, _mm256_madd_epi16(w, load256(x)));
#endif
}
RL_INLINE __m256i even_bytes(__m256i w, const int sign) {
    return sign ? _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8) : _mm256_and_si256(w, _mm256_set1_epi16(255));
}
RL_INLINE __m256i odd_bytes(__m256i w, const int sign) {
    return sign ? _mm256_srai_epi16(w, 8) : _mm256_srli_epi16(w, 8);
}
RL_INLINE __m256i dot(__m256i w, const rl_x *x, const int sign) {
    __m256i s = mul_add(_mm256_setzero_si256(), even_bytes(w, sign), x);
    return mul_add(s, odd_bytes(w, sign), x + 16);
}
RL_INLINE __m256i dot_pair(__m256i lo, __m256i hi, const rl_x *x, const int sign) {
#ifdef RL_DPWSSD // two chains: each step waits for the multiply before it, not only for the addition
    __m256i a = _mm256_madd_epi16(even_bytes(lo, sign), load256(x));
    __m256i b = _mm256_madd_epi16(even_bytes(hi, sign), load256(x + 32));
    a = mul_add(a, odd_bytes(lo, sign), x + 64);
    b = mul_add(b, odd_bytes(hi, sign), x + 96);
    return _mm256_add_epi32(a, b);
#else
    __m256i s = mul_add(_mm256_setzero_si256(), even_bytes(lo, sign), x);
    s = mul_add(s, even_bytes(hi, sign), x + 32);
    s = mul_add(s, odd_bytes(lo, sign), x + 64);
    return mul_add(s, odd_bytes(hi, sign), x + 96);
#endif
}
#endif

// One activation vector.
typedef struct {
    const rl_x *natural, *nibble; // in the order of values (int16: even and odd apart), and of nibble blocks
    const float *d, *s;           // scale per 32 (int16: per 256), scale * sum per 32
#if RL_BITS == 8
    const int16_t *b; // sums of 16
#else
    const int32_t *b;
#endif
} act_ptr;

RL_INLINE act_ptr act_at(const rl_act *a, size_t tok) {
#if RL_BITS == 8
    return (act_ptr){a->q8 + tok * a->ld_q, a->q8n + tok * a->ld_q, a->d8 + tok * a->ld_d, a->s8 + tok * a->ld_d,
                     a->b8 + tok * 2 * a->ld_d};
#else
    return (act_ptr){a->q16e + tok * a->ld_q, a->q16n + tok * a->ld_q, a->d16 + tok * a->ld_d16, a->s16 + tok * a->ld_d,
                     a->b16 + tok * 2 * a->ld_d};
#endif
}

// The activation scales of the 8 groups of 32 that begin at group g (a multiple of 8).
RL_INLINE __m256 act_scales(const act_ptr *x, size_t g) {
#if RL_BITS == 8
    return _mm256_loadu_ps(x->d + g);
#else
    return _mm256_broadcast_ss(x->d + g / 8);
#endif
}

// Lane numbers that put scale 2p on lanes 0..3 and 2p + 1 on lanes 4..7.
RL_INLINE __m256 spread(__m256 v, const int p) {
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return _mm256_permutevar8x32_ps(v, _mm256_add_epi32(first, _mm256_set1_epi32(2 * p)));
}

// Partial sums per token: several for one token, so that the FMAs do not wait for each other.
#define RL_CHAINS(nt) ((nt) == 1 ? 4 : (nt) == 2 ? 2 : 1)

// Rows at a time: enough to read the addresses of the activations once for many rows, few enough that a second
// group of tokens finds the weights in the first-level cache.
#define RL_ROWS_AT_ONCE 8

// The sums of one token, 8 lanes for each row of a part: folded for all rows at once, since a row alone waits for each
// of its additions and takes twice the instructions.
typedef struct {
    _Alignas(32) float lanes[RL_ROWS_AT_ONCE][8];
} part_sums;

RL_INLINE void keep_row(part_sums *s, size_t r, __m256 v) {
    _mm256_store_ps(s->lanes[r], v);
}

RL_INLINE void add_to_row(part_sums *s, size_t r, __m256 v) {
    keep_row(s, r, _mm256_add_ps(_mm256_load_ps(s->lanes[r]), v));
}

// Halves of two vectors: a + its upper half, then b's. Here and below lanes are added in the order of sum8().
RL_INLINE __m256 fold_halves(const part_sums *s, const int r) {
    __m256 a = _mm256_load_ps(s->lanes[r]), b = _mm256_load_ps(s->lanes[r + 1]);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

RL_INLINE __m256 fold_quarters(__m256 a, __m256 b) {
    __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

// Folds the lanes of the first n rows into n floats.
RL_INLINE void fold_rows(const part_sums *s, size_t n, float *out) {
    if (n < RL_ROWS_AT_ONCE) {
        for (size_t r = 0; r < n; r++) out[r] = sum8(_mm256_load_ps(s->lanes[r]));
        return;
    }
    // Pairs of lanes of rows 0, 2, 1, 3 and 4, 6, 5, 7.
    __m256 a = fold_quarters(fold_halves(s, 0), fold_halves(s, 2));
    __m256 b = fold_quarters(fold_halves(s, 4), fold_halves(s, 6));
    // Rows 0, 2, 4, 6, 1, 3, 5, 7.
    a = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD));
    _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

RL_INLINE void finish(const __m256 *acc, const __m256 *min, part_sums *sums, size_t r, const int nt) {
    for (int t = 0; t < nt; t++) {
        const __m256 *c = acc + t * RL_CHAINS(nt);
        __m256 s = c[0];
        if (RL_CHAINS(nt) == 2) s = _mm256_add_ps(c[0], c[1]);
        if (RL_CHAINS(nt) == 4) s = _mm256_add_ps(_mm256_add_ps(c[0], c[1]), _mm256_add_ps(c[2], c[3]));
        keep_row(&sums[t], r, _mm256_add_ps(s, min[t]));
    }
}

// What a ROWS function gets: some rows, and nt tokens from tok on.
typedef struct {
    const uint8_t *w;
    size_t row_bytes, n_rows, apart, cols;
    const rl_act *act;
    size_t tok;
    float *out;
    size_t ld_out;
} rows_part;

// A part has one row of each strip. With two, the second ones begin where nothing has been asked for.
_Static_assert(RL_ROWS_STRIPS == RL_ROWS_AT_ONCE, "a part is a row of each strip");

// For each span of groups g0..g1 of 32 columns: of strips some columns, else whole rows. 8 groups take `bytes` bytes.
#define RL_SPANS(a, bytes, g0, g1)                                                                                     \
    for (size_t g0 = 0, g1 = end_of_span(&(a), bytes, 0); g0 < (a).cols / 32;                                          \
         g0 = g1, g1 = end_of_span(&(a), bytes, g1))

RL_INLINE size_t end_of_span(const rows_part *a, size_t bytes, size_t g) {
    return span_end(a->apart, a->cols, 32 * g, bytes) / 32;
}

// Row r of the part, from its group g0 on (a multiple of 8 groups, which take `bytes` bytes), for a span up to g1.
RL_INLINE const uint8_t *row_of(const rows_part *a, size_t r, size_t g0, size_t g1, size_t bytes) {
    const uint8_t *row = a->w + rl_row_at(r, a->apart) * a->row_bytes, *w = row + g0 / 8 * bytes;
    if (a->apart)
        prefetch_strips(w, a->apart * a->row_bytes, r, (g1 - g0) * bytes / 8);
    else
        touch_pages(row, a->row_bytes);
    return w;
}

// What is ahead of `bytes` bytes of a row; of strips it has been asked for.
RL_INLINE void ask(const rows_part *a, const uint8_t *w, size_t bytes) {
    if (!a->apart) prefetch(w, bytes);
}

// The sums of a row while others of its part have their turn.
typedef struct {
    __m256 acc[4], min[4];
} row_sums;

RL_INLINE void begin_row(row_sums *s, const row_sums *kept, size_t g, const int nt) {
    for (int i = 0; i < 4; i++) s->acc[i] = g ? kept->acc[i] : _mm256_setzero_ps();
    for (int t = 0; t < nt; t++) s->min[t] = g ? kept->min[t] : _mm256_setzero_ps();
}

// After group g of n.
RL_INLINE void end_row(const row_sums *s, row_sums *kept, part_sums *sums, size_t r, size_t g, size_t n, const int nt) {
    if (g == n)
        finish(s->acc, s->min, sums, r, nt);
    else
        *kept = *s;
}

RL_INLINE void put_out(const rows_part *a, const part_sums *sums, const int nt) {
    for (int t = 0; t < nt; t++) {
        float *out = a->out + (size_t)t * a->ld_out;
        if (!a->apart) {
            fold_rows(&sums[t], a->n_rows, out);
            continue;
        }
        float folded[RL_ROWS_AT_ONCE];
        fold_rows(&sums[t], a->n_rows, folded);
        for (size_t r = 0; r < a->n_rows; r++) out[rl_row_at(r, a->apart)] = folded[r];
    }
}

RL_INLINE rows_part part_of(const rl_rows_args *a, size_t apart, size_t r, size_t t) {
    size_t left = a->n_rows - r, at = rl_row_at(r, apart);
    return (rows_part){a->w + at * a->row_bytes,
                       a->row_bytes,
                       left < RL_ROWS_AT_ONCE ? left : RL_ROWS_AT_ONCE,
                       apart,
                       a->cols,
                       a->act,
                       a->tok0 + t,
                       a->out + t * a->ld_out + at,
                       a->ld_out};
}

// Runs ROWS (an inline function whose last parameter is the constant number of tokens) over rows and tokens.
// Rows that follow each other know nothing of spans, which cost 3 to 5 % where memory does not, and strips do not test
// for each block whether they are some.
#define RL_DRIVE(T, ROWS)                                                                                              \
    static __attribute__((noinline)) void RL_CAT(strips_, T, _, RL_BITS)(const rl_rows_args *a) {                      \
        const size_t apart = a->apart;                                                                                 \
        if (!apart) __builtin_unreachable();                                                                           \
        for (size_t r = 0; r < a->n_rows; r += RL_ROWS_AT_ONCE) ROWS(part_of(a, apart, r, 0), 1);                      \
    }                                                                                                                  \
    void RL_ROWS_NAME(T)(const rl_rows_args *a);                                                                       \
    void RL_ROWS_NAME(T)(const rl_rows_args *a) {                                                                      \
        if (a->apart) {                                                                                                \
            RL_CAT(strips_, T, _, RL_BITS)(a);                                                                         \
            return;                                                                                                    \
        }                                                                                                              \
        for (size_t r = 0; r < a->n_rows; r += RL_ROWS_AT_ONCE) {                                                      \
            size_t t = 0;                                                                                              \
            for (; a->n_tok - t >= 4; t += 4) ROWS(part_of(a, 0, r, t), 4);                                            \
            if (a->n_tok - t >= 2) {                                                                                   \
                ROWS(part_of(a, 0, r, t), 2);                                                                          \
                t += 2;                                                                                                \
            }                                                                                                          \
            if (t < a->n_tok) ROWS(part_of(a, 0, r, t), 1);                                                            \
        }                                                                                                              \
    }

#endif
