// SPDX-License-Identifier: Apache-2.0
// Code points and their classes, as far as tokenizers need them: UTF-8 read without trust, and one mask per
// code point from tables made by tools/make_unicode_tables.py.
#ifndef RL_MODEL_UNICODE_H
#define RL_MODEL_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum {
    RL_CP_UPPER = 1u << 0,    // Lu, Lt
    RL_CP_LOWER = 1u << 1,    // Ll
    RL_CP_CASELESS = 1u << 2, // Lm, Lo
    RL_CP_MARK = 1u << 3,
    RL_CP_NUMBER = 1u << 4,
    RL_CP_PUNCT = 1u << 5,
    RL_CP_SYMBOL = 1u << 6,
    RL_CP_WHITE = 1u << 7, // property White_Space
    RL_CP_CRLF = 1u << 8,
    RL_CP_SPACE = 1u << 9, // U+0020 alone
    RL_CP_SLASH = 1u << 10,
    RL_CP_AZ = 1u << 11, // A-Z a-z
    RL_CP_ASCII_PUNCT = 1u << 12,
    RL_CP_ASCII_DIGIT = 1u << 13,
    RL_CP_DECIMAL = 1u << 14, // Nd
    RL_CP_LF = 1u << 15,
    RL_CP_CASED = 1u << 16,      // cased letters as deepseek-llm lists them
    RL_CP_WIDE_PUNCT = 1u << 17, // its punctuation: ASCII without digits and space, full-width forms, quotes
    RL_CP_CJK = 1u << 18,        // U+0800..9FA5 and U+AC00..D7FF
    RL_CP_HAN_KANA = 1u << 19,   // U+4E00..9FA5 and the kana
    RL_CP_SENTENCE = 1u << 20,   // what bloom breaks at besides white space
    RL_CP_MATH = 1u << 21,       // $+<=>^~|
    RL_CP_BACKTICK = 1u << 22,
    RL_CP_OTHER = 1u << 23, // C: controls, formats, unassigned
};
#define RL_CP_LETTER (RL_CP_UPPER | RL_CP_LOWER | RL_CP_CASELESS)

extern const char rl_unicode_version[];
extern const uint32_t rl_cp_ascii[128];
extern const uint32_t rl_cp_masks[];
extern const uint16_t rl_cp_page[];
extern const uint8_t rl_cp_kind[];

/// The class mask of a code point below 0x110000; never 0.
static inline uint32_t rl_cp_mask(uint32_t cp) {
    if (cp < 128) return rl_cp_ascii[cp];
    return rl_cp_masks[rl_cp_kind[(size_t)rl_cp_page[cp >> 7] * 128 + (cp & 127)]];
}

/// Length in bytes of the character at p (p < end) and its code point. A byte that starts no well-formed
/// sequence counts as one character, U+FFFD.
size_t rl_utf8_read(const uint8_t *p, const uint8_t *end, uint32_t *cp);

#endif
