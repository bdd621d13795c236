// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lynx::cuda {

// Device pointers, aligned to 16 bytes; both have room for whole vectors of 16 bytes.
struct PlaneMove {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint32_t bytes = 0;
};

// Copies planes, each filled up to 16 bytes with zeros. moves: device, [num_moves].
void StorePlanes(cudaStream_t stream, const PlaneMove* moves, int num_moves);

}  // namespace lynx::cuda
