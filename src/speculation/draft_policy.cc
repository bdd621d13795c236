// SPDX-License-Identifier: Apache-2.0
#include "speculation/draft_policy.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr double kLearningRate = 0.02;

// Where learning starts: a guess that drafts a little too long rather than too short, since only
// judged drafts teach.
constexpr std::array<double, 12> kPrior = {0.55, 0.65, 0.75,  0.85,  0.90,  0.94,
                                           0.97, 0.98, 0.990, 0.995, 0.998, 0.999};

}  // namespace

DraftPolicy::DraftPolicy(int max_draft_tokens, double min_survival)
    : max_draft_tokens_(max_draft_tokens), min_survival_(min_survival), rate_(kPrior) {}

int DraftPolicy::Bucket(float margin) {
  const auto it = std::upper_bound(kEdges.begin(), kEdges.end(), margin);
  return static_cast<int>(it - kEdges.begin());
}

bool DraftPolicy::Continue(std::span<const float> margins) const {
  if (static_cast<int>(margins.size()) >= max_draft_tokens_) return false;
  double survival = 1;
  for (float margin : margins) survival *= Survival(margin);
  return survival >= min_survival_;
}

int DraftPolicy::NumWorthJudging(std::span<const float> margins, double row_cost) const {
  double survival = 1;
  int number = 0;
  for (float margin : margins) {
    survival *= Survival(margin);
    if (survival < row_cost) break;
    ++number;
  }
  return number;
}

void DraftPolicy::Observe(std::span<const float> margins, int num_accepted) {
  for (int i = 0; i < static_cast<int>(margins.size()) && i <= num_accepted; ++i) {
    double& rate = rate_[Bucket(margins[i])];
    rate += kLearningRate * ((i < num_accepted ? 1.0 : 0.0) - rate);
  }
}

}  // namespace lynx
