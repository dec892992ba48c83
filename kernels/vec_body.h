// SPDX-License-Identifier: Apache-2.0
// The bodies of the vector operations for a machine with fused multiply-add, written once over a vector type that the
// including file defines for its ISA:
//
//   vf, W                       a vector of W floats; vd is one of W/2 doubles
//   v_load v_store              W floats; v_load_n v_store_n the first n < W (zeros beyond, never touched)
//   v_set v_add v_sub v_mul v_div v_fma(a,b,c)=ab+c v_fnma=c-ab v_max_num(x, acc) passing over NaN in x
//   v_clamp(x, lo, hi) keeping NaN    v_round to nearest    v_pow2(p, n) = p * 2^n, also into subnormals
//   v_abs v_sign_of(magnitude, sign) v_select_lt(a, b, x, y) = a < b ? x : y
//   v_lo v_hi to vd             d_set d_add d_mul d_fma d_sum d_to_f(lo, hi)
//   v_swap_pairs v_dup_even v_dup_odd v_fmaddsub (even lanes subtract)   v_unzip(a, b, &even, &odd)
//   v_first_eq(v, s) index of the first lane equal to s, or W    v_reduce_max
//
// Sums are in double. With K accumulators (4 for squares, 2 elsewhere) lane l of accumulator k takes the elements
// l + W/2 * (k + K * j); accumulators are added in pairs, lanes in the order of d_sum, what is left over one by one.
#include <math.h>
#include <stddef.h>

static inline vd body_sum_squares(const float *x, size_t n, double mean) {
    vd m = d_set(mean), a = d_set(0.0), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        vf v = v_load(x + i), w = v_load(x + i + W);
        vd v0 = d_sub(v_lo(v), m), v1 = d_sub(v_hi(v), m), w0 = d_sub(v_lo(w), m), w1 = d_sub(v_hi(w), m);
        a = d_fma(v0, v0, a);
        b = d_fma(v1, v1, b);
        c = d_fma(w0, w0, c);
        d = d_fma(w1, w1, d);
    }
    if (i + W <= n) {
        vf v = v_load(x + i);
        vd v0 = d_sub(v_lo(v), m), v1 = d_sub(v_hi(v), m);
        a = d_fma(v0, v0, a);
        b = d_fma(v1, v1, b);
    }
    return d_add(d_add(a, b), d_add(c, d));
}

static inline double body_squares(const float *x, size_t n, double mean) {
    double sum = d_sum(body_sum_squares(x, n, mean));
    for (size_t i = n / W * W; i < n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sum;
}

static inline void body_rmsnorm(const float *x, const float *w, float *out, size_t n, float eps) {
    double sum = body_squares(x, n, 0.0);
    vf r = v_set((float)(1.0 / sqrt(sum / (double)n + (double)eps)));
    size_t i = 0;
    if (w) {
        for (; i + W <= n; i += W) v_store(out + i, v_mul(v_mul(v_load(x + i), r), v_load(w + i)));
        if (i < n) v_store_n(out + i, v_mul(v_mul(v_load_n(x + i, n - i), r), v_load_n(w + i, n - i)), n - i);
        return;
    }
    for (; i + W <= n; i += W) v_store(out + i, v_mul(v_load(x + i), r));
    if (i < n) v_store_n(out + i, v_mul(v_load_n(x + i, n - i), r), n - i);
}

static inline void body_layernorm(const float *x, const float *w, const float *b, float *out, size_t n, float eps) {
    vd a0 = d_set(0.0), a1 = d_set(0.0);
    size_t i = 0;
    for (; i + W <= n; i += W) {
        vf v = v_load(x + i);
        a0 = d_add(a0, v_lo(v));
        a1 = d_add(a1, v_hi(v));
    }
    double sum = d_sum(d_add(a0, a1));
    for (; i < n; i++) sum += (double)x[i];
    double mean = sum / (double)n;
    double r = 1.0 / sqrt(body_squares(x, n, mean) / (double)n + (double)eps);
    vd vm = d_set(mean), vr = d_set(r);
    for (i = 0; i < n; i += W) {
        size_t k = n - i < W ? n - i : W;
        vf v = k == W ? v_load(x + i) : v_load_n(x + i, k);
        // In double: the mean may be large against the spread.
        vf y = d_to_f(d_mul(d_sub(v_lo(v), vm), vr), d_mul(d_sub(v_hi(v), vm), vr));
        if (w) y = v_mul(y, k == W ? v_load(w + i) : v_load_n(w + i, k));
        if (b) y = v_add(y, k == W ? v_load(b + i) : v_load_n(b + i, k));
        if (k == W)
            v_store(out + i, y);
        else
            v_store_n(out + i, y, k);
    }
}

static inline void body_add(const float *a, const float *b, float *out, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, v_add(v_load(a + i), v_load(b + i)));
    if (i < n) v_store_n(out + i, v_add(v_load_n(a + i, n - i), v_load_n(b + i, n - i)), n - i);
}

