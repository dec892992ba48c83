// SPDX-License-Identifier: Apache-2.0
// Prefetches of weights that are read once, in order. Two kinds: every line is asked for a little ahead, because
// hardware prefetchers stop at the end of a 4 KB page; and one line of each page is asked for much earlier, which
// begins the walk of the page table: under virtualization a walk takes longer than reading the page. One line only:
// more of them, so far from what is being read, break the order in which memory is fast.
//
// Kernels whose arithmetic takes about as long as the memory (rows512_q4_1.h) ask farther ahead and into the
// second-level cache: 1.05 to 1.1 times as fast, where those with less to do lose as much. There no line may be left
// out: with one of ten missing, rows come at half the speed.
#ifndef RL_KERNELS_X86_PREFETCH_H
#define RL_KERNELS_X86_PREFETCH_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/api.h"

#define RL_PREFETCH_AHEAD 3072
#define RL_PREFETCH_FAR (8 << 10)
#define RL_TOUCH_AHEAD (48 << 10)
#define RL_TOUCH_PAGE 4096

// The lines of `bytes` bytes, RL_PREFETCH_AHEAD on from w.
static inline __attribute__((always_inline)) void prefetch(const uint8_t *w, size_t bytes) {
    for (size_t o = 0; o < bytes; o += 64) _mm_prefetch((const char *)w + RL_PREFETCH_AHEAD + o, _MM_HINT_T0);
}

// What the spans of `bytes` bytes that come next in all strips take, `apart` bytes from each other, while the one at w
// has its turn: a part of it in each turn, one line of each strip after the other. In this order lines come at 0.96 to
// 0.985 of what a read does, where each strip asking for its own comes to 0.92 and no request at all to half.
static inline __attribute__((always_inline)) void prefetch_strips(const uint8_t *w, size_t apart, size_t turn,
                                                                  size_t bytes) {
    const size_t lines = (bytes + 63) / 64;
    const char *ahead = (const char *)w - turn * apart + RL_STRIPS_AHEAD;
    for (size_t i = turn * lines; i < (turn + 1) * lines; i++)
        _mm_prefetch(ahead + i % RL_ROWS_STRIPS * apart + i / RL_ROWS_STRIPS * 64, _MM_HINT_T0);
}

// Where the span ends that begins at column c, if 256 columns take `bytes` bytes: of strips before the others have
// their turn, with a short rest in the last one, else the whole row. Spans are eight lines or a little more; half and
// twice as many come to 0.975 to 0.99 of the speed, a quarter and four times as many to 0.88 to 0.93.
static inline __attribute__((always_inline)) size_t span_end(size_t apart, size_t cols, size_t c, size_t bytes) {
    const size_t step = bytes < 200 ? 1024 : bytes < 400 ? 512 : 256;
    return apart && cols - c >= step + step / 2 ? c + step : cols;
}

// The same RL_PREFETCH_FAR on from w, into the second-level cache.
static inline __attribute__((always_inline)) void prefetch_far(const uint8_t *w, size_t bytes) {
    for (size_t o = 0; o < bytes; o += 64) _mm_prefetch((const char *)w + RL_PREFETCH_FAR + o, _MM_HINT_T1);
}

// The first lines of the pages that begin RL_TOUCH_AHEAD on from this row. Called once per row, so that walks are
// spread evenly. Addresses behind the end of the weights do no harm.
static inline __attribute__((always_inline)) void touch_pages(const uint8_t *row, size_t row_bytes) {
    uintptr_t p = (uintptr_t)row + RL_TOUCH_AHEAD, end = p + row_bytes;
    for (p = (p + RL_TOUCH_PAGE - 1) / RL_TOUCH_PAGE * RL_TOUCH_PAGE; p < end; p += RL_TOUCH_PAGE)
        _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#endif
