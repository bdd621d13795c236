// SPDX-License-Identifier: Apache-2.0
// The scalar meaning of the arithmetic that all kernels of all back-ends share: exp, and the order
// of a row sum. kernels/cpu/lanes-inl.h computes the same bits 16 at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lynx/host_device.h"

namespace lynx {

// Row sums and maxima run in 16 virtual lanes, element i in lane i % 16, which a fixed tree joins.
inline constexpr int kLanes = 16;

// exp(x) = 2^t · exp(r), t = round(x / ln 2), with Cody and Waite's two-part ln 2 and the degree-5
// polynomial of Cephes' expf; relative error below 2^-22. Arguments are clamped so that neither the
// result nor 2^t leaves the normal numbers; NaN stays NaN.
struct ExpConstants {
  static constexpr float kMin = -87.0f;
  static constexpr float kMax = 88.0f;
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  static constexpr float kLn2Hi = 0.693359375f;
  static constexpr float kLn2Lo = -2.12194440e-4f;
  static constexpr float kC5 = 1.9875691500e-4f;
  static constexpr float kC4 = 1.3981999507e-3f;
  static constexpr float kC3 = 8.3334519073e-3f;
  static constexpr float kC2 = 4.1665795894e-2f;
  static constexpr float kC1 = 1.6666665459e-1f;
  static constexpr float kC0 = 5.0000001201e-1f;
};

// max and min as the vector instructions define them: the second operand when either is NaN.
LYNX_HOST_DEVICE inline float MaxRef(float a, float b) { return a > b ? a : b; }
LYNX_HOST_DEVICE inline float MinRef(float a, float b) { return a < b ? a : b; }

LYNX_HOST_DEVICE inline float ExpRef(float x) {
  using C = ExpConstants;
  x = MinRef(C::kMax, MaxRef(C::kMin, x));
  const float rounded = std::fma(x, C::kLog2E, C::kRound);  // the low bits are t
  const float t = rounded - C::kRound;
  float r = std::fma(-t, C::kLn2Hi, x);
  r = std::fma(-t, C::kLn2Lo, r);
  float p = C::kC5;
  p = std::fma(p, r, C::kC4);
  p = std::fma(p, r, C::kC3);
  p = std::fma(p, r, C::kC2);
  p = std::fma(p, r, C::kC1);
  p = std::fma(p, r, C::kC0);
  p = std::fma(p, r * r, r + 1.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(rounded) << 23));
}

// Joins 16 lanes: halves are combined until one is left.
template <typename Op>
LYNX_HOST_DEVICE float JoinLanesRef(const float (&lanes)[kLanes], Op op) {
  float t[8];
  for (int i = 0; i < 8; ++i) t[i] = op(lanes[i], lanes[i + 8]);
  for (int i = 0; i < 4; ++i) t[i] = op(t[i], t[i + 4]);
  return op(op(t[0], t[2]), op(t[1], t[3]));
}

struct AddOp {
  LYNX_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct MaxOp {
  LYNX_HOST_DEVICE float operator()(float a, float b) const { return MaxRef(a, b); }
};

LYNX_HOST_DEVICE inline float SumLanesRef(const float (&lanes)[kLanes]) {
  return JoinLanesRef(lanes, AddOp{});
}

LYNX_HOST_DEVICE inline float MaxLanesRef(const float (&lanes)[kLanes]) {
  return JoinLanesRef(lanes, MaxOp{});
}

}  // namespace lynx
