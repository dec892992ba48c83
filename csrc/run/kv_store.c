// SPDX-License-Identifier: Apache-2.0
// Values into and out of the pages of a KV cache: rotation, conversion, and the place of each value.
#include "run/kv_internal.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/threads.h"

// Butterflies of constant geometry, each stage leaving sums and differences interleaved, so that every stage is
// the same loop over contiguous halves: compilers make vectors of it. The shuffles of all stages cancel.
static void hadamard_block(float *x, size_t block) {
    float buffer[2][RL_ATTN_MAX_DIM], norm = 1.0f / sqrtf((float)block);
    const float *from = x;
    size_t half = block / 2;
    for (size_t stage = 1, n = 0; stage < block; stage *= 2, n ^= 1) {
        float *to = buffer[n];
        for (size_t i = 0; i < half; i++) {
            float u = from[i], v = from[i + half];
            to[2 * i] = u + v;
            to[2 * i + 1] = u - v;
        }
        from = to;
    }
    for (size_t i = 0; i < block; i++) x[i] = from[i] * norm;
}

void rl_hadamard(float *x, size_t dim) {
    size_t block = rl_hadamard_block(dim);
    for (size_t b = 0; block > 1 && b < dim; b += block) hadamard_block(x + b, block);
}

// int8 with a float32 scale per 32 values. A NaN or infinity gives a NaN scale, so that it shows.
static void quantize(const float *x, size_t dim, int8_t *q, float *scale) {
    for (size_t g = 0; g * 32 < dim; g++) {
        size_t i0 = g * 32, n = i0 + 32 < dim ? 32 : dim - i0;
        float part[32] = {0}, top[4] = {0}, poison[4] = {0};
        memcpy(part, x + i0, n * sizeof *x);
        for (size_t i = 0; i < 32; i += 4)
            for (size_t j = 0; j < 4; j++) {
                float a = fabsf(part[i + j]);
                poison[j] += a * 0.0f;
                top[j] = a > top[j] ? a : top[j];
            }
        float p = (poison[0] + poison[1]) + (poison[2] + poison[3]);
        float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3], amax = a > b ? a : b;
        float inv = amax > 0x1p-120f ? 127.0f / amax : 0.0f; // below, 127 / amax may overflow
        if (p != 0.0f) inv = 0.0f;                           // NaN compares unequal
        scale[g] = p != 0.0f ? NAN : inv > 0.0f ? amax / 127.0f : 0.0f;
        if (inv == 0.0f)
            memset(q + i0, 0, n);
        else
            for (size_t i = 0; i < n; i++) q[i0 + i] = (int8_t)rl_round_int(part[i] * inv);
    }
}

// As rl_f32_to_f16 without branches, for loops over many values.
static inline uint16_t to_half(float f) {
    uint32_t u = rl_f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
    uint32_t normal = (a + 0xC8000FFFu + ((a >> 13) & 1)) >> 13;
    uint32_t small = rl_f32_bits(rl_bits_f32(a < 0x38800000u ? a : 0) + 0.5f) - 0x3F000000u;
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477FF000u ? 0x7C00u : h;
    h = a > 0x7F800000u ? 0x7E00u | ((a >> 13) & 0x3FFu) : h;
    return (uint16_t)(sign | h);
}

// The first value of token t in its head, in values, and the distance to the next (or to the next four, q8_0 K).
static inline size_t origin(const rl_attn_side *s, bool is_v, size_t t) {
    return !s->tile ? 0 : is_v ? rl_attn_tile_v(s, t, 0) : rl_attn_tile_k(s, t, 0);
}
static inline size_t step(const rl_attn_side *s, bool is_v) {
    return !s->tile ? 1 : is_v ? (s->type == RL_Q8_0 ? 4 : 1) : s->type == RL_Q8_0 ? 64 : 16;
}

static void store_q8_0(const rl_attn_side *s, bool is_v, int8_t *head, float *sc, size_t t, const float *x) {
    int8_t q[RL_ATTN_MAX_DIM + 4];
    float scale[RL_ATTN_MAX_DIM / 32];
    quantize(x, s->dim, q, scale);
    if (!s->tile) {
        memcpy(head, q, s->dim);
        memcpy(sc, scale, s->groups * sizeof *scale);
        return;
    }
    int8_t *o = head + origin(s, is_v, t);
    if (is_v) {
        for (size_t i = 0; i < s->dim; i++) o[4 * i] = q[i];
    } else {
        memset(q + s->dim, 0, 4); // the padding stays zero
        for (size_t i = 0; i < s->dim; i += 4) memcpy(o + 16 * i, q + i, 4);
    }
    for (size_t g = 0; g < s->groups; g++)
        sc[is_v ? rl_attn_tile_v_scale(t, g) : rl_attn_tile_k_scale(s, t, g)] = scale[g];
}

