// SPDX-License-Identifier: Apache-2.0
// FP8 e4m3 as the OCP defines it: a sign, 4 exponent bits with bias 7, 3 mantissa bits; no
// infinities, 0x7f and 0xff are NaN, the largest number is 448, the smallest 2^-9.
#pragma once

#include <bit>
#include <cstdint>

namespace lynx {

inline constexpr float kMaxE4m3 = 448;
inline constexpr uint8_t kNanE4m3 = 0x7f;  // with the sign bit clear

// The nearest code of |x| <= 448, ties to even.
inline uint8_t ToE4m3(float x) {
  constexpr float kSmallestNormal = 0x1p-6f;
  constexpr float kCounter = 0x1p14f;  // its last place is 2^-9, the step of the codes below 8
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kCounter) & 15;
  const uint32_t code = magnitude < std::bit_cast<uint32_t>(kSmallestNormal) ? subnormal : normal;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80));
}

// The number of a code that is not NaN.
inline float E4m3ToFloat(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f : normal;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | uint32_t{code & 0x80u} << 24);
}

}  // namespace lynx
