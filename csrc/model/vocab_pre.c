// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers that models are trained with are published as regular expressions. Here each is a list of
// stages, a stage is a list of rules tried in order at every character, and what no rule takes is kept as a word
// of its own, as the published tokenizers do. A later stage sees each word of the one before as a whole text, so
// that "at the end" means the end of that word. A new pre-tokenizer is a row in `table`; only a shape of rule that
// does not exist yet needs code.
#include "model/vocab_pre.h"

#include <string.h>

#include "model/unicode.h"

// A set of classes; NOT(x) holds the characters outside all of x.
#define NEGATED (1u << 31)
#define NOT(classes) ((classes) | NEGATED)

#define L RL_CP_LETTER
#define M RL_CP_MARK
#define N RL_CP_NUMBER
#define P RL_CP_PUNCT
#define S RL_CP_SYMBOL
#define WS RL_CP_WHITE
#define NL RL_CP_CRLF
#define SP RL_CP_SPACE

typedef enum rule_kind {
    END = 0,
    RUN,             // pre? body{min,max} tail{0,tail_max}; pre is required with NEEDS_PRE
    CONTRACTION,     // 's 't 're 've 'm 'll 'd, lower case or, with ANY_CASE, either
    CASED_WORD,      // pre? Upper* Lower+ or pre? Upper+ Lower*, then a contraction with SUFFIX
    SPACED_WORDS,    // pre? letters with marks, single spaces between words included
    LINE_ENDS,       // white space up to its last CR or LF
    SPACES,          // white space, but the last one before a word is left to it
    SPACES_AT_END,   // white space that ends the text
    SPACES_HALVING,  // white space in powers of two from 512 down to 4, then at most 2
    DIGITS_BY_THREE, // digits in groups of three counted from the right
    ANY_SPACES,      // all of it
} rule_kind;

enum { ANY_CASE = 1, SUFFIX = 2, NEEDS_PRE = 4, WORD_END = 8 };
#define MANY UINT16_MAX

typedef struct rule {
    uint8_t kind, flags;
    uint16_t min, max, tail_max;
    uint32_t pre, body, tail;
} rule;

#define MAX_RULES 9
#define MAX_STAGES 6
#define MAX_NAMES 14

typedef rule stage[MAX_RULES];

struct rl_pre {
    const char *names[MAX_NAMES];
    bool ignore_merges;
    const stage *stages[MAX_STAGES];
};

// ---- rules as they recur in the published expressions ---------------------------------------------------------

#define RUN_OF(set)                                                                                                    \
    { .kind = RUN, .min = 1, .max = MANY, .body = (set) }
#define ONE_OF(set)                                                                                                    \
    { .kind = RUN, .min = 1, .max = 1, .body = (set) }
#define UP_TO_3(set)                                                                                                   \
    { .kind = RUN, .min = 1, .max = 3, .body = (set) }
#define LED_RUN(lead, set)                                                                                             \
    { .kind = RUN, .min = 1, .max = MANY, .pre = (lead), .body = (set) }
#define PUNCTUATION(set, end)                                                                                          \
    { .kind = RUN, .min = 1, .max = MANY, .tail_max = MANY, .pre = SP, .body = (set), .tail = (end) }
#define ASCII_PUNCT_WORD                                                                                               \
    { .kind = RUN, .flags = NEEDS_PRE, .min = 1, .max = MANY, .pre = RL_CP_ASCII_PUNCT, .body = RL_CP_AZ }
#define RULE(which)                                                                                                    \
    { .kind = which }
#define CONTRACTIONS                                                                                                   \
    { .kind = CONTRACTION }
#define CONTRACTIONS_ANY                                                                                               \
    { .kind = CONTRACTION, .flags = ANY_CASE }
#define NO_WORD NOT(WS | L | N)
#define NO_LEAD NOT(NL | L | N)

static const stage gpt2 = {CONTRACTIONS,         LED_RUN(SP, L), LED_RUN(SP, N),
                           LED_RUN(SP, NO_WORD), RULE(SPACES),   RULE(ANY_SPACES)};
static const stage llama3 = {CONTRACTIONS_ANY, LED_RUN(NO_LEAD, L), UP_TO_3(N),      PUNCTUATION(NO_WORD, NL),
                             RULE(LINE_ENDS),  RULE(SPACES),        RULE(ANY_SPACES)};
