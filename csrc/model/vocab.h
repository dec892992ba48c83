// SPDX-License-Identifier: Apache-2.0
// A vocabulary and its tokenizer, from the metadata of a GGUF file alone: byte-level BPE (tokenizer.ggml.model
// "gpt2") and SentencePiece with byte fallback ("llama"). After loading nothing in it changes, so any number of
// threads may use one.
#ifndef RL_MODEL_VOCAB_H
#define RL_MODEL_VOCAB_H

#include <stdbool.h>

#include "base/status.h"
#include "io/gguf.h"

typedef struct rl_vocab rl_vocab;

typedef enum rl_vocab_model { RL_VOCAB_BPE, RL_VOCAB_SPM } rl_vocab_model;

typedef enum rl_token_type { // ids in the file
    RL_TOKEN_UNDEFINED,
    RL_TOKEN_NORMAL,
    RL_TOKEN_UNKNOWN,
    RL_TOKEN_CONTROL,
    RL_TOKEN_USER, // always taken from text as a whole
    RL_TOKEN_UNUSED,
    RL_TOKEN_BYTE // <0x00> to <0xFF>
} rl_token_type;

typedef struct rl_vocab_info {
    rl_vocab_model model;
    char pre[64]; // the name in the file, "" when absent
    uint32_t n_tokens;
    int32_t bos, eos, eot, unk, pad; // -1 when the file names none
    bool add_bos, add_eos, add_space_prefix;
    const int32_t *eog; // end-of-generation ids, ascending
    size_t n_eog;
    char warning[256]; // something that the caller should tell its user once, or ""
} rl_vocab_info;

/// Reads the vocabulary; nothing of `g` is kept. RL_ERR_FORMAT names the key that is wrong or missing,
/// RL_ERR_UNSUPPORTED a kind of tokenizer that this library does not have.
rl_status rl_vocab_load(rl_vocab **out, const rl_gguf *g, rl_err *err);
void rl_vocab_free(rl_vocab *v);
const rl_vocab_info *rl_vocab_get_info(const rl_vocab *v);

/// A growing array of ids; start with zeros, free `v` with free().
typedef struct rl_ids {
    int32_t *v;
    size_t n, cap;
    size_t dropped; // bytes for which the vocabulary has no token
} rl_ids;

typedef struct rl_encode_options {
    bool special;  // take control tokens from the text; otherwise their text is ordinary text
    bool bos, eos; // add them, unless the text has them there already
} rl_encode_options;

/// Appends the ids of n bytes of text, which need not be valid UTF-8 and may hold NUL. RL_ERR_NOMEM.
rl_status rl_vocab_encode(const rl_vocab *v, const uint8_t *text, size_t n, rl_encode_options opt, rl_ids *out,
                          rl_err *err);

/// The bytes that a token stands for: spaces as spaces, control tokens by their name. NULL when id is no token.
const uint8_t *rl_vocab_piece(const rl_vocab *v, int32_t id, size_t *n);
rl_token_type rl_vocab_type(const rl_vocab *v, int32_t id);
/// Control, unknown and user-defined tokens.
bool rl_vocab_is_special(const rl_vocab *v, int32_t id);
/// The id of a token by its text as in the file, or by the bytes it stands for; -1 when there is none.
int32_t rl_vocab_find(const rl_vocab *v, const char *text, size_t n);

/// Turns ids back into bytes, one token at a time; start with `after_special` = true and `first` = true, or both
/// false where the ids continue a text.
typedef struct rl_detok {
    bool first, after_special, held_eos, skip_special;
} rl_detok;
/// What the token adds to the text, at most two pieces: the second is empty unless an end-of-sequence token was
/// held back to see whether it is the last. RL_ERR_ARG when id is no token.
typedef struct rl_span {
    const uint8_t *p;
    size_t n;
} rl_span;
rl_status rl_vocab_detok(const rl_vocab *v, rl_detok *d, int32_t id, rl_span out[2], rl_err *err);

#endif