static inline void body_scale(const float *x, float s, float *out, size_t n) {
    vf v = v_set(s);
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, v_mul(v_load(x + i), v));
    if (i < n) v_store_n(out + i, v_mul(v_load_n(x + i, n - i), v), n - i);
}

// exp(x + lo), |lo| tiny, within 1.5 units of the last place, subnormal results included. The polynomial is the
// minimax of (exp(r) - 1 - r) / r^2 on |r| <= log(2) / 2, relative error 3.1e-9.
static inline vf body_exp2(vf x, vf lo) {
    x = v_clamp(x, -104.0f, 89.0f);
    vf n = v_round(v_mul(x, v_set(1.44269504f)));
    vf r = v_fnma(n, v_set(0.693147182f), x); // log(2) rounded to float: the product is exact in the FMA
    r = v_fnma(n, v_set(-1.90465421e-9f), r); // and the rest of it
    r = v_add(r, lo);
    vf p = v_set(0.0013814602076208721f);
    p = v_fma(p, r, v_set(0.008368715450162118f));
    p = v_fma(p, r, v_set(0.041668387901497586f));
    p = v_fma(p, r, v_set(0.16666520643441227f));
    p = v_fma(p, r, v_set(0.49999993448594404f));
    p = v_fma(v_mul(r, r), p, r);
    return v_pow2(v_add(p, v_set(1.0f)), n);
}

static inline vf body_exp(vf x) {
    return body_exp2(x, v_set(0.0f));
}

static inline vf body_silu_of(vf x) {
    vf one = v_set(1.0f);
    return v_div(x, v_add(one, body_exp(v_sub(v_set(0.0f), x))));
}

// x / (1 + exp(y)), y = -2 sqrt(2/pi) (x + 0.044715 x^3) = x (a + b x^2). In the tail the relative error of the
// exponential is the absolute error of y, so y is carried as a sum of two floats. Results below 2^-122 may become 0,
// where the exponential overflows; silu is the same.
static inline vf body_gelu_of(vf x) {
    const double a = -1.5957691216057307, b = -0.07135481627260025;
    vf a_hi = v_set((float)a), a_lo = v_set((float)(a - (double)(float)a));
    vf b_hi = v_set((float)b), b_lo = v_set((float)(b - (double)(float)b));
    // Beyond 1e4 the result is x or -0 already, and the products below would overflow.
    vf c = v_clamp(x, -1e4f, 1e4f);
    vf t = v_mul(c, c), t_lo = v_fma(c, c, v_sub(v_set(0.0f), t));
    vf p = v_fma(t, b_hi, a_hi);
    // The rest of p, taking the larger of a and t b first: the difference to p is exact then.
    vf p_lo = v_fma(t, b_hi, v_sub(a_hi, p));
    vf big = v_mul(t, b_hi), big_lo = v_fma(t, b_hi, v_sub(v_set(0.0f), big));
    vf big_first = v_add(v_add(v_sub(big, p), a_hi), big_lo);
    p_lo = v_select_lt(v_abs(a_hi), v_abs(big), big_first, p_lo);
    p_lo = v_add(p_lo, v_fma(t, b_lo, v_fma(t_lo, b_hi, a_lo)));
    vf y = v_mul(c, p), y_lo = v_fma(c, p_lo, v_fma(c, p, v_sub(v_set(0.0f), y)));
    // Where the exponential is clamped anyway the small part means nothing.
    y_lo = v_select_lt(v_abs(y), v_set(104.0f), y_lo, v_set(0.0f));
    return v_div(x, v_add(v_set(1.0f), body_exp2(y, y_lo)));
}

static inline void body_silu_mul(const float *gate, const float *up, float *out, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, v_mul(body_silu_of(v_load(gate + i)), v_load(up + i)));
    if (i < n) v_store_n(out + i, v_mul(body_silu_of(v_load_n(gate + i, n - i)), v_load_n(up + i, n - i)), n - i);
}

