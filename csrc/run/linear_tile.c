// SPDX-License-Identifier: Apache-2.0
// The loop around the tile kernels. 32 rows by 256 columns at a time are unpacked into a tile that stays in the
// first-level cache and is multiplied with many tokens. Tokens and columns are cut so that the activations in
// use stay in the second-level cache while a run of row tiles passes over them: streaming them from the third
// for every tile costs up to a quarter of the speed. Sums wait in `out` between cuts of the columns. A token's
// result takes the same operations in the same order whatever else is in the batch and whichever thread does it.
#include "run/linear_tile.h"

#include <string.h>

#include "kernels/tile.h"

#define TOKENS_AT_ONCE 384             // the most of a cut; whole panels of every kind
#define TOKENS_AT_LEAST 120            // the least, where there are as many
#define ACT_BYTES (608 << 10)          // of activations in use at a time
#define TOUCH_AHEAD ((size_t)48 << 10) // bytes from a tile to those whose page table entries are looked up
#define PANELS_MEET 48                 // tokens: panels of 6 and of 16 begin together
#define PANELS_AHEAD 3                 // from the panel that is written to the one whose lines are asked for
// Tokens from which a tile is faster than rows with whole models, where weights come from memory: they meet at about 12
// on AVX-512 and between 9 and 16 on AVX2 (kernels alone, with weights in a cache, meet earlier).
#define TILE_FROM 12
#define FTILE_FROM 9
// Tokens from which panels of 16 are faster than those of 6, which take less to begin and to fill (whole models).
#define MANY_FROM 32

static bool is_float(rl_type t) {
    return t == RL_F32 || t == RL_F16 || t == RL_BF16;
}

// The multiply without AMX, unless the other one was asked for by name.
static void plan_few(rl_linear *lin, const rl_dispatch *d) {
    lin->mul_few = NULL;
    lin->many_from = 0;
    if (!lin->mul || lin->mul->tile_cols <= RL_PANEL || rl_kernel_asked(d, lin->mul)) return;
    rl_dispatch without = *d;
    without.features &= ~(RL_CPU_AMXTILE | RL_CPU_AMXINT8);
    lin->mul_few = rl_kernel_find(&without, RL_FAM_TILE_MUL, RL_TYPE_NONE, lin->mul->act & (RL_ACT_Q8 | RL_ACT_Q16),
                                  lin->mul->layout);
    if (lin->mul_few) lin->many_from = MANY_FROM;
}

void rl_linear_tile_plan(rl_linear *lin, const rl_dispatch *d, bool keep_wide) {
    const rl_kernel *unpack, *mul = NULL;
    if (is_float(lin->w.type) || lin->compute == RL_COMPUTE_F32) {
        unpack = rl_kernel_find(d, RL_FAM_DEQUANT, lin->w.type, 0, NULL);
        if (unpack) mul = rl_kernel_find(d, RL_FAM_TILE_MUL, RL_TYPE_NONE, RL_ACT_F32, "f32");
    } else {
        bool wide = lin->compute == RL_COMPUTE_INT16 || (lin->compute == RL_COMPUTE_AUTO && keep_wide);
        unpack = rl_kernel_find(d, RL_FAM_TILE_UNPACK, lin->w.type, 0, NULL);
        if (unpack)
            mul = rl_kernel_find(d, RL_FAM_TILE_MUL, RL_TYPE_NONE, wide ? RL_ACT_Q16 : RL_ACT_Q8, unpack->layout);
    }
    lin->unpack = mul ? unpack : NULL;
    lin->mul = mul;
    plan_few(lin, d);
    lin->tile_from = !mul ? SIZE_MAX : mul->act & RL_ACT_F32 ? FTILE_FROM : TILE_FROM;
}

const rl_kernel *rl_linear_tile_mul(const rl_linear *lin, size_t n_tok) {
    return n_tok < lin->many_from ? lin->mul_few : lin->mul;
}

static const rl_kernel *mul_of(const rl_linear_call *c) {
    return rl_linear_tile_mul(c->lin, c->n_tok);
}

static const rl_panels *panels_of(const rl_kernel *mul) {
    return rl_panels_of(rl_panel_kind_of(mul));
}

unsigned rl_linear_tile_panels(const rl_linear *lin, size_t n_tok) {
    return panels_of(rl_linear_tile_mul(lin, n_tok))->format;
}

static size_t blocks(size_t cols, size_t k) {
    return (cols + k - 1) / k;
}

