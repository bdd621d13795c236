// SPDX-License-Identifier: Apache-2.0
// How long to draft.
//
// A draft is worth making while it will probably survive verification. Survival of one draft is
// predicted from its margin (how far ahead of the runner-up it was): an exponentially weighted
// acceptance rate per margin bucket, learnt online. Drafting stops when the product of the
// estimates of all drafts so far falls below a threshold.
#pragma once

#include <array>
#include <span>

namespace lynx {

// One per model (anchor and target determine the rates); the engine thread's.
class DraftPolicy {
 public:
  DraftPolicy(int max_draft_tokens, double min_survival);

  // Estimated probability that a draft with this margin (in logits) equals the target's choice,
  // given that everything before it did.
  double Survival(float margin) const { return rate_[Bucket(margin)]; }

  // Whether another draft should follow drafts with these margins.
  bool Continue(std::span<const float> margins) const;

  // How many of the drafts with these margins are worth a row each of the step that judges them,
  // where another row takes row_cost of the time of a step with one: those that are right, with all
  // before them, with at least that probability. A right one saves a step of its own.
  int NumWorthJudging(std::span<const float> margins, double row_cost) const;

  // What verification said of drafts with these margins: the first num_accepted were right, the
  // next one, if any, was wrong, the rest was not judged.
  void Observe(std::span<const float> margins, int num_accepted);

 private:
  static constexpr std::array<float, 11> kEdges = {0.05f, 0.1f, 0.2f, 0.35f, 0.5f, 0.75f,
                                                   1.0f,  1.5f, 2.0f, 3.0f,  5.0f};
  static int Bucket(float margin);

  int max_draft_tokens_;
  double min_survival_;
  std::array<double, kEdges.size() + 1> rate_;
};

}  // namespace lynx
