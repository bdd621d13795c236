// SPDX-License-Identifier: Apache-2.0
// Where every number of the KV cache lies.
//
// The pool is an array of blocks; a block holds 64 consecutive tokens of one sequence for all
// layers, both kinds and all KV heads, as *tiles*:
//
//   pool   [num_blocks][num_layers][2 (key, value)][num_kv_heads] tile
//   tile   key:   [head_dim][64]   one row of 64 tokens per channel (after RoPE)
//          value: [64][head_dim]   one row of channels per token
//
// so that in both a vector of 16 lanes is 16 consecutive elements: tokens for keys, channels for
// values. Elements are BF16, the truth of the cache; `--compute f32` keeps float32 instead.
//
// With tensor parallelism every rank holds an equal run of the KV heads of every block, as a pool
// of just those heads in its own memory.
#pragma once

#include <cstddef>
#include <span>

#include "lynx/types.h"

namespace lynx {

enum class KvDtype : uint8_t { kBf16 = 0, kF32 = 1 };

struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  KvDtype dtype = KvDtype::kBf16;

  size_t element_bytes() const { return dtype == KvDtype::kBf16 ? 2 : 4; }
  size_t tile_elements() const { return size_t{kBlockSize} * head_dim; }
  size_t tile_bytes() const { return tile_elements() * element_bytes(); }
  size_t block_bytes() const { return tile_bytes() * num_kv_heads * 2 * num_layers; }
  // Byte offset of a tile inside its block.
  size_t tile_offset(int layer, KvKind kind, int head) const {
    return ((size_t(layer) * 2 + size_t(kind)) * num_kv_heads + head) * tile_bytes();
  }
  bool operator==(const KvLayout&) const = default;
};

// A view of the whole pool. The memory belongs to the KV cache (src/kv/kv_cache.h) and lives as
// long as the daemon. Every slot is a finite number at all times: slots never written hold zeros
// and KvWrite stores nothing else. Attention relies on that: slots that a row does not see, left by
// an earlier owner of the block, take part with weight 0.
struct KvPoolView {
  std::byte* base = nullptr;  // [num_blocks][block_bytes], 64-byte aligned; null with shards
  KvLayout layout;            // of all heads
  int num_blocks = 0;
  // Empty, or for each rank its part: [num_blocks][block_bytes / shards.size()].
  std::span<std::byte* const> shards = {};

  int num_shards() const { return shards.empty() ? 1 : static_cast<int>(shards.size()); }
  int heads_per_shard() const { return layout.num_kv_heads / num_shards(); }
  // The pool as rank `rank` sees it: its heads, counted from 0.
  KvPoolView shard(int rank) const {
    if (shards.empty()) return *this;
    KvPoolView part{shards[rank], layout, num_blocks};
    part.layout.num_kv_heads = heads_per_shard();
    return part;
  }
  std::byte* tile(BlockId block, int layer, KvKind kind, int head) const {
    if (!shards.empty()) {
      const int heads = heads_per_shard();
      return shard(head / heads).tile(block, layer, kind, head % heads);
    }
    return base + size_t(block) * layout.block_bytes() + layout.tile_offset(layer, kind, head);
  }
};

}  // namespace lynx
