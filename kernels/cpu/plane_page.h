// SPDX-License-Identifier: Apache-2.0
// Whole pages on top of the block kernels (plane_block.h). The walk over a page is the same for
// every instruction set.
#pragma once

#include "kernels/cpu/plane_block.h"
#include "kernels/cpu/target.h"
#include "lynx/plane_format.h"

namespace lynx::cpu {

// The block kernels of a target that this processor has.
const PlaneBlockKernels& PlaneBlockKernelsFor(Target target);

void EncodePlanes(const PlaneBlockKernels& kernels, const PlaneEncodeParams& params);
void DecodePlanes(const PlaneBlockKernels& kernels, const PlaneDecodeParams& params);

// Element index of (channel, token) inside a tile.
inline size_t TileIndex(KvKind kind, int head_dim, int channel, int token) {
  return kind == KvKind::kKey ? static_cast<size_t>(channel) * kBlockSize + token
                              : static_cast<size_t>(token) * head_dim + channel;
}

}  // namespace lynx::cpu