static inline void body_gelu_mul(const float *gate, const float *up, float *out, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, v_mul(body_gelu_of(v_load(gate + i)), v_load(up + i)));
    if (i < n) v_store_n(out + i, v_mul(body_gelu_of(v_load_n(gate + i, n - i)), v_load_n(up + i, n - i)), n - i);
}

static inline void body_gelu(const float *x, float *out, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, body_gelu_of(v_load(x + i)));
    if (i < n) v_store_n(out + i, body_gelu_of(v_load_n(x + i, n - i)), n - i);
}

static inline void body_silu(const float *x, float *out, size_t n) {
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, body_silu_of(v_load(x + i)));
    if (i < n) v_store_n(out + i, body_silu_of(v_load_n(x + i, n - i)), n - i);
}

// Below 0.55 an odd polynomial (minimax, relative error 1.0e-9), above it 1 - 2 / (1 + exp(2z)).
static inline vf body_tanh(vf x) {
    vf z = v_abs(x), t = v_mul(z, z);
    vf p = v_set(-0.006274235412447037f);
    p = v_fma(p, t, v_set(0.021071676246234617f));
    p = v_fma(p, t, v_set(-0.053852309249024614f));
    p = v_fma(p, t, v_set(0.13332586132323587f));
    p = v_fma(p, t, v_set(-0.3333331755948902f));
    vf small = v_fma(v_mul(p, t), z, z);
    vf one = v_set(1.0f);
    vf large = v_sub(one, v_div(v_set(2.0f), v_add(one, body_exp(v_add(z, z)))));
    return v_sign_of(v_select_lt(z, v_set(0.55f), small, large), x);
}

static inline void body_softcap(const float *x, float cap, float *out, size_t n) {
    vf c = v_set(cap);
    size_t i = 0;
    for (; i + W <= n; i += W) v_store(out + i, v_mul(c, body_tanh(v_div(v_load(x + i), c))));
    if (i < n) v_store_n(out + i, v_mul(c, body_tanh(v_div(v_load_n(x + i, n - i), c))), n - i);
}

static inline void body_rope_norm(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot) {
    n_rot -= n_rot % 2;
    for (size_t i = 0; i < n_rot; i += W) {
        size_t k = n_rot - i < W ? n_rot - i : W;
        vf t = k == W ? v_load(cs + i) : v_load_n(cs + i, k), c = v_dup_even(t), s = v_dup_odd(t);
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + h * ld + i;
            vf v = k == W ? v_load(p) : v_load_n(p, k);
            v = v_fmaddsub(v, c, v_mul(v_swap_pairs(v), s));
            if (k == W)
                v_store(p, v);
            else
                v_store_n(p, v, k);
        }
    }
}

static inline void body_rope_neox(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot) {
    size_t half = n_rot / 2, i = 0;
    for (; i + W <= half; i += W) {
        vf c, s;
        v_unzip(v_load(cs + 2 * i), v_load(cs + 2 * i + W), &c, &s);
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + h * ld + i;
            vf a = v_load(p), b = v_load(p + half);
            v_store(p, v_fnma(b, s, v_mul(a, c)));
            v_store(p + half, v_fma(b, c, v_mul(a, s)));
        }
    }
    for (; i < half; i++)
        for (size_t h = 0; h < n_head; h++) {
            float *p = x + h * ld + i, a = p[0], b = p[half], c = cs[2 * i], s = cs[2 * i + 1];
            p[0] = a * c - b * s;
            p[half] = a * s + b * c;
        }
}

static inline float body_max(const float *x, size_t n) {
    vf m0 = v_set(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
    size_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        m0 = v_max_num(v_load(x + i), m0);
        m1 = v_max_num(v_load(x + i + W), m1);
        m2 = v_max_num(v_load(x + i + 2 * W), m2);
        m3 = v_max_num(v_load(x + i + 3 * W), m3);
    }
    for (; i + W <= n; i += W) m0 = v_max_num(v_load(x + i), m0);
    float m = v_reduce_max(v_max_num(v_max_num(m0, m1), v_max_num(m2, m3)));
    for (; i < n; i++)
        if (x[i] > m) m = x[i];
    return m;
}

static inline double body_exp_total(const float *x, float *out, size_t n, float max) {
    vf m = v_set(max);
    vd a = d_set(0.0), b = d_set(0.0);
    size_t i = 0;
    for (; i + W <= n; i += W) {
        vf e = body_exp(v_sub(v_load(x + i), m));
        if (out) v_store(out + i, e);
        a = d_add(a, v_lo(e));
        b = d_add(b, v_hi(e));
    }
    double sum = d_sum(d_add(a, b));
    if (i < n) {
        float last[W];
        v_store(last, body_exp(v_sub(v_load_n(x + i, n - i), m)));
        for (size_t k = 0; i + k < n; k++) {
            if (out) out[i + k] = last[k];
            sum += (double)last[k];
        }
    }
    return sum;
}

