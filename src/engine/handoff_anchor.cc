// SPDX-License-Identifier: Apache-2.0
// Which anchor a hand-off is asked for, and what is learnt for the next ones.
#include <algorithm>

#include "engine/engine_impl.h"

namespace lynx {
namespace {

constexpr double kSecondsPerNs = 1e-9;

}  // namespace

// Of the attempt that begins now.
void EngineImpl::ChooseAnchor(Sequence& s) {
  if (anchor_policy_.candidates().empty()) return;
  const AnchorChoice choice = anchor_policy_.Choose(Situation(s));
  s.anchor = static_cast<int>(choice.index);
  s.timeline.anchor = anchor_policy_.candidates()[choice.index].name;
  s.timeline.estimated_anchor_ns = static_cast<int64_t>(choice.seconds / kSecondsPerNs);
}

AnchorSituation EngineImpl::Situation(const Sequence& s) const {
  AnchorSituation now;
  now.num_tokens = s.num_tokens() - s.num_computed_tokens;
  now.num_wanted =
      std::min(AnchorPolicy::kWantedTokens, s.sampling.max_tokens - s.num_output_tokens());
  now.bytes_per_second = receiver_->stats().bytes_per_second;
  if (now.bytes_per_second <= 0) now.bytes_per_second = verify_policy_.bytes_per_second();
  now.step_s = static_cast<double>(answer_step_ns_) * kSecondsPerNs;
  now.first_token_s = first_token_ns_.value() * now.num_tokens * kSecondsPerNs;
  now.refine_s = refine_ns_.value() * now.num_tokens * kSecondsPerNs;
  if (s.attempt->verify == VerifyMode::kSource) {
    now.round_s = static_cast<double>(verify_policy_.SourceNs()) * kSecondsPerNs;
  }
  if (Drafts(s)) now.max_draft_tokens = options_.max_draft_tokens;
  for (const auto& [id, other] : by_attempt_) {
    const HandoffAttempt& a = *other->attempt;
    if (a.target_landed || other == &s) continue;
    const int num_tokens = a.num_tokens - other->num_computed_tokens;
    now.bytes_ahead += BytesOf(anchor_policy_.whole(), num_tokens);
    if (a.anchor_landed) {
      now.bytes_ahead -= static_cast<double>(a.anchor_bytes);
    } else {
      now.anchor_bytes_ahead +=
          BytesOf(anchor_policy_.candidates()[static_cast<size_t>(other->anchor)], num_tokens);
    }
  }
  return now;
}

// The answer's first token has come; that many of the prompt's had to be computed for it.
void EngineImpl::ObserveFirstToken(const Sequence& s, int num_computed) {
  const auto ns = static_cast<double>(Now() - s.attempt->start_ns);
  first_token_ns_.Observe(ns / std::max(1, num_computed));
}

void EngineImpl::ObserveRefined(const Sequence& s, int64_t at_ns) {
  const HandoffAttempt& a = *s.attempt;
  if (a.target_landed_ns == 0) return;  // decoded as it came
  refine_ns_.Observe(static_cast<double>(at_ns - a.target_landed_ns) /
                     std::max(1, a.num_tokens - s.num_computed_tokens));
}

}  // namespace lynx
