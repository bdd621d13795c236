// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lynx/kv_layout.h"

namespace lynx {

// Calls visit(layer, kind, head) for every tile of a block.
template <typename Visit>
void ForEachTile(const KvLayout& layout, Visit&& visit) {
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      for (int head = 0; head < layout.num_kv_heads; ++head) visit(layer, kind, head);
    }
  }
}

}  // namespace lynx
