// SPDX-License-Identifier: Apache-2.0
// What a kernel is: the signatures of each family, the descriptor, and the choice made for one process.
//
// Families
//   dequant   blocks to float32
//   act       float32 activations to int8 or int16 (quantized once per input, shared by all rows)
//   rows      weight rows times 1 to 8 activation vectors, straight from the GGUF blocks (decode)
//   tile      unpack a tile of rows once, multiply it with every token of the batch (prompts)
//   attn      scores and values over one 64-token KV page
//   vec       norms, RoPE, softmax, activations, adds
//   read      plain reads, for measuring bandwidth
//   quant     searches of the quantizer (quant.h)
#ifndef RL_KERNELS_API_H
#define RL_KERNELS_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/features.h"

typedef enum rl_family {
    RL_FAM_DEQUANT,
    RL_FAM_ACT,
    RL_FAM_ROWS,
    RL_FAM_TILE_UNPACK,
    RL_FAM_TILE_MUL,
    RL_FAM_ATTN,
    RL_FAM_VEC,
    RL_FAM_READ,
    RL_FAM_QUANT,
    RL_FAM_COPY,
    RL_FAM_COUNT
} rl_family;

// Formats of an activation vector; bits, because one input can be held in several. The later ones are
// rearranged copies in the order in which kernels meet the values, so that weights need no shuffle.
typedef enum rl_actfmt {
    RL_ACT_F32 = 1,     // float32, as given
    RL_ACT_Q8 = 2,      // int8 per 32 values, float32 scale and float32 scale*sum per 32, integer sums per 16
    RL_ACT_Q16 = 4,     // int16 per 256 values, float32 scale per 256, float32 scale*sum per 32
    RL_ACT_Q8N = 8,     // with Q8: q8n, for blocks of 32 whose 16 bytes hold value i and value 16 + i
    RL_ACT_Q16N = 16,   // with Q16: q16n, the same blocks seen as 16-bit words
    RL_ACT_Q16E = 32,   // with Q16: q16e, 32 bytes seen as 16-bit words: even values, then odd ones
    RL_ACT_Q8T = 64,    // with Q8: panels of 6 tokens for tiles (rl_panel8 of tile.h)
    RL_ACT_Q16T = 128,  // with Q16: the same
    RL_ACT_F32T = 256,  // with F32: the same
    RL_ACT_Q8P = 512,   // with Q8: q8p, for 64 bytes that hold 4 groups of 32 in halves
    RL_ACT_Q16P = 1024, // with Q16: q16p, the same seen as 16-bit words
    RL_ACT_Q16S = 2048, // with Q16: q16s, split into bytes for instructions that multiply only those
    RL_ACT_Q8M = 4096,  // with Q8: q8m, tokens in pairs, for instructions that multiply small matrices
    RL_ACT_Q16M = 8192, // with Q16: q16m, the same, split into bytes
    RL_ACT_Q8A = 16384, // with Q8: panels of 16 tokens for instructions that multiply matrices of bytes (rl_panel8a)
    RL_ACT_Q16A = 32768 // with Q16: the same, split into bytes
} rl_actfmt;

/// Kinds of panels: activations in the order in which tile kernels meet them, several tokens side by side.
typedef enum rl_panel_kind {
    RL_PANEL_Q8T,
    RL_PANEL_Q16T,
    RL_PANEL_F32T,
    RL_PANEL_Q8A,
    RL_PANEL_Q16A,
    RL_PANEL_KINDS
} rl_panel_kind;

#define RL_ACT_Q8_MAX 127
// Of an int16 activation: 127 * 256 + 127, so that two signed bytes hold it, too. 16 products with Q6_K's
// |scale * q| <= 4096 stay below 2^31, 32 of them do not.
#define RL_ACT_Q16_MAX 32639

