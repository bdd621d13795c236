// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <utility>

namespace lynx {

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(Backend& backend, const KvLayout& layout,
                                                         int num_blocks) {
  if (num_blocks < 1 || layout.block_bytes() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV pool: ", num_blocks, " blocks of ", layout.block_bytes(), " bytes: both must be > 0"));
  }
  size_t bytes;
  if (__builtin_mul_overflow(layout.block_bytes(), static_cast<size_t>(num_blocks), &bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", num_blocks, " blocks of ",
                                                     layout.block_bytes(),
                                                     " bytes exceed the address space"));
  }
  Buffer memory = backend.Allocate(bytes);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", backend.name(),
                                                     " cannot allocate ", bytes, " bytes (",
                                                     num_blocks, " blocks)"));
  }
  return std::unique_ptr<KvCache>(new KvCache(std::move(memory), layout, num_blocks));
}

}  // namespace lynx
