// SPDX-License-Identifier: Apache-2.0
#include "run/session.h"

#include <stdlib.h>
#include <string.h>

static size_t n_ctx_of(const rl_session *s) {
    return rl_engine_options(s->engine)->n_ctx;
}

size_t rl_session_length(const rl_session *s) {
    return rl_kv_end(s->kv);
}

static bool evicts(const rl_session *s) {
    return rl_kv_config_of(s->kv)->evict;
}

static size_t most_tokens(const rl_session *s) {
    return evicts(s) ? RL_KV_MAX_POSITIONS : n_ctx_of(s);
}

size_t rl_session_room(const rl_session *s) {
    return most_tokens(s) - rl_session_length(s);
}

size_t rl_session_step_room(const rl_session *s) {
    return rl_kv_room(s->kv);
}

// A session without a cache yet.
static rl_session *blank(rl_engine *engine, size_t cap) {
    rl_session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->engine = rl_engine_ref(engine);
    s->cap = cap;
    s->tokens = malloc(cap * sizeof *s->tokens); // pages of it are touched as the sequence grows
    if (!s->tokens) {
        rl_session_free(s);
        return NULL;
    }
    return s;
}

rl_status rl_session_create(rl_session **out, rl_engine *engine, rl_err *err) {
    size_t n_ctx = rl_engine_options(engine)->n_ctx;
    rl_session *s = blank(engine, n_ctx);
    if (!s) return rl_fail(err, RL_ERR_NOMEM, "no memory for a session of %zu positions", n_ctx);
    rl_kv_config c;
    rl_engine_kv_config(engine, &c);
    rl_status status = rl_kv_create(&s->kv, &c, err);
    if (status != RL_OK) {
        rl_session_free(s);
        return status;
    }
    *out = s;
    return RL_OK;
}

void rl_session_free(rl_session *s) {
    if (!s) return;
    rl_kv_free(s->kv);
    rl_engine_release(s->engine);
    free(s->tokens);
    free(s->block);
    free(s);
}

rl_status rl_session_fork(const rl_session *s, rl_session **out, rl_err *err) {
    rl_session *f = blank(s->engine, s->cap);
    if (!f) return rl_fail(err, RL_ERR_NOMEM, "no memory for a fork of %zu positions", s->cap);
    rl_status status = rl_kv_fork(s->kv, &f->kv, err);
    if (status != RL_OK) {
        rl_session_free(f);
        return status;
    }
    memcpy(f->tokens, s->tokens, rl_session_length(s) * sizeof *f->tokens);
    *out = f;
    return RL_OK;
}

rl_status rl_session_rewind(rl_session *s, size_t n, rl_err *err) {
    rl_session_forget(s);
    return rl_kv_rewind(s->kv, n, err);
}

// ---- what is held ----

bool rl_session_can_hold(const rl_session *s, size_t n) {
    return n <= rl_engine_options(s->engine)->n_batch && n <= n_ctx_of(s) - rl_kv_length(s->kv) &&
           rl_session_length(s) + n <= s->cap && !rl_kv_reserve_drops(s->kv, n);
}

bool rl_session_commit(rl_session *s) {
    if (!s->held) return false;
    rl_kv_commit(s->kv, s->held);
    s->held = 0;
    return true;
}

void rl_session_forget(rl_session *s) {
    if (!s->held) return;
    s->held = 0;
    (void)rl_kv_rewind(s->kv, rl_session_length(s), NULL); // gives up the pages it reserved
}

// ---- evaluation ----

typedef struct shifted {
    const rl_eval *ev;
    size_t row0;
} shifted;

static void consume_shifted(void *arg, int ith, int nth, float *logits, size_t row0, size_t n_rows) {
    const shifted *s = arg;
    s->ev->consume(s->ev->consume_arg, ith, nth, logits, s->row0 + row0, n_rows);
}