static const stage jais2 = {CONTRACTIONS_ANY,         LED_RUN(NO_LEAD, L), UP_TO_3(N),
                            PUNCTUATION(NO_WORD, NL), RULE(LINE_ENDS),     RULE(SPACES_HALVING)};
static const stage qwen2 = {CONTRACTIONS_ANY, LED_RUN(NO_LEAD, L), ONE_OF(N),       PUNCTUATION(NO_WORD, NL),
                            RULE(LINE_ENDS),  RULE(SPACES),        RULE(ANY_SPACES)};
static const stage qwen35 = {
    CONTRACTIONS_ANY, LED_RUN(NO_LEAD, L | M), ONE_OF(N), PUNCTUATION(NOT(WS | L | M | N), NL), RULE(LINE_ENDS),
    RULE(SPACES),     RULE(ANY_SPACES)};
static const stage no_contractions = {LED_RUN(NO_LEAD, L), ONE_OF(N),    PUNCTUATION(NO_WORD, NL),
                                      RULE(LINE_ENDS),     RULE(SPACES), RULE(ANY_SPACES)};
static const stage any_digits = {CONTRACTIONS_ANY, LED_RUN(NO_LEAD, L), RUN_OF(N),       PUNCTUATION(NO_WORD, NL),
                                 RULE(LINE_ENDS),  RULE(SPACES),        RULE(ANY_SPACES)};
static const stage seed_coder = {
    CONTRACTIONS_ANY, LED_RUN(NO_LEAD, L), ONE_OF(N),       LED_RUN(SP, NOT(WS | NL | L | N)),
    RULE(LINE_ENDS),  RULE(SPACES),        RULE(ANY_SPACES)};
static const stage exaone_moe = {
    CONTRACTIONS_ANY,
    {.kind = SPACED_WORDS, .pre = NO_LEAD},
    ONE_OF(N),
    {.kind = RUN, .min = 1, .max = MANY, .tail_max = 1, .pre = SP, .body = NO_WORD, .tail = NL | RL_CP_SLASH},
    RULE(LINE_ENDS),
    RULE(SPACES),
    RULE(ANY_SPACES)};
static const stage tekken = {{.kind = CASED_WORD, .pre = NO_LEAD},
                             ONE_OF(N),
                             PUNCTUATION(NO_WORD, NL | RL_CP_SLASH),
                             RULE(LINE_ENDS),
                             RULE(SPACES),
                             RULE(ANY_SPACES)};
static const stage gpt4o = {{.kind = CASED_WORD, .flags = SUFFIX, .pre = NO_LEAD},
                            UP_TO_3(N),
                            PUNCTUATION(NO_WORD, NL | RL_CP_SLASH),
                            RULE(LINE_ENDS),
                            RULE(SPACES),
                            RULE(ANY_SPACES)};
static const stage deepseek_words = {ASCII_PUNCT_WORD,       LED_RUN(NOT(NL | L | P | S), L | M),
                                     PUNCTUATION(P | S, NL), RULE(LINE_ENDS),
                                     RULE(SPACES),           RULE(ANY_SPACES)};
static const stage spark_words = {ASCII_PUNCT_WORD,   LED_RUN(NOT(NL | L | P | S), L | M),
                                  LED_RUN(SP, P | S), ONE_OF(NL),
                                  RULE(SPACES),       RULE(ANY_SPACES)};
static const stage bloom = {LED_RUN(SP, NOT(WS | RL_CP_SENTENCE))};
static const stage digit = {ONE_OF(N)};
static const stage digits = {RUN_OF(N)};
static const stage digits_3 = {UP_TO_3(N)};
static const stage ascii_digits_3 = {{.kind = RUN, .min = 3, .max = 3, .body = RL_CP_ASCII_DIGIT}};
static const stage digits_right_3 = {RULE(DIGITS_BY_THREE)};
static const stage digits_right_3_word_end = {{.kind = DIGITS_BY_THREE, .flags = WORD_END}};
static const stage line_end = {ONE_OF(NL)};
static const stage lines = {RUN_OF(NOT(RL_CP_LF)), RUN_OF(RL_CP_LF)};
static const stage spaces_at_end = {RULE(SPACES_AT_END)};
static const stage cased = {LED_RUN(WS, RL_CP_CASED)};
static const stage wide_punct = {LED_RUN(WS, RL_CP_WIDE_PUNCT)};
static const stage letters = {LED_RUN(WS, L)};
static const stage punct = {LED_RUN(WS, P)};
static const stage cjk = {RUN_OF(RL_CP_CJK)};
static const stage han_kana = {RUN_OF(RL_CP_HAN_KANA)};
static const stage falcon_punct = {RUN_OF(P | RL_CP_MATH | RL_CP_BACKTICK)};
static const stage default_punct = {RUN_OF(P | RL_CP_MATH)};

