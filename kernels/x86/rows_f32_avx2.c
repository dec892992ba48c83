// SPDX-License-Identifier: Apache-2.0
// The exact path, AVX2: 256 weights at a time to float32, then products with every token. Value i goes to partial
// sum i mod 32, as in the reference, but each product and sum is one FMA.
#include "kernels/x86/dequant256.h"
#include "kernels/x86/prefetch.h"

#define CHUNK 256

// Adds the products of n values (a multiple of 32) to the 32 partial sums.
RL_INLINE void add_products(const float *w, const float *x, size_t n, float *sums) {
    __m256 a = _mm256_load_ps(sums), b = _mm256_load_ps(sums + 8);
    __m256 c = _mm256_load_ps(sums + 16), d = _mm256_load_ps(sums + 24);
    for (size_t i = 0; i < n; i += 32) {
        a = _mm256_fmadd_ps(_mm256_loadu_ps(w + i), _mm256_loadu_ps(x + i), a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(w + i + 8), _mm256_loadu_ps(x + i + 8), b);
        c = _mm256_fmadd_ps(_mm256_loadu_ps(w + i + 16), _mm256_loadu_ps(x + i + 16), c);
        d = _mm256_fmadd_ps(_mm256_loadu_ps(w + i + 24), _mm256_loadu_ps(x + i + 24), d);
    }
    _mm256_store_ps(sums, a);
    _mm256_store_ps(sums + 8, b);
    _mm256_store_ps(sums + 16, c);
    _mm256_store_ps(sums + 24, d);
}

// Fewer than 32 values, from copies filled up with zeros: neither operand is read past its end.
static void add_tail(const float *w, const float *x, size_t n, float *sums) {
    float wt[32] = {0}, xt[32] = {0};
    memcpy(wt, w, n * sizeof *w);
    memcpy(xt, x, n * sizeof *x);
    add_products(wt, xt, 32, sums);
}

RL_INLINE float fold(const float *sums) {
    __m256 a = _mm256_add_ps(_mm256_load_ps(sums), _mm256_load_ps(sums + 16));
    __m256 b = _mm256_add_ps(_mm256_load_ps(sums + 8), _mm256_load_ps(sums + 24));
    return sum8(_mm256_add_ps(a, b));
}

// Columns c0..c1 of one row, added to the sums of each token.
RL_INLINE void add_columns(const rl_rows_args *a, const uint8_t *w, size_t c0, size_t c1, const size_t block,
                           const size_t bytes, void (*dequant)(const uint8_t *, float *, size_t), float (*sums)[32]) {
    for (size_t c = c0; c < c1; c += CHUNK, w += CHUNK / block * bytes) {
        _Alignas(32) float chunk[CHUNK];
        size_t n = c1 - c < CHUNK ? c1 - c : CHUNK, whole = n & ~(size_t)31;
        if (!a->apart) prefetch(w, CHUNK / block * bytes);
        dequant(w, chunk, n);
        for (size_t t = 0; t < a->n_tok; t++) {
            const float *x = a->act->f32 + (a->tok0 + t) * a->act->ld_f32 + c;
            add_products(chunk, x, whole, sums[t]);
            if (whole < n) add_tail(chunk + whole, x + whole, n - whole, sums[t]);
        }
    }
}

RL_INLINE void rows(const rl_rows_args *a, const size_t block, const size_t bytes,
                    void (*dequant)(const uint8_t *, float *, size_t)) {
    for (size_t first = 0; first < a->n_rows; first += RL_ROWS_STRIPS) {
        _Alignas(32) float sums[RL_ROWS_STRIPS][RL_ROWS_MAX_TOK][32];
        size_t end = a->n_rows - first < RL_ROWS_STRIPS ? a->n_rows : first + RL_ROWS_STRIPS;
        // Of strips some columns by turns, as in rows256.h.
        for (size_t c0 = 0, c1; c0 < a->cols; c0 = c1) {
            c1 = span_end(a->apart, a->cols, c0, CHUNK / block * bytes);
            for (size_t i = first; i < end; i++) {
                const size_t r = rl_row_at(i, a->apart);
                const uint8_t *row = a->w + r * a->row_bytes, *w = row + c0 / block * bytes;
                float(*s)[32] = sums[i - first];
                if (a->apart)
                    prefetch_strips(w, a->apart * a->row_bytes, i - first, (c1 - c0) / block * bytes);
                else
                    touch_pages(row, a->row_bytes);
                if (c0 == 0) memset(s, 0, a->n_tok * sizeof *s);
                add_columns(a, w, c0, c1, block, bytes, dequant, s);
                for (size_t t = 0; t < a->n_tok && c1 == a->cols; t++) a->out[t * a->ld_out + r] = fold(s[t]);
            }
        }
    }
}

#define ROWS(T, BLOCK, BYTES)                                                                                          \
    void rl_rows_##T##_f32_avx2(const rl_rows_args *a);                                                                \
    void rl_rows_##T##_f32_avx2(const rl_rows_args *a) {                                                               \
        rows(a, BLOCK, BYTES, deq_##T);                                                                                \
    }
ROWS(f32, 1, 4)
ROWS(f16, 1, 2)
ROWS(bf16, 1, 2)
ROWS(q4_0, 32, sizeof(rl_block_q4_0))
ROWS(q4_1, 32, sizeof(rl_block_q4_1))
ROWS(q5_0, 32, sizeof(rl_block_q5_0))
ROWS(q5_1, 32, sizeof(rl_block_q5_1))
ROWS(q8_0, 32, sizeof(rl_block_q8_0))
ROWS(iq4nl, 32, sizeof(rl_block_iq4_nl))
ROWS(q2k, 256, sizeof(rl_block_q2_k))
ROWS(q3k, 256, sizeof(rl_block_q3_k))
ROWS(q4k, 256, sizeof(rl_block_q4_k))
ROWS(q5k, 256, sizeof(rl_block_q5_k))
ROWS(q6k, 256, sizeof(rl_block_q6_k))
ROWS(q8k, 256, sizeof(rl_block_q8_k))
ROWS(iq4xs, 256, sizeof(rl_block_iq4_xs))
