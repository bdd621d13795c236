// SPDX-License-Identifier: Apache-2.0
#include "sched/step_time_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lynx {
namespace {

// What of an error is corrected at once: when a step took longer, and when it took less.
constexpr double kGainUp = 1, kGainDown = 0.5;
// How much less than the others base is to blame for an error.
constexpr double kBaseDoubt = 0.1;
// No term shrinks by more in one step.
constexpr double kMaxShrink = 0.5;
// A step that took longer than this many times what was expected was disturbed from outside.
constexpr double kMaxSurprise = 3;
// Until more is known: a row costs as much as its attention to so many tokens.
constexpr double kFirstRowPairs = 4096;
// The first prompt rows take at least this part of their step.
constexpr double kMinPromptShare = 0.1;

}  // namespace

void PromptWork::Add(int position, int rows) {
  num_rows += rows;
  num_pairs += rows * (position + 0.5 * (rows + 1));
}

void StepTimeModel::Observe(const PromptWork& work, int64_t ns) {
  const double measured = std::max<double>(1, static_cast<double>(ns));
  if (work.num_rows > 0) measured_rows_ = std::max(work.num_rows, measured_rows_ / 2);
  if ((work.num_rows == 0 && base_ns_ == 0) || (work.num_rows > 0 && row_ns_ == 0)) {
    Start(work, measured);
    return;
  }
  const double rows = row_ns_ * work.num_rows;
  const double pairs = pair_ns_ * work.num_pairs;
  const double expected = base_ns_ + rows + pairs;
  const double doubt = work.num_rows > 0 ? kBaseDoubt * kBaseDoubt : 1;
  const double squares = doubt * base_ns_ * base_ns_ + rows * rows + pairs * pairs;
  const double error = std::min(measured, kMaxSurprise * expected) - expected;
  const double step = (error > 0 ? kGainUp : kGainDown) * error / squares;
  base_ns_ *= std::max(kMaxShrink, 1 + step * doubt * base_ns_);
  row_ns_ *= std::max(kMaxShrink, 1 + step * rows);
  pair_ns_ *= std::max(kMaxShrink, 1 + step * pairs);
}

void StepTimeModel::Start(const PromptWork& work, double ns) {
  if (work.num_rows == 0) {
    base_ns_ = ns;
    return;
  }
  const double prompt_ns = std::max(ns - base_ns_, kMinPromptShare * ns);
  row_ns_ = prompt_ns / (work.num_rows + work.num_pairs / kFirstRowPairs);
  pair_ns_ = row_ns_ / kFirstRowPairs;
}

double StepTimeModel::PromptNs(int position, int num_rows) const {
  PromptWork work;
  work.Add(position, num_rows);
  return row_ns_ * work.num_rows + pair_ns_ * work.num_pairs;
}

// The positive root of pair/2 n² + (row + pair (position + 1/2)) n = ns.
int StepTimeModel::RowsWithin(double ns, int position) const {
  if (ns <= 0) return 0;
  const double linear = row_ns_ + pair_ns_ * (position + 0.5);
  if (linear <= 0) return std::numeric_limits<int>::max();
  const double rows = 2 * ns / (linear + std::sqrt(linear * linear + 2 * pair_ns_ * ns));
  return static_cast<int>(std::min<double>(rows, std::numeric_limits<int>::max()));
}

int StepTimeModel::max_known_rows() const { return std::max(kFirstRows, 2 * measured_rows_); }

}  // namespace lynx
