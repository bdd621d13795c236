// SPDX-License-Identifier: Apache-2.0
// data[i] = ((x0[i] + x1[i]) + x2[i]) + … in rank order, where x_rank is data itself and the others
// lie in parts. One element a thread; moves 4 · (size + 1) bytes per element.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct RankSumArgs {
  Global<float> data;         // [n]
  Global<const float> parts;  // [size][stride]; row `rank` is not read
  int64_t n = 0;
  int64_t stride = 0;
  int rank = 0;
  int size = 0;
};

inline constexpr int kRankSumThreads = 256;

// budget: RankSumKernel registers 32 shared 0 threads 256
__global__ void __launch_bounds__(kRankSumThreads) RankSumKernel(RankSumArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kRankSumThreads + threadIdx.x;
  if (i >= args.n) return;
  const float own = args.data[i];
  float sum = own;
  if (args.rank > 0) sum = args.parts[i];
  for (int r = 1; r < args.size; ++r) {
    float x = own;
    if (r != args.rank) x = args.parts[r * args.stride + i];
    sum += x;
  }
  args.data[i] = sum;
}

}  // namespace lynx::cuda
