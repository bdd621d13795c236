// SPDX-License-Identifier: Apache-2.0
// The instruction sets that CPU kernels are written for, and the names that users give them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lynx::cpu {

// kScalar is the meaning; the others give the same bits. kAvx2 includes FMA, F16C and BMI;
// kAvx512 is F + VL + DQ + BW; kAvx512Vnni adds VNNI, kAvx512Bf16 the products of BF16, kAmx the
// BF16 tiles. kAuto is the best that is supported.
enum class Target : uint8_t { kAuto, kScalar, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

// Of each target, in their order.
inline constexpr std::array<const char*, 7> kTargetNames = {
    "auto", "scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
static_assert(kTargetNames.size() == static_cast<size_t>(Target::kAmx) + 1);

constexpr const char* TargetName(Target target) {
  return kTargetNames[static_cast<size_t>(target)];
}

constexpr std::optional<Target> FindTarget(std::string_view name) {
  for (size_t i = 0; i < kTargetNames.size(); ++i) {
    if (name == kTargetNames[i]) return static_cast<Target>(i);
  }
  return std::nullopt;
}

}  // namespace lynx::cpu
