// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lynx/backend.h"

namespace lynx::cuda {

// Device pointers, the table's too: x [rows, num_heads, head_dim], positions [rows].
void Rope(cudaStream_t stream, float* x, int rows, int num_heads, int head_dim,
          const int32_t* positions, const RopeTable& table);

}  // namespace lynx::cuda