// ---- the table: a pre-tokenizer is a row ----------------------------------------------------------------------

static const rl_pre table[] = {
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
      "mellum", "modern-bert", "jina-v2-es"},
     false,
     {&gpt2}},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     false,
     {&digit, &gpt2}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}, true, {&llama3}},
    {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, false, {&llama3}},
    {{"minicpm5"}, true, {&digits_3, &any_digits}},
    {{"jais-2"}, false, {&jais2}},
    {{"qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "solar-open", "grok-2", "kormo", "f2llmv2",
      "bailingmoe", "bailingmoe2", "llada-moe"},
     false,
     {&qwen2}},
    {{"qwen35"}, false, {&qwen35}},
    {{"laguna"}, false, {&lines, &qwen2}},
    {{"ufakzeka"}, false, {&no_contractions}},
    {{"seed-coder"}, false, {&seed_coder}},
    {{"exaone-moe"}, false, {&exaone_moe}},
    {{"tekken"}, true, {&tekken}},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, false, {&gpt4o}},
    {{"tiny_aya", "cohere2moe"}, false, {&digits_right_3_word_end, &gpt4o}},
    {{"deepseek-llm"}, false, {&line_end, &cased, &wide_punct, &spaces_at_end, &cjk, &digit}},
    {{"deepseek-coder"}, false, {&line_end, &letters, &punct, &cjk, &digit}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"}, false, {&digits_3, &han_kana, &deepseek_words}},
    {{"spark2_5"}, false, {&digits_3, &han_kana, &spark_words, &digit}},
    {{"falcon"}, false, {&falcon_punct, &gpt2, &ascii_digits_3}},
    {{"bloom", "poro-chat", "gpt3-finnish"}, false, {&bloom}},
    {{"viking"}, false, {&bloom, &digit}},
    {{"superbpe"}, false, {&digits, &digits_right_3}},
    {{"default"}, false, {&default_punct, &gpt2, &digits, &ascii_digits_3}},
};
#define N_ROWS (sizeof table / sizeof *table)

const rl_pre *rl_pre_find(const char *name, size_t len) {
    for (size_t r = 0; r < N_ROWS; r++)
        for (size_t i = 0; i < MAX_NAMES && table[r].names[i]; i++)
            if (strlen(table[r].names[i]) == len && memcmp(table[r].names[i], name, len) == 0) return &table[r];
    return NULL;
}

bool rl_pre_ignores_merges(const rl_pre *pre) {
    return pre->ignore_merges;
}

const char *rl_pre_name(size_t i) {
    for (size_t r = 0; r < N_ROWS; r++)
        for (size_t k = 0; k < MAX_NAMES && table[r].names[k]; k++)
            if (i-- == 0) return table[r].names[k];
    return NULL;
}

// ---- matching -------------------------------------------------------------------------------------------------

/// The mask of the character at p and its length; at the end the length is 0 and the mask belongs to no set.
static inline uint32_t look(const uint8_t *p, const uint8_t *end, size_t *len) {
    if (p >= end) {
        *len = 0;
        return 0;
    }
    if (*p < 0x80) {
        *len = 1;
        return rl_cp_ascii[*p];
    }
    uint32_t cp;
    *len = rl_utf8_read(p, end, &cp);
    return rl_cp_mask(cp);
}

static inline bool in(uint32_t mask, uint32_t set) {
    return mask && ((mask & set & ~NEGATED) != 0) != (set >> 31 != 0);
}

static const uint8_t *skip(const uint8_t *p, const uint8_t *end, uint32_t set, size_t max, size_t *count) {
    size_t n = 0, len;
    while (n < max && in(look(p, end, &len), set)) p += len, n++;
    if (count) *count = n;
    return p;
}

