// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/silu_mul.cuh"
#include "kernels/cuda/silu_mul.h"

namespace lynx::cuda {

void SiluMul(cudaStream_t stream, const float* gate, const float* up, int64_t n, float* y) {
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kSiluMulThreads - 1) / kSiluMulThreads);
  Launch({.grid = dim3(blocks), .block = dim3(kSiluMulThreads), .stream = stream}, SiluMulKernel,
         SiluMulArgs{.gate = gate, .up = up, .n = n, .y = y}, "SiluMulKernel");
}

}  // namespace lynx::cuda
