// SPDX-License-Identifier: Apache-2.0
#include "formats/weight_type.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace lynx {
namespace {

struct TypeRow {
  WeightType type;
  uint32_t ggml;  // enum ggml_type
  const char* name;
};

constexpr std::array<TypeRow, 11> kTypes = {{
    {WeightType::kF32, 0, "F32"},
    {WeightType::kF16, 1, "F16"},
    {WeightType::kBf16, 30, "BF16"},
    {WeightType::kQ4_0, 2, "Q4_0"},
    {WeightType::kQ4_1, 3, "Q4_1"},
    {WeightType::kQ5_0, 6, "Q5_0"},
    {WeightType::kQ5_1, 7, "Q5_1"},
    {WeightType::kQ8_0, 8, "Q8_0"},
    {WeightType::kQ4_K, 12, "Q4_K"},
    {WeightType::kQ5_K, 13, "Q5_K"},
    {WeightType::kQ6_K, 14, "Q6_K"},
}};

// Types that ggml defines and Lynx does not read.
struct ForeignType {
  uint32_t ggml;
  const char* name;
};
constexpr std::array<ForeignType, 22> kForeignTypes = {{
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"},
}};

const TypeRow& Row(WeightType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  __builtin_unreachable();
}

}  // namespace

const char* WeightTypeName(WeightType type) { return Row(type).name; }

std::optional<WeightType> WeightTypeFromGgml(uint32_t number) {
  for (const TypeRow& row : kTypes) {
    if (row.ggml == number) return row.type;
  }
  return std::nullopt;
}

std::string GgmlTypeText(uint32_t number) {
  for (const TypeRow& row : kTypes) {
    if (row.ggml == number) return absl::StrCat("type ", number, " (", row.name, ")");
  }
  for (const ForeignType& foreign : kForeignTypes) {
    if (foreign.ggml == number) return absl::StrCat("type ", number, " (", foreign.name, ")");
  }
  return absl::StrCat("type ", number);
}

std::optional<WeightType> WeightTypeFromSafetensors(std::string_view dtype) {
  if (dtype == "F32") return WeightType::kF32;
  if (dtype == "F16") return WeightType::kF16;
  if (dtype == "BF16") return WeightType::kBf16;
  return std::nullopt;
}

}  // namespace lynx
