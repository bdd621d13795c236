// SPDX-License-Identifier: Apache-2.0
// The decode side of a hand-off: attempts, what lands, and what a failure means.
#include <sys/random.h>

#include <algorithm>

#include "engine/engine_impl.h"

namespace lynx {
namespace {

// From the kernel: another tenant of the network must not be able to guess one.
AttemptId FreshAttemptId() {
  AttemptId id;
  LYNX_CHECK(getrandom(&id, sizeof id, 0) == sizeof id);
  return id;
}

// Trying again, perhaps elsewhere, cannot help.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsNotFound(status);
}

}  // namespace

void EngineImpl::StartAttempt(Sequence& s) {
  HandoffAttempt attempt;
  attempt.id = FreshAttemptId();
  attempt.num_tokens = s.num_tokens();
  s.attempt = attempt;
  s.state = State::kLoading;
  s.exact = options_.exact_handoff;
  ++s.timeline.num_handoffs;
  by_attempt_[attempt.id] = &s;

  const int num_blocks = (s.num_tokens() + kBlockSize - 1) / kBlockSize;
  const std::span<const BlockId> blocks(s.block_table.data(), num_blocks);
  ReceiveJob job;
  job.attempt = attempt.id;
  job.first_token = s.num_computed_tokens;
  job.num_tokens = s.num_tokens();
  job.block_table.assign(blocks.begin(), blocks.end());
  if (const absl::Status status = receiver_->Begin(job); !status.ok()) {
    FailRequest(s, status);
    return;
  }
  pins_.Pin(attempt.id, blocks.subspan(s.num_computed_tokens / kBlockSize));

  RemotePrefillRequest request;
  request.attempt = attempt.id;
  request.request_id = s.id;
  request.prompt_ids = s.tokens;
  request.num_emitted = s.num_output_tokens();
  request.num_cached_tokens = s.num_computed_tokens;
  request.sampling = s.sampling;
  if (!s.prompt_logprobs_wanted) request.sampling.num_prompt_logprobs = -1;
  request.cache_salt = s.cache_salt;
  request.receiver_address = receiver_address_;
  remote_->Start(request,
                 [inbox = inbox_](RemotePrefillEvent event) { inbox->Push(std::move(event)); });
}

bool EngineImpl::PollReceiver() {
  if (receiver_ == nullptr) return false;
  const std::vector<ReceiveEvent> events = receiver_->Poll();
  for (const ReceiveEvent& event : events) Apply(event);
  return !events.empty();
}

void EngineImpl::Apply(const ReceiveEvent& event) {
  using Kind = ReceiveEvent::Kind;
  const bool terminal =
      event.kind == Kind::kRefined || event.kind == Kind::kFailed || event.kind == Kind::kCancelled;
  if (terminal) pins_.Release(event.attempt);
  if (event.kind == Kind::kFailed) ++counters_.transfers_failed;
  const auto it = by_attempt_.find(event.attempt);
  if (it == by_attempt_.end()) return;  // the request is over; only its pins were left
  Sequence& s = *it->second;
  s.timeline.stage_bytes = event.stage_bytes;
  switch (event.kind) {
    case Kind::kAnchorLanded:
      s.timeline.Mark(Event::kAnchorLanded, event.at_ns);
      s.attempt->anchor_landed = true;
      break;
    case Kind::kResidualLanded:
      s.timeline.Mark(Event::kResidualLanded, event.at_ns);
      break;
    case Kind::kTargetLanded:
      s.timeline.Mark(Event::kTargetLanded, event.at_ns);
      s.attempt->target_landed = true;
      receiver_->Refine(event.attempt);
      break;
    case Kind::kRefined:
      s.timeline.Mark(Event::kTargetLanded, event.at_ns);
      s.timeline.Mark(Event::kRefined, event.at_ns);
      s.attempt->target_landed = s.attempt->refined = true;
      break;
    case Kind::kFailed:
      OnAttemptFailed(s, event.error);
      return;
    case Kind::kCancelled:
      OnAttemptFailed(s, absl::CancelledError("the transfer was cancelled"));
      return;
  }
  ContinueHandoff(s);
}

// The state that follows from what is known of the attempt so far.
void EngineImpl::ContinueHandoff(Sequence& s) {
  const HandoffAttempt& a = *s.attempt;
  if (a.refined && a.first_token_known) {
    CompleteHandoff(s);
  } else if (a.target_landed || !a.anchor_landed) {
    s.state = State::kLoading;
  } else if (!options_.speculation || options_.max_draft_tokens == 0) {
    PromoteOnce(s);
  } else if (a.first_token_known) {
    s.state = State::kDrafting;
  }
}

void EngineImpl::CompleteHandoff(Sequence& s) {
  const HandoffAttempt a = *s.attempt;
  remote_->Landed(a.id);
  by_attempt_.erase(a.id);
  s.attempt.reset();
  counters_.prompt_tokens_transferred += a.num_tokens - s.num_computed_tokens;
  s.num_computed_tokens = a.num_tokens;
  RegisterBlocks(s);
  s.state = s.drafts.empty() ? State::kRunning : State::kVerifying;
}

void EngineImpl::OnAttemptFailed(Sequence& s, const absl::Status& status) {
  ++s.num_failed_attempts;
  if (IsFinal(status) || s.num_failed_attempts >= options_.max_prefill_attempts) {
    FailRequest(s, absl::Status(status.code(), absl::StrCat("hand-off ", s.num_failed_attempts,
                                                            " of ", options_.max_prefill_attempts,
                                                            " failed: ", status.message())));
    return;
  }
  // A peer that hung or restarted may need a moment before it can be connected to again.
  s.next_attempt_ns =
      Now() + (int64_t{options_.retry_backoff_ms} << (s.num_failed_attempts - 1)) * 1'000'000;
  Requeue(s);
}

// Ends the attempt on both legs. Its blocks stay pinned until the receiver says that nothing
// touches them any more.
void EngineImpl::AbandonAttempt(Sequence& s) {
  if (!s.attempt) return;
  const AttemptId id = s.attempt->id;
  by_attempt_.erase(id);
  s.attempt.reset();
  remote_->Cancel(id);
  if (pins_.Holds(id)) receiver_->Cancel(id);
}

void EngineImpl::PromoteOnce(Sequence& s) {
  if (!s.attempt || s.attempt->promoted) return;
  s.attempt->promoted = true;
  receiver_->Promote(s.attempt->id);
}

}  // namespace lynx