static size_t match_run(const rule *r, const uint8_t *p, const uint8_t *end) {
    size_t len, n = 0;
    size_t max = r->max == MANY ? SIZE_MAX : r->max;
    uint32_t first = look(p, end, &len);
    const uint8_t *q = p;
    if (r->pre && in(first, r->pre)) q = skip(p + len, end, r->body, max, &n);
    if (n < r->min) {
        if (r->flags & NEEDS_PRE || !in(first, r->body)) return 0;
        q = skip(p, end, r->body, max, &n);
        if (n < r->min) return 0;
    }
    if (r->tail) q = skip(q, end, r->tail, r->tail_max == MANY ? SIZE_MAX : r->tail_max, NULL);
    return (size_t)(q - p);
}

/// Reads one letter of a contraction in lower case. Regex engines fold U+017F, the long s, to s as well.
static size_t letter(const uint8_t *p, const uint8_t *end, bool any_case, char *out) {
    if (p >= end) return 0;
    *out = (char)*p;
    if (any_case && *p >= 'A' && *p <= 'Z') *out = (char)(*p | 0x20);
    if (any_case && end - p >= 2 && p[0] == 0xC5 && p[1] == 0xBF) {
        *out = 's';
        return 2;
    }
    return 1;
}

static size_t match_contraction(const uint8_t *p, const uint8_t *end, bool any_case) {
    char a = 0, b = 0;
    if (p >= end || *p != '\'') return 0;
    size_t la = letter(p + 1, end, any_case, &a);
    if (!la) return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1 + la;
    size_t lb = letter(p + 1 + la, end, any_case, &b);
    if (lb && ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))) return 1 + la + lb;
    return 0;
}

// Capitals then small letters, where caseless letters and marks count as both. The first form needs a small (or
// caseless) letter at its end, the second takes capitals alone; both try with the leading character first.
#define CAPITAL (RL_CP_UPPER | RL_CP_CASELESS | M)
#define SMALL (RL_CP_LOWER | RL_CP_CASELESS | M)

static const uint8_t *capitals_then_small(const uint8_t *p, const uint8_t *end) {
    const uint8_t *both = NULL; // end of the last character that counts as both
    size_t len;
    uint32_t mask;
    while (in(mask = look(p, end, &len), CAPITAL)) {
        p += len;
        if (mask & SMALL) both = p;
    }
    if (in(mask, SMALL)) return skip(p, end, SMALL, SIZE_MAX, NULL);
    return both;
}

static size_t match_cased_word(const rule *r, const uint8_t *p, const uint8_t *end) {
    size_t len, n;
    const uint8_t *q = NULL;
    uint32_t first = look(p, end, &len);
    bool lead = in(first, r->pre);
    if (lead) q = capitals_then_small(p + len, end);
    if (!q && in(first, CAPITAL | SMALL)) q = capitals_then_small(p, end);
    if (!q && lead) {
        q = skip(p + len, end, CAPITAL, SIZE_MAX, &n);
        if (!n) q = NULL;
    }
    if (!q && in(first, CAPITAL)) q = skip(p, end, CAPITAL, SIZE_MAX, NULL);
    if (!q) return 0;
    if (r->flags & SUFFIX) q += match_contraction(q, end, true);
    return (size_t)(q - p);
}

static size_t match_spaced_words(const rule *r, const uint8_t *p, const uint8_t *end) {
    size_t len;
    const uint8_t *q = p;
    uint32_t first = look(p, end, &len);
    if (!in(first, L)) {
        size_t next;
        if (!in(first, r->pre) || !in(look(p + len, end, &next), L)) return 0;
        q += len;
    }
    for (;;) {
        uint32_t mask = look(q, end, &len);
        if (in(mask, L)) {
            q = skip(q + len, end, M, SIZE_MAX, NULL);
        } else if (in(mask, SP)) {
            size_t next;
            if (!in(look(q + 1, end, &next), L)) break;
            q++;
        } else {
            break;
        }
    }
    return (size_t)(q - p);
}

// What a stage knows of the run it is in, so that no run is measured again at each of its characters.
typedef struct memo {
    const uint8_t *barren; // before this no match of LINE_ENDS, SPACES_AT_END or DIGITS_BY_THREE begins
    size_t digits;         // left in the run of digits
} memo;

