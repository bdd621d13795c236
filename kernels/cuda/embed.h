// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "lynx/backend.h"

namespace lynx::cuda {

// out[r, :] = table[ids[r], :]. Device pointers. The table's rows lie in device memory as they lie
// in the file (data 4-byte aligned, row_order null), so every WeightType gives the CPU's bits.
void Embed(cudaStream_t stream, const WeightView& table, const TokenId* ids, int rows, float* out);

}  // namespace lynx::cuda
