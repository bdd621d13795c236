// SPDX-License-Identifier: Apache-2.0
// Ranks that are GPUs of one process, each used by one thread, over NCCL.
//
// NCCL's own all-reduce adds in an order that depends on the count and the topology. Here it only
// moves bytes: every rank gets its slice of the elements from all others, adds in rank order and
// sends the sums back, 8 · (size - 1) / size bytes per element each way.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lynx/collective.h"

namespace lynx::cuda {

struct NcclRank {
  int device = 0;
  cudaStream_t stream = nullptr;  // of the device: what the rank's calls are queued on
};

// One member per entry, in rank order; max_count: the largest n. libnccl.so.2 is loaded when this
// is called. Kernels and copies of every device may then reach the others' memory: KV is encoded
// and decoded on rank 0's, whichever rank holds it. Empty on failure, with *error saying why, at
// most error_bytes long.
std::vector<std::unique_ptr<Collective>> MakeNcclCollectives(std::span<const NcclRank> ranks,
                                                             int64_t max_count, char* error,
                                                             size_t error_bytes);

}  // namespace lynx::cuda
