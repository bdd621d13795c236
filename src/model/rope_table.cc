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

absl::StatusOr<std::unique_ptr<RopeTables>> RopeTables::Create(Backend& backend,
                                                               const RopeConfig& config,
                                                               int head_dim, int max_position) {
  std::unique_ptr<RopeTables> tables(
      new RopeTables(backend, ComputeRopeFrequencies(config, head_dim), max_position));
  const size_t bytes = size_t(max_position) * (head_dim / 2) * sizeof(float);
  tables->cos_ = backend.Allocate(bytes);
  tables->sin_ = backend.Allocate(bytes);
  if (tables->cos_ == nullptr || tables->sin_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("RoPE tables: ", backend.name(),
                                                     " cannot allocate 2 x ", bytes, " bytes for ",
                                                     max_position, " positions"));
  }
  return tables;
}

RopeTable RopeTables::Covering(int num_positions) {
  LYNX_CHECK(num_positions <= max_position_);
  if (num_positions > num_positions_) {
    const int begin = num_positions_;
    num_positions_ = std::min(max_position_, std::max(num_positions, 2 * begin));
    const size_t half = frequencies_.inverse.size();
    std::vector<float> cos, sin;
    cos.reserve((num_positions_ - begin) * half);
    sin.reserve((num_positions_ - begin) * half);
    for (int p = begin; p < num_positions_; ++p) {
      for (const double inverse : frequencies_.inverse) {
        const double angle = p * inverse;
        cos.push_back(static_cast<float>(std::cos(angle) * frequencies_.attention_factor));
        sin.push_back(static_cast<float>(std::sin(angle) * frequencies_.attention_factor));
      }
    }
    const size_t offset = begin * half * sizeof(float);
    backend_.Upload(cos_.get() + offset, cos.data(), cos.size() * sizeof(float));
    backend_.Upload(sin_.get() + offset, sin.data(), sin.size() * sizeof(float));
  }
  return {.cos = reinterpret_cast<const float*>(cos_.get()),
          .sin = reinterpret_cast<const float*>(sin_.get())};
}

}  // namespace lynx
