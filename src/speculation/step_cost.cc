// SPDX-License-Identifier: Apache-2.0
#include "speculation/step_cost.h"

#include <algorithm>

namespace lynx {
namespace {

// Sizes at which the terms weigh about the same.
constexpr double kRows = 8, kReads = 4096, kPairs = 8192;
constexpr double kNoise = 0.05;       // variance of a step's relative error
constexpr double kDrift = 1e-4;       // variance that a coefficient gains with each step
constexpr double kLeastShare = 1e-3;  // of the first step: what any step takes

}  // namespace

StepCost::Terms StepCost::TermsOf(const StepWork& work, double share) {
  return {share, work.rows / kRows, work.reads / kReads, work.pairs / kPairs,
          work.later_pairs / kPairs};
}

void StepCost::Observe(const StepWork& work, int64_t ns) {
  if (ns <= 0) return;
  if (unit_ns_ == 0) {
    unit_ns_ = static_cast<double>(ns);
    for (int i = 0; i < kTerms; ++i) covariance_[i][i] = 1;
  }
  Terms x = TermsOf(work, 1);
  for (double& term : x) term *= unit_ns_ / static_cast<double>(ns);
  Terms gain = {};
  double error = 1, variance = kNoise, trace = 0;
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) gain[i] += covariance_[i][j] * x[j];
    error -= x[i] * coefficient_[i];
    variance += x[i] * gain[i];
  }
  for (int i = 0; i < kTerms; ++i) {
    coefficient_[i] += gain[i] / variance * error;
    for (int j = 0; j < kTerms; ++j) covariance_[i][j] -= gain[i] * gain[j] / variance;
    covariance_[i][i] += kDrift;
    trace += covariance_[i][i];
  }
  // What no step tells apart must not become infinitely uncertain.
  const double scale = std::min(1.0, kTerms / trace);
  for (Terms& row : covariance_) {
    for (double& value : row) value *= scale;
  }
}

double StepCost::Ns(const StepWork& work, double share) const {
  const Terms x = TermsOf(work, share);
  double sum = 0;
  for (int i = 0; i < kTerms; ++i) sum += x[i] * coefficient_[i];
  return std::max(sum, kLeastShare) * unit_ns_;
}

}  // namespace lynx
