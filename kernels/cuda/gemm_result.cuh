// SPDX-License-Identifier: Apache-2.0
// Where a finished sum of a matrix product goes: y = sum + bias, or y += sum + bias.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct GemmResult {
  int rows = 0;
  int64_t n = 0;
  Global<const float> bias;  // [n], read when has_bias
  Global<float> y;           // [rows, ldy]
  int64_t ldy = 0;
  bool has_bias = false;
  bool accumulate = false;
};

__device__ inline void StoreResult(const GemmResult& result, int64_t row, int64_t output,
                                   float sum) {
  if (row >= result.rows || output >= result.n) return;
  const int64_t at = row * result.ldy + output;
  if (result.has_bias) {
    const float bias = result.bias[output];
    sum += bias;
  }
  if (result.accumulate) {
    const float y = result.y[at];
    sum = y + sum;
  }
  result.y[at] = sum;
}

}  // namespace lynx::cuda