static void store_row(const rl_attn_side *s, bool is_v, uint8_t *side, size_t h, size_t t, const float *x) {
    uint8_t *head = side + h * s->head + t * s->token;
    size_t at = origin(s, is_v, t), by = step(s, is_v);
    if (s->type == RL_F32) {
        float *o = (float *)(void *)head + at;
        for (size_t i = 0; i < s->dim; i++) o[i * by] = x[i];
    } else if (s->type == RL_F16) {
        uint16_t *o = (uint16_t *)(void *)head + at, half[RL_ATTN_MAX_DIM];
        for (size_t i = 0; i < s->dim; i++) half[i] = to_half(x[i]);
        for (size_t i = 0; i < s->dim; i++) o[i * by] = half[i];
    } else {
        float *sc = (float *)(void *)(side + s->scales + h * s->scales_head + t * s->scales_token);
        store_q8_0(s, is_v, (int8_t *)head, sc, t, x);
    }
}

static void load_row(const rl_attn_side *s, bool is_v, const uint8_t *side, size_t h, size_t t, float *x) {
    const uint8_t *head = side + h * s->head + t * s->token;
    const float *sc = (const float *)(const void *)(side + s->scales + h * s->scales_head + t * s->scales_token);
    for (size_t i = 0; i < s->dim; i++) {
        size_t at = !s->tile ? i : is_v ? rl_attn_tile_v(s, t, i) : rl_attn_tile_k(s, t, i);
        if (s->type == RL_F32)
            x[i] = ((const float *)(const void *)head)[at];
        else if (s->type == RL_F16)
            x[i] = rl_f16_to_f32(((const uint16_t *)(const void *)head)[at]);
        else
            x[i] = (float)((const int8_t *)head)[at] * sc[!s->tile ? i / 32
                                                          : is_v   ? rl_attn_tile_v_scale(t, i / 32)
                                                                   : rl_attn_tile_k_scale(s, t, i / 32)];
    }
}

void rl_kv_write(rl_kv *kv, const rl_dispatch *d, size_t layer, size_t pos0, size_t t0, size_t t1, size_t h0, size_t h1,
                 const float *k, size_t ld_k, const float *v, size_t ld_v) {
    (void)d;
    const rl_kv_layer *l = &kv->layers[layer];
    float turned[RL_ATTN_MAX_DIM];
    for (size_t t = t0; t < t1; t++) {
        size_t pos = pos0 + t, page = pos / RL_PAGE_TOKENS, in = pos % RL_PAGE_TOKENS;
        uint8_t *data = l->slots[page].data;
        for (size_t h = h0; h < h1; h++) {
            const float *x = k + t * ld_k + h * l->k.dim;
            if (kv->config.rotate) {
                memcpy(turned, x, l->k.dim * sizeof *x);
                rl_hadamard(turned, l->k.dim);
                x = turned;
            }
            store_row(&l->k, false, data, h, in, x);
            store_row(&l->v, true, data + l->k.bytes, h, in, v + t * ld_v + h * l->v.dim);
        }
    }
}

// Of one thread's heads, where that is all there is: what is read next anyway, and leaves room for weights in the
// second-level cache. Of a longer context the last page alone: it is written, and the others are read much later.
#define PREFETCH_BYTES (64 << 10)

static size_t prefetch_lines(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i += 64) __builtin_prefetch(p + i);
    return n;
}

