// SPDX-License-Identifier: Apache-2.0
#include "text/python_memory.h"

#include <malloc.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace lynx {
namespace {

constexpr int64_t kBudgetBytes = 256 << 20;
// After the first refusal, so that the MemoryError itself can be dealt with.
constexpr int64_t kReserveBytes = 32 << 20;
constexpr int64_t kUnlimited = INT64_MAX;

// CPython's allocators are process-wide functions; so is their account. Large blocks come from the
// raw domain, small objects from arenas: both are counted, small objects cost nothing extra.
PyMemAllocatorEx raw_allocator;
PyObjectArenaAllocator arena_allocator;
std::atomic<int64_t> bytes_in_use = 0;
std::atomic<int64_t> max_bytes = kUnlimited;
std::atomic<bool> has_refused = false;

// Only the thread with a budget is refused: others must be able to have a thread state made.
thread_local bool has_budget = false;

bool Refuses(size_t more) {
  if (!has_budget) return false;
  const int64_t room = max_bytes - bytes_in_use;
  if (room >= 0 && more <= static_cast<uint64_t>(room)) return false;
  if (!has_refused.exchange(true)) max_bytes += kReserveBytes;
  return true;
}

int64_t SizeOf(void* block) { return static_cast<int64_t>(malloc_usable_size(block)); }

void* CountedMalloc(void*, size_t size) {
  if (Refuses(size)) return nullptr;
  void* block = raw_allocator.malloc(raw_allocator.ctx, size);
  bytes_in_use += SizeOf(block);
  return block;
}

void* CountedCalloc(void*, size_t count, size_t size) {
  size_t total = 0;
  if (__builtin_mul_overflow(count, size, &total) || Refuses(total)) return nullptr;
  void* block = raw_allocator.calloc(raw_allocator.ctx, count, size);
  bytes_in_use += SizeOf(block);
  return block;
}

void* CountedRealloc(void*, void* old_block, size_t size) {
  const int64_t old_size = SizeOf(old_block);
  if (size > static_cast<size_t>(old_size) && Refuses(size - old_size)) return nullptr;
  void* block = raw_allocator.realloc(raw_allocator.ctx, old_block, size);
  if (block != nullptr) bytes_in_use += SizeOf(block) - old_size;
  return block;
}

void CountedFree(void*, void* block) {
  bytes_in_use -= SizeOf(block);
  raw_allocator.free(raw_allocator.ctx, block);
}

void* CountedArena(void*, size_t size) {
  if (Refuses(size)) return nullptr;
  void* arena = arena_allocator.alloc(arena_allocator.ctx, size);
  if (arena != nullptr) bytes_in_use += static_cast<int64_t>(size);
  return arena;
}

void FreeArena(void*, void* arena, size_t size) {
  bytes_in_use -= static_cast<int64_t>(size);
  arena_allocator.free(arena_allocator.ctx, arena, size);
}

}  // namespace

void LimitPythonMemory() {
  PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &raw_allocator);
  PyObject_GetArenaAllocator(&arena_allocator);
  PyMemAllocatorEx raw = {nullptr, CountedMalloc, CountedCalloc, CountedRealloc, CountedFree};
  PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &raw);
  PyObjectArenaAllocator arena = {nullptr, CountedArena, FreeArena};
  PyObject_SetArenaAllocator(&arena);
}

PythonMemoryBudget::PythonMemoryBudget() {
  has_budget = true;
  has_refused = false;
  max_bytes = bytes_in_use + kBudgetBytes;
}

PythonMemoryBudget::~PythonMemoryBudget() {
  has_budget = false;
  max_bytes = kUnlimited;
}

}  // namespace lynx
