// SPDX-License-Identifier: Apache-2.0
// What the CPU itself reads of a model file: norm weights, biases, and whether numbers are finite.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/model_files.h"
#include "lynx/backend.h"
#include "lynx/status.h"

namespace lynx {

// n numbers of type F32, F16 or BF16.
std::vector<float> DecodeFloats(WeightType type, const std::byte* data, int64_t n);

// A one-dimensional tensor (of those types, which ModelFiles has checked) in Hugging Face's order.
std::vector<float> DecodeVector(const TensorInfo& tensor);

// kInvalidArgument naming file and tensor when any number (of a block format: any scale) is NaN or
// infinite. Reads the whole tensor.
absl::Status CheckFinite(const TensorInfo& tensor);

}  // namespace lynx