static rl_status check_eval(rl_session *s, const rl_eval *ev, rl_err *err) {
    size_t have = rl_session_length(s), n_ctx = most_tokens(s);
    uint32_t vocab = rl_engine_model(s->engine)->hp.n_vocab;
    if (!ev->n_tok) return rl_fail(err, RL_ERR_ARG, "no tokens to evaluate");
    RL_TRY(rl_gguf_intact(rl_engine_model(s->engine)->file, err));
    if (ev->n_tok > n_ctx - have) {
        rl_fail(err, RL_ERR_CONTEXT_FULL, "%zu tokens after %zu need %zu positions, and n_ctx is %zu", ev->n_tok, have,
                have + ev->n_tok, n_ctx);
        if (err) {
            err->limit = n_ctx;
            err->needed = have + ev->n_tok;
        }
        return RL_ERR_CONTEXT_FULL;
    }
    // All ids are checked before the first chunk runs, so that a wrong one leaves the session as it was.
    for (size_t i = 0; i < ev->n_tok; i++)
        if (ev->tokens[i] < 0 || (uint32_t)ev->tokens[i] >= vocab)
            return rl_fail(err, RL_ERR_ARG, "token %zu is %d: ids are 0 to %u", i, ev->tokens[i], vocab - 1);
    if (ev->consume && !s->block) {
        size_t bytes;
        if (!rl_mul_size((size_t)vocab * sizeof(float), RL_HEAD_BLOCK, &bytes) || !(s->block = malloc(bytes)))
            return rl_fail(err, RL_ERR_NOMEM, "no memory for %d rows of %u logits", RL_HEAD_BLOCK, vocab);
    }
    return RL_OK;
}

// Room in the history for so many tokens.
static rl_status grow_tokens(rl_session *s, size_t need, rl_err *err) {
    size_t cap = s->cap * 2 > need ? s->cap * 2 : need;
    if (need <= s->cap) return RL_OK;
    int32_t *more = realloc(s->tokens, cap * sizeof *more); // below RL_KV_MAX_POSITIONS, twice
    if (!more) return rl_fail(err, RL_ERR_NOMEM, "no memory for a history of %zu tokens", need);
    s->tokens = more;
    s->cap = cap;
    return RL_OK;
}

// Before n tokens are evaluated: a place in the history, and of a full cache that evicts, the oldest page goes.
static rl_status make_room(rl_session *s, size_t n, rl_err *err) {
    RL_TRY(grow_tokens(s, rl_session_length(s) + n, err));
    if (!evicts(s) || rl_kv_length(s->kv) < n_ctx_of(s)) return RL_OK;
    return rl_engine_evict(s->engine, s->kv, err);
}

static rl_status eval_chunk(rl_session *s, const rl_eval *ev, size_t at, size_t n, size_t *row0, uint32_t *rows,
                            rl_err *err) {
    RL_TRY(make_room(s, n, err));
    size_t have = rl_kv_length(s->kv), past = rl_session_length(s);
    size_t vocab = rl_engine_model(s->engine)->hp.n_vocab, n_out = 0;
    for (size_t r = *row0; r < ev->n_out; r++) {
        size_t tok = ev->first + r * ev->step;
        if (tok >= at + n) break;
        rows[n_out++] = (uint32_t)(tok - at);
    }
    rl_segment seg = {.kv = s->kv, .pos0 = have, .tok0 = 0, .n_tok = n};
    shifted shift = {ev, *row0};
    rl_step step = {.tokens = ev->tokens + at,
                    .n_tok = n,
                    .segments = &seg,
                    .n_segments = 1,
                    .out_rows = rows,
                    .n_out = n_out,
                    .logits = ev->logits ? ev->logits + *row0 * vocab : NULL,
                    .consume = ev->consume ? consume_shifted : NULL,
                    .consume_arg = &shift,
                    .consume_block = s->block,
                    .taps = ev->taps,
                    .inputs = ev->inputs,
                    .trace = ev->trace,
                    .poll = ev->poll,
                    .poll_arg = ev->poll_arg};
    if (ev->before_chunk) RL_TRY(ev->before_chunk(ev->chunk_arg, have, n, err));
    RL_TRY(rl_kv_reserve(s->kv, n, err));
    RL_TRY(rl_engine_step(s->engine, &step, err));
    memcpy(s->tokens + past, ev->tokens + at, n * sizeof *s->tokens);
    if (ev->hold)
        s->held = n;
    else
        rl_kv_commit(s->kv, n);
    *row0 += n_out;
    return RL_OK;
}