// Bytes from the first panel to panel number `panel` of a block of columns.
static size_t panel_at(const rl_panels *k, size_t max_tok, size_t block, size_t panel) {
    return (block * blocks(max_tok, k->tokens) + panel) * k->size;
}

// The panels of act that `mul` reads, from token t0 (the first of a panel) on.
static const uint8_t *panels_from(const rl_act *a, const rl_kernel *mul, size_t block, size_t t0) {
    const rl_panels *k = panels_of(mul);
    return (const uint8_t *)a->panels[rl_panel_kind_of(mul)] + panel_at(k, a->max_tok, block, t0 / k->tokens);
}

static size_t bytes_of_kind(const rl_panels *k, size_t cols, size_t max_tok) {
    return (panel_at(k, max_tok, blocks(cols, k->columns), 0) + 63) / 64 * 64;
}

size_t rl_act_packed_bytes(unsigned formats, size_t cols, size_t max_tok) {
    size_t n = 0;
    for (int i = 0; i < RL_PANEL_KINDS; i++) {
        const rl_panels *k = rl_panels_of((rl_panel_kind)i);
        if (formats & k->format) n += bytes_of_kind(k, cols, max_tok);
    }
    return n;
}

void rl_act_packed_bind(rl_act *a, void *storage) {
    uint8_t *at = storage;
    for (int i = 0; i < RL_PANEL_KINDS; i++) {
        const rl_panels *k = rl_panels_of((rl_panel_kind)i);
        if (!(a->formats & k->format)) continue;
        a->panels[i] = at;
        at += bytes_of_kind(k, a->cols, a->max_tok);
    }
}

static size_t at_most(size_t n, size_t limit) {
    return n < limit ? n : limit;
}

void rl_act_packed_put(rl_act *a, size_t t) {
    size_t padded = (a->cols + 31) / 32 * 32; // with zeros, but for floats
    for (int i = 0; i < RL_PANEL_KINDS; i++) {
        const rl_panels *k = rl_panels_of((rl_panel_kind)i);
        if (!a->panels[i]) continue;
        size_t cols = k->format & RL_ACT_F32T ? a->cols : padded;
        for (size_t b = 0; b < blocks(a->cols, k->columns); b++) {
            void *panel = (uint8_t *)a->panels[i] + panel_at(k, a->max_tok, b, t / k->tokens);
            k->put(panel, t % k->tokens, a, t, b, at_most(cols - b * k->columns, k->columns));
        }
    }
}

typedef struct {
    union {
        rl_tile tile;
        struct {
            rl_ftile tile;
            float rows[RL_TILE_ROWS][RL_TILE_K];
        } f;
    };
    float sums[][RL_TILE_ROWS]; // of the tokens of a cut; of two matrices where their products meet
} scratch_area;

size_t rl_linear_tile_scratch(size_t max_tok) {
    size_t n = at_most(max_tok, TOKENS_AT_ONCE);
    return (sizeof(scratch_area) + 2 * n * RL_TILE_ROWS * sizeof(float) + 63) / 64 * 64;
}

// The rows of one tile; none behind the end of the matrix.
typedef struct {
    const rl_linear_call *c;
    size_t r0, n_rows;
} tile_rows;

static tile_rows rows_of_tile(const rl_linear_call *c, size_t tile) {
    size_t r0 = at_most(tile * RL_TILE_ROWS, c->lin->w.rows);
    return (tile_rows){c, r0, at_most(c->lin->w.rows - r0, RL_TILE_ROWS)};
}

// Bytes of 256 columns of a row, in whole blocks of its type.
static size_t block_bytes(const rl_mat *w) {
    const rl_dtype *type = rl_dtype_of(w->type);
    return RL_TILE_K / type->block * type->bytes;
}

// Row pointers at the columns of block b; a short last tile repeats its last row.
static void point_at(const uint8_t *row[RL_TILE_ROWS], const tile_rows *rows, size_t b) {
    const rl_mat *w = &rows->c->lin->w;
    const uint8_t *first = w->data + rows->r0 * w->row_bytes + b * block_bytes(w);
    for (size_t r = 0; r < RL_TILE_ROWS; r++) row[r] = first + at_most(r, rows->n_rows - 1) * w->row_bytes;
}

// One line of each 4 KB that a later tile will take, so that what the page table says is known when its lines are asked
// for: see kernels/x86/prefetch.h. Tiles lie one behind the other.
static void touch_tile(const rl_mat *w, size_t r0) {
    size_t from = r0 * w->row_bytes + TOUCH_AHEAD, to = from + RL_TILE_ROWS * w->row_bytes;
    for (size_t at = (from + 4095) / 4096 * 4096; at < at_most(to, w->rows * w->row_bytes); at += 4096)
        __builtin_prefetch(w->data + at, 0, 2);
}