// The activations of one matmul: n_tok vectors of `cols` values. Scales and sums never pass through half
// precision. Every array is padded with zeros to a multiple of 256 values (8 scales per 32, 16 sums per 16),
// so that kernels may read activations past `cols`.
typedef struct rl_act {
    unsigned formats;
    size_t cols, max_tok;
    const float *f32; // borrowed, row stride ld_f32, not padded
    size_t ld_f32;
    size_t ld_q;    // values from one token to the next in q8, q16 and the copies: a multiple of 256
    size_t ld_d;    // ld_q / 32: from one token to the next in d8, s8, s16; sums b8, b16: 2 * ld_d
    size_t ld_d16;  // ld_q / 256
    int8_t *q8;     // [tok][ld_q]
    float *d8, *s8; // [tok][ld_d]: scale, scale * sum of q
    int16_t *b8;    // [tok][2 * ld_d]: sum of q over 16 values
    int16_t *q16;   // [tok][ld_q]
    float *d16;     // [tok][ld_d16]
    float *s16;     // [tok][ld_d]: scale * sum of q over 32
    int32_t *b16;   // [tok][2 * ld_d]: sum of q over 16 values
    // q8n: per 128 values (blocks b0..b3), values 0..15 of b0, b1, b2, b3, then values 16..31 of b0, b1, b2, b3.
    int8_t *q8n;
    // q16n: per 128 values, of b0..b3 each: values 0, 2..14; then 16, 18..30; then 1, 3..15; then 17, 19..31.
    int16_t *q16n;
    // q16e: per 32 values, values 0, 2..30, then 1, 3..31.
    int16_t *q16e;
    // q8p: per 128 values (groups g0..g3 of 32), g0, g2, g1, g3.
    int8_t *q8p;
    // q16p: per 128 values, even values of g0, g2, g1, g3, then their odd values.
    int16_t *q16p;
    // q16s: per 16 values, 16 high bytes, then 16 low ones: value = 256 * high + low, both signed.
    int8_t *q16s; // [tok][2 * ld_q]
    // q8m: per pair of tokens and 8 values: those of the first token, then of the second. q16m: per pair and 8 values,
    // the same of the high bytes, then of the low ones. [ceil(max_tok/2)][2 * ld_q], twice that for q16m.
    int8_t *q8m, *q16m;
    // Panels of each kind (tile.h) whose bit is in formats: [ceil(cols/columns)][ceil(max_tok/tokens)].
    void *panels[RL_PANEL_KINDS];
    // Kernel authors may add further copies here, each with a format bit of its own.
} rl_act;

typedef void (*rl_dequant_fn)(const void *blocks, float *out, size_t n); // n: a multiple of the block size

// Quantizes one vector of `cols` values: q, d and s as in rl_act, each padded with zeros to 256 values. A NaN or
// infinity in x gives NaN scales, so that it shows in the output instead of turning into a number.
typedef void (*rl_act_q8_fn)(const float *x, size_t cols, int8_t *q, float *d, float *s);
typedef void (*rl_act_q16_fn)(const float *x, size_t cols, int16_t *q, float *d, float *s);

// out[t * ld_out + r] = dot(row r, activation tok0 + t) for r < n_rows, t < n_tok <= RL_ROWS_MAX_TOK.
// Never reads past the last row's end: the file may end there.
#define RL_ROWS_MAX_TOK 8
// Rows that are read from several places by turns: see `apart`. Kernels ask for each strip so many bytes ahead, and
// take it that somebody has asked for those at its beginning. 768 to 1536 were equally fast, 3 KB 0.94 (Q4_K).
#define RL_ROWS_STRIPS 8
#define RL_STRIPS_AHEAD 1024
typedef struct rl_rows_args {
    const uint8_t *w;
    size_t row_bytes, cols, n_rows;
    // 0: rows follow each other. Else those of RL_ROWS_STRIPS strips by turns, which begin `apart` rows from each
    // other, in w and in out alike; n_rows is a multiple of their number and n_tok is 1. Entries for x86-64 and the
    // references alone take it.
    size_t apart;
    const rl_act *act;
    size_t tok0, n_tok;
    float *out;
    size_t ld_out;
} rl_rows_args;
typedef void (*rl_rows_fn)(const rl_rows_args *a);

/// Where row i of n_rows lies, counted in rows from w and in floats from out.
static inline size_t rl_row_at(size_t i, size_t apart) {
    return apart ? i % RL_ROWS_STRIPS * apart + i / RL_ROWS_STRIPS : i;
}

