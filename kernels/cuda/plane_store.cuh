// SPDX-License-Identifier: Apache-2.0
// Planes from where they were encoded into the chunk that travels. One block a plane, 16 bytes a
// thread. Moves twice the planes' bytes.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/plane_store.h"

namespace lynx::cuda {

struct PlaneStoreArgs {
  Global<const PlaneMove> moves;  // [gridDim.x]
};

inline constexpr int kPlaneStoreThreads = 256;

// The first `bytes` of a word, zeros behind them.
__device__ inline uint32_t KeepBytes(uint32_t word, int bytes) {
  if (bytes >= 4) return word;
  return bytes <= 0 ? 0 : word & ((1u << bytes * 8) - 1);
}

// budget: PlaneStoreKernel registers 32 shared 0 threads 256
__global__ void __launch_bounds__(kPlaneStoreThreads) PlaneStoreKernel(PlaneStoreArgs args) {
  const PlaneMove move = args.moves[blockIdx.x];
  const Global<const uint4> from = Cast<const uint4>(Global<const std::byte>(move.from));
  const Global<uint4> to = Cast<uint4>(Global<std::byte>(move.to));
  const uint32_t count = (move.bytes + 15) / 16;
  for (uint32_t i = threadIdx.x; i < count; i += kPlaneStoreThreads) {
    uint4 vector = from[i];
    const int left = static_cast<int>(move.bytes - i * 16);
    vector.x = KeepBytes(vector.x, left);
    vector.y = KeepBytes(vector.y, left - 4);
    vector.z = KeepBytes(vector.z, left - 8);
    vector.w = KeepBytes(vector.w, left - 12);
    to[i] = vector;
  }
}

}  // namespace lynx::cuda
