// SPDX-License-Identifier: Apache-2.0
// exp and log with the same bits on every machine. The C library picks variants with and without
// fused multiply-add at run time, which would let two machines of a cluster sample different
// tokens. Written without branches where loops over a vocabulary use them.
#pragma once

#include <bit>
#include <cstdint>

namespace lynx {

// e^x for x <= 0; relative error below 1e-15 down to -690, 0 below that.
constexpr double ExactExp(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2Hi = 6.93147180369123816490e-01, kLn2Lo = 1.90821492927058770002e-10;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double clamped = x < -690.0 ? -690.0 : x;
  const double shifted = clamped * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (clamped - n * kLn2Hi) - n * kLn2Lo;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t exponent = std::bit_cast<uint64_t>(shifted) << 52;
  const double result = std::bit_cast<double>(std::bit_cast<uint64_t>(p) + exponent);
  return x < -690.0 ? 0.0 : result;
}

// Natural logarithm of a positive normal number; relative error below 1e-15.
constexpr double ExactLog(double x) {
  constexpr double kLn2Hi = 6.93147180369123816490e-01, kLn2Lo = 1.90821492927058770002e-10;
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  // m in [sqrt(1/2), sqrt(2)), x = m * 2^e.
  const auto e = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 23.0;
  p = p * z + 1.0 / 21.0;
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  const double log_m = 2.0 * s + 2.0 * s * (z * p);
  const auto exponent = static_cast<double>(e);
  return exponent * kLn2Hi + (log_m + exponent * kLn2Lo);
}

}  // namespace lynx
