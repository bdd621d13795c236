// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/launch.h"

namespace lynx::cuda {

// Whether a block of the calling thread's device can have so much shared memory.
inline bool HasSharedMemory(size_t bytes) {
  int device = 0, most = 0;
  AbortOnError(cudaGetDevice(&device), "cudaGetDevice");
  AbortOnError(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "shared memory of a block");
  return bytes <= static_cast<size_t>(most);
}

}  // namespace lynx::cuda
