// SPDX-License-Identifier: Apache-2.0
#include "formats/weight_type.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace lynx {
namespace {

// enum ggml_type, by number; with those that ggml itself does not read any more.
constexpr std::array kGgmlNames = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4"};

struct TypeRow {
  WeightType type;
  uint32_t ggml;
};
constexpr std::array<TypeRow, 15> kTypes = {{
    {WeightType::kF32, 0},
    {WeightType::kF16, 1},
    {WeightType::kBf16, 30},
    {WeightType::kQ4_0, 2},
    {WeightType::kQ4_1, 3},
    {WeightType::kQ5_0, 6},
    {WeightType::kQ5_1, 7},
    {WeightType::kQ8_0, 8},
    {WeightType::kQ4_K, 12},
    {WeightType::kQ5_K, 13},
    {WeightType::kQ6_K, 14},
    {WeightType::kQ2_K, 10},
    {WeightType::kQ3_K, 11},
    {WeightType::kIQ4_NL, 20},
    {WeightType::kIQ4_XS, 23},
}};

}  // namespace

const char* WeightTypeName(WeightType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return kGgmlNames[row.ggml];
  }
  __builtin_unreachable();
}

std::optional<WeightType> WeightTypeFromGgml(uint32_t number) {
  for (const TypeRow& row : kTypes) {
    if (row.ggml == number) return row.type;
  }
  return std::nullopt;
}

std::string GgmlTypeText(uint32_t number) {
  if (number >= kGgmlNames.size()) return absl::StrCat("type ", number);
  return absl::StrCat("type ", number, " (", kGgmlNames[number], ")");
}

std::optional<WeightType> WeightTypeFromSafetensors(std::string_view dtype) {
  if (dtype == "F32") return WeightType::kF32;
  if (dtype == "F16") return WeightType::kF16;
  if (dtype == "BF16") return WeightType::kBf16;
  return std::nullopt;
}

}  // namespace lynx