rl_status rl_session_eval(rl_session *s, const rl_eval *ev, rl_err *err) {
    rl_session_forget(s);
    RL_TRY(check_eval(s, ev, err));
    if (ev->hold && !rl_session_can_hold(s, ev->n_tok))
        return rl_fail(err, RL_ERR_ARG, "%zu tokens cannot be evaluated without a lasting change", ev->n_tok);
    size_t start = rl_session_length(s), n_batch = rl_engine_options(s->engine)->n_batch, row0 = 0;
    uint32_t one_row, *rows = &one_row; // decode allocates nothing
    if (ev->n_tok > 1 && !(rows = malloc((ev->n_tok < n_batch ? ev->n_tok : n_batch) * sizeof *rows)))
        return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu row numbers", ev->n_tok);
    rl_status status = RL_OK;
    for (size_t at = 0, n; at < ev->n_tok && status == RL_OK; at += n) {
        n = ev->n_tok - at < n_batch ? ev->n_tok - at : n_batch;
        // A chunk ends where a page goes: what a token attends to does not depend on how a text was cut.
        if (n > rl_kv_room(s->kv)) n = rl_kv_room(s->kv);
        status = eval_chunk(s, ev, at, n, &row0, rows, err);
    }
    if (rows != &one_row) free(rows);
    // Chunks that went well before the failure are taken back; a window that has moved on too far stays, and
    // n_past tells.
    if (status != RL_OK) rl_kv_rewind(s->kv, start, NULL);
    return status;
}

rl_status rl_session_step_many(rl_session *const *s, size_t n_sessions, const int32_t *tokens, const size_t *n,
                               float *logits, rl_poll_fn poll, void *poll_arg, rl_err *err) {
    rl_segment *segments = malloc(n_sessions * sizeof *segments);
    uint32_t *rows = malloc(n_sessions * sizeof *rows);
    rl_status status = RL_OK;
    size_t total = 0;
    if (!segments || !rows) status = rl_fail(err, RL_ERR_NOMEM, "no memory for a step of %zu sequences", n_sessions);
    for (size_t i = 0; i < n_sessions && status == RL_OK; i++) {
        rl_eval one = {.tokens = tokens + total, .n_tok = n[i]};
        rl_session_forget(s[i]);
        total += n[i];
        if (s[i]->engine != s[0]->engine)
            status = rl_fail(err, RL_ERR_ARG, "sequence %zu belongs to another engine", i);
        else if ((status = check_eval(s[i], &one, err)) == RL_OK && n[i] > rl_kv_room(s[i]->kv))
            status = rl_fail(err, RL_ERR_ARG,
                             "sequence %zu takes at most %zu tokens in this step, not %zu: then a page is evicted", i,
                             rl_kv_room(s[i]->kv), n[i]);
    }
    total = 0;
    for (size_t i = 0; i < n_sessions && status == RL_OK; i++) {
        if ((status = make_room(s[i], n[i], err)) == RL_OK) status = rl_kv_reserve(s[i]->kv, n[i], err);
        segments[i] = (rl_segment){.kv = s[i]->kv, .pos0 = rl_kv_length(s[i]->kv), .tok0 = total, .n_tok = n[i]};
        total += n[i];
        rows[i] = (uint32_t)total - 1;
    }
    if (status == RL_OK) {
        rl_step step = {.tokens = tokens,
                        .n_tok = total,
                        .segments = segments,
                        .n_segments = n_sessions,
                        .out_rows = rows,
                        .n_out = n_sessions,
                        .logits = logits,
                        .poll = poll,
                        .poll_arg = poll_arg};
        status = rl_engine_step(s[0]->engine, &step, err);
    }
    for (size_t i = 0; i < n_sessions && status == RL_OK; i++) {
        memcpy(s[i]->tokens + rl_session_length(s[i]), tokens + segments[i].tok0, n[i] * sizeof *tokens);
        rl_kv_commit(s[i]->kv, n[i]);
    }
    free(segments);
    free(rows);
    return status;
}

// ---- saved states ----

// What must agree between the session that saved and the one that loads.
typedef struct header {
    char magic[8];
    uint32_t version, n_layer, n_embd, n_vocab;
    uint64_t weight_bytes, weight_sample, n_tokens;
} header;

// A number that stands for the weights: 64 bytes from the middle of each tensor (FNV-1a). Models of the same shape,
// such as a model and its fine-tuned kin, have files of the same length.
static uint64_t sample_of(const rl_gguf *file) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < rl_gguf_n_tensors(file); i++) {
        const rl_tensor *t = rl_gguf_tensor_at(file, i);
        size_t n = t->nbytes < 64 ? t->nbytes : 64, at = (t->nbytes - n) / 2;
        for (size_t k = 0; t->data && k < n; k++) h = (h ^ t->data[at + k]) * 0x100000001b3u;
    }
    return h;
}

