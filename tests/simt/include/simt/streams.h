// SPDX-License-Identifier: Apache-2.0
// Streams whose operations run as late, or in as bad an order, as CUDA allows, and a record of when
// each ran.
//
// An operation (a kernel, a copy, a record of an event …) waits in its stream until the host waits
// for it: a synchronization, a copy that the host sees the end of, or cudaFree. Then what it needs
// runs: what was queued before it in its stream, and before every event that these wait for. So a
// dependency that nobody stated is a wrong value, a fault, or (a host that changes the source of a
// copy) a fault with that name. The thread that waits runs the operations; a fault of theirs leaves
// its call. A query runs one operation, so that polling ends.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lynx::simt {

enum class StreamOrder : uint8_t {
  kAtOnce,      // an operation runs before the call that queues it returns
  kNeeded,      // the default: only what the host waits for, and what that needs
  kOthersFirst  // first whatever does not need it, in all other streams
};
void SetStreamOrder(StreamOrder order);

enum class OperationKind : uint8_t {
  kKernel,
  kCopy,
  kSet,
  kRecord,
  kWait,
  kHostFunction,
  kMeeting
};

// Moments are counted in calls that queue and operations that run: whatever was queued before
// another operation ran and ran after it was waiting meanwhile.
struct StreamOperation {
  static constexpr uint64_t kNever = ~uint64_t{0};
  int stream = 0;  // StreamId
  OperationKind kind = OperationKind::kKernel;
  std::string name;  // the kernel's or the call's
  size_t bytes = 0;  // copies and sets
  cudaMemcpyKind direction = cudaMemcpyDefault;
  int waits_for = -1;  // waits: the event's stream
  uint64_t queued = 0, ran = kNever;

  bool WaitedWhile(const StreamOperation& other) const {
    return queued < other.ran && other.ran < ran;
  }
};
int StreamId(cudaStream_t stream);

// Records all operations of all streams that are queued from now on.
void StartTrace();
// In the order of the calls; ends the record.
std::vector<StreamOperation> StopTrace();

// ---- for what stands in for CUDA's libraries ----------------------------------------------------
// Queues an operation. `run` is called once, on whichever thread waits.
void Enqueue(cudaStream_t stream, StreamOperation description, std::function<void()> run);
// One that must meet operations of other streams: `run` answers false as long as one of them has
// not come to its turn, and is called again when another stream has moved.
void EnqueueMeeting(cudaStream_t stream, StreamOperation description, std::function<bool()> run);
// Calls `change` while no operation runs; what waits for a meeting looks again.
void ChangeBetweenOperations(const std::function<void()>& change);

}  // namespace lynx::simt
