// SPDX-License-Identifier: Apache-2.0
// BF16 as the formulas of the codecs mean it (docs/codecs.md): a NaN is 0, and what is beyond the
// largest finite number is that number.
#pragma once

#include <algorithm>
#include <cmath>

#include "lynx/types.h"

namespace lynx {

inline constexpr double kLargest = 0x1.fep127;

inline double PlainFinite(Bf16 v) {
  const float x = ToFloat(v);
  return std::isnan(x) ? 0 : std::clamp<double>(x, -kLargest, kLargest);
}

inline Bf16 PlainRound(double x) {
  return ToBf16(static_cast<float>(std::clamp(x, -kLargest, kLargest)));
}

}  // namespace lynx
