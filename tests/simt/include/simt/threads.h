// SPDX-License-Identifier: Apache-2.0
// The threads of a block: who runs, barriers, and what the lanes of a warp exchange.
#pragma once

#include <cuda_runtime.h>

#include "simt/checks.h"

struct SimtIndex {
  unsigned x = 0, y = 0, z = 0;
};
// Set for the thread that runs.
extern SimtIndex threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace lynx::simt {

// What one lane shows the others in one warp instruction.
struct alignas(16) LaneValue {
  std::byte bytes[64];
};
inline int CurrentLane() { return block.thread % 32; }

// Waits until all 32 lanes have come to this same instruction, then returns what each brought.
// Valid until the thread's next warp instruction but one.
const LaneValue* ExchangeInWarp(const char* instruction, unsigned mask, const void* value,
                                size_t bytes, const Site& site);

template <typename T>
const LaneValue* ExchangeInWarp(const char* instruction, unsigned mask, const T& value,
                                const Site& site) {
  static_assert(sizeof(T) <= sizeof(LaneValue) && std::is_trivially_copyable_v<T>);
  return ExchangeInWarp(instruction, mask, &value, sizeof(T), site);
}

template <typename T>
T LaneAs(const LaneValue* lanes, int lane) {
  T value;
  std::memcpy(static_cast<void*>(&value), lanes[lane].bytes, sizeof(T));
  return value;
}

// After it, what any lane did to shared memory is ordered before what the warp does next.
void OrderWarp(unsigned mask, const Site& site);

struct BarrierVotes {
  int true_count = 0;
  int threads = 0;
};
// Waits until all threads of the block have come to this same barrier.
BarrierVotes WaitAtBarrier(const char* instruction, bool vote, const Site& site);

// ---- asynchronous copies of the running thread --------------------------------------------------
void StartCopy(const SharedArray* to_array, std::byte* to, const Allocation* from_allocation,
               uintptr_t from, const Site& site);
void CommitCopies();
void FinishCopies(int num_pending_commits, const Site& site);

}  // namespace lynx::simt
