// SPDX-License-Identifier: Apache-2.0
#include "speculation/anchor_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lynx {
namespace {

// A prior counts as so many wrong drafts of everybody, and as so many judged ones of a candidate.
constexpr double kSharedPriorWrong = 3;
constexpr double kOwnPriorJudged = 100;
constexpr double kKeep = 0.999;  // of all counts, with every judged draft
constexpr double kLeastError = 0.001, kLargestError = 0.9;

// Right ones among `drafts`: p + p^2 + … + p^drafts, for any real number of them.
double NumRight(double drafts, double error) {
  const double p = 1 - error;
  return error <= 0 ? drafts : p * (1 - std::pow(p, drafts)) / error;
}

}  // namespace

double RoundRate(double round_s, double step_s, int max_draft_tokens, double error) {
  const double drafts = std::clamp(round_s / step_s, 1.0, std::max(1.0, 1.0 * max_draft_tokens));
  return (NumRight(drafts, error) + 1) / std::max(round_s, step_s);
}

double SecondsToWanted(const AnchorCandidate& anchor, double error, double whole_bytes,
                       const AnchorSituation& now) {
  const double anchor_bytes = std::min(BytesOf(anchor, now.num_tokens), whole_bytes);
  const double anchor_s =
      std::max(now.first_token_s, (now.anchor_bytes_ahead + anchor_bytes) / now.bytes_per_second);
  const double target_s =
      std::max(anchor_s, (now.bytes_ahead + whole_bytes) / now.bytes_per_second);
  double missing = std::max(0, now.num_wanted - 1);
  if (anchor.whole) return target_s + missing * now.step_s;
  const double overlap_s = target_s - anchor_s;
  if (now.round_s > 0 && now.max_draft_tokens > 0) {
    const double rate = RoundRate(now.round_s, now.step_s, now.max_draft_tokens, error);
    if (rate * overlap_s >= missing) return anchor_s + missing / rate;
    missing -= rate * overlap_s;
  }
  const double drafts =
      std::min({overlap_s / now.step_s, 1.0 * now.max_draft_tokens, std::max(0.0, missing - 1)});
  return target_s + now.refine_s + (missing - NumRight(drafts, error)) * now.step_s;
}

AnchorPolicy::AnchorPolicy(AnchorOptions options)
    : options_(std::move(options)), counts_(options_.candidates.size()) {}

AnchorChoice AnchorPolicy::Choose(const AnchorSituation& now) const {
  const std::vector<AnchorCandidate>& candidates = options_.candidates;
  const bool known = now.bytes_per_second > 0 && now.step_s > 0;
  if (candidates.size() < 2 || !known || now.num_wanted <= 1) return {options_.fallback, 0};
  const double whole_bytes = BytesOf(options_.whole, now.num_tokens);
  AnchorChoice best;
  std::pair<double, double> best_rank;  // seconds, bytes first
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double seconds = SecondsToWanted(candidates[i], Error(i), whole_bytes, now);
    const double bytes = candidates[i].whole ? 0 : BytesOf(candidates[i], now.num_tokens);
    if (i > 0 && std::pair(seconds, bytes) >= best_rank) continue;
    best = {i, seconds};
    best_rank = {seconds, bytes};
  }
  return best;
}

void AnchorPolicy::Observe(size_t candidate, int num_judged, int num_accepted) {
  if (num_judged <= 0 || options_.candidates[candidate].whole) return;
  const double keep = std::pow(kKeep, num_judged);
  for (Count& count : counts_) {
    count.judged *= keep;
    count.wrong *= keep;
  }
  counts_[candidate].judged += num_judged;
  counts_[candidate].wrong += num_judged - num_accepted;
}

double AnchorPolicy::Error(size_t candidate) const {
  double expected = kSharedPriorWrong, wrong = kSharedPriorWrong;
  for (size_t i = 0; i < counts_.size(); ++i) {
    expected += counts_[i].judged * options_.candidates[i].prior_error;
    wrong += counts_[i].wrong;
  }
  const double prior = options_.candidates[candidate].prior_error * wrong / expected;
  const Count& own = counts_[candidate];
  const double error = (kOwnPriorJudged * prior + own.wrong) / (kOwnPriorJudged + own.judged);
  return std::clamp(error, kLeastError, kLargestError);
}

}  // namespace lynx
