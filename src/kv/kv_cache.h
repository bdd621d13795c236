// SPDX-License-Identifier: Apache-2.0
// The memory of the KV pool.
#pragma once

#include <memory>

#include "lynx/backend.h"
#include "lynx/kv_layout.h"
#include "lynx/status.h"

namespace lynx {

// Owns num_blocks * block_bytes of the back-end's memory, all zeros; on the CPU a block takes
// memory when it is first written. Lives as long as the daemon; the back-end outlives it.
class KvCache {
 public:
  // kResourceExhausted when the back-end has not so much memory.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Backend& backend, const KvLayout& layout,
                                                         int num_blocks);

  const KvPoolView& view() const { return view_; }
  size_t bytes() const { return memory_.get_deleter().bytes; }

 private:
  KvCache(Buffer memory, const KvLayout& layout, int num_blocks)
      : memory_(std::move(memory)),
        view_{.base = memory_.get(), .layout = layout, .num_blocks = num_blocks} {}

  const Buffer memory_;
  const KvPoolView view_;
};

}  // namespace lynx
