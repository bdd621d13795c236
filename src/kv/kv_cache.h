// SPDX-License-Identifier: Apache-2.0
// The memory of the KV pool.
#pragma once

#include <memory>

#include "lynx/kv_layout.h"
#include "lynx/status.h"

namespace lynx {

// Owns one mapping of num_blocks * block_bytes, aligned to a page and all zeros; the kernel gives
// memory to a block when it is first written. Lives as long as the daemon.
class KvCache {
 public:
  // kResourceExhausted when the address space cannot be mapped.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const KvLayout& layout, int num_blocks);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvPoolView& view() const { return view_; }
  size_t bytes() const { return bytes_; }

 private:
  KvCache(const KvPoolView& view, size_t bytes) : view_(view), bytes_(bytes) {}

  KvPoolView view_;
  size_t bytes_;
};

}  // namespace lynx
