// SPDX-License-Identifier: Apache-2.0
// Rounds one head's K and V to the pool's type and stores them in their tiles.
#pragma once

#include <cstdint>

#include "lynx/types.h"

namespace lynx::cpu {

// One head's numbers of consecutive tokens of one block.
struct HeadRows {
  const float* k = nullptr;  // of the first token: [head_dim]
  const float* v = nullptr;
  int64_t stride = 0;  // from one token's to the next one's, elements
  int num_rows = 0;
  int head_dim = 0;
  int slot = 0;  // the first token's place in the block; slot + num_rows <= 64
};

// One token. key_tile is [head_dim][64], value_tile [64][head_dim]; slot is the token's place in
// the block. BF16 rounds to nearest even; float is copied. Infinity becomes the largest finite
// number of its sign, NaN becomes 0.
void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, Bf16* key_tile,
                     Bf16* value_tile);
void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, float* key_tile,
                     float* value_tile);

}  // namespace lynx::cpu
