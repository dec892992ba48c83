// SPDX-License-Identifier: Apache-2.0
// Codes, scales and mins into the bytes of a block. Computes nothing.
#ifndef RL_QUANT_BLOCKS_H
#define RL_QUANT_BLOCKS_H

#include "base/dtype.h"
#include "kernels/quant.h"

/// One block of 32 from lane `lane`: halves d and m (m where the type has one).
void rl_pack_block32(rl_type type, const rl_quant_codes codes, size_t lane, uint16_t d, uint16_t m, void *block);

/// One superblock from lanes lane0...; scale and min: one small integer per group.
void rl_pack_super(rl_type type, const rl_quant_codes codes, size_t lane0, uint16_t d, uint16_t dmin, const int *scale,
                   const int *min, void *block);

#endif
