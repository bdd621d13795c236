// SPDX-License-Identifier: Apache-2.0
// Rounds one head's K and V of one token to the pool's type and stores them in their tiles.
#pragma once

#include "lynx/types.h"

namespace lynx::cpu {

// key_tile is [head_dim][64], value_tile [64][head_dim]; slot is the token's place in the block.
// BF16 rounds to nearest even; float is copied. Infinity becomes the largest finite number of its
// sign, NaN becomes 0.
void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, Bf16* key_tile,
                     Bf16* value_tile);
void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, float* key_tile,
                     float* value_tile);

}  // namespace lynx::cpu
