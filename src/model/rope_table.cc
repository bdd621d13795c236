// SPDX-License-Identifier: Apache-2.0
// Formulas: transformers' modeling_rope_utils.py. Computed in double precision, rounded once.
#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lynx {
namespace {

// Interpolates the wavelengths that training never completed, leaves the short ones alone.
double Llama3Frequency(double inverse, const RopeConfig& config) {
  const double wavelength = 2 * std::numbers::pi / inverse;
  const double context = config.original_max_position;
  if (wavelength < context / config.high_freq_factor) return inverse;
  if (wavelength > context / config.low_freq_factor) return inverse / config.factor;
  const double smooth = (context / wavelength - config.low_freq_factor) /
                        (config.high_freq_factor - config.low_freq_factor);
  return (1 - smooth) * inverse / config.factor + smooth * inverse;
}

// The pair index at which a position turns `rotations` times within the original context.
double YarnCorrection(double rotations, const RopeConfig& config, int head_dim) {
  return head_dim * std::log(config.original_max_position / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

void ApplyYarn(const RopeConfig& config, int head_dim, std::vector<double>& inverse) {
  const double low = std::max(std::floor(YarnCorrection(config.beta_fast, config, head_dim)), 0.0);
  double high =
      std::min(std::ceil(YarnCorrection(config.beta_slow, config, head_dim)), head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] / config.factor * ramp + inverse[i] * (1 - ramp);
  }
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int head_dim) {
  RopeFrequencies result;
  std::vector<double>& inverse = result.inverse;
  inverse.resize(head_dim / 2);
  for (size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] = std::pow(config.theta, -2.0 * static_cast<double>(i) / head_dim);
    if (!config.freq_divisors.empty()) inverse[i] /= config.freq_divisors[i];
  }
  switch (config.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& f : inverse) f /= config.factor;
      break;
    case RopeScaling::kLlama3:
      for (double& f : inverse) f = Llama3Frequency(f, config);
      break;
    case RopeScaling::kYarn:
      ApplyYarn(config, head_dim, inverse);
      result.attention_factor = config.attention_factor != 0 ? config.attention_factor
                                                             : 0.1 * std::log(config.factor) + 1.0;
      break;
  }
  return result;
}

RopeTables::RopeTables(const RopeConfig& config, int head_dim)
    : frequencies_(ComputeRopeFrequencies(config, head_dim)) {}

RopeTable RopeTables::Covering(int num_positions) {
  if (num_positions > num_positions_) {
    const int old_positions = num_positions_;
    num_positions_ = std::max(num_positions, 2 * old_positions);
    const size_t half = frequencies_.inverse.size();
    cos_.resize(num_positions_ * half);
    sin_.resize(num_positions_ * half);
    for (int p = old_positions; p < num_positions_; ++p) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = p * frequencies_.inverse[i];
        cos_[p * half + i] = static_cast<float>(std::cos(angle) * frequencies_.attention_factor);
        sin_[p * half + i] = static_cast<float>(std::sin(angle) * frequencies_.attention_factor);
      }
    }
  }
  return {.cos = cos_.data(), .sin = sin_.data()};
}

}  // namespace lynx
