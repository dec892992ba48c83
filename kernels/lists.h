// SPDX-License-Identifier: Apache-2.0
// All lists of kernels, in the order of the table. Included twice by registry.c, hence no guard.
#include "kernels/list_dequant.h"
#include "kernels/list_act.h"
#include "kernels/list_rows.h"
#include "kernels/list_attn.h"
#include "kernels/list_vec.h"
#include "kernels/list_tile.h"
#include "kernels/list_read.h"
#include "kernels/list_quant.h"
#include "kernels/list_copy.h"
