// SPDX-License-Identifier: Apache-2.0
// KV of a few sequences on the device, as tiles of a pool and as planes, for cuda_kernel_bench.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "bench/cuda_bench.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/plane_attention.h"
#include "kernels/cuda/plane_decode.h"
#include "kernels/cuda/plane_encode.h"
#include "kernels/cuda/plane_gather.h"
#include "kernels/cuda/plane_store.h"
#include "lynx/kv_layout.h"

namespace lynx::cuda {

// One layer of num_sequences contexts of equal length, in blocks that lie anywhere.
class KvPool {
 public:
  KvPool(int num_sequences, int context, int num_kv_heads, int head_dim)
      : context(context),
        layout{.num_layers = 1, .num_kv_heads = num_kv_heads, .head_dim = head_dim},
        blocks_per_sequence_((context + kBlockSize - 1) / kBlockSize),
        table_(size_t(num_sequences) * blocks_per_sequence_),
        memory_(RandomArray<Bf16>(table_.size() * layout.block_bytes() / sizeof(Bf16))) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(1));
  }

  const int context;
  const KvLayout layout;

  KvPoolView view() const {
    return {.base = reinterpret_cast<std::byte*>(memory_.data()),
            .layout = layout,
            .num_blocks = static_cast<int>(table_.size())};
  }
  const std::vector<BlockId>& table() const { return table_; }
  int num_sequences() const { return static_cast<int>(table_.size()) / blocks_per_sequence_; }
  // Of all sequences, keys and values.
  double bytes() const {
    return 2.0 * sizeof(Bf16) * num_sequences() * context * layout.num_kv_heads * layout.head_dim;
  }
  // The last num_rows positions of each sequence.
  std::vector<RowGroup> Rows(int num_rows) const {
    std::vector<RowGroup> groups;
    for (int s = 0; s < num_sequences(); ++s) {
      groups.push_back({.row_begin = s * num_rows,
                        .num_rows = num_rows,
                        .position = context - num_rows,
                        .block_table = table_.data() + s * blocks_per_sequence_});
    }
    return groups;
  }

 private:
  const int blocks_per_sequence_;
  std::vector<BlockId> table_;
  Array<Bf16> memory_;
};

// The planes of a pool's pages [sequence][page][kind][head], each plane in a room of its own. A
// context is a multiple of a page.
class EncodedKv {
 public:
  EncodedKv(cudaStream_t stream, const KvPool& pool)
      : pages_(Describe(pool)), device_pages_(pages_), plane_bytes_(pages_.size() * kNumPlanes) {
    PlaneEncode(stream, device_pages(), size(), plane_bytes());
    sizes_ = plane_bytes_.Download();
  }

  int size() const { return static_cast<int>(pages_.size()); }
  const PlaneEncodePage* device_pages() const { return device_pages_.data(); }
  uint32_t* plane_bytes() const { return plane_bytes_.data(); }  // device, [pages][kNumPlanes]
  size_t page_room() const { return page_room_; }
  const std::array<size_t, kNumPlanes>& plane_offset() const { return plane_offset_; }
  const std::byte* rooms() const { return rooms_->data(); }
  // Of the first num_planes planes of the first num_pages pages.
  double PlaneBytes(int num_pages, int num_planes) const {
    double bytes = 0;
    for (int i = 0; i < num_pages * kNumPlanes; ++i) {
      if (i % kNumPlanes < num_planes) bytes += sizes_[i];
    }
    return bytes;
  }
  std::vector<PlaneDecodePage> DecodePages(int num_planes) const {
    std::vector<PlaneDecodePage> list;
    for (size_t i = 0; i < pages_.size(); ++i) {
      PlaneDecodePage page{.shape = pages_[i].shape, .num_planes = num_planes};
      std::copy_n(pages_[i].planes, num_planes, page.planes);
      std::copy_n(&sizes_[i * kNumPlanes], num_planes, page.plane_bytes);
      for (int b = 0; b < kPageBlocks; ++b) page.tiles[b] = const_cast<Bf16*>(pages_[i].tiles[b]);
      list.push_back(page);
    }
    return list;
  }
  // The first num_pages pages' planes, one behind the other.
  std::vector<PlaneMove> Moves(int num_pages, std::byte* to) const {
    std::vector<PlaneMove> moves;
    for (int i = 0; i < num_pages * kNumPlanes; ++i) {
      moves.push_back(
          {.from = pages_[i / kNumPlanes].planes[i % kNumPlanes], .to = to, .bytes = sizes_[i]});
      to += GatheredBytes(sizes_[i]);
    }
    return moves;
  }
  std::vector<PlanePage> AttentionPages(int num_planes) const {
    std::vector<PlanePage> list;
    for (size_t i = 0; i < pages_.size(); ++i) {
      PlanePage page{.plane0_bytes = sizes_[i * kNumPlanes],
                     .num_planes = static_cast<int16_t>(num_planes),
                     .num_tokens = kPageTokens};
      std::copy_n(pages_[i].planes, num_planes, page.planes);
      list.push_back(page);
    }
    return list;
  }

