// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace lynx {

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const KvLayout& layout, int num_blocks) {
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
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: cannot map ", bytes, " bytes (",
                                                     num_blocks, " blocks): ", strerror(errno)));
  }
  madvise(base, bytes, MADV_HUGEPAGE);
  const KvPoolView view{
      .base = static_cast<std::byte*>(base), .layout = layout, .num_blocks = num_blocks};
  return std::unique_ptr<KvCache>(new KvCache(view, bytes));
}

KvCache::~KvCache() { munmap(view_.base, bytes_); }

}  // namespace lynx
