// SPDX-License-Identifier: Apache-2.0
// What stands before and after a BF16 product: activations rounded to BF16 and filled up to whole
// tiles, and finished sums added to their bias or residual. Rounding moves 6 bytes per element,
// finishing 8 (12 when it accumulates).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_result.cuh"

namespace lynx::cuda {

inline constexpr int kRoundRowsThreads = 256;

struct RoundRowsArgs {
  Global<const float> x;  // [rows, k]
  int rows = 0;
  int64_t k = 0;
  int64_t padded_k = 0;
  Global<Bf16> out;  // [gridDim.x, padded_k]; zero past rows and past k
};

// budget: RoundRowsKernel registers 32 shared 0 threads 256
__global__ void __launch_bounds__(kRoundRowsThreads) RoundRowsKernel(RoundRowsArgs args) {
  const int64_t row = blockIdx.x;
  const int64_t i = int64_t{blockIdx.y} * kRoundRowsThreads + threadIdx.x;
  if (i >= args.padded_k) return;
  float x = 0;
  if (row < args.rows && i < args.k) x = args.x[row * args.k + i];
  args.out[row * args.padded_k + i] = ToBf16(x);
}

struct FinishRowsArgs {
  Global<const float> sums;  // [gridDim.x, ld]
  int64_t ld = 0;
  GemmResult result;
};

// budget: FinishRowsKernel registers 32 shared 0 threads 256
__global__ void __launch_bounds__(kRoundRowsThreads) FinishRowsKernel(FinishRowsArgs args) {
  const int64_t output = int64_t{blockIdx.y} * kRoundRowsThreads + threadIdx.x;
  if (output >= args.result.n) return;
  const int64_t row = blockIdx.x;
  const float sum = args.sums[row * args.ld + output];
  StoreResult(args.result, row, output, sum);
}

}  // namespace lynx::cuda
