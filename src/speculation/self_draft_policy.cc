// SPDX-License-Identifier: Apache-2.0
#include "speculation/self_draft_policy.h"

#include <algorithm>

namespace lynx {
namespace {

// What is expected of drafts while little is known of any: much, so that they are tried, and tried
// again when what was seen has grown old.
constexpr double kPriorAcceptance = 0.85;
constexpr double kPriorWeight = 10;      // in judged drafts
constexpr double kJudgedMemory = 0.98;   // of what was seen of a sequence, for each judged draft
constexpr double kCommonMemory = 0.995;  // and of all sequences
constexpr double kPlainMemory = 0.9975;  // of both, for each token without drafts
constexpr double kSurvivalRate = 0.05;   // of a judged draft in the mean of predictions

double Mean(const SelfDraftRecord& record, double prior) {
  return (kPriorWeight * prior + record.accepted) / (kPriorWeight + record.judged);
}

void Age(SelfDraftRecord& record, double memory) {
  record.judged *= memory;
  record.accepted *= memory;
}

}  // namespace

SelfDraftPolicy::SelfDraftPolicy(std::optional<int> num_drafts)
    : num_drafts_(num_drafts), survival_(kMaxDrafts, 0) {}

int SelfDraftPolicy::Start(const SelfDraftSituation& now, const SelfDraftRecord& record) const {
  if (num_drafts_) return *num_drafts_;
  if (now.with_prompts || !IsDeep(now) || num_cycles_ >= kMaxCycles) return 0;
  const int most = MostAffordable(now, record);
  const bool is_timed = all_.judged > 0;
  if (is_timed && Choose(now, record).gain >= kLeastGain) return most;
  return num_plain_tokens_ >= pause_ ? std::min(1, most) : 0;
}

bool SelfDraftPolicy::Continue(const SelfDraftSituation& now, const SelfDraftRecord& record,
                               std::span<const float> margins) const {
  if (num_drafts_) return true;
  if (now.with_prompts) return false;
  const double p = Acceptance(record);
  double expected = p;
  for (float margin : margins) {
    expected *= std::min(1.0, p * survival_.Survival(margin) / mean_survival_);
  }
  const int num_rows = static_cast<int>(margins.size()) + 1;
  const double more_ns = DraftNs(now) + TargetNs(now, num_rows + 1) - TargetNs(now, num_rows);
  return expected * TargetNs(now, 1) >= Choose(now, record).gain * more_ns;
}

void SelfDraftPolicy::ObserveJudged(const SelfDraftSituation& now, int num_drafts,
                                    std::span<const float> margins, int num_accepted,
                                    SelfDraftRecord& record) {
  survival_.Observe(margins, num_accepted);
  for (int i = 0; i < static_cast<int>(margins.size()); ++i) {
    mean_survival_ += kSurvivalRate * (survival_.Survival(margins[i]) - mean_survival_);
    Age(record, kJudgedMemory);
    Age(all_, kCommonMemory);
    for (SelfDraftRecord* r : {&record, &all_}) {
      r->judged += 1;
      r->accepted += i < num_accepted ? 1 : 0;
    }
  }
  const bool pays = Choose(now, record).gain >= kLeastGain;
  pause_ = pays ? 0 : std::clamp(2 * pause_, kPause, kMaxPause);
  num_plain_tokens_ = 0;
  const double num_tokens = num_accepted + 1;
  const double saved = num_tokens - CycleCost(now, num_drafts);
  num_cycles_ = saved < 0 ? kMaxCycles : num_cycles_ + 1;
  record.saved += saved;
  reserve_ += kRefill * num_tokens + std::max(0.0, saved) + std::min(0.0, record.saved);
  reserve_ = std::min(reserve_, kMaxReserve);
  record.saved = std::max(0.0, record.saved);
}

void SelfDraftPolicy::ObservePlain(const SelfDraftSituation& now, SelfDraftRecord& record) {
  if (!IsDeep(now)) return;
  Age(record, kPlainMemory);
  Age(all_, kPlainMemory);
  num_cycles_ = 0;
  ++num_plain_tokens_;
  reserve_ = std::min(reserve_ + kRefill, kMaxReserve);
}

double SelfDraftPolicy::Acceptance(const SelfDraftRecord& record) const {
  return Mean(record, Mean(all_, kPriorAcceptance));
}

double SelfDraftPolicy::StepNs(const SelfDraftSituation& now, int num_rows,
                               int num_attended) const {
  StepWork work;
  work.Add(num_rows, num_attended);
  return cost_.Ns(work, 1.0 / now.num_sequences);
}

// The terms are not known well enough to say how much less a draft takes than a row of the target
// where they say that it takes more, nor that several rows take less than one or more than as many
// steps.
double SelfDraftPolicy::DraftNs(const SelfDraftSituation& now) const {
  return std::min(StepNs(now, 1, now.num_draft_attended), TargetNs(now, 1));
}

double SelfDraftPolicy::TargetNs(const SelfDraftSituation& now, int num_rows) const {
  const double one_ns = StepNs(now, 1, now.num_attended);
  return std::clamp(StepNs(now, num_rows, now.num_attended), one_ns, num_rows * one_ns);
}

double SelfDraftPolicy::RowCost(const SelfDraftSituation& now) const {
  const double one_ns = TargetNs(now, 1);
  const double more_ns = TargetNs(now, 3) - TargetNs(now, 2);
  return one_ns > 0 ? std::max(0.0, more_ns / one_ns) : 0;
}

double SelfDraftPolicy::CycleCost(const SelfDraftSituation& now, int num_drafts) const {
  return (num_drafts * DraftNs(now) + TargetNs(now, num_drafts + 1)) / TargetNs(now, 1);
}

int SelfDraftPolicy::MostAffordable(const SelfDraftSituation& now,
                                    const SelfDraftRecord& record) const {
  const int longest = record.saved > 0 ? kMaxDrafts : 1;
  int most = 0;
  while (most < longest && CycleCost(now, most + 1) - 1 <= record.saved + reserve_) ++most;
  return most;
}

double SelfDraftPolicy::Gain(const SelfDraftSituation& now, const SelfDraftRecord& record,
                             int num_drafts) const {
  const double p = Acceptance(record);
  double tokens = 1, all_right = 1;
  for (int i = 0; i < num_drafts; ++i) tokens += all_right *= p;
  return tokens / CycleCost(now, num_drafts);
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
