// SPDX-License-Identifier: Apache-2.0
// y[i, :] = x[rows[i], :]. Moves 8 bytes per element.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct GatherRowsArgs {
  Global<const float> x;       // [.., dim]
  Global<const int32_t> rows;  // [gridDim.x]
  int dim = 0;
  Global<float> y;  // [gridDim.x, dim]
};

inline constexpr int kGatherRowsThreads = 256;

// budget: GatherRowsKernel registers 32 shared 0 threads 256
__global__ void __launch_bounds__(kGatherRowsThreads) GatherRowsKernel(GatherRowsArgs args) {
  const int i = static_cast<int>(blockIdx.y * kGatherRowsThreads + threadIdx.x);
  if (i >= args.dim) return;
  const int32_t row = args.rows[blockIdx.x];
  const float value = args.x[int64_t{row} * args.dim + i];
  args.y[int64_t{blockIdx.x} * args.dim + i] = value;
}

}  // namespace lynx::cuda