// THE descriptor. registry.c holds one per kernel; dispatch, tests, benchmarks and Python read the same
// table.
typedef struct rl_kernel {
    const char *name; // rl_<family>_<type>_<act>_<isa>, the name of the function
    rl_family family;
    rl_type type;                  // weight or KV type, RL_TYPE_NONE where the family has none
    unsigned act;                  // activation format consumed (or made, for the act family), 0 where none
    const char *isa;               // "ref" or a tier of tiers.h
    uint64_t cpu;                  // features the CPU must have
    uint16_t tile_rows, tile_cols; // 0 where the family has no tile
    const char *layout;            // layout of a tile or page this entry needs, "" when none
    void (*fn)(void);              // cast to the family's type
} rl_kernel;

/// The whole table: best tier last within a (family, type, act, layout).
const rl_kernel *rl_kernels(size_t *n);

// The choice for one process: features found, an optional limit and overrides. Made once, then read-only.
typedef struct rl_dispatch {
    uint64_t features; // after the limit
    const char *isa;   // name of the best tier in use
    char overrides[512];
    // Looked up once: every input of every matmul of every token is quantized by these.
    const struct rl_kernel *act_q8, *act_q16;
    bool strips; // rows of large matrices are read from RL_ROWS_STRIPS places by turns
} rl_dispatch;

/// isa_limit: NULL or a tier name ("ref", "avx2", ...): the best tier to use. overrides: NULL or a
/// comma-separated list of kernel names to prefer. An unknown name, or one this CPU cannot run, is
/// RL_ERR_KERNEL.
rl_status rl_dispatch_init(rl_dispatch *d, const char *isa_limit, const char *overrides, rl_err *err);

/// The best entry this dispatch may use, or NULL when the table has none. act 0 and layout NULL match any.
const rl_kernel *rl_kernel_find(const rl_dispatch *d, rl_family family, rl_type type, unsigned act, const char *layout);

/// The rows kernel for that many tokens of one product: those of layout "pairs" want two or more, and give way to rows
/// that are preferred by name.
const rl_kernel *rl_kernel_find_rows(const rl_dispatch *d, rl_type type, unsigned act, size_t n_tok);

/// Whether the entry is one that the dispatch prefers by name.
bool rl_kernel_asked(const rl_dispatch *d, const rl_kernel *k);

/// The entry with exactly this name, RL_ERR_KERNEL when unknown or not runnable here.
rl_status rl_kernel_named(const rl_dispatch *d, const char *name, const rl_kernel **out, rl_err *err);

// Reads n bytes. Returns the XOR of their 64-bit words, the last one padded with zeros: proof that it did.
typedef uint64_t (*rl_read_bytes_fn)(const void *p, size_t n);

// Copies n bytes between places that do not overlap; `to` is aligned to 64 bytes.
typedef void (*rl_copy_bytes_fn)(void *to, const void *from, size_t n);

// Vector operations, one pointer each, filled with references and overridden per tier. All sums run in one
// documented order per tier. x and out may be the same.
typedef struct rl_vec {
    void (*rmsnorm)(const float *x, const float *w, float *out, size_t n,
                    float eps); // w may be NULL; sum in double or pairwise
    void (*layernorm)(const float *x, const float *w, const float *b, float *out, size_t n,
                      float eps); // w, b may be NULL
    void (*add)(const float *a, const float *b, float *out, size_t n);
    void (*scale)(const float *x, float s, float *out, size_t n);
    void (*silu_mul)(const float *gate, const float *up, float *out, size_t n);
    void (*gelu_mul)(const float *gate, const float *up, float *out,
                     size_t n); // tanh form, from expf-grade arithmetic
    void (*gelu)(const float *x, float *out, size_t n);
    void (*silu)(const float *x, float *out, size_t n);
    void (*softcap)(const float *x, float cap, float *out, size_t n); // cap * tanh(x / cap)
    // Rotates n_head heads of one token in place; head stride ld. cs: n_rot/2 pairs (cos, sin). norm:
    // neighbours (2i, 2i+1); neox: halves (i, i + n_rot/2). Values beyond n_rot stay.
    void (*rope_norm)(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot);
    void (*rope_neox)(float *x, size_t n_head, size_t ld, const float *cs, size_t n_rot);
    float (*max)(const float *x, size_t n);
    // x <- exp(x - max) in place, returns the sum
    float (*exp_sum)(float *x, size_t n, float max);
    double (*logsumexp)(const float *x, size_t n);           // max subtracted; sum in double
    void (*argmax)(const float *x, size_t n, size_t *index); // the first of equals
} rl_vec;

void rl_vec_init(rl_vec *v, const rl_dispatch *d);

#endif
