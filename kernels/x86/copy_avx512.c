// SPDX-License-Identifier: Apache-2.0
// Copying with 64-byte loads and stores.
#ifndef __AVX512F__
#error "compile this file with the flags of its tier"
#endif
#include <immintrin.h>
#include <stdint.h>

#include "kernels/api.h"

typedef __m512i vi;
enum { VB = 64 };
static inline vi c_load(const uint8_t *p) {
    return _mm512_loadu_si512((const __m512i *)(const void *)p);
}
static inline void c_store(uint8_t *p, vi v) {
    _mm512_store_si512((__m512i *)(void *)p, v);
}
static inline void c_stream(uint8_t *p, vi v) {
    _mm512_stream_si512((__m512i *)(void *)p, v);
}
static inline void c_fence(void) {
    _mm_sfence();
}

#include "kernels/copy_body.h"

RL_COPY_DEFINE(avx512)