static header header_of(const rl_session *s) {
    const rl_model *m = rl_engine_model(s->engine);
    header h = {.magic = "rooflms",
                .version = 3,
                .n_layer = m->hp.n_layer,
                .n_embd = m->hp.n_embd,
                .n_vocab = m->hp.n_vocab,
                .weight_bytes = rl_gguf_file_bytes(m->file),
                .weight_sample = sample_of(m->file),
                .n_tokens = rl_session_length(s)};
    return h;
}

rl_status rl_session_save(const rl_session *s, rl_write_fn write, void *arg, rl_err *err) {
    RL_TRY(rl_gguf_intact(rl_engine_model(s->engine)->file, err));
    header h = header_of(s);
    if (!write(arg, &h, sizeof h) || !write(arg, s->tokens, h.n_tokens * sizeof *s->tokens))
        return rl_fail(err, RL_ERR_IO, "cannot write the saved state");
    return rl_kv_save(s->kv, write, arg, err);
}

// In pieces, so that a damaged header allocates no more than the file has.
static rl_status read_tokens(int32_t **out, size_t n, rl_read_fn read, void *arg, rl_err *err) {
    const size_t piece = 65536;
    for (size_t have = 0; have < n || !*out;) {
        size_t more = n - have < piece ? n - have : piece;
        int32_t *grown = realloc(*out, (have + more + 1) * sizeof *grown);
        if (!grown) return rl_fail(err, RL_ERR_NOMEM, "no memory for %zu tokens", n);
        *out = grown;
        if (!read(arg, grown + have, more * sizeof *grown))
            return rl_fail(err, RL_ERR_FORMAT, "the saved state ends within its tokens");
        have += more;
    }
    return RL_OK;
}

rl_status rl_session_load(rl_session *s, rl_read_fn read, void *arg, rl_err *err) {
    RL_TRY(rl_gguf_intact(rl_engine_model(s->engine)->file, err));
    rl_session_forget(s);
    header mine = header_of(s), h;
    if (!read(arg, &h, sizeof h)) return rl_fail(err, RL_ERR_FORMAT, "the saved state ends within its header");
    if (memcmp(h.magic, mine.magic, sizeof h.magic) || h.version != mine.version)
        return rl_fail(err, RL_ERR_FORMAT, "this is not a saved state of version %u", mine.version);
    if (h.n_layer != mine.n_layer || h.n_embd != mine.n_embd || h.n_vocab != mine.n_vocab ||
        h.weight_bytes != mine.weight_bytes || h.weight_sample != mine.weight_sample)
        return rl_fail(err, RL_ERR_FORMAT, "the state was saved with another model");
    if (h.n_tokens > most_tokens(s)) {
        rl_fail(err, RL_ERR_CONTEXT_FULL, "the saved state has %llu tokens and n_ctx is %zu",
                (unsigned long long)h.n_tokens, most_tokens(s));
        if (err) {
            err->limit = most_tokens(s);
            err->needed = h.n_tokens;
        }
        return RL_ERR_CONTEXT_FULL;
    }
    int32_t *tokens = NULL;
    rl_status status = read_tokens(&tokens, h.n_tokens, read, arg, err);
    for (size_t i = 0; i < h.n_tokens && status == RL_OK; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= mine.n_vocab)
            status = rl_fail(err, RL_ERR_FORMAT, "token %zu of the saved state is %d: ids are 0 to %u", i,
                             (int)tokens[i], mine.n_vocab - 1);
    if (status == RL_OK) status = grow_tokens(s, h.n_tokens, err);
    if (status == RL_OK) status = rl_kv_load(s->kv, read, arg, err);
    if (status == RL_OK && rl_session_length(s) != h.n_tokens) {
        status = rl_fail(err, RL_ERR_FORMAT, "the saved state has %llu tokens and a cache of %zu",
                         (unsigned long long)h.n_tokens, rl_session_length(s));
        (void)rl_kv_rewind(s->kv, 0, NULL);
    }
    if (status == RL_OK) memcpy(s->tokens, tokens, h.n_tokens * sizeof *tokens);
    free(tokens);
    return status;
}
