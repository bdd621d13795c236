// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lynx::cuda {

// data[i], i < n, becomes the sum in rank order of parts[r][i] over the ranks r < size, with
// data[i] itself for r = rank. parts: [size][stride]. Device pointers.
void RankSum(cudaStream_t stream, float* data, const float* parts, int64_t n, int64_t stride,
             int rank, int size);

}  // namespace lynx::cuda
