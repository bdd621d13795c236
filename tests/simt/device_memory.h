// SPDX-License-Identifier: Apache-2.0
// The emulated device's memory: a range of addresses without access, whose bytes and shadow lie at
// fixed distances. Addresses are never used twice, so a stale pointer is always found out.
#pragma once

#include <cstddef>
#include <mutex>

#include "simt/checks.h"

namespace lynx::simt {

// Thread safe. Null when there is no room.
const Allocation* Allocate(int device, size_t bytes);
// Host memory that kernels may reach too (cudaHostAlloc).
const Allocation* AllocatePinned(size_t bytes);
// False when no live allocation begins there.
bool FreeAllocation(void* address, bool pinned);
void FreeAndTotalBytes(int device, size_t* free, size_t* total);

// Bytes of device (or host) memory as the host may reach them: [pointer, + bytes) and, for device
// memory, its shadow; throws Fault when the range leaves its allocation.
struct HostRange {
  std::byte* bytes = nullptr;
  uint8_t* shadow = nullptr;               // null: host memory, always written
  const Allocation* allocation = nullptr;  // null: pageable host memory
};
HostRange ReachRange(const void* pointer, size_t bytes, const char* call);

}  // namespace lynx::simt
