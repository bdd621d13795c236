// SPDX-License-Identifier: Apache-2.0
// Elements of the tiles of a page (lynx/kv_layout.h).
#pragma once

#include "lynx/codec.h"

namespace lynx {

// Index of (channel, token) inside a tile.
constexpr size_t TileElement(KvKind kind, int head_dim, int channel, int token) {
  return kind == KvKind::kKey ? static_cast<size_t>(channel) * kBlockSize + token
                              : static_cast<size_t>(token) * head_dim + channel;
}

// Sets every slot of the page to +0.
inline void ClearPage(const PageShape& shape, const MutablePageTiles& tiles) {
  for (int t = 0; t < shape.num_tokens; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) {
      tiles[t / kBlockSize][TileElement(shape.kind, shape.head_dim, c, t % kBlockSize)] = Bf16{};
    }
  }
}

}  // namespace lynx
