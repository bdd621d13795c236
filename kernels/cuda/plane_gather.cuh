// SPDX-License-Identifier: Apache-2.0
// Planes out of their fixed rooms into one dense string. One block a plane: it adds up what lies
// before its own (a few hundred numbers at most), then copies 16 bytes a thread. Moves twice the
// planes' bytes; when the string is in host memory, the half that is stored crosses the bus.
#pragma once

#include "kernels/cuda/device.cuh"
#include "lynx/plane_format.h"

namespace lynx::cuda {

struct PlaneGatherArgs {
  Global<const std::byte> from;
  int64_t page_stride = 0;
  int64_t offset[kNumPlanes] = {};
  Global<const uint32_t> plane_bytes;  // [gridDim.x]
  Global<std::byte> to;
};

inline constexpr int kPlaneGatherThreads = 256;

// budget: PlaneGatherKernel registers 40 shared 16 threads 256
__global__ void __launch_bounds__(kPlaneGatherThreads) PlaneGatherKernel(PlaneGatherArgs args) {
  LYNX_SHARED(uint32_t, vectors_before, 1);
  const int plane = static_cast<int>(blockIdx.x);
  const auto vectors = [&](int p) -> uint32_t {
    const uint32_t bytes = args.plane_bytes[p];
    return (bytes + 15) / 16;
  };
  if (threadIdx.x < kWarpSize) {
    uint32_t sum = 0;
    for (int p = static_cast<int>(threadIdx.x); p < plane; p += kWarpSize) sum += vectors(p);
    for (int d = kWarpSize / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kFullMask, sum, d);
    if (threadIdx.x == 0) vectors_before[0] = sum;
  }
  __syncthreads();
  const uint32_t begin = vectors_before[0];
  const uint32_t count = vectors(plane);
  const Global<const uint4> from = Cast<const uint4>(
      args.from + plane / kNumPlanes * args.page_stride + args.offset[plane % kNumPlanes]);
  const Global<uint4> to = Cast<uint4>(args.to);
  for (uint32_t i = threadIdx.x; i < count; i += kPlaneGatherThreads) {
    const uint4 vector = from[i];
    to[begin + i] = vector;
  }
}

}  // namespace lynx::cuda