void rl_kv_prefetch(const rl_kv *kv, size_t layer, size_t length, int ith, int nth) {
    const rl_kv_layer *l = &kv->layers[layer];
    size_t h0, h1, left = PREFETCH_BYTES;
    if (!l->k.tile || !length) return;
    rl_split(l->k.n_head, 1, ith, nth, &h0, &h1);
    if ((length - l->first * RL_PAGE_TOKENS) / RL_PAGE_TOKENS * (l->k.head + l->v.head) * (h1 - h0) > PREFETCH_BYTES)
        left = (l->k.head + l->v.head) * (h1 - h0);
    // The last page first: it is written, too, and keys of one token lie in as many lines as those of 16.
    for (size_t page = (length - 1) / RL_PAGE_TOKENS + 1; page-- > l->first;) {
        const uint8_t *data = l->slots[page].data;
        if (!data) return; // compressed from here on
        size_t n = length - page * RL_PAGE_TOKENS;
        if (n > RL_PAGE_TOKENS) n = RL_PAGE_TOKENS;
        size_t nk = l->k.head / RL_PAGE_TOKENS * ((n + 15) & ~(size_t)15), nv = l->v.head / RL_PAGE_TOKENS * n;
        for (size_t h = h0; h < h1; h++) {
            if (nk + nv > left) return;
            left -= prefetch_lines(data + h * l->k.head, nk) + prefetch_lines(data + l->k.bytes + h * l->v.head, nv);
        }
    }
}

void rl_kv_zero_tail(const rl_kv_layer *l, uint8_t *page, size_t t0) {
    static const float zeros[RL_ATTN_MAX_DIM];
    for (size_t t = t0; t < RL_PAGE_TOKENS; t++)
        for (size_t h = 0; h < l->k.n_head; h++) {
            store_row(&l->k, false, page, h, t, zeros);
            store_row(&l->v, true, page + l->k.bytes, h, t, zeros);
        }
}

void rl_kv_turn_page(const rl_kv *kv, size_t layer, uint8_t *page, rl_kv_turn_fn turn, void *arg) {
    const rl_attn_side *s = &kv->layers[layer].k;
    float k[RL_ATTN_MAX_DIM];
    for (size_t t = 0; t < RL_PAGE_TOKENS; t++)
        for (size_t h = 0; h < s->n_head; h++) {
            load_row(s, false, page, h, t, k);
            if (kv->config.rotate) rl_hadamard(k, s->dim);
            turn(arg, layer, k);
            if (kv->config.rotate) rl_hadamard(k, s->dim);
            store_row(s, false, page, h, t, k);
        }
}

// A row of a compressed page as it is meant: (dim) values, rotated for none.
static void load_expanded(const rl_kv *kv, size_t layer, const rl_kv_layer *held, bool is_v, const uint8_t *side,
                          size_t h, size_t t, float *out) {
    const rl_attn_side *short_side = is_v ? &held->v : &held->k;
    size_t dim = is_v ? kv->layers[layer].v.dim : kv->layers[layer].k.dim, rank = short_side->dim;
    float x[RL_ATTN_MAX_DIM];
    load_row(short_side, is_v, side, h, t, x);
    if (!is_v && kv->config.rotate) rl_hadamard(x, rank);
    const float *basis = rl_kv_basis_of(kv, kv->low->basis, layer, is_v) + h * dim * rank;
    if (is_v)
        rl_kv_times(x, basis, rank, dim, out);
    else
        rl_kv_dots(x, basis, dim, rank, out);
}

rl_status rl_kv_read(const rl_kv *kv, size_t layer, bool want_v, bool raw, size_t p0, size_t p1, float *out,
                     rl_err *err) {
    if (layer >= kv->config.n_layer)
        return rl_fail(err, RL_ERR_ARG, "layer %zu: the cache has %zu layers", layer, kv->config.n_layer);
    size_t first = rl_kv_first(kv, layer);
    if (p0 > p1 || p1 > rl_kv_length(kv) || (p0 < p1 && p0 < first))
        return rl_fail(err, RL_ERR_ARG, "positions %zu to %zu: layer %zu holds %zu to %zu", p0, p1, layer, first,
                       rl_kv_length(kv));
    const rl_kv_layer *l = &kv->layers[layer];
    const rl_attn_side *s = want_v ? &l->v : &l->k;
    for (size_t p = p0; p < p1; p++) {
        size_t at;
        const rl_kv_layer *held = rl_kv_layer_of(kv, layer, p / RL_PAGE_TOKENS, &at);
        const uint8_t *side = held->slots[at].data + (want_v ? held->k.bytes : 0);
        for (size_t h = 0; h < s->n_head; h++) {
            if (held != l) {
                load_expanded(kv, layer, held, want_v, side, h, p % RL_PAGE_TOKENS, out);
                out += s->dim;
                continue;
            }
            load_row(s, want_v, side, h, p % RL_PAGE_TOKENS, out);
            if (!want_v && !raw && kv->config.rotate) rl_hadamard(out, s->dim);
            out += s->dim;
        }
    }
    return RL_OK;
}
