// SPDX-License-Identifier: Apache-2.0
// The table of formats, panels filled from rows, and the blocks of 32. Superblocks are in super.c.
#include "quant/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "quant/blocks.h"
#include "quant/super.h"

#define LANES RL_QUANT_LANES
#define GRAIN_VALUES 16384 // rows handed out hold about this many

const rl_quant_levels rl_iq4_levels = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {-115.5f, -93.5f, -74, -57, -42, -28.5f, -16, -4.5f, 7, 19, 31.5f, 45.5f, 61, 79, 101}};

// Squares alone would give the small values of a group nothing: a share of the mean square is added, which lowers the
// unweighted error by more than it costs the weighted one.
#define SQUARE_SHARE 0.25f

// Where the extreme value may come to lie. Few bits clip more, so that the other values get finer steps.
static const float tries_q4_0[] = {-9,    -8.8f, -8.6f, -8.4f, -8.2f, -8,   -7.8f, -7.6f, -7.4f, -7.2f, -7,
                                   -6.8f, -6.6f, -6.4f, -6.2f, -6,    7.6f, 7.3f,  7,     6.7f,  6.4f,  6.1f};
static const float tries_q5_0[] = {-17, -16.7f, -16.4f, -16, -15.7f, -15.4f, -15, -14.6f, -14, 15.4f, 15, 14.5f, 14};
static const float tries_q8_0[] = {127, 126.5f, 127.5f};
static const float tries_q3_k[] = {-5, -4.7f, -4.4f, -4.2f, -4,   -3.8f, -3.6f, -3.4f, -3.2f,
                                   -3, -2.8f, -2.5f, 3.4f,  3.2f, 3,     2.8f,  2.6f,  2.3f};
static const float tries_q6_k[] = {-32.9f, -32.6f, -32.3f, -32, -31.7f, -31.4f, -31, -30.5f, -30, 31.4f, 31, 30.5f};
static const float tries_iq4[] = {-139, -133, -127, -121, -115, -109, -103, 119, 113, 108, 103, 98};
static const float tries_2bit[] = {2.4f, 2.6f, 2.8f, 3, 3.2f, 3.4f, 3.6f, 3.8f, 4, 4.3f, 4.6f, 5};
static const float tries_4bit[] = {13,    13.5f, 14,    14.3f, 14.6f, 14.9f, 15.2f,
                                   15.5f, 15.8f, 16.2f, 16.6f, 17,    17.5f, 18};
static const float tries_q4_1[] = {10.5f,  11.4f,  12.3f,  12.45f, 12.6f,  12.75f, 12.9f,  13.05f, 13.2f,
                                   13.35f, 13.5f,  13.65f, 13.8f,  13.95f, 14.1f,  14.25f, 14.4f,  14.55f,
                                   14.7f,  14.85f, 15,     15.15f, 15.3f,  15.45f, 15.6f,  15.75f, 15.9f,
                                   16.05f, 16.2f,  16.35f, 16.5f,  16.65f, 16.8f};
static const float tries_q5_1[] = {27.6f, 27.9f, 28.2f, 28.5f, 28.8f, 29.1f, 29.4f, 29.7f, 30, 30.3f,
                                   30.6f, 30.9f, 31.2f, 31.5f, 31.8f, 32.1f, 32.4f, 32.7f, 33};
static const float tries_5bit[] = {29.5f, 30, 30.4f, 30.8f, 31.2f, 31.6f, 32, 32.5f, 33, 34};

