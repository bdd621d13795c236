// SPDX-License-Identifier: Apache-2.0
// Backend::Gemm on the device (docs/numerics.md, CUDA).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/bf16_gemm.h"
#include "lynx/backend.h"

namespace lynx::cuda {

struct GemmLimits {
  int max_rows = 0;
  int64_t max_n = 0;
  int64_t max_k = 0;
};

// Scratch for calls up to the limits.
size_t GemmScratchBytes(const GemmLimits& limits);

// For each output y[r, :] = x[r, :] · weightᵀ + bias. Device pointers: x [rows, k] 16-byte aligned,
// scratch 256-byte aligned with GemmScratchBytes. Weights are DeviceWeights; the BF16 ones'
// padded shapes were planned.
void Gemm(cudaStream_t stream, Bf16Gemm& bf16, const float* x, int rows, int64_t k,
          std::span<const GemmOutput> outputs, std::byte* scratch);

}  // namespace lynx::cuda
