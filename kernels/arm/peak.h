// SPDX-License-Identifier: Apache-2.0
// HIDE for ARM, and the loops of every architecture.
#include <arm_neon.h>

#define CHAINS 12
#define HIDE(x) __asm__ volatile("" : "+w"(x))

#include "kernels/peak_body.h"