#define TRIES(a) a, sizeof(a) / sizeof *(a)
static const rl_quant_format *format_of(rl_type type) {
    static const rl_quant_format table[RL_TYPE_LIMIT] = {
        [RL_Q4_0] = {0, FIT_SCALE, 32, -8, 7, 0, 0, TRIES(tries_q4_0), RL_W_EVEN, RL_I_ROW},
        [RL_Q5_0] = {0, FIT_SCALE, 32, -16, 15, 0, 0, TRIES(tries_q5_0), RL_W_EVEN, RL_I_ROW},
        [RL_Q8_0] = {0, FIT_SCALE, 32, -127, 127, 0, 0, TRIES(tries_q8_0), RL_W_EVEN, RL_I_ROW},
        [RL_Q4_1] = {0, FIT_AFFINE, 32, 0, 15, 0, 0, TRIES(tries_q4_1), RL_W_EVEN, RL_I_ROW},
        [RL_Q5_1] = {0, FIT_AFFINE, 32, 0, 31, 0, 0, TRIES(tries_q5_1), RL_W_EVEN, RL_I_ROW},
        [RL_IQ4_NL] = {0, FIT_LEVELS, 32, 0, 15, 0, 0, TRIES(tries_iq4), RL_W_SQUARE, RL_I_SUPER2},
        [RL_Q2_K] = {1, FIT_AFFINE, 16, 0, 3, 0, 15, TRIES(tries_2bit), RL_W_ABS, RL_I_SUPER},
        [RL_Q3_K] = {1, FIT_SCALE, 16, -4, 3, -32, 31, TRIES(tries_q3_k), RL_W_SQUARE, RL_I_SUPER2},
        [RL_Q4_K] = {1, FIT_AFFINE, 32, 0, 15, 0, 63, TRIES(tries_4bit), RL_W_ABS_MEAN, RL_I_SUPER2},
        [RL_Q5_K] = {1, FIT_AFFINE, 32, 0, 31, 0, 63, TRIES(tries_5bit), RL_W_ABS_MEAN, RL_I_SUPER2},
        [RL_Q6_K] = {1, FIT_SCALE, 16, -32, 31, -128, 127, TRIES(tries_q6_k), RL_W_SQUARE, RL_I_PLAIN},
        [RL_IQ4_XS] = {1, FIT_LEVELS, 32, 0, 15, -32, 31, TRIES(tries_iq4), RL_W_SQUARE, RL_I_SUPER2},
    };
    return (unsigned)type < RL_TYPE_LIMIT && table[type].group ? &table[type] : NULL;
}

bool rl_quant_writes(rl_type type) {
    return type == RL_F16 || type == RL_BF16 || type == RL_F32 || format_of(type) != NULL;
}

// --- panels --------------------------------------------------------------------------------------------------

// Bits of the largest magnitude: positive floats, infinities and NaN last, are ordered like their bits.
static int32_t largest_bits(const float *x, size_t n) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t b = (int32_t)(rl_f32_bits(x[i]) & 0x7FFFFFFFu);
        most = b > most ? b : most;
    }
    return most;
}

// Exponent that brings the largest magnitude to 1..2.
static int exponent(const float *x, size_t n) {
    float most = rl_bits_f32((uint32_t)largest_bits(x, n));
    int e = 0;
    if (most > 0) (void)frexpf(most, &e), e--;
    return e;
}

// Sixteen sums side by side, or each addition would wait for the one before it. n: a multiple of 16.
static float sum_squares(const float *x, size_t n) {
    float acc[16] = {0}, sum = 0;
    for (size_t i = 0; i < n; i += 16)
        for (size_t k = 0; k < 16; k++) acc[k] += x[i + k] * x[i + k];
    for (size_t k = 0; k < 16; k++) sum += acc[k];
    return sum;
}

static void weigh_by_importance(const rl_quant_format *f, const float *y, size_t n, int e, const float *importance,
                                float row_mean, float *w) {
    if (f->importance == RL_I_PLAIN) {
        memcpy(w, importance, n * sizeof *w);
        return;
    }
    float sigma = ldexpf(row_mean, -2 * e);
    if (f->importance != RL_I_ROW) sigma = sum_squares(y, n) / (float)n * (f->importance == RL_I_SUPER2 ? 2 : 1);
    if (!(sigma < 1e20f)) sigma = 1e20f; // a block far below its row: all values alike
    for (size_t i = 0; i < n; i++) w[i] = importance[i] * sqrtf(sigma + y[i] * y[i]);
}

static void weigh(const rl_quant_format *f, const float *y, float *w) {
    size_t n = f->group;
    float mean = f->weighting == RL_W_EVEN || f->weighting == RL_W_ABS ? 0 : sum_squares(y, n) / (float)n, base;
    switch (f->weighting) {
    case RL_W_EVEN:
        for (size_t i = 0; i < n; i++) w[i] = 1;
        return;
    case RL_W_SQUARE:
        base = SQUARE_SHARE * mean;
        for (size_t i = 0; i < n; i++) w[i] = base + y[i] * y[i];
        return;
    default:
        base = sqrtf(mean);
        for (size_t i = 0; i < n; i++) w[i] = base + fabsf(y[i]);
    }
}