 private:
  std::vector<PlaneEncodePage> Describe(const KvPool& pool) {
    const PageShape shape{.head_dim = pool.layout.head_dim, .num_tokens = kPageTokens};
    for (int p = 0; p < kNumPlanes; ++p) {
      plane_offset_[p] = page_room_;
      page_room_ += GatheredBytes(PlaneLayout(shape).max_plane_bytes(p));
    }
    const int num_kv_heads = pool.layout.num_kv_heads;
    const int first_pages = static_cast<int>(pool.table().size()) / kPageBlocks;
    std::vector<PlaneEncodePage> list;
    for (int i = 0; i < first_pages * 2 * num_kv_heads; ++i) {
      PlaneEncodePage page{.shape = shape};
      page.shape.kind = i / num_kv_heads % 2 == 0 ? KvKind::kKey : KvKind::kValue;
      for (int b = 0; b < kPageBlocks; ++b) {
        const BlockId block = pool.table()[i / num_kv_heads / 2 * kPageBlocks + b];
        page.tiles[b] = reinterpret_cast<const Bf16*>(
            pool.view().tile(block, 0, page.shape.kind, i % num_kv_heads));
      }
      list.push_back(page);
    }
    rooms_ = std::make_unique<Array<std::byte>>(list.size() * page_room_);
    AbortOnError(cudaMemset(rooms_->data(), 0, rooms_->bytes()), "cudaMemset");
    for (size_t i = 0; i < list.size(); ++i) {
      for (int p = 0; p < kNumPlanes; ++p) {
        list[i].planes[p] = rooms_->data() + i * page_room_ + plane_offset_[p];
      }
    }
    AbortOnError(cudaDeviceSynchronize(), "cudaMemset");
    return list;
  }

  std::array<size_t, kNumPlanes> plane_offset_ = {};
  size_t page_room_ = 0;
  std::unique_ptr<Array<std::byte>> rooms_;
  std::vector<PlaneEncodePage> pages_;
  Array<PlaneEncodePage> device_pages_;
  Array<uint32_t> plane_bytes_;
  std::vector<uint32_t> sizes_;
};

// A plan and what it needs on the device.
class DevicePlan {
 public:
  DevicePlan(const KvPool& pool, int num_rows, int num_heads, AttentionPlanOptions options)
      : plan_(Make(pool, num_rows, num_heads, options)),
        memory_(plan_.bytes()),
        scratch_(plan_.num_slots() * pool.layout.num_kv_heads * (pool.layout.head_dim + 2)) {
    std::vector<std::byte> host(plan_.bytes());
    work_ = plan_.Pack(host.data(), memory_.data());
    memory_.Upload(host.data(), 0, host.size());
  }
  const AttentionWork& work() const { return work_; }
  float* scratch() const { return scratch_.data(); }

 private:
  static AttentionPlan Make(const KvPool& pool, int num_rows, int num_heads,
                            AttentionPlanOptions options) {
    AttentionPlan plan;
    plan.Make(pool.Rows(num_rows), num_heads, pool.layout.num_kv_heads, 0, options);
    return plan;
  }

  AttentionPlan plan_;
  Array<std::byte> memory_;
  Array<float> scratch_;
  AttentionWork work_;
};

}  // namespace lynx::cuda
