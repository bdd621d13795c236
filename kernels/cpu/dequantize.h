// SPDX-License-Identifier: Apache-2.0
// Scalar decoders of weight-file rows to float32. These are the meaning of every WeightType: value
// by value and rounding by rounding those of ggml's block formats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/half.h"
#include "kernels/common/weight_block.h"
#include "lynx/backend.h"

namespace lynx::cpu {

// Decodes the first k elements of a row (k is a multiple of the format's block). A row that starts
// at element i of a longer one begins i / elements * bytes later. Rows need no alignment.
void DequantizeRow(WeightType type, const std::byte* row, int64_t k, float* out);

}  // namespace lynx::cpu