// `n` (32 or 256) values x 2^-e into lanes lane0..., weights beside them, the largest of these 1.
static void fill(const rl_quant_format *f, const float *x, size_t n, int e, const float *importance, float row_mean,
                 rl_quant_panel *p, size_t lane0) {
    float y[256], w[256];
    if (e > -120 && e < 120) {
        float down = ldexpf(1.0f, -e);
        for (size_t i = 0; i < n; i++) y[i] = x[i] * down;
    } else {
        for (size_t i = 0; i < n; i++) y[i] = ldexpf(x[i], -e);
    }
    if (importance)
        weigh_by_importance(f, y, n, e, importance, row_mean, w);
    else
        for (size_t g = 0; g < n; g += f->group) weigh(f, y + g, w + g);
    float most = rl_bits_f32((uint32_t)largest_bits(w, n));
    // A column without any importance still gets a sensible value, at no cost to the others.
    float scale = most > 0 ? 1 / most : 0, least = 1e-6f;
    for (size_t i = 0; i < n; i++) w[i] = w[i] * scale > least ? w[i] * scale : least;
    for (size_t g = 0; g < n / f->group; g++)
        for (size_t i = 0; i < f->group; i++) {
            p->x[i][lane0 + g] = y[g * f->group + i];
            p->w[i][lane0 + g] = w[g * f->group + i];
        }
}

static void clear_lanes(rl_quant_panel *p, size_t from) {
    for (size_t i = 0; i < p->n; i++)
        for (size_t l = from; l < LANES; l++) p->x[i][l] = 0, p->w[i][l] = 1;
}

// Up to 16 blocks of 32. False when a scale leaves half precision.
static bool blocks32(const rl_quantize *q, const rl_quant_format *f, const rl_quant_panel *p, const int *expo, size_t n,
                     uint8_t *out) {
    _Alignas(64) float scale[LANES], offset[LANES] = {0}, better[LANES];
    rl_quant_sums s, again;
    rl_quant_codes codes;
    uint16_t d[LANES], m[LANES] = {0};
    rl_quant_fit(q, f, p, 0, scale, offset);
    for (size_t l = 0; l < n; l++) {
        d[l] = rl_stored_half((double)scale[l], expo[l], &scale[l]);
        m[l] = rl_stored_half((double)offset[l], expo[l], &offset[l]);
        if (rl_half_overflows(d[l]) || rl_half_overflows(m[l])) return false;
    }
    rl_quant_round(q, f, p, scale, offset, &s, NULL);
    // Stored, the offset has moved by up to a part in 2048 of itself: the scale that goes with it is another.
    memcpy(better, scale, sizeof better);
    for (size_t l = 0; l < n; l++)
        if (s.qq[l] > 0)
            (void)rl_stored_half(((double)s.qx[l] - (double)offset[l] * (double)s.q[l]) / (double)s.qq[l], expo[l],
                                 &better[l]);
    rl_quant_round(q, f, p, better, offset, &again, NULL);
    for (size_t l = 0; l < n; l++)
        if (again.err[l] < s.err[l]) d[l] = rl_stored_half((double)better[l], expo[l], &scale[l]);
    rl_quant_round(q, f, p, scale, offset, &s, codes);
    size_t bytes = rl_dtype_of(q->type)->bytes;
    for (size_t l = 0; l < n; l++)
        rl_pack_block32(q->type, (const uint8_t(*)[LANES])codes, l, d[l], m[l], out + l * bytes);
    return true;
}

static bool blocks(const rl_quantize *q, const rl_quant_format *f, const float *x, uint8_t *out) {
    rl_quant_panel p;
    p.n = f->group;
    size_t size = f->super ? 256 : 32, bytes = rl_dtype_of(q->type)->bytes;
    size_t at_once = LANES * f->group / size, n = q->cols / size;
    float row_mean = 0;
    if (q->importance && f->importance == RL_I_ROW) {
        double sum = 0;
        for (size_t i = 0; i < q->cols; i++) sum += (double)x[i] * (double)x[i];
        row_mean = (float)(sum / (double)q->cols);
    }
    for (size_t b = 0; b < n; b += at_once) {
        size_t now = n - b < at_once ? n - b : at_once;
        int expo[LANES];
        for (size_t k = 0; k < now; k++) {
            const float *from = x + (b + k) * size;
            expo[k] = exponent(from, size);
            fill(f, from, size, expo[k], q->importance ? q->importance + (b + k) * size : NULL, row_mean, &p,
                 k * size / f->group);
        }
        clear_lanes(&p, now * size / f->group);
        bool fits = f->super ? rl_quant_super(q, f, &p, expo, now, out + b * bytes)
                             : blocks32(q, f, &p, expo, now, out + b * bytes);
        if (!fits) return false;
    }
    return true;
}

// --- rows ----------------------------------------------------------------------------------------------------

