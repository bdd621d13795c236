// SPDX-License-Identifier: Apache-2.0
// Self-speculation: whether a sequence that decodes should draft first, and how long.
//
// A draft row reads a few blocks of the exact cache (DraftContext), so it costs the weights and
// hardly any attention. Verification of d drafts reads the whole cache once, for d + 1
// rows. With
//
//   t(r, n)  a step of r rows of this sequence that attend to n tokens each (StepCost), its share
//            of the weights being that of one of the sequences that decode
//   N, c     tokens that a row of the target, and a draft row, attends to
//   p        probability that a draft is right, the ones before it being right
//
// d drafts give 1 + p + … + p^d tokens in d t(1, c) + t(d + 1, N) instead of one in t(1, N). It is
// worth it when the best d gives more tokens per time, by kLeastGain. Within a cycle, the margins
// of the drafts tell how probable it is that all of them are right: each is p, times what
// DraftPolicy predicts for its margin, over what it predicts on average. Another one is made while
// what it is expected to add, for the time that it adds, is above the best d's rate.
//
// Everything is learnt: t from the steps, p of each sequence from what verification says. A
// sequence whose drafts are wrong is tried again now and then, so seldom that it costs about a
// hundredth. Before a draft was timed, a few trial cycles of kTrialDrafts are run where N is at
// least kLeastDepth * c.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "speculation/draft_policy.h"
#include "speculation/step_cost.h"

namespace lynx {

// What verification has said of one sequence's drafts, newer ones weighing more.
struct SelfDraftRecord {
  double judged = 0;
  double accepted = 0;
};

struct SelfDraftSituation {
  int num_sequences = 1;       // that decode in the same steps
  int num_attended = 0;        // N
  int num_draft_attended = 0;  // c
  bool with_prompts = false;   // prompts are in the same steps, which their rows dominate
};

// One per engine; the engine thread's.
class SelfDraftPolicy {
 public:
  static constexpr int kMaxDrafts = 8;
  static constexpr int kTrialDrafts = 2;
  static constexpr int kNumTrials = 4;
  static constexpr double kLeastGain = 1.04;
  static constexpr int kLeastDepth = 2;

  // num_drafts: always so many (0: never), or as this policy decides.
  explicit SelfDraftPolicy(std::optional<int> num_drafts);

  // How many drafts to make at most before the next token; 0: none.
  int Start(const SelfDraftSituation& now, const SelfDraftRecord& record) const;
  // After drafts with these margins (in logits), at least one: whether another should follow.
  bool Continue(const SelfDraftSituation& now, const SelfDraftRecord& record,
                std::span<const float> margins) const;

  // A step without prompt rows; has_drafts: with rows of self-speculation.
  void ObserveStep(const StepWork& work, bool has_drafts, int64_t ns);
  // Of drafts with these margins, all judged, the first num_accepted were right.
  void ObserveJudged(std::span<const float> margins, int num_accepted, SelfDraftRecord& record);
  // A token was decoded without drafts: what was known of the sequence's drafts grows old.
  static void ObservePlain(SelfDraftRecord& record);

  // What another row of the target adds to a step, in steps of one row; 0 while that is not known.
  double RowCost(const SelfDraftSituation& now) const;

  // Tokens per time with num_drafts drafts, 1 being a step without.
  double Gain(const SelfDraftSituation& now, const SelfDraftRecord& record, int num_drafts) const;

 private:
  static double Acceptance(const SelfDraftRecord& record);
  double DraftNs(const SelfDraftSituation& now) const;
  double TargetNs(const SelfDraftSituation& now, int num_rows) const;
  // The best number of drafts and its gain.
  struct Best {
    int num_drafts = 0;
    double gain = 1;
  };
  Best Choose(const SelfDraftSituation& now, const SelfDraftRecord& record) const;
  bool OnTrial() const { return num_trial_steps_ < kNumTrials * (kTrialDrafts + 1); }

  const std::optional<int> num_drafts_;
  StepCost cost_;
  DraftPolicy survival_;
  double mean_survival_ = 0.9;  // predicted for the drafts that were judged
  int num_trial_steps_ = 0;
};

}  // namespace lynx
