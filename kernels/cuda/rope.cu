// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/rope.h"

namespace lynx::cuda {

void Rope(cudaStream_t stream, float* x, int rows, int num_heads, int head_dim,
          const int32_t* positions, const RopeTable& table) {
  const int64_t num_pairs = int64_t{rows} * num_heads * (head_dim / 2);
  if (num_pairs == 0) return;
  const auto blocks = static_cast<unsigned>((num_pairs + kRopeThreads - 1) / kRopeThreads);
  Launch({.grid = dim3(blocks), .block = dim3(kRopeThreads), .stream = stream}, RopeKernel,
         RopeArgs{.x = x,
                  .num_pairs = num_pairs,
                  .num_heads = num_heads,
                  .half_dim = head_dim / 2,
                  .positions = positions,
                  .cos = table.cos,
                  .sin = table.sin},
         "RopeKernel");
}

}  // namespace lynx::cuda
