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
// Everything is learnt: t from the steps, p from what verification says of the sequence and, while
// that is little, of others. What is learnt may be wrong, or old, so
//
//   - what drafts have saved and lost is accounted for, in steps of one row, as if every draft of
//     the next cycle were wrong: no cycle is begun that would lose more than the sequence has
//     saved before and a reserve of the engine, which is kMaxReserve at most. It is filled by what
//     drafts save anywhere and by kRefill for each token
//   - after a cycle that has lost, and after kMaxCycles others, a token is decoded without drafts:
//     what they are compared with is timed next to them
//   - one draft is tried after kFirstPause tokens without, and where drafts do not seem to pay,
//     again after kPause tokens, then after twice as many, and so on
//
// So drafts lose at most kMaxReserve steps and kRefill of an answer, as far as t is right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "speculation/draft_policy.h"
#include "speculation/step_cost.h"

namespace lynx {

// What verification has said of drafts, newer ones weighing more.
struct SelfDraftRecord {
  double judged = 0;
  double accepted = 0;
  double saved = 0;  // by a sequence's drafts, in steps of one row; not what the reserve has paid
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
  static constexpr double kLeastGain = 1.04;
  static constexpr int kLeastDepth = 2;  // N / c, below which nothing is drafted
  static constexpr double kMaxReserve = 1.9;
  static constexpr double kRefill = 0.003;
  static constexpr int kMaxCycles = 16;
  static constexpr int kFirstPause = 4, kPause = 16, kMaxPause = 4096;

  // num_drafts: always so many (0: never), or as this policy decides.
  explicit SelfDraftPolicy(std::optional<int> num_drafts);

  // How many drafts to make at most before the next token; 0: none.
  int Start(const SelfDraftSituation& now, const SelfDraftRecord& record) const;
  // After drafts with these margins (in logits), at least one: whether another should follow.
  bool Continue(const SelfDraftSituation& now, const SelfDraftRecord& record,
                std::span<const float> margins) const;

  // A step without prompt rows.
  void ObserveStep(const StepWork& work, int64_t ns) { cost_.Observe(work, ns); }
  // Of num_drafts drafts, those with these margins were judged and the first num_accepted right.
  void ObserveJudged(const SelfDraftSituation& now, int num_drafts, std::span<const float> margins,
                     int num_accepted, SelfDraftRecord& record);
  // A token was decoded without drafts: what was known of the sequence's drafts grows old.
  void ObservePlain(const SelfDraftSituation& now, SelfDraftRecord& record);

  // What another row of the target adds to a step, in steps of one row; 0 while that is not known.
  double RowCost(const SelfDraftSituation& now) const;

  // Tokens per time with num_drafts drafts, 1 being a step without.
  double Gain(const SelfDraftSituation& now, const SelfDraftRecord& record, int num_drafts) const;

 private:
  static bool IsDeep(const SelfDraftSituation& now) {
    return now.num_attended >= kLeastDepth * now.num_draft_attended;
  }
  double Acceptance(const SelfDraftRecord& record) const;
  double StepNs(const SelfDraftSituation& now, int num_rows, int num_attended) const;
  double DraftNs(const SelfDraftSituation& now) const;
  double TargetNs(const SelfDraftSituation& now, int num_rows) const;
  // The best number of drafts and its gain.
  struct Best {
    int num_drafts = 0;
    double gain = 1;
  };
  Best Choose(const SelfDraftSituation& now, const SelfDraftRecord& record) const;
  // Of a cycle with num_drafts drafts, in steps of one row.
  double CycleCost(const SelfDraftSituation& now, int num_drafts) const;
  // The most drafts of which all may be wrong. One, while the sequence has saved nothing.
  int MostAffordable(const SelfDraftSituation& now, const SelfDraftRecord& record) const;

  const std::optional<int> num_drafts_;
  StepCost cost_;
  DraftPolicy survival_;
  double mean_survival_ = 0.9;  // predicted for the drafts that were judged
  SelfDraftRecord all_;         // of all sequences
  double reserve_ = kMaxReserve;
  int num_cycles_ = 0;        // since a token was decoded without drafts; kMaxCycles: one is due
  int num_plain_tokens_ = 0;  // since a cycle
  int pause_ = kFirstPause;   // after how many of them a draft is tried
};

}  // namespace lynx
