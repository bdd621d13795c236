// SPDX-License-Identifier: Apache-2.0
// A small KV pool for tests: sequences of random keys and values in scattered blocks, and every
// slot that belongs to no token full of large, finite garbage.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kv_write.h"
#include "lynx/kv_layout.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/kernels_cpu/supported_targets.h"

namespace lynx::cpu {

class PagedKv {
 public:
  PagedKv(const KvLayout& layout, int num_blocks, uint32_t seed = 1)
      : layout_(layout), free_(num_blocks), random_(seed) {
    const size_t bytes = layout.block_bytes() * num_blocks;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
    view_ = {.base = memory_.get(), .layout = layout, .num_blocks = num_blocks};
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random_);
    FillWithGarbage(seed);
  }

  const KvPoolView& view() const { return view_; }

  std::vector<BlockId> TakeBlocks(int num_tokens) {
    const int n = (num_tokens + kBlockSize - 1) / kBlockSize;
    std::vector<BlockId> table(free_.end() - n, free_.end());
    free_.resize(free_.size() - n);
    return table;
  }

  // Writes tokens 0 .. n-1 of a sequence in all layers; k and v are [n, num_kv_heads, head_dim].
  void Write(const std::vector<BlockId>& table, const std::vector<float>& k,
             const std::vector<float>& v) {
    const size_t row = size_t(layout_.num_kv_heads) * layout_.head_dim;
    for (size_t token = 0; token < k.size() / row; ++token) {
      for (int i = 0; i < layout_.num_layers * layout_.num_kv_heads; ++i) {
        const int layer = i / layout_.num_kv_heads, head = i % layout_.num_kv_heads;
        const size_t offset = token * row + size_t(head) * layout_.head_dim;
        WriteToken(table[token / kBlockSize], layer, head, token % kBlockSize, &k[offset],
                   &v[offset]);
      }
    }
  }

  // All elements of the pool become numbers of magnitude 1e4; call before Write.
  void FillWithGarbage(uint32_t seed) {
    std::mt19937 random(seed);
    const auto next = [&] { return static_cast<float>(int(random() % 20001) - 10000); };
    const size_t n = layout_.block_bytes() * view_.num_blocks / layout_.element_bytes();
    if (layout_.dtype == KvDtype::kBf16) {
      for (size_t i = 0; i < n; ++i) reinterpret_cast<Bf16*>(memory_.get())[i] = ToBf16(next());
    } else {
      for (size_t i = 0; i < n; ++i) reinterpret_cast<float*>(memory_.get())[i] = next();
    }
  }

  // The value of one element as float32.
  float At(BlockId block, int layer, KvKind kind, int head, size_t element) const {
    const std::byte* tile = view_.tile(block, layer, kind, head);
    if (layout_.dtype == KvDtype::kF32) return reinterpret_cast<const float*>(tile)[element];
    return ToFloat(reinterpret_cast<const Bf16*>(tile)[element]);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  template <typename T>
  void WriteAs(BlockId block, int layer, int head, int slot, const float* k, const float* v) {
    const auto tile = [&](KvKind kind) {
      return reinterpret_cast<T*>(view_.tile(block, layer, kind, head));
    };
    KvWriteTokenRef(k, v, layout_.head_dim, slot, tile(KvKind::kKey), tile(KvKind::kValue));
  }
  void WriteToken(BlockId block, int layer, int head, int slot, const float* k, const float* v) {
    if (layout_.dtype == KvDtype::kBf16) {
      WriteAs<Bf16>(block, layer, head, slot, k, v);
    } else {
      WriteAs<float>(block, layer, head, slot, k, v);
    }
  }

  KvLayout layout_;
  std::vector<BlockId> free_;
  std::mt19937 random_;
  std::unique_ptr<std::byte, Free> memory_;
  KvPoolView view_;
};

}  // namespace lynx::cpu
