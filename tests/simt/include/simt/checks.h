// SPDX-License-Identifier: Apache-2.0
// What every access of an emulated thread goes through. One block runs at a time, its threads as
// fibers of one host thread, so the state here is plain globals.
//
// Global memory: each allocation has a shadow byte per byte that says whether it was ever written.
// Shared memory: each byte has a history of its last writer and its readers since the last barrier
// (Accesses below), which finds races, and reads of what the block never wrote.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

namespace lynx::simt {

using Site = std::source_location;

// Names the running thread and the place, and ends the launch by throwing Fault.
[[noreturn]] void ReportFault(const Site& site, const std::string& what);

// ---- global memory ------------------------------------------------------------------------------
struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;          // 0 once freed
  ptrdiff_t to_memory = 0;  // add to a device address to reach the bytes
  ptrdiff_t to_shadow = 0;  // … and their shadow; 0: all count as written
  size_t full_size = 0;
  int id = 0;
  int device = -1;  // none: pinned host memory, which every device reaches
  // Changes when kernels or copies write to pinned memory; not when the host does.
  mutable std::atomic<uint64_t> num_device_writes{0};

  bool is_pinned() const { return to_memory == 0; }
};

// The allocation that holds the address (or ends there), or null. Never destroyed.
const Allocation* FindAllocation(const void* address);

struct GlobalSpace {
  using Object = Allocation;
  static constexpr bool kFromRaw = true;
  static const Allocation* Find(const void* address) { return FindAllocation(address); }

  template <size_t kBytes>
  static void Read(const Allocation* a, uintptr_t at, size_t alignment, void* to, const Site& site);
  template <size_t kBytes>
  static void Write(const Allocation* a, uintptr_t at, size_t alignment, const void* from,
                    const Site& site);
  // For atomics: checked as read and write; returns the bytes.
  template <size_t kBytes>
  static std::byte* Modify(const Allocation* a, uintptr_t at, const Site& site);
};

// ---- shared memory ------------------------------------------------------------------------------
struct SharedArray {
  std::byte* base = nullptr;
  size_t size = 0;
  const char* name = "";
};

// An access is placed in time by two counters: `epoch` counts the barriers of the block (and never
// runs backwards, over all blocks), `warp_epoch` the __syncwarps of a warp since then. Two accesses
// of different threads are ordered if their epochs differ, or if one warp made both and its warp
// epochs differ.
struct Access {
  uint32_t epoch = 0;
  uint16_t warp_epoch = 0;
  uint16_t who = 0;  // a thread, or one of the marks below
};
inline constexpr uint16_t kSeveralOfWarp = 0x4000;  // | warp: threads of it, at this warp_epoch
inline constexpr uint16_t kSeveralWarps = 0x7fff;
inline constexpr uint16_t kAtomic = 0x8000;  // | any of these: written by atomics

struct ByteHistory {
  Access write;
  Access read;
};

inline constexpr int kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 << 10;

// The block that runs, as the thread that runs sees it.
struct RunningBlock {
  bool running = false;
  uint64_t devices = 0;  // bit d: memory of device d is reached
  uint16_t thread = 0;
  uint32_t first_epoch = 1;  // of this block: older writes are another block's
  uint32_t epoch = 1;
  uint16_t warp_epoch[kMaxThreads / 32] = {};
  int copies_under_way = 0;
  alignas(128) std::byte memory[kMaxSharedBytes] = {};
  ByteHistory history[kMaxSharedBytes] = {};
  uint8_t under_copy[kMaxSharedBytes] = {};  // 1: a CopyAsync16 is on its way here
};
extern RunningBlock block;

struct SharedSpace {
  using Object = SharedArray;
  static constexpr bool kFromRaw = false;

  template <size_t kBytes>
  static void Read(const SharedArray* a, uintptr_t at, size_t alignment, void* to,
                   const Site& site);
  template <size_t kBytes>
  static void Write(const SharedArray* a, uintptr_t at, size_t alignment, const void* from,
                    const Site& site);
  template <size_t kBytes>
  static std::byte* Modify(const SharedArray* a, uintptr_t at, const Site& site);
};

// The array declared at this site, the same for all threads of the block.
const SharedArray* DeclareShared(const char* name, size_t bytes, const Site& site);
const SharedArray* DynamicShared();

// ---- the slow halves: they decide, and report ---------------------------------------------------
[[noreturn]] void ReportGlobal(const Allocation* a, uintptr_t at, size_t bytes, size_t alignment,
                               const char* verb, const Site& site);
[[noreturn]] void ReportShared(const SharedArray* a, uintptr_t at, size_t bytes, size_t alignment,
                               const char* verb, const Site& site);
