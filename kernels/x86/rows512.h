// SPDX-License-Identifier: Apache-2.0
// What rows in vectors of 512 bits share.
#ifndef RL_KERNELS_X86_ROWS512_H
#define RL_KERNELS_X86_ROWS512_H

#include "kernels/x86/rows256.h"

#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VNNI__)
#error "needs AVX-512 BW, DQ and VNNI"
#endif

// Scales of dwords whose first word is a half.
RL_INLINE __m512 halves(__m512i v) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}

// The two halves of a vector, added lane by lane: what keep_row takes.
RL_INLINE __m256 add_halves(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

// Four values from x, each to the lanes that name its place.
RL_INLINE __m512 spread_four(const float *x, __m512i place) {
    return _mm512_permutexvar_ps(place, _mm512_castps128_ps512(_mm_loadu_ps(x)));
}

#endif