static inline float body_exp_sum(float *x, size_t n, float max) {
    return (float)body_exp_total(x, x, n, max == -INFINITY ? 0.0f : max);
}

static inline double body_logsumexp(const float *x, size_t n) {
    float m = body_max(x, n);
    if (!isfinite(m)) m = 0.0f;
    return (double)m + log(body_exp_total(x, NULL, n, m));
}

// One pass finds the stretch that holds the first greatest value, which is then looked for in that stretch only.
static inline void body_argmax(const float *x, size_t n, size_t *index) {
    enum { STRETCH = 1024 };
    float best = -INFINITY;
    size_t at = 0;
    for (size_t i = 0; i < n; i += STRETCH) {
        float m = body_max(x + i, n - i < STRETCH ? n - i : STRETCH);
        if (m > best) {
            best = m;
            at = i;
        }
    }
    // Nothing above -inf: the first -inf may lie behind NaNs.
    size_t end = best == -INFINITY ? n : at + STRETCH < n ? at + STRETCH : n, i = at;
    for (; i + W <= end; i += W) {
        size_t lane = v_first_eq(v_load(x + i), best);
        if (lane < W) {
            *index = i + lane;
            return;
        }
    }
    for (; i < end; i++)
        if (x[i] == best) {
            *index = i;
            return;
        }
    *index = 0;
}

#define RL_VEC_DEFINE(isa)                                                                                             \
    void rl_vec_rmsnorm_##isa(const float *x, const float *w, float *out, size_t n, float eps) {                       \
        body_rmsnorm(x, w, out, n, eps);                                                                               \
    }                                                                                                                  \
    void rl_vec_layernorm_##isa(const float *x, const float *w, const float *b, float *out, size_t n, float eps) {     \
        body_layernorm(x, w, b, out, n, eps);                                                                          \
    }                                                                                                                  \
    void rl_vec_add_##isa(const float *a, const float *b, float *out, size_t n) {                                      \
        body_add(a, b, out, n);                                                                                        \
    }                                                                                                                  \
    void rl_vec_scale_##isa(const float *x, float s, float *out, size_t n) {                                           \
        body_scale(x, s, out, n);                                                                                      \
    }                                                                                                                  \
    void rl_vec_silu_mul_##isa(const float *gate, const float *up, float *out, size_t n) {                             \
        body_silu_mul(gate, up, out, n);                                                                               \
    }                                                                                                                  \
    void rl_vec_gelu_mul_##isa(const float *gate, const float *up, float *out, size_t n) {                             \
        body_gelu_mul(gate, up, out, n);                                                                               \
    }                                                                                                                  \
    void rl_vec_gelu_##isa(const float *x, float *out, size_t n) {                                                     \
        body_gelu(x, out, n);                                                                                          \
    }                                                                                                                  \
    void rl_vec_silu_##isa(const float *x, float *out, size_t n) {                                                     \
        body_silu(x, out, n);                                                                                          \
    }                                                                                                                  \
    void rl_vec_softcap_##isa(const float *x, float cap, float *out, size_t n) {                                       \
        body_softcap(x, cap, out, n);                                                                                  \
    }                                                                                                                  \
    void rl_vec_rope_norm_##isa(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot) {                   \
        body_rope_norm(x, n_head, ld, cs, n_rot);                                                                      \
    }                                                                                                                  \
    void rl_vec_rope_neox_##isa(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot) {                   \
        body_rope_neox(x, n_head, ld, cs, n_rot);                                                                      \
    }                                                                                                                  \
    float rl_vec_max_##isa(const float *x, size_t n) {                                                                 \
        return body_max(x, n);                                                                                         \
    }                                                                                                                  \
    float rl_vec_exp_sum_##isa(float *x, size_t n, float max) {                                                        \
        return body_exp_sum(x, n, max);                                                                                \
    }                                                                                                                  \
    double rl_vec_logsumexp_##isa(const float *x, size_t n) {                                                          \
        return body_logsumexp(x, n);                                                                                   \
    }                                                                                                                  \
    void rl_vec_argmax_##isa(const float *x, size_t n, size_t *index) {                                                \
        body_argmax(x, n, index);                                                                                      \
    }
