// SPDX-License-Identifier: Apache-2.0
// Activations of one matmul: where each format lies in the caller's storage, and filling it token by token.
#include <string.h>

#include "run/linear.h"
#include "run/linear_tile.h"

#define ROWS_Q8 (RL_ACT_Q8 | RL_ACT_Q8N | RL_ACT_Q8P | RL_ACT_Q8M)
#define ROWS_Q16 (RL_ACT_Q16 | RL_ACT_Q16N | RL_ACT_Q16E | RL_ACT_Q16P | RL_ACT_Q16S | RL_ACT_Q16M)

typedef struct {
    uint8_t *base; // NULL: only count
    size_t at;
} layout;

static void *place(layout *l, size_t bytes) {
    void *p = l->base ? l->base + l->at : NULL;
    l->at += (bytes + 63) / 64 * 64;
    return p;
}

// One walk gives both the size and the addresses, so that they cannot disagree. Returns the offset behind the
// row formats, where the packed ones begin.
static size_t lay_out(rl_act *a, void *storage) {
    layout l = {storage, 0};
    size_t n = a->max_tok;
    a->ld_q = (a->cols + 255) / 256 * 256;
    a->ld_d = a->ld_q / 32;
    a->ld_d16 = a->ld_q / 256;
    if (a->formats & ROWS_Q8) {
        a->q8 = place(&l, n * a->ld_q);
        a->d8 = place(&l, n * a->ld_d * sizeof(float));
        a->s8 = place(&l, n * a->ld_d * sizeof(float));
        a->b8 = place(&l, n * a->ld_d * 2 * sizeof(int16_t));
    }
    if (a->formats & RL_ACT_Q8N) a->q8n = place(&l, n * a->ld_q);
    if (a->formats & RL_ACT_Q8P) a->q8p = place(&l, n * a->ld_q);
    if (a->formats & ROWS_Q16) {
        a->q16 = place(&l, n * a->ld_q * sizeof(int16_t));
        a->d16 = place(&l, n * a->ld_d16 * sizeof(float));
        a->s16 = place(&l, n * a->ld_d * sizeof(float));
        a->b16 = place(&l, n * a->ld_d * 2 * sizeof(int32_t));
    }
    if (a->formats & RL_ACT_Q16N) a->q16n = place(&l, n * a->ld_q * sizeof(int16_t));
    if (a->formats & RL_ACT_Q16E) a->q16e = place(&l, n * a->ld_q * sizeof(int16_t));
    if (a->formats & RL_ACT_Q16P) a->q16p = place(&l, n * a->ld_q * sizeof(int16_t));
    if (a->formats & RL_ACT_Q16S) a->q16s = place(&l, n * a->ld_q * 2);
    size_t even = (n + 1) / 2 * 2; // tokens in pairs
    if (a->formats & RL_ACT_Q8M) a->q8m = place(&l, even * a->ld_q);
    if (a->formats & RL_ACT_Q16M) a->q16m = place(&l, even * a->ld_q * 2);
    return l.at;
}

size_t rl_act_bytes(unsigned formats, size_t cols, size_t max_tok) {
    rl_act a = {.formats = formats, .cols = cols, .max_tok = max_tok};
    return lay_out(&a, NULL) + rl_act_packed_bytes(formats, cols, max_tok) + 64;
}

void rl_act_bind(rl_act *a, unsigned formats, size_t cols, size_t max_tok, void *storage) {
    memset(a, 0, sizeof *a);
    a->formats = formats;
    a->cols = cols;
    a->max_tok = max_tok;
    size_t at = lay_out(a, storage);
    rl_act_packed_bind(a, (uint8_t *)storage + at);
}

// The rearranged copies and the integer sums; plain loops that compilers turn into shuffles.
static void sums8(const int8_t *q, int16_t *b, size_t n) {
    for (size_t g = 0; g < n / 16; g++, q += 16) {
        int sum = 0;
        for (int i = 0; i < 16; i++) sum += q[i];
        b[g] = (int16_t)sum;
    }
}

static void sums16(const int16_t *q, int32_t *b, size_t n) {
    for (size_t g = 0; g < n / 16; g++, q += 16) {
        int sum = 0;
        for (int i = 0; i < 16; i++) sum += q[i];
        b[g] = sum;
    }
}

static void copy_q8n(const int8_t *q, int8_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 128)
        for (size_t b = 0; b < 4; b++) {
            memcpy(out + c + 16 * b, q + c + 32 * b, 16);
            memcpy(out + c + 64 + 16 * b, q + c + 32 * b + 16, 16);
        }
}

