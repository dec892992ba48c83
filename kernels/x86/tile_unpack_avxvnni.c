// SPDX-License-Identifier: Apache-2.0
// Tile unpack for AVX-VNNI: only the two types whose layout differs from AVX2's.
#if !defined(__AVXVNNI__)
#error "compile this file with the flags of its tier"
#endif
#include "kernels/x86/tile_unpack_256.h"

#define SIGNED_BIAS 1
#include "kernels/tile_unpack_body.h"

UNPACK_AS(q4_0, avxvnni)
UNPACK_AS(q5_0, avxvnni)
