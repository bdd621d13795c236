// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace lynx {

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(std::span<Backend* const> backends,
                                                         const KvLayout& layout, int num_blocks) {
  LYNX_CHECK(!backends.empty() && layout.num_kv_heads % backends.size() == 0);
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
  bytes /= backends.size();
  std::vector<Buffer> memory;
  for (Backend* backend : backends) {
    memory.push_back(backend->Allocate(bytes));
    if (memory.back() != nullptr) continue;
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", backend->name(),
                                                     " cannot allocate ", bytes, " bytes (",
                                                     num_blocks, " blocks)"));
  }
  return std::unique_ptr<KvCache>(new KvCache(std::move(memory), layout, num_blocks));
}

KvCache::KvCache(std::vector<Buffer> memory, const KvLayout& layout, int num_blocks)
    : memory_(std::move(memory)), view_{.layout = layout, .num_blocks = num_blocks} {
  if (memory_.size() == 1) {
    view_.base = memory_[0].get();
    return;
  }
  for (const Buffer& part : memory_) shards_.push_back(part.get());
  view_.shards = shards_;
}

bool KvCache::PrepareMore(int num_blocks) {
  constexpr size_t kPart = size_t{2} << 20;  // a large page
  const size_t end = std::min(num_blocks, view_.num_blocks) * view_.layout.block_bytes();
  const size_t end_of_part = end / memory_.size();
  if (prepared_bytes_ >= end_of_part) return false;
  for (const Buffer& memory : memory_) {
    if (!memory.get_deleter().backend->is_host()) return false;
    // Kernels before Linux 5.14 refuse; then a block takes memory when it is written.
    madvise(memory.get() + prepared_bytes_, std::min(kPart, end_of_part - prepared_bytes_),
            MADV_POPULATE_WRITE);
  }
  prepared_bytes_ += kPart;
  return true;
}

void KvCache::CopyBlock(BlockId from, BlockId to) {
  const size_t bytes = view_.layout.block_bytes() / memory_.size();
  for (const Buffer& memory : memory_) {
    Backend& backend = *memory.get_deleter().backend;
    std::byte* const target = memory.get() + size_t(to) * bytes;
    const std::byte* const source = memory.get() + size_t(from) * bytes;
    if (backend.is_host()) {
      std::memcpy(target, source, bytes);
      continue;
    }
    staging_.resize(bytes);
    backend.Download(staging_.data(), source, bytes);
    backend.Upload(target, staging_.data(), bytes);
  }
}

}  // namespace lynx
