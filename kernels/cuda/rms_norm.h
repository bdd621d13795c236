// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lynx::cuda {

inline constexpr int kMaxNormDim = 16384;  // a row stands in shared memory

// Device pointers: x and y [n, dim], y may be x; weight [dim]. dim <= kMaxNormDim.
void RmsNorm(cudaStream_t stream, const float* x, const float* weight, float eps, int64_t n,
             int dim, float* y);

}  // namespace lynx::cuda
