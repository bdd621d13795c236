// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace lynx::cpu {
namespace {

constexpr size_t kRunBytes = size_t{256} << 20;  // of addresses; memory comes with the first write
constexpr size_t kLargePage = size_t{2} << 20;

constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Aligned to a large page.
std::shared_ptr<std::byte> MapRun(size_t size) {
  const size_t mapped = size + kLargePage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin =
      reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(memory), kLargePage));
  madvise(begin, size, MADV_HUGEPAGE);
  return {begin, [memory, mapped](std::byte*) { munmap(memory, mapped); }};
}

}  // namespace

std::shared_ptr<std::byte> WeightMemory::Take(size_t bytes) {
  bytes = RoundUp(bytes, 64);
  if (run_ == nullptr || bytes > size_ - used_) {
    size_ = std::max(kRunBytes, RoundUp(bytes, kLargePage));
    used_ = 0;
    run_ = MapRun(size_);
    if (run_ == nullptr) return nullptr;
  }
  std::shared_ptr<std::byte> memory(run_, run_.get() + used_);
  used_ += bytes;
  return memory;
}

}  // namespace lynx::cpu
