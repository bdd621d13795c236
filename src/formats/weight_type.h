// SPDX-License-Identifier: Apache-2.0
// The element types of weight files and their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/common/weight_block.h"  // WeightBlock
#include "lynx/backend.h"

namespace lynx {

const char* WeightTypeName(WeightType type);  // "Q4_1"

// The type with this number in ggml's enum, if it is one of WeightType.
std::optional<WeightType> WeightTypeFromGgml(uint32_t number);
// For messages, also of types we do not read: "type 10 (Q2_K)".
std::string GgmlTypeText(uint32_t number);

// "F32", "F16", "BF16".
std::optional<WeightType> WeightTypeFromSafetensors(std::string_view dtype);

}  // namespace lynx