// A cut of one multiplication: tokens t0..t0 + n_tok (t0 starts a panel), blocks b0..b1 of 256 columns.
typedef struct {
    size_t t0, n_tok, b0, b1;
    bool cold; // its activations have not been used by this thread yet
} cut;

// While block b of `rows` is multiplied: the weights unpacked next are its right neighbour, or the first block that the
// cut has of the tile that follows. Where sums go to `out`, its lines.
static rl_ahead ahead_of(const tile_rows *rows, size_t b, const cut *u, const tile_rows *follows) {
    bool last = b + 1 == u->b1;
    const tile_rows *next = last ? follows : rows;
    const rl_linear_call *c = rows->c;
    const rl_mat *w = &next->c->lin->w;
    size_t from = (last ? u->b0 : b + 1) * block_bytes(w);
    return (rl_ahead){.weights = w->data + next->r0 * w->row_bytes + from,
                      .n_rows = next->n_rows,
                      .row_bytes = w->row_bytes,
                      .bytes = at_most(block_bytes(w), w->row_bytes - from),
                      .cold = u->cold,
                      .out = last && c->out ? c->out + u->t0 * c->ld_out + rows->r0 : NULL,
                      .ld_out = c->ld_out,
                      .out_bytes = rows->n_rows * sizeof(float)};
}

static void int_tiles(const tile_rows *rows, const cut *u, const tile_rows *follows, scratch_area *s,
                      float (*sums)[RL_TILE_ROWS]) {
    const rl_linear_call *c = rows->c;
    rl_tile_unpack_fn unpack = (rl_tile_unpack_fn)c->lin->unpack->fn;
    rl_tile_mul_fn mul = (rl_tile_mul_fn)mul_of(c)->fn;
    for (size_t b = u->b0; b < u->b1; b++) {
        const uint8_t *row[RL_TILE_ROWS];
        point_at(row, rows, b);
        size_t klen = at_most(c->lin->w.cols - b * RL_TILE_K, RL_TILE_K);
        unpack(row, klen, &s->tile);
        rl_ahead ahead = ahead_of(rows, b, u, follows);
        mul(&s->tile, panels_from(c->act, mul_of(c), b, u->t0), u->n_tok, klen, sums[0], &ahead);
    }
}

// Rows to columns, 16 rows at a time so that a line of the tile is written at once.
static void to_tile(const float rows[RL_TILE_ROWS][RL_TILE_K], size_t k0, size_t n, rl_ftile *tile) {
    for (size_t r = 0; r < RL_TILE_ROWS; r += 16)
        for (size_t k = 0; k < n; k++)
            for (size_t i = 0; i < 16; i++) tile->w[k][r + i] = rows[r + i][k0 + k];
}

static void float_tiles(const tile_rows *rows, const cut *u, const tile_rows *follows, scratch_area *s,
                        float (*sums)[RL_TILE_ROWS]) {
    const rl_linear_call *c = rows->c;
    rl_dequant_fn dequant = (rl_dequant_fn)c->lin->unpack->fn;
    rl_tile_mul_fn mul = (rl_tile_mul_fn)mul_of(c)->fn;
    for (size_t b = u->b0; b < u->b1; b++) {
        const uint8_t *row[RL_TILE_ROWS];
        point_at(row, rows, b);
        size_t klen = at_most(c->lin->w.cols - b * RL_TILE_K, RL_TILE_K);
        for (size_t r = 0; r < RL_TILE_ROWS; r++) dequant(row[r], s->f.rows[r], klen);
        rl_ahead ahead = ahead_of(rows, b, u, follows);
        for (size_t k0 = 0; k0 < klen; k0 += RL_FTILE_K) {
            size_t n = at_most(klen - k0, RL_FTILE_K), fb = (b * RL_TILE_K + k0) / RL_FTILE_K;
            to_tile(s->f.rows, k0, n, &s->f.tile);
            mul(&s->f.tile, panels_from(c->act, mul_of(c), fb, u->t0), u->n_tok, n, sums[0], k0 == 0 ? &ahead : NULL);
        }
    }
}

// Adds what the blocks of a cut contribute to the sums of its tokens.
static void add_products(const tile_rows *rows, const cut *u, const tile_rows *follows, scratch_area *s,
                         float (*sums)[RL_TILE_ROWS]) {
    touch_tile(&rows->c->lin->w, rows->r0);
    if (mul_of(rows->c)->act & RL_ACT_F32)
        float_tiles(rows, u, follows, s, sums);
    else
        int_tiles(rows, u, follows, s, sums);
}

