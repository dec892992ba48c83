// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers of byte-level BPE vocabularies: how text is cut into words before merging. Each is a row of
// one table (vocab_pre.c): names in tokenizer.ggml.pre, and stages of rules over code-point classes.
#ifndef RL_MODEL_VOCAB_PRE_H
#define RL_MODEL_VOCAB_PRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rl_pre rl_pre;

/// The pre-tokenizer of that name, or NULL.
const rl_pre *rl_pre_find(const char *name, size_t len);
/// A word that is a token as a whole is taken without merging.
bool rl_pre_ignores_merges(const rl_pre *pre);
/// All names, one row after another; NULL at the end.
const char *rl_pre_name(size_t i);

/// Called for each word in order; false stops.
typedef bool (*rl_word_fn)(void *arg, const uint8_t *word, size_t n);
/// Cuts text into words that cover it without a gap. False when the callback stopped. Time is linear in n.
bool rl_pre_split(const rl_pre *pre, const uint8_t *text, size_t n, rl_word_fn fn, void *arg);

#endif
