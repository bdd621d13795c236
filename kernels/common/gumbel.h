// SPDX-License-Identifier: Apache-2.0
// Choosing a token by the largest logit / temperature + Gumbel noise, in float64. What is shared by
// the host's sampler and the device's is here; the result depends on no order of the tokens.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/common/exact_math.h"
#include "kernels/common/philox.h"
#include "lynx/choice.h"

namespace lynx {

inline constexpr float kGreedyTemperature = 1e-5f;  // below: greedy

// Gumbel noise: -log(-log(u)) for u = (word + 1/2) / 2^32.
constexpr double Gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -ExactLog(-ExactLog(u));
}

// Never below Gumbel(word), without a logarithm: -log(u) >= 1 - u, and the leading zeros of 1 - u
// bound its logarithm.
inline constexpr double kGumbelStep = 0.69314718055994530942;  // ln 2
constexpr double GumbelBound(uint32_t word) { return (std::countl_zero(~word) + 1) * kGumbelStep; }
inline constexpr double kMaxGumbel = 33 * kGumbelStep;

// The best and the second best of scores offered in any order. NaN and -inf never win.
struct TopTwo {
  static constexpr double kLowest = -std::numeric_limits<double>::infinity();

  double best = kLowest;
  double second = kLowest;
  TokenId token = 0;  // the lowest id of the best score

  constexpr void Offer(double score, TokenId id) {
    if (score > best || (score == best && score > kLowest && id < token)) {
      second = best;
      best = score;
      token = id;
    } else if (score > second) {
      second = score;
    }
  }
  // Joins the best of another set of tokens.
  constexpr void Offer(const TopTwo& other) {
    Offer(other.best, other.token);
    if (other.second > second) second = other.second;
  }
  // scale: a difference of scores times this is one of logits.
  constexpr Choice choice(double scale) const {
    return {.token = token, .margin = static_cast<float>((best - second) * scale)};
  }
};

}  // namespace lynx
