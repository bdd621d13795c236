// SPDX-License-Identifier: Apache-2.0
#include "speculation/self_draft_policy.h"

#include <algorithm>

namespace lynx {
namespace {

// What is expected of a sequence of which little is known: much, so that it is tried, and tried
// again when what was seen has grown old.
constexpr double kPriorAcceptance = 0.85;
constexpr double kPriorWeight = 10;      // in judged drafts
constexpr double kJudgedMemory = 0.98;   // of what was seen, for each judged draft
constexpr double kPlainMemory = 0.9975;  // and for each token without drafts
constexpr double kSurvivalRate = 0.05;   // of a judged draft in the mean of predictions

}  // namespace

SelfDraftPolicy::SelfDraftPolicy(std::optional<int> num_drafts)
    : num_drafts_(num_drafts), survival_(kMaxDrafts, 0) {}

int SelfDraftPolicy::Start(const SelfDraftSituation& now, const SelfDraftRecord& record) const {
  if (num_drafts_) return *num_drafts_;
  if (now.with_prompts || now.num_attended < kLeastDepth * now.num_draft_attended) return 0;
  if (OnTrial()) return kTrialDrafts;
  return Choose(now, record).gain >= kLeastGain ? kMaxDrafts : 0;
}

bool SelfDraftPolicy::Continue(const SelfDraftSituation& now, const SelfDraftRecord& record,
                               std::span<const float> margins) const {
  if (num_drafts_) return true;
  if (now.with_prompts) return false;
  if (OnTrial()) return static_cast<int>(margins.size()) < kTrialDrafts;
  const double p = Acceptance(record);
  double expected = p;
  for (float margin : margins) {
    expected *= std::min(1.0, p * survival_.Survival(margin) / mean_survival_);
  }
  const int num_rows = static_cast<int>(margins.size()) + 1;
  const double more_ns = DraftNs(now) + TargetNs(now, num_rows + 1) - TargetNs(now, num_rows);
  return expected * TargetNs(now, 1) >= Choose(now, record).gain * more_ns;
}

void SelfDraftPolicy::ObserveStep(const StepWork& work, bool has_drafts, int64_t ns) {
  cost_.Observe(work, ns);
  num_trial_steps_ += has_drafts && OnTrial() ? 1 : 0;
}

void SelfDraftPolicy::ObserveJudged(std::span<const float> margins, int num_accepted,
                                    SelfDraftRecord& record) {
  survival_.Observe(margins, num_accepted);
  for (int i = 0; i < static_cast<int>(margins.size()); ++i) {
    mean_survival_ += kSurvivalRate * (survival_.Survival(margins[i]) - mean_survival_);
    record.judged = kJudgedMemory * record.judged + 1;
    record.accepted = kJudgedMemory * record.accepted + (i < num_accepted ? 1 : 0);
  }
}

void SelfDraftPolicy::ObservePlain(SelfDraftRecord& record) {
  record.judged *= kPlainMemory;
  record.accepted *= kPlainMemory;
}

double SelfDraftPolicy::Acceptance(const SelfDraftRecord& record) {
  return (kPriorWeight * kPriorAcceptance + record.accepted) / (kPriorWeight + record.judged);
}

double SelfDraftPolicy::DraftNs(const SelfDraftSituation& now) const {
  StepWork work;
  work.Add(1, now.num_draft_attended);
  return cost_.Ns(work, 1.0 / now.num_sequences);
}

double SelfDraftPolicy::TargetNs(const SelfDraftSituation& now, int num_rows) const {
  StepWork work;
  work.Add(num_rows, now.num_attended);
  return cost_.Ns(work, 1.0 / now.num_sequences);
}

double SelfDraftPolicy::RowCost(const SelfDraftSituation& now) const {
  const double one_ns = TargetNs(now, 1);
  return one_ns > 0 ? std::max(0.0, TargetNs(now, 2) / one_ns - 1) : 0;
}

double SelfDraftPolicy::Gain(const SelfDraftSituation& now, const SelfDraftRecord& record,
                             int num_drafts) const {
  const double p = Acceptance(record);
  double tokens = 1, all_right = 1;
  for (int i = 0; i < num_drafts; ++i) tokens += all_right *= p;
  const double cycle_ns = num_drafts * DraftNs(now) + TargetNs(now, num_drafts + 1);
  return tokens * TargetNs(now, 1) / cycle_ns;
}

SelfDraftPolicy::Best SelfDraftPolicy::Choose(const SelfDraftSituation& now,
                                              const SelfDraftRecord& record) const {
  Best best;
  for (int d = 1; d <= kMaxDrafts; ++d) {
    const double gain = Gain(now, record, d);
    if (gain > best.gain) best = {d, gain};
  }
  return best;
}

}  // namespace lynx
