// SPDX-License-Identifier: Apache-2.0
// HIDE for x86, and the loops of every architecture.
#define HIDE(x) __asm__ volatile("" : "+v"(x))

#include "kernels/peak_body.h"
