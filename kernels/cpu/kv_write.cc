// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kv_write.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/row_split.h"

namespace lynx::cpu {
namespace {

// What is stored is finite (kv_layout.h says why): NaN becomes 0.
float Finite(float x, float largest) {
  return std::isnan(x) ? 0.0f : std::clamp(x, -largest, largest);
}
void Round(float x, Bf16& y) { y = ToBf16(Finite(x, 0x1.fep127f)); }
void Round(float x, float& y) { y = Finite(x, std::numeric_limits<float>::max()); }

template <typename T>
void WriteToken(const float* k, const float* v, int head_dim, int slot, T* key_tile,
                T* value_tile) {
  for (int c = 0; c < head_dim; ++c) Round(k[c], key_tile[c * kBlockSize + slot]);
  for (int c = 0; c < head_dim; ++c) Round(v[c], value_tile[slot * head_dim + c]);
}

// Writes the rows of a group that fall into its block number `block`, one KV head.
template <typename T>
void WriteBlock(const KvWriteParams& params, const RowGroup& group, int block, int head) {
  const KvLayout& layout = params.pool.layout;
  const int first = std::max(group.position, block * kBlockSize);
  const int last = std::min(group.position + group.num_rows, (block + 1) * kBlockSize);
  const auto tile = [&](KvKind kind) {
    return reinterpret_cast<T*>(
        params.pool.tile(group.block_table[block], params.layer, kind, head));
  };
  T* key_tile = tile(KvKind::kKey);
  T* value_tile = tile(KvKind::kValue);
  for (int position = first; position < last; ++position) {
    const size_t row = group.row_begin + position - group.position;
    const size_t offset = (row * layout.num_kv_heads + head) * layout.head_dim;
    WriteToken(params.k + offset, params.v + offset, layout.head_dim, position % kBlockSize,
               key_tile, value_tile);
  }
}

template <typename T>
void WriteGroup(const KvWriteParams& params, const RowGroup& group, ThreadPool& pool) {
  const KvLayout& layout = params.pool.layout;
  const int first_block = group.position / kBlockSize;
  const int num_blocks = (group.position + group.num_rows - 1) / kBlockSize - first_block + 1;
  const int64_t num_tiles = int64_t{num_blocks} * layout.num_kv_heads;
  const int64_t elements = int64_t{group.num_rows} * layout.num_kv_heads * layout.head_dim;
  SplitRows(pool, num_tiles, elements / num_tiles, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      WriteBlock<T>(params, group, first_block + static_cast<int>(i / layout.num_kv_heads),
                    static_cast<int>(i % layout.num_kv_heads));
    }
  });
}

}  // namespace

void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, Bf16* key_tile,
                     Bf16* value_tile) {
  WriteToken(k, v, head_dim, slot, key_tile, value_tile);
}

void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, float* key_tile,
                     float* value_tile) {
  WriteToken(k, v, head_dim, slot, key_tile, value_tile);
}

void CpuBackend::KvWrite(const KvWriteParams& params) {
  for (const RowGroup& group : params.groups) {
    if (group.num_rows == 0) continue;
    if (params.pool.layout.dtype == KvDtype::kBf16) {
      WriteGroup<Bf16>(params, group, pool_);
    } else {
      WriteGroup<float>(params, group, pool_);
    }
  }
}

}  // namespace lynx::cpu
