// SPDX-License-Identifier: Apache-2.0
// The memory of the KV pool.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lynx/backend.h"
#include "lynx/kv_layout.h"
#include "lynx/status.h"

namespace lynx {

// Owns num_blocks * block_bytes of memory, all zeros, in equal parts of the back-ends: each holds a
// run of the KV heads. On the CPU a block takes memory when it is first written, or prepared. Lives
// as long as the daemon; the back-ends outlive it.
class KvCache {
 public:
  // kResourceExhausted when a back-end has not so much memory. The number of KV heads is a multiple
  // of the number of back-ends.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(std::span<Backend* const> backends,
                                                         const KvLayout& layout, int num_blocks);
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Backend& backend, const KvLayout& layout,
                                                         int num_blocks) {
    Backend* const one[] = {&backend};
    return Create(one, layout, num_blocks);
  }

  const KvPoolView& view() const { return view_; }
  // Gives the first num_blocks blocks memory, some MiB at a call, without changing what they hold:
  // a step would wait for it, in a virtual machine that has never used it for milliseconds a MiB.
  // False when they all have it. One thread.
  bool PrepareMore(int num_blocks);
  // All that `from` holds, after what was queued. Others may read `from`.
  void CopyBlock(BlockId from, BlockId to);
  size_t bytes() const { return view_.num_blocks * view_.layout.block_bytes(); }

 private:
  KvCache(std::vector<Buffer> memory, const KvLayout& layout, int num_blocks);

  const std::vector<Buffer> memory_;  // [rank]
  std::vector<std::byte*> shards_;    // [rank], where there are several
  KvPoolView view_;
  size_t prepared_bytes_ = 0;       // of each part
  std::vector<std::byte> staging_;  // a block's part on its way between places of a device
};

}  // namespace lynx
