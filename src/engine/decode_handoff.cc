// SPDX-License-Identifier: Apache-2.0
// The decode side of a hand-off: attempts, what lands, and what a failure means.
#include <sys/random.h>

#include <algorithm>
#include <numeric>

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

// Not by the request's own doing, or for want of room.
bool MayFailOthers(const absl::Status& status) {
  return !IsFinal(status) && !absl::IsResourceExhausted(status) && !absl::IsCancelled(status);
}

// What the client hears when no attempt is left: a transfer failed, unless a prefill daemon had a
// reason of its own to refuse.
absl::StatusCode FinalCode(const absl::Status& status) {
  // The daemons do not fit each other, which is none of the client's doing.
  if (absl::IsFailedPrecondition(status)) return absl::StatusCode::kUnavailable;
  return IsFinal(status) || absl::IsResourceExhausted(status) ? status.code()
                                                              : absl::StatusCode::kDataLoss;
}

int64_t TotalBytes(const ReceiveEvent& event) {
  return std::accumulate(event.stage_bytes.begin(), event.stage_bytes.end(), int64_t{0});
}

}  // namespace

void EngineImpl::StartAttempt(Sequence& s) {
  HandoffAttempt attempt;
  attempt.id = FreshAttemptId();
  attempt.num_tokens = s.num_tokens();
  attempt.start_ns = Now();
  s.attempt = attempt;
  s.state = State::kLoading;
  s.exact = options_.exact_handoff;
  s.attempt->verify = ChooseVerify(s);
  s.timeline.verify = s.attempt->verify;
  ChooseAnchor(s);
  ++s.timeline.num_handoffs;
  by_attempt_[attempt.id] = &s;

  const int num_blocks = BlocksFor(s.num_tokens());
  const std::span<const BlockId> blocks(s.block_table.data(), num_blocks);
  ReceiveJob job;
  job.attempt = attempt.id;
  job.first_token = s.num_computed_tokens;
  job.num_tokens = s.num_tokens();
  job.block_table.assign(blocks.begin(), blocks.end());
  if (s.anchor >= 0) job.anchor = anchor_policy_.candidates()[s.anchor].planes;
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
  request.priority = s.priority;
  request.client = s.client;
  request.receiver_address = receiver_address_;
  request.anchor = job.anchor;
  const bool is_auto = s.verify == VerifyMode::kAuto && s.attempt->verify == VerifyMode::kSource;
  request.verify = is_auto ? VerifyMode::kAuto : s.attempt->verify;
  request.failed_at = s.failed_at;
  s.attempt->where = remote_->Start(
      request, [inbox = inbox_](RemotePrefillEvent event) { inbox->Push(std::move(event)); });
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
      s.attempt->anchor_landed_ns = event.at_ns;
      s.attempt->anchor_bytes = TotalBytes(event);
      s.num_anchored_tokens = s.attempt->num_tokens;
      break;
    case Kind::kResidualLanded:
      s.timeline.Mark(Event::kResidualLanded, event.at_ns);
      break;
    case Kind::kTargetLanded:
      s.timeline.Mark(Event::kTargetLanded, event.at_ns);
      s.attempt->target_landed = true;
      s.attempt->target_landed_ns = event.at_ns;
      ObserveTransfer(s, event);
      break;
    case Kind::kReadable:
      return;
    case Kind::kRefined:
      s.timeline.Mark(Event::kTargetLanded, event.at_ns);
      s.timeline.Mark(Event::kRefined, event.at_ns);
      if (!s.attempt->target_landed) ObserveTransfer(s, event);  // there was one stage
      ObserveRefined(s, event.at_ns);
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
  } else if (!Drafts(s)) {
    PromoteOnce(s);
  } else if (a.first_token_known) {
    s.state = State::kDrafting;
    PromoteIfSlow(s);
    PauseDrafting(s);
  }
}

// The receiver writes into the blocks while no draft row is about to read them. A draft that the
// target would overtake is not made.
void EngineImpl::ShareBlocks(Sequence& s) {
  if (!s.attempt) return;
  HandoffAttempt& a = *s.attempt;
  const bool drafts = s.state == State::kDrafting && !s.drafting_paused;
  if (drafts && !a.reads) {
    a.reads = receiver_->Read(a.id, answer_step_ns_);
  } else if (!drafts && a.reads) {
    a.reads = false;
    receiver_->Refine(a.id);
  }
}

// Whether anything is done with the anchor.
bool EngineImpl::Drafts(const Sequence& s) const {
  return options_.speculation && options_.max_draft_tokens > 0 &&
         s.attempt->verify != VerifyMode::kHold;
}

void EngineImpl::CompleteHandoff(Sequence& s) {
  const HandoffAttempt a = *s.attempt;
  remote_->Landed(a.id);
  by_attempt_.erase(a.id);
  s.attempt.reset();
  s.failed_at.clear();
  counters_.prompt_tokens_transferred += a.num_tokens - s.num_computed_tokens;
  s.num_computed_tokens = a.num_tokens;
  RegisterBlocks(s);
  TrimDrafts(s);
  s.state = s.drafts.empty() ? State::kRunning : State::kVerifying;
}

// Leaves the drafts that will probably save more time than their rows take.
void EngineImpl::TrimDrafts(Sequence& s) {
  const int number = NumWorthJudging(s);
  if (number == 0) DropDrafts(s);
  while (s.num_drafts() > number) DropLastDraft(s);
}

void EngineImpl::OnAttemptFailed(Sequence& s, const absl::Status& status) {
  if (MayFailOthers(status)) remote_->Failed(s.attempt->id, status);
  s.failed_at.push_back(s.attempt->where);
  const auto num_failed = static_cast<int>(s.failed_at.size());
  const bool has_begun = !s.timeline.token_ns.empty();
  if (absl::IsResourceExhausted(status) && !has_begun && Overdue(s)) {
    ++counters_.queue_timeouts;
    FailRequest(s, absl::DeadlineExceededError(OverdueMessage()));
    return;
  }
  if (IsFinal(status) || num_failed >= options_.max_prefill_attempts) {
    FailRequest(s, absl::Status(FinalCode(status), absl::StrCat("hand-off ", num_failed, " of ",
                                                                options_.max_prefill_attempts,
                                                                " failed: ", status.message())));
    return;
  }
  // A peer that hung or restarted may need a moment before it can be connected to again.
  s.next_attempt_ns = Now() + (int64_t{options_.retry_backoff_ms} << (num_failed - 1)) * 1'000'000;
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

// Teaches the estimates of kAuto. Where nothing came after an anchor, that is the link's rate.
void EngineImpl::ObserveTransfer(const Sequence& s, const ReceiveEvent& event) {
  const HandoffAttempt& a = *s.attempt;
  const int num_tokens = a.num_tokens - s.num_computed_tokens;
  const int64_t bytes = TotalBytes(event);
  if (a.anchor_landed && bytes > a.anchor_bytes) {
    verify_policy_.ObserveTransfer(num_tokens, bytes, bytes - a.anchor_bytes,
                                   event.at_ns - a.anchor_landed_ns);
  } else {
    verify_policy_.ObserveTransfer(num_tokens, bytes, 0, 0);
    verify_policy_.ObserveRate(receiver_->stats().bytes_per_second);
  }
}

void EngineImpl::PromoteOnce(Sequence& s) {
  if (!s.attempt || s.attempt->promoted) return;
  s.attempt->promoted = true;
  receiver_->Promote(s.attempt->id);
}

}  // namespace lynx
