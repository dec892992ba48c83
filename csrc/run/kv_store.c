// SPDX-License-Identifier: Apache-2.0
// Values into and out of the pages of a KV cache: rotation, conversion, and the place of each value.
#include "run/kv_internal.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

void rl_hadamard(float *x, size_t dim) {
    size_t block = rl_hadamard_block(dim);
    if (block < 2) return;
    float norm = 1.0f / sqrtf((float)block);
    for (size_t b = 0; b < dim; b += block) {
        float *y = x + b;
        for (size_t half = 1; half < block; half *= 2)
            for (size_t i = 0; i < block; i += 2 * half)
                for (size_t j = i; j < i + half; j++) {
                    float u = y[j], v = y[j + half];
                    y[j] = u + v;
                    y[j + half] = u - v;
                }
        for (size_t i = 0; i < block; i++) y[i] *= norm;
    }
}

// int8 with a float32 scale per 32 values. A NaN or infinity gives a NaN scale, so that it shows.
static void quantize(const float *x, size_t dim, int8_t *q, float *scale) {
    for (size_t g = 0; g * 32 < dim; g++) {
        size_t i0 = g * 32, i1 = i0 + 32 < dim ? i0 + 32 : dim;
        float amax = 0.0f, poison = 0.0f;
        for (size_t i = i0; i < i1; i++) {
            float a = fabsf(x[i]);
            poison += a * 0.0f;
            amax = a > amax ? a : amax;
        }
        float inv = amax > 0x1p-120f ? 127.0f / amax : 0.0f; // below, 127 / amax may overflow
        if (poison != 0.0f) inv = 0.0f;                      // NaN compares unequal
        scale[g] = poison != 0.0f ? NAN : inv > 0.0f ? amax / 127.0f : 0.0f;
        if (inv == 0.0f)
            memset(q + i0, 0, i1 - i0);
        else
            for (size_t i = i0; i < i1; i++) q[i] = (int8_t)lrintf(x[i] * inv);
    }
}

// Where the value i of token t goes, in values from the start of the head.
static inline size_t place(const rl_attn_side *s, bool is_v, size_t t, size_t i) {
    return is_v ? rl_attn_tile_v(s, t, i) : rl_attn_tile_k(s, t, i);
}
static inline size_t place_scale(const rl_attn_side *s, bool is_v, size_t t, size_t g) {
    return is_v ? rl_attn_tile_v_scale(t, g) : rl_attn_tile_k_scale(s, t, g);
}

static void store_row(const rl_attn_side *s, bool is_v, uint8_t *side, size_t h, size_t t, const float *x) {
    uint8_t *head = side + h * s->head + t * s->token;
    if (s->type == RL_F32) {
        float *o = (float *)(void *)head;
        if (!s->tile || is_v)
            memcpy(o + (s->tile ? t * s->pad : 0), x, s->dim * sizeof *x);
        else
            for (size_t i = 0; i < s->dim; i++) o[place(s, is_v, t, i)] = x[i];
    } else if (s->type == RL_F16) {
        uint16_t *o = (uint16_t *)(void *)head;
        for (size_t i = 0; i < s->dim; i++) o[s->tile ? place(s, is_v, t, i) : i] = rl_f32_to_f16(x[i]);
    } else {
        int8_t q[RL_ATTN_MAX_DIM];
        float scale[RL_ATTN_MAX_DIM / 32];
        quantize(x, s->dim, q, scale);
        float *sc = (float *)(void *)(side + s->scales + h * s->scales_head + t * s->scales_token);
        if (!s->tile) {
            memcpy(head, q, s->dim);
            memcpy(sc, scale, s->groups * sizeof *scale);
            return;
        }
        for (size_t i = 0; i < s->dim; i++) ((int8_t *)head)[place(s, is_v, t, i)] = q[i];
        for (size_t g = 0; g < s->groups; g++) sc[place_scale(s, is_v, t, g)] = scale[g];
    }
}

static void load_row(const rl_attn_side *s, bool is_v, const uint8_t *side, size_t h, size_t t, float *x) {
    const uint8_t *head = side + h * s->head + t * s->token;
    const float *sc = (const float *)(const void *)(side + s->scales + h * s->scales_head + t * s->scales_token);
    for (size_t i = 0; i < s->dim; i++) {
        size_t at = s->tile ? place(s, is_v, t, i) : i;
        if (s->type == RL_F32)
            x[i] = ((const float *)(const void *)head)[at];
        else if (s->type == RL_F16)
            x[i] = rl_f16_to_f32(((const uint16_t *)(const void *)head)[at]);
        else
            x[i] = (float)((const int8_t *)head)[at] * sc[s->tile ? place_scale(s, is_v, t, i / 32) : i / 32];
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

void rl_kv_zero_tail(const rl_kv_layer *l, uint8_t *page, size_t t0) {
    static const float zeros[RL_ATTN_MAX_DIM];
    for (size_t t = t0; t < RL_PAGE_TOKENS; t++)
        for (size_t h = 0; h < l->k.n_head; h++) {
            store_row(&l->k, false, page, h, t, zeros);
            store_row(&l->v, true, page + l->k.bytes, h, t, zeros);
        }
}

rl_status rl_kv_read(const rl_kv *kv, size_t layer, bool want_v, bool raw, size_t p0, size_t p1, float *out,
                     rl_err *err) {
    if (layer >= kv->config.n_layer)
        return rl_fail(err, RL_ERR_ARG, "layer %zu: the cache has %zu layers", layer, kv->config.n_layer);
    size_t first = rl_kv_first(kv, layer);
    if (p0 > p1 || p1 > kv->length || (p0 < p1 && p0 < first))
        return rl_fail(err, RL_ERR_ARG, "positions %zu to %zu: layer %zu holds %zu to %zu", p0, p1, layer, first,
                       kv->length);
    const rl_kv_layer *l = &kv->layers[layer];
    const rl_attn_side *s = want_v ? &l->v : &l->k;
    for (size_t p = p0; p < p1; p++) {
        const uint8_t *side = l->slots[p / RL_PAGE_TOKENS].data + (want_v ? l->k.bytes : 0);
        for (size_t h = 0; h < s->n_head; h++) {
            load_row(s, want_v, side, h, p % RL_PAGE_TOKENS, out);
            if (!want_v && !raw && kv->config.rotate) rl_hadamard(out, s->dim);
            out += s->dim;
        }
    }
    return RL_OK;
}