// Nearly always whole tiles: of a size that is no constant gcc makes an instruction (rep movs) that takes longer to
// start than these 128 bytes.
static void copy_sums(float *to, const float *from, size_t n_rows) {
    if (n_rows == RL_TILE_ROWS)
        memcpy(to, from, RL_TILE_ROWS * sizeof *to);
    else
        memcpy(to, from, n_rows * sizeof *to);
}

static void multiply_tile(const rl_linear_call *c, size_t tile, const cut *u, scratch_area *s) {
    tile_rows rows = rows_of_tile(c, tile), below = rows_of_tile(c, tile + 1);
    float *out = c->out + u->t0 * c->ld_out + rows.r0;
    if (u->b0 == 0)
        memset(s->sums, 0, u->n_tok * sizeof s->sums[0]);
    else
        for (size_t t = 0; t < u->n_tok; t++) copy_sums(s->sums[t], out + t * c->ld_out, rows.n_rows);
    add_products(&rows, u, &below, s, s->sums);
    for (size_t t = 0; t < u->n_tok; t++) copy_sums(out + t * c->ld_out, s->sums[t], rows.n_rows);
}

// Bytes of a panel that one layout reads, for 256 columns: values, scales, and either sums or offsets.
static size_t panel_bytes(const rl_kernel *mul) {
    const rl_panels *k = panels_of(mul);
    size_t bytes = k->values + k->scales + (strstr(mul->layout, ".g16") ? k->sums16 : k->sums);
    return bytes * (RL_TILE_K / k->columns);
}

// How tokens and blocks are cut, evenly; tokens in whole panels. Columns are cut only where else too few tokens
// would share an unpacked tile, because sums that wait in `out` cost more than unpacking again.
static void cut_sizes(const rl_linear_call *c, size_t *t_step, size_t *b_step) {
    size_t n_blocks = blocks(c->lin->w.cols, RL_TILE_K), bytes = panel_bytes(mul_of(c));
    size_t tokens = panels_of(mul_of(c))->tokens, all = blocks(c->n_tok, tokens);
    size_t fit = ACT_BYTES / (n_blocks * bytes), least = blocks(TOKENS_AT_LEAST, tokens);
    if (fit < least) fit = least;
    if (fit > TOKENS_AT_ONCE / tokens) fit = TOKENS_AT_ONCE / tokens;
    size_t panels = blocks(all, blocks(all, fit));
    fit = ACT_BYTES / (panels * bytes);
    *t_step = panels * tokens;
    *b_step = blocks(n_blocks, blocks(n_blocks, fit ? fit : 1));
}

static void multiply_tiles(const rl_linear_call *c, size_t tile0, size_t tile1, scratch_area *s) {
    size_t n_blocks = blocks(c->lin->w.cols, RL_TILE_K), t_step, b_step;
    cut_sizes(c, &t_step, &b_step);
    for (size_t t = 0; t < c->n_tok; t += t_step)
        for (size_t b = 0; b < n_blocks; b += b_step) {
            cut u = {.t0 = t, .n_tok = at_most(c->n_tok - t, t_step), .b0 = b, .b1 = at_most(b + b_step, n_blocks)};
            for (size_t tile = tile0; tile < tile1; tile++) {
                u.cold = tile == tile0;
                multiply_tile(c, tile, &u, s);
            }
        }
}

// Where the activations do not stay in the cache by themselves: runs of tiles long enough to use them again.
static size_t run_length(const rl_team *team, size_t total) {
    return at_most(total / (4 * (size_t)rl_team_size(team)) + 1, 8);
}

void rl_linear_tile_run(rl_team *team, int ith, const rl_linear_call *calls, size_t n_calls, void *scratch) {
    size_t total = 0, i0, i1, grain = 1;
    bool all_fits = true;
    for (size_t i = 0; i < n_calls; i++) {
        size_t t_step, b_step;
        cut_sizes(&calls[i], &t_step, &b_step);
        total += blocks(calls[i].lin->w.rows, RL_TILE_ROWS);
        all_fits &= t_step >= calls[i].n_tok && b_step * RL_TILE_K >= calls[i].lin->w.cols;
    }
    if (!all_fits) grain = run_length(team, total);
    rl_work work;
    rl_work_begin(&work, team, ith, total, grain);
    while (rl_work_next(&work, team, ith, &i0, &i1)) {
        size_t first = 0; // of the call, among all tiles
        for (size_t i = 0; i < n_calls && i0 < i1; i++) {
            size_t end = first + blocks(calls[i].lin->w.rows, RL_TILE_ROWS);
            if (i0 < end) {
                multiply_tiles(&calls[i], i0 - first, at_most(i1, end) - first, scratch);
                i0 = at_most(i1, end);
            }
            first = end;
        }
    }
}

