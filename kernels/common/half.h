// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace lynx {

// IEEE binary16, exact; no float32 in it is ever subnormal, so FTZ and DAZ change nothing. Without
// branches, so that loops over it become vectors.
constexpr float HalfToFloat(uint16_t half) {
  constexpr uint32_t kBias = uint32_t{127 - 15} << 23;
  constexpr float kSmallestNormal = 0x1p-14f;
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  const uint32_t is_special = 0u - uint32_t{exponent == 0x0f800000u};  // Inf, NaN
  const uint32_t normal = magnitude + kBias + (kBias & is_special);
  // A subnormal is what it adds to the smallest normal number.
  const float subnormal = std::bit_cast<float>(magnitude + kBias + (1u << 23)) - kSmallestNormal;
  const uint32_t is_subnormal = 0u - uint32_t{exponent == 0};
  const uint32_t bits =
      (std::bit_cast<uint32_t>(subnormal) & is_subnormal) | (normal & ~is_subnormal);
  return std::bit_cast<float>(bits | (uint32_t{half & 0x8000u} << 16));
}

}  // namespace lynx
