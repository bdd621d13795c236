// SPDX-License-Identifier: Apache-2.0
// The element types of weight files: their names and the shape of their blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lynx/backend.h"

namespace lynx {

struct BlockShape {
  int64_t elements = 1;  // consecutive elements of one row
  int64_t bytes = 0;
};

const char* WeightTypeName(WeightType type);  // "Q4_1"
BlockShape WeightBlock(WeightType type);

// The type with this number in ggml's enum, if it is one of WeightType.
std::optional<WeightType> WeightTypeFromGgml(uint32_t number);
// For messages, also of types we do not read: "type 10 (Q2_K)".
std::string GgmlTypeText(uint32_t number);

// "F32", "F16", "BF16".
std::optional<WeightType> WeightTypeFromSafetensors(std::string_view dtype);

}  // namespace lynx
