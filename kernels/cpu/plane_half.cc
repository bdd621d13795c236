// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/cpu/dequantize.h"
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

uint16_t HalfBelow(float x) { return x < 0 ? 0x8000 | HalfAway(-x) : HalfTruncate(x); }

uint16_t HalfAbove(float x) { return x < 0 ? 0x8000 | HalfTruncate(-x) : HalfAway(x); }

}  // namespace lynx::cpu
