// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/common/iq4_value.h"
#include "kernels/cpu/dequantize.h"

namespace lynx::cpu {

uint16_t FloatToHalf(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 2^16
  // Shift the significand so that one unit of the half is bit 0 of the result, then round.
  const int exponent = static_cast<int>(magnitude >> 23) - 112;  // of the half, biased
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const int shift = exponent > 0 ? 13 : 14 - exponent;
  if (shift > 24) return static_cast<uint16_t>(sign);  // below half of the smallest subnormal
  const uint32_t half = (1u << (shift - 1)) - 1 + ((significand >> shift) & 1u);
  const uint32_t rounded = (significand + half) >> shift;
  // A normal significand carries its leading bit into the exponent, hence exponent - 1.
  const uint32_t biased = exponent > 0 ? static_cast<uint32_t>(exponent - 1) << 10 : 0;
  return static_cast<uint16_t>(sign | (biased + rounded));
}

void QuantizeQ8_0(const float* x, uint16_t* scale, int8_t* codes) {
  float max = 0;
  for (int i = 0; i < 32; ++i) max = std::max(max, std::fabs(x[i]));
  constexpr float kLargestHalf = 65504.0f;
  *scale = FloatToHalf(std::min(max / 127.0f, kLargestHalf));
  const float rounded = HalfToFloat(*scale);
  const float inverse = rounded > 0 ? 1.0f / rounded : 0.0f;
  constexpr float kRound = 0x1.8p23f;  // has no fraction: a sum with it is rounded, ties to even
  for (int i = 0; i < 32; ++i) {
    const float code = std::clamp(x[i] * inverse, -127.0f, 127.0f);
    codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(code + kRound));
  }
}

void WidenQ5_0(const std::byte* block, uint16_t* scale, int8_t* codes) {
  uint32_t high;
  std::memcpy(scale, block, sizeof(*scale));
  std::memcpy(&high, block + 2, sizeof(high));
  for (int j = 0; j < 16; ++j) {
    const int q = std::to_integer<int>(block[6 + j]);
    codes[j] = static_cast<int8_t>(((q & 15) | (int((high >> j) & 1) << 4)) - 16);
    codes[j + 16] = static_cast<int8_t>(((q >> 4) | (int((high >> (j + 16)) & 1) << 4)) - 16);
  }
}

void WidenIQ4_NL(const std::byte* block, uint16_t* scale, int8_t* codes) {
  std::memcpy(scale, block, sizeof(*scale));
  for (int j = 0; j < 16; ++j) {
    const int q = std::to_integer<int>(block[2 + j]);
    codes[j] = kIq4Values[q & 15];
    codes[j + 16] = kIq4Values[q >> 4];
  }
}

}  // namespace lynx::cpu
