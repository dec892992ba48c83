// SPDX-License-Identifier: Apache-2.0
// Copying with 32-byte loads and stores.
#ifndef __AVX2__
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "kernels/api.h"

typedef __m256i vi;
enum { VB = 32 };
static inline vi c_load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline void c_store(uint8_t *p, vi v) {
    _mm256_store_si256((__m256i *)(void *)p, v);
}
static inline void c_stream(uint8_t *p, vi v) {
    _mm256_stream_si256((__m256i *)(void *)p, v);
}
static inline void c_fence(void) {
    _mm_sfence();
}

#include "kernels/copy_body.h"

RL_COPY_DEFINE(avx2)