static bool floats(rl_type type, const float *x, size_t n, uint8_t *out) {
    uint16_t *h = (uint16_t *)(void *)out;
    if (type == RL_F32) {
        memcpy(out, x, n * sizeof *x);
        return true;
    }
    const bool half = type == RL_F16;
    const unsigned infinite = half ? 0x7C00u : 0x7F80u; // what the largest values are rounded to
    unsigned most = 0;
    for (size_t i = 0; i < n; i++) {
        h[i] = half ? rl_f32_to_f16(x[i]) : rl_f32_to_bf16(x[i]);
        most = (h[i] & 0x7FFFu) > most ? (h[i] & 0x7FFFu) : most;
    }
    return most < infinite;
}

// The least bad row counts, whichever thread finds one first.
static bool note_bad(rl_quantize *q, size_t row) {
    size_t seen = atomic_load_explicit(&q->bad_row, memory_order_relaxed);
    while (row < seen && !atomic_compare_exchange_weak_explicit(&q->bad_row, &seen, row, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
    return false;
}

static bool one_row(rl_quantize *q, size_t r, float *scratch) {
    const float *x = q->x + r * q->cols;
    uint8_t *out = q->out + r * q->row_bytes;
    if (largest_bits(x, q->cols) >= 0x7F800000) return note_bad(q, r);
    const rl_quant_format *f = format_of(q->type);
    if (!(f ? blocks(q, f, x, out) : floats(q->type, x, q->cols, out))) return note_bad(q, r);
    if (!q->errors) return true;
    double err = 0, sum = 0;
    q->dequant(out, scratch, q->cols);
    for (size_t i = 0; i < q->cols; i++) {
        double e = (double)x[i] - (double)scratch[i];
        err += e * e;
        sum += (double)x[i] * (double)x[i];
    }
    q->errors[2 * r] = err;
    q->errors[2 * r + 1] = sum;
    return true;
}

void rl_quantize_region(void *arg, rl_team *team, int ith) {
    rl_quantize *q = arg;
    rl_work work;
    size_t grain = GRAIN_VALUES / q->cols, r0, r1;
    rl_work_begin(&work, team, ith, q->rows, grain ? grain : 1);
    while (rl_work_next(&work, team, ith, &r0, &r1))
        for (size_t r = r0; r < r1; r++)
            if (!one_row(q, r, q->scratch ? q->scratch + (size_t)ith * q->cols : NULL)) return;
}

rl_status rl_quantize_init(rl_quantize *q, const rl_dispatch *d, int n_threads, rl_err *err) {
    const rl_dtype *t = rl_dtype_of(q->type);
    q->scratch = NULL;
    atomic_init(&q->bad_row, SIZE_MAX);
    if (!t || !rl_quant_writes(q->type))
        return rl_fail(err, RL_ERR_ARG, "weights cannot be written as %s", t ? t->name : "an unknown type");
    if (!q->cols || q->cols % t->block)
        return rl_fail(err, RL_ERR_ARG, "%s needs rows of a multiple of %zu values, not %zu", t->name, t->block,
                       q->cols);
    for (size_t i = 0; q->importance && i < q->cols; i++)
        if (!isfinite(q->importance[i]) || q->importance[i] < 0)
            return rl_fail(err, RL_ERR_ARG, "importance must be finite and not negative, not %g in column %zu",
                           (double)q->importance[i], i);
    q->row_bytes = q->cols / t->block * t->bytes;
    rl_quant_init(&q->ops, d);
    if (!q->errors) return RL_OK;
    q->dequant = (rl_dequant_fn)rl_kernel_find(d, RL_FAM_DEQUANT, q->type, 0, NULL)->fn;
    size_t n;
    if (!rl_mul_size(q->cols, sizeof(float), &n) || !rl_mul_size(n, (size_t)n_threads, &n) || !(q->scratch = malloc(n)))
        return rl_fail(err, RL_ERR_NOMEM, "no memory for rows of %zu values", q->cols);
    return RL_OK;
}

void rl_quantize_free(rl_quantize *q) {
    free(q->scratch);
    q->scratch = NULL;
}

rl_status rl_quantize_result(const rl_quantize *q, rl_err *err) {
    size_t row = atomic_load_explicit(&q->bad_row, memory_order_relaxed), i = 0;
    if (row == SIZE_MAX) return RL_OK;
    const float *x = q->x + row * q->cols;
    while (i < q->cols && isfinite(x[i])) i++;
    if (i == q->cols)
        return rl_fail(err, RL_ERR_ARG, "row %zu holds values too large for %s: a value or scale leaves its precision",
                       row, rl_dtype_of(q->type)->name);
    return rl_fail(err, RL_ERR_ARG, "row %zu has %s in column %zu", row, isnan(x[i]) ? "NaN" : "an infinity", i);
}