// Groups of 32 in the order g0, g2, g1, g3.
static void copy_q8p(const int8_t *q, int8_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 128) {
        memcpy(out + c, q + c, 32);
        memcpy(out + c + 32, q + c + 64, 32);
        memcpy(out + c + 64, q + c + 32, 32);
        memcpy(out + c + 96, q + c + 96, 32);
    }
}

static void copy_q16p(const int16_t *q, int16_t *out, size_t n) {
    static const unsigned char place_of[4] = {0, 2, 1, 3};
    for (size_t c = 0; c < n; c += 128)
        for (size_t g = 0; g < 4; g++) {
            int16_t *even = out + c + 16 * place_of[g], *odd = even + 64;
            for (size_t i = 0; i < 16; i++) {
                even[i] = q[c + 32 * g + 2 * i];
                odd[i] = q[c + 32 * g + 2 * i + 1];
            }
        }
}

// value = 256 * high + low, both signed bytes: |value| <= RL_ACT_Q16_MAX. Compilers keep the low bits in the cast.
static void split(int16_t value, int8_t *high, int8_t *low) {
    *low = (int8_t)value;
    *high = (int8_t)((value - *low) / 256);
}

static void copy_q16s(const int16_t *q, int8_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 16, out += 32)
        for (size_t i = 0; i < 16; i++) split(q[c + i], out + i, out + 16 + i);
}

// out: of the token's pair, at its own first values.
static void copy_q8m(const int8_t *q, int8_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 8) memcpy(out + 2 * c, q + c, 8);
}

static void copy_q16m(const int16_t *q, int8_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 8, out += 32)
        for (size_t i = 0; i < 8; i++) split(q[c + i], out + i, out + 16 + i);
}

static void copy_q16n(const int16_t *q, int16_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 128)
        for (size_t b = 0; b < 4; b++)
            for (size_t half = 0; half < 2; half++) {
                const int16_t *from = q + c + 32 * b + 16 * half;
                int16_t *even = out + c + 32 * half + 8 * b, *odd = even + 64;
                for (size_t i = 0; i < 8; i++) {
                    even[i] = from[2 * i];
                    odd[i] = from[2 * i + 1];
                }
            }
}

static void copy_q16e(const int16_t *q, int16_t *out, size_t n) {
    for (size_t c = 0; c < n; c += 32)
        for (size_t i = 0; i < 16; i++) {
            out[c + i] = q[c + 2 * i];
            out[c + 16 + i] = q[c + 2 * i + 1];
        }
}

void rl_act_fill(rl_act *a, const rl_dispatch *d, const float *x, size_t ld, size_t t0, size_t t1) {
    rl_act_q8_fn q8 = NULL;
    rl_act_q16_fn q16 = NULL;
    if (a->q8) q8 = (rl_act_q8_fn)d->act_q8->fn;
    if (a->q16) q16 = (rl_act_q16_fn)d->act_q16->fn;
    // The same values from every thread that fills a part.
    a->f32 = x;
    a->ld_f32 = ld;
    for (size_t t = t0; t < t1; t++) {
        const float *row = x + t * ld;
        size_t q = t * a->ld_q, s = t * a->ld_d, pair = t / 2 * 2 * a->ld_q;
        if (q8) {
            q8(row, a->cols, a->q8 + q, a->d8 + s, a->s8 + s);
            sums8(a->q8 + q, a->b8 + 2 * s, a->ld_q);
            if (a->q8n) copy_q8n(a->q8 + q, a->q8n + q, a->ld_q);
            if (a->q8p) copy_q8p(a->q8 + q, a->q8p + q, a->ld_q);
            if (a->q8m) copy_q8m(a->q8 + q, a->q8m + pair + 8 * (t % 2), a->ld_q);
        }
        if (q16) {
            q16(row, a->cols, a->q16 + q, a->d16 + t * a->ld_d16, a->s16 + s);
            sums16(a->q16 + q, a->b16 + 2 * s, a->ld_q);
            if (a->q16n) copy_q16n(a->q16 + q, a->q16n + q, a->ld_q);
            if (a->q16e) copy_q16e(a->q16 + q, a->q16e + q, a->ld_q);
            if (a->q16p) copy_q16p(a->q16 + q, a->q16p + q, a->ld_q);
            if (a->q16s) copy_q16s(a->q16 + q, a->q16s + 2 * q, a->ld_q);
            if (a->q16m) copy_q16m(a->q16 + q, a->q16m + 2 * pair + 8 * (t % 2), a->ld_q);
        }
        rl_act_packed_put(a, t);
    }
}