static size_t match_white(const rule *r, const uint8_t *p, const uint8_t *end, memo *seen) {
    const uint8_t *q = p, *last = p, *after_line = p;
    if ((r->kind == LINE_ENDS || r->kind == SPACES_AT_END) && p < seen->barren) return 0;
    size_t len;
    uint32_t mask;
    while (in(mask = look(q, end, &len), WS)) {
        last = q;
        q += len;
        if (mask & NL) after_line = q;
    }
    switch (r->kind) {
    case LINE_ENDS:
        if (after_line == p) seen->barren = q;
        return (size_t)(after_line - p);
    case SPACES: // one is left for the word that follows, and one alone is no match
        return (size_t)((q == end ? q : last) - p);
    case SPACES_AT_END:
        if (q != end) seen->barren = q;
        return q == end ? (size_t)(q - p) : 0;
    default:
        return (size_t)(q - p);
    }
}

static size_t match_spaces_halving(const uint8_t *p, const uint8_t *end) {
    size_t n, len;
    // 514 is enough to know whether white space follows the largest power.
    const uint8_t *all = skip(p, end, WS, 514, &n);
    if (!n) return 0;
    bool at_end = all == end;
    size_t take = 1;
    for (size_t k = 512; k >= 2; k /= 2)
        if (n > k || (n == k && at_end)) {
            take = k;
            break;
        }
    const uint8_t *q = p;
    for (size_t i = 0; i < take; i++) {
        look(q, end, &len);
        q += len;
    }
    return (size_t)(q - p);
}

#define CUT SIZE_MAX // no match, but a word begins here

/// A cut where what is left of the run is a multiple of three. With WORD_END a match of up to three digits, so that
/// such a multiple is left, but the run must end a word.
static size_t match_digits_by_three(const rule *r, const uint8_t *p, const uint8_t *end, memo *seen) {
    size_t len;
    if (p < seen->barren || !in(look(p, end, &len), RL_CP_DECIMAL)) return 0;
    if (!seen->digits) {
        const uint8_t *q = skip(p, end, RL_CP_DECIMAL, SIZE_MAX, &seen->digits);
        if (r->flags & WORD_END && (in(look(q, end, &len), L | M | N) || (q < end && *q == '_'))) {
            seen->digits = 0;
            seen->barren = q;
            return 0;
        }
    }
    size_t take = seen->digits % 3;
    if (!(r->flags & WORD_END)) {
        seen->digits--;
        return take ? 0 : CUT;
    }
    if (!take) take = 3;
    seen->digits -= take;
    return (size_t)(skip(p, end, RL_CP_DECIMAL, take, NULL) - p);
}

static size_t match(const rule *r, const uint8_t *p, const uint8_t *end, memo *seen) {
    switch (r->kind) {
    case RUN:
        return match_run(r, p, end);
    case CONTRACTION:
        return *p == '\'' ? match_contraction(p, end, r->flags & ANY_CASE) : 0;
    case CASED_WORD:
        return match_cased_word(r, p, end);
    case SPACED_WORDS:
        return match_spaced_words(r, p, end);
    case SPACES_HALVING:
        return match_spaces_halving(p, end);
    case DIGITS_BY_THREE:
        return match_digits_by_three(r, p, end, seen);
    default:
        return match_white(r, p, end, seen);
    }
}

static bool split(const stage *const *stages, size_t left, const uint8_t *p, const uint8_t *end, rl_word_fn fn,
                  void *arg) {
    if (p == end) return true;
    if (!left || !*stages) return fn(arg, p, (size_t)(end - p));
    const uint8_t *gap = p;
    memo seen = {p, 0};
    while (p < end) {
        size_t n = 0;
        for (const rule *r = **stages; r->kind != END && !n; r++) n = match(r, p, end, &seen);
        if (n == CUT) {
            if (!split(stages + 1, left - 1, gap, p, fn, arg)) return false;
            gap = p;
        }
        if (!n || n == CUT) {
            look(p, end, &n);
            p += n;
            continue;
        }
        if (!split(stages + 1, left - 1, gap, p, fn, arg)) return false;
        if (!split(stages + 1, left - 1, p, p + n, fn, arg)) return false;
        gap = p += n;
    }
    return split(stages + 1, left - 1, gap, end, fn, arg);
}

bool rl_pre_split(const rl_pre *pre, const uint8_t *text, size_t n, rl_word_fn fn, void *arg) {
    return split(pre->stages, MAX_STAGES, text, text + n, fn, arg);
}