void CheckSharedRead(const SharedArray* a, size_t offset, size_t bytes, const Site& site);
void CheckSharedWrite(const SharedArray* a, size_t offset, size_t bytes, uint16_t who,
                      const Site& site);

// ---- the fast halves ----------------------------------------------------------------------------
inline bool Reaches(const Allocation* a) {
  return a->device < 0 || (block.devices >> a->device & 1) != 0;
}

inline void NoteWrite(const Allocation* a, uintptr_t at, size_t bytes) {
  if (a->to_shadow != 0) {
    std::memset(reinterpret_cast<void*>(at + a->to_shadow), 1, bytes);
  } else {
    a->num_device_writes.fetch_add(1, std::memory_order_relaxed);
  }
}

template <size_t kBytes>
inline bool Inside(uintptr_t base, size_t size, uintptr_t at, size_t alignment) {
  return size >= kBytes && at - base <= size - kBytes && at % alignment == 0 && block.running;
}

template <size_t kBytes>
inline bool Written(const void* shadow) {
  static constexpr auto kOnes = [] {
    struct Bytes {
      uint8_t b[kBytes];
    } ones = {};
    for (uint8_t& b : ones.b) b = 1;
    return ones;
  }();
  return std::memcmp(shadow, &kOnes, kBytes) == 0;
}

template <size_t kBytes>
void GlobalSpace::Read(const Allocation* a, uintptr_t at, size_t alignment, void* to,
                       const Site& site) {
  if (a == nullptr || !Inside<kBytes>(a->base, a->size, at, alignment) || !Reaches(a)) {
    ReportGlobal(a, at, kBytes, alignment, "read", site);
  }
  if (a->to_shadow != 0 && !Written<kBytes>(reinterpret_cast<const void*>(at + a->to_shadow))) {
    ReportGlobal(a, at, kBytes, 0, "read", site);
  }
  std::memcpy(to, reinterpret_cast<const void*>(at + a->to_memory), kBytes);
}

template <size_t kBytes>
void GlobalSpace::Write(const Allocation* a, uintptr_t at, size_t alignment, const void* from,
                        const Site& site) {
  if (a == nullptr || !Inside<kBytes>(a->base, a->size, at, alignment) || !Reaches(a)) {
    ReportGlobal(a, at, kBytes, alignment, "write", site);
  }
  std::memcpy(reinterpret_cast<void*>(at + a->to_memory), from, kBytes);
  NoteWrite(a, at, kBytes);
}

template <size_t kBytes>
std::byte* GlobalSpace::Modify(const Allocation* a, uintptr_t at, const Site& site) {
  std::byte old[kBytes];
  Read<kBytes>(a, at, kBytes, old, site);
  NoteWrite(a, at, kBytes);
  return reinterpret_cast<std::byte*>(at + a->to_memory);
}

template <size_t kBytes>
void SharedSpace::Read(const SharedArray* a, uintptr_t at, size_t alignment, void* to,
                       const Site& site) {
  if (a == nullptr ||
      !Inside<kBytes>(reinterpret_cast<uintptr_t>(a->base), a->size, at, alignment)) {
    ReportShared(a, at, kBytes, alignment, "read", site);
  }
  CheckSharedRead(a, reinterpret_cast<const std::byte*>(at) - block.memory, kBytes, site);
  std::memcpy(to, reinterpret_cast<const void*>(at), kBytes);
}

template <size_t kBytes>
void SharedSpace::Write(const SharedArray* a, uintptr_t at, size_t alignment, const void* from,
                        const Site& site) {
  if (a == nullptr ||
      !Inside<kBytes>(reinterpret_cast<uintptr_t>(a->base), a->size, at, alignment)) {
    ReportShared(a, at, kBytes, alignment, "write", site);
  }
  CheckSharedWrite(a, reinterpret_cast<const std::byte*>(at) - block.memory, kBytes, block.thread,
                   site);
  std::memcpy(reinterpret_cast<void*>(at), from, kBytes);
}

template <size_t kBytes>
std::byte* SharedSpace::Modify(const SharedArray* a, uintptr_t at, const Site& site) {
  if (a == nullptr || !Inside<kBytes>(reinterpret_cast<uintptr_t>(a->base), a->size, at, kBytes)) {
    ReportShared(a, at, kBytes, kBytes, "atomic", site);
  }
  CheckSharedWrite(a, reinterpret_cast<const std::byte*>(at) - block.memory, kBytes,
                   static_cast<uint16_t>(block.thread | kAtomic), site);
  return reinterpret_cast<std::byte*>(at);
}

}  // namespace lynx::simt