// ---- gate and up, whose products meet ----

bool rl_linear_tile_gated_fits(const rl_linear *lin, size_t n_tok) {
    rl_linear_call c = {.lin = lin, .n_tok = n_tok};
    size_t t_step, b_step;
    cut_sizes(&c, &t_step, &b_step);
    return b_step * RL_TILE_K >= lin->w.cols;
}

// The activation of one tile of rows, which are 32 columns of the next matrix and so one group of its int8 panels.
static void activate_tile(const rl_linear_gated *g, size_t tile, const cut *u, float (*gate)[RL_TILE_ROWS],
                          float (*up)[RL_TILE_ROWS]) {
    rl_act_q8_fn quantize = (rl_act_q8_fn)g->d->act_q8->fn;
    size_t group = tile % (RL_TILE_K / RL_TILE_ROWS);
    rl_panel_kind kind = g->down->panels[RL_PANEL_Q8A] ? RL_PANEL_Q8A : RL_PANEL_Q8T;
    const rl_panels *k = rl_panels_of(kind);
    uint8_t *panel = g->down->panels[kind];
    panel += panel_at(k, g->down->max_tok, tile * RL_TILE_ROWS / RL_TILE_K, u->t0 / k->tokens);
    for (size_t i = 0, n_panels = blocks(u->n_tok, k->tokens); i < n_panels; i++, panel += k->size) {
        _Alignas(64) float x[RL_PANEL_MAX][RL_TILE_ROWS];
        int8_t q[RL_PANEL_MAX * RL_TILE_ROWS]; // padded by the quantizer to a multiple of 256
        float d[RL_PANEL_MAX], sum[RL_PANEL_MAX];
        size_t t = i * k->tokens, n = at_most(u->n_tok - t, k->tokens);
        if (i + PANELS_AHEAD < n_panels) k->touch_group(panel + PANELS_AHEAD * k->size, group);
        g->activate(gate[t], up[t], x[0], n * RL_TILE_ROWS);
        quantize(x[0], n * RL_TILE_ROWS, q, d, sum);
        k->put_group(panel, group, n, q, d, sum);
    }
}

static void gated_tiles(const rl_linear_gated *g, size_t tile0, size_t tile1, size_t t_step, scratch_area *s) {
    size_t n_blocks = blocks(g->up.lin->w.cols, RL_TILE_K);
    for (size_t t = 0; t < g->up.n_tok; t += t_step) {
        cut u = {.t0 = t, .n_tok = at_most(g->up.n_tok - t, t_step), .b0 = 0, .b1 = n_blocks, .cold = true};
        float(*gate_sums)[RL_TILE_ROWS] = s->sums, (*up_sums)[RL_TILE_ROWS] = s->sums + u.n_tok;
        for (size_t tile = tile0; tile < tile1; tile++) {
            tile_rows gate = rows_of_tile(&g->gate, tile), up = rows_of_tile(&g->up, tile);
            tile_rows below = rows_of_tile(&g->gate, tile + 1);
            memset(s->sums, 0, 2 * u.n_tok * sizeof s->sums[0]);
            add_products(&gate, &u, &up, s, gate_sums);
            u.cold = false;
            add_products(&up, &u, &below, s, up_sums);
            activate_tile(g, tile, &u, gate_sums, up_sums);
        }
    }
}

void rl_linear_run_gated(rl_team *team, int ith, const rl_linear_gated *g, void *scratch) {
    size_t t_step, b_step, up_step, i0, i1, total = blocks(g->up.lin->w.rows, RL_TILE_ROWS), grain = 1;
    cut_sizes(&g->gate, &t_step, &b_step);
    cut_sizes(&g->up, &up_step, &b_step);
    // Whole panels of gate, up and down, which kernels asked for by name may have of different kinds.
    t_step = blocks(at_most(t_step, up_step), PANELS_MEET) * PANELS_MEET;
    if (t_step < g->up.n_tok) grain = run_length(team, 2 * total) / 2;
    rl_work work;
    rl_work_begin(&work, team, ith, total, grain ? grain : 1);
    while (rl_work_next(&work, team, ith, &i0, &i1)) gated_tiles(g, i0, i1, t_step, scratch);
}
