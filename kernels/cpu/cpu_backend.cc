// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <cstring>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/available_memory.h"
#include "kernels/cpu/gemm_scratch.h"

namespace lynx::cpu {

std::unique_ptr<CpuBackend> CpuBackend::Create(const Options& options) {
  if (options.num_threads < 1 || !Supports(options.target)) return nullptr;
  Options resolved = options;
  if (resolved.target == Target::kAuto) resolved.target = Best();
  return std::unique_ptr<CpuBackend>(new CpuBackend(resolved));
}

CpuBackend::CpuBackend(const Options& options)
    : options_(options),
      pool_(options.num_threads),
      gemm_scratch_(std::make_unique<GemmScratch>()),
      attention_scratch_(std::make_unique<AttentionScratch>()) {}

CpuBackend::~CpuBackend() = default;

const char* CpuBackend::target() const { return TargetName(options_.target); }

// A mapping: all zeros, and the kernel gives memory to a page when it is first written.
Buffer CpuBackend::Allocate(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(memory), {.backend = this, .bytes = bytes});
}

void CpuBackend::Free(std::byte* memory, size_t bytes) { munmap(memory, bytes); }

int64_t CpuBackend::free_bytes(int num_sharers) const {
  constexpr int64_t kUnknown = int64_t{4} << 30;
  const int64_t available = AvailableMemory();
  return (available > 0 ? available : kUnknown) / num_sharers;
}

void CpuBackend::Upload(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void CpuBackend::Download(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void CpuBackend::ReadTiles(int, std::span<const std::byte* const> tiles, size_t tile_bytes,
                           std::byte* to) const {
  for (const std::byte* tile : tiles) {
    std::memcpy(to, tile, tile_bytes);
    to += tile_bytes;
  }
}

void CpuBackend::WriteTiles(std::span<std::byte* const> tiles, size_t tile_bytes,
                            const std::byte* from) const {
  for (std::byte* tile : tiles) {
    std::memcpy(tile, from, tile_bytes);
    from += tile_bytes;
  }
}

}  // namespace lynx::cpu
