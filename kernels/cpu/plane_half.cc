// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "kernels/cpu/plane_page.h"

namespace lynx::cpu {
namespace {

// Towards zero. x >= 0, not subnormal.
uint16_t HalfTruncate(float x) {
  constexpr float kSmallestNormal = 0x1p-14f;
  if (x < kSmallestNormal) return static_cast<uint16_t>(x * 0x1p24f);
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits - (uint32_t{127 - 15} << 23)) >> 13);
}

// Away from zero. x >= 0.
uint16_t HalfAway(float x) {
  const uint16_t h = HalfTruncate(x);
  return HalfToFloat(h) < x ? h + 1 : h;
}

}  // namespace

float HalfToFloat(uint16_t h) {
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * 0x1p-24f
                    : std::bit_cast<float>(((exponent + 127 - 15) << 23) | (mantissa << 13));
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t HalfBelow(float x) { return x < 0 ? 0x8000 | HalfAway(-x) : HalfTruncate(x); }

uint16_t HalfAbove(float x) { return x < 0 ? 0x8000 | HalfTruncate(-x) : HalfAway(x); }

}  // namespace lynx::cpu
