// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rank_sum.cuh"
#include "kernels/cuda/rank_sum.h"

namespace lynx::cuda {

void RankSum(cudaStream_t stream, float* data, const float* parts, int64_t n, int64_t stride,
             int rank, int size) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kRankSumThreads - 1) / kRankSumThreads);
  Launch({.grid = dim3(blocks), .block = dim3(kRankSumThreads), .stream = stream}, RankSumKernel,
         RankSumArgs{
             .data = data, .parts = parts, .n = n, .stride = stride, .rank = rank, .size = size},
         "RankSumKernel");
}

}  // namespace lynx::cuda
