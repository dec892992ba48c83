// SPDX-License-Identifier: Apache-2.0
// Tile unpack with AVX2. Q4_0 and Q5_0 become bytes of 5 bits with a min, which vpmaddubsw can sum further.
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with the flags of its tier"
#endif
#include "kernels/x86/tile_unpack_256.h"

#define SIGNED_BIAS 0
#include "kernels/tile_unpack_body.h"

ALL_TILE_UNPACKS(avx2)
