// SPDX-License-Identifier: Apache-2.0
// What comes in from other threads: requests, jobs, cancels and the events of remote prefills.
#include <algorithm>

#include "engine/engine_impl.h"

namespace lynx {
namespace {

EngineOutput Refusal(const absl::Status& status) {
  EngineOutput output;
  output.finish_reason = FinishReason::kError;
  output.error = status;
  return output;
}

RemotePrefillEvent Refusal(AttemptId attempt, const absl::Status& status) {
  RemotePrefillEvent event;
  event.attempt = attempt;
  event.error = status;
  return event;
}

absl::Status Draining() { return absl::UnavailableError("the engine is stopping"); }

}  // namespace

// ---- any thread ---------------------------------------------------------------------------------

void EngineImpl::Submit(Request request, OutputSink sink) {
  Command command = SubmitCommand{std::move(request), std::move(sink)};
  if (!inbox_->Push(std::move(command))) {
    std::get<SubmitCommand>(command).sink(Refusal(Draining()));
  }
}

void EngineImpl::SubmitPrefill(RemotePrefillRequest job, PrefillSink sink) {
  const AttemptId attempt = job.attempt;
  Command command = SubmitPrefillCommand{std::move(job), std::move(sink)};
  if (!inbox_->Push(std::move(command))) {
    std::get<SubmitPrefillCommand>(command).sink(Refusal(attempt, Draining()));
  }
}

void EngineImpl::Verify(VerifyRequest request) { inbox_->Push(std::move(request)); }

void EngineImpl::Cancel(std::string request_id) {
  inbox_->Push(CancelCommand{std::move(request_id)});
}

void EngineImpl::CancelPrefill(AttemptId attempt) { inbox_->Push(CancelPrefillCommand{attempt}); }

// ---- engine thread ------------------------------------------------------------------------------

bool EngineImpl::ApplyCommands() {
  inbox_->Take(commands_);
  for (Command& command : commands_) {
    std::visit([this](auto& c) { Apply(c); }, command);
  }
  return !commands_.empty();
}

absl::Status EngineImpl::CheckTokens(std::span<const TokenId> tokens) const {
  if (tokens.empty()) return absl::InvalidArgumentError("the prompt is empty");
  for (TokenId t : tokens) {
    if (t >= 0 && t < vocab_size_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", t, " is not in the vocabulary of ", vocab_size_));
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::Check(const Request& r) const {
  if (options_.role == Role::kPrefill) {
    return absl::FailedPreconditionError("a prefill daemon takes no requests, only hand-offs");
  }
  LYNX_RETURN_IF_ERROR(CheckTokens(r.prompt_ids));
  if (!r.emitted_ids.empty()) LYNX_RETURN_IF_ERROR(CheckTokens(r.emitted_ids));
  const size_t num_tokens = r.prompt_ids.size() + r.emitted_ids.size();
  if (num_tokens >= static_cast<size_t>(max_model_len_)) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", num_tokens,
                                                   " tokens; the longest sequence here is ",
                                                   max_model_len_, " with one token of output"));
  }
  if (by_id_.contains(r.id)) {
    return absl::InvalidArgumentError(absl::StrCat("request id ", r.id, " is in use"));
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::CheckRoom() {
  if (static_cast<int>(waiting_.size()) < options_.max_waiting) return absl::OkStatus();
  ++counters_.queue_rejections;
  return absl::ResourceExhaustedError(
      absl::StrCat("the waiting queue is full (", options_.max_waiting, " requests)"));
}

void EngineImpl::Apply(SubmitCommand& command) {
  Request& r = command.request;
  absl::Status status = Check(r);
  if (stopping_ != Stopping::kNo) status = Draining();
  if (status.ok()) status = CheckRoom();
  if (!status.ok()) {
    ++counters_.finished_error;
    command.sink(Refusal(status));
    return;
  }
  auto s = std::make_unique<Sequence>();
  s->number = next_number_++;
  s->id = std::move(r.id);
  s->priority = r.priority;
  s->client = r.client;
  s->queued_ns = Now();
  s->cache_salt = std::move(r.cache_salt);
  s->show_drafts = r.show_drafts;
  s->verify = r.verify.value_or(options_.verify);
  s->sink = std::move(command.sink);
  s->num_prompt_tokens = static_cast<int>(r.prompt_ids.size());
  s->counts = TokenCounts(r.sampling);
  s->counts.AddPrompt(r.prompt_ids);
  for (TokenId t : r.emitted_ids) s->counts.AddOutput(t);
  s->tokens = std::move(r.prompt_ids);
  s->tokens.insert(s->tokens.end(), r.emitted_ids.begin(), r.emitted_ids.end());
  // An earlier try that has emitted tokens has emitted the prompt's logprobs before them.
  s->prompt_logprobs_wanted = r.sampling.num_prompt_logprobs >= 0 && r.emitted_ids.empty();
  s->sampling = std::move(r.sampling);
  s->sampling.max_tokens = std::max(1, s->sampling.max_tokens);
  s->timeline.Mark(Event::kArrived, r.arrival_ns != 0 ? r.arrival_ns : Now());
  by_id_[s->id] = s.get();
  Sequence& sequence = *s;
  Enqueue(std::move(s));
  if (sequence.num_output_tokens() >= sequence.sampling.max_tokens) {
    FinishRequest(sequence, FinishReason::kLength);
  }
}

absl::Status EngineImpl::Check(const RemotePrefillRequest& r) const {
  if (options_.role != Role::kPrefill) {
    return absl::FailedPreconditionError("only a prefill daemon takes hand-offs");
  }
  LYNX_RETURN_IF_ERROR(CheckTokens(r.prompt_ids));
  const auto num_tokens = static_cast<int>(r.prompt_ids.size());
  if (num_tokens >= max_model_len_) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", num_tokens,
                                                   " tokens; the longest sequence here is ",
                                                   max_model_len_, " with one token of output"));
  }
  if (r.num_emitted < 0 || r.num_emitted >= num_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_emitted: ", r.num_emitted, " is not in 0..", num_tokens - 1));
  }
  if (r.num_cached_tokens < 0 || r.num_cached_tokens > num_tokens ||
      r.num_cached_tokens % kBlockSize != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_cached_tokens: ", r.num_cached_tokens,
                                                   " is not a multiple of ", kBlockSize, " in 0..",
                                                   num_tokens));
  }
  if (by_attempt_.contains(r.attempt) || pins_.Holds(r.attempt)) {
    return absl::InvalidArgumentError("this attempt has been started before");
  }
  return absl::OkStatus();
}

void EngineImpl::Apply(SubmitPrefillCommand& command) {
  RemotePrefillRequest& r = command.job;
  absl::Status status = Check(r);
  if (stopping_ != Stopping::kNo) status = Draining();
  if (status.ok()) status = CheckRoom();
  if (!status.ok()) {
    ++counters_.finished_error;
    command.sink(Refusal(r.attempt, status));
    return;
  }
  auto s = std::make_unique<Sequence>();
  s->number = next_number_++;
  s->priority = r.priority;
  s->client = r.client;
  s->queued_ns = Now();
  s->cache_salt = r.cache_salt;
  s->prefill_sink = std::move(command.sink);
  s->tokens = std::move(r.prompt_ids);
  s->num_prompt_tokens = s->num_tokens() - r.num_emitted;
  s->counts = TokenCounts(r.sampling);
  s->counts.AddPrompt(std::span(s->tokens).first(s->num_prompt_tokens));
  for (int i = s->num_prompt_tokens; i < s->num_tokens(); ++i) s->counts.AddOutput(s->tokens[i]);
  s->prompt_logprobs_wanted = r.sampling.num_prompt_logprobs >= 0 && r.num_emitted == 0;
  s->sampling = r.sampling;
  s->job = std::move(r);
  by_attempt_[s->job.attempt] = s.get();
  Enqueue(std::move(s));
}

void EngineImpl::Apply(const CancelCommand& command) {
  const auto it = by_id_.find(command.request_id);
  if (it != by_id_.end()) FinishRequest(*it->second, FinishReason::kAbort);
}

void EngineImpl::Apply(const CancelPrefillCommand& command) {
  sending_.erase(command.attempt);
  if (const auto it = by_attempt_.find(command.attempt); it != by_attempt_.end()) {
    Sequence& s = *it->second;
    counters_.finished_abort += s.answering() ? 0 : 1;
    Release(s);
  }
  if (sender_ != nullptr && pins_.Holds(command.attempt)) sender_->Cancel(command.attempt);
}

void EngineImpl::Apply(RemotePrefillEvent& event) {
  const auto it = by_attempt_.find(event.attempt);
  if (it == by_attempt_.end()) return;  // of an attempt that is over
  Sequence& s = *it->second;
  if (!event.error.ok()) {
    // Everything of that side is here: what happens to it no longer matters.
    const bool complete = s.attempt->first_token_known && s.attempt->target_landed;
    if (!complete) OnAttemptFailed(s, event.error);
    return;
  }
  if (s.attempt->first_token_known) {
    UseReport(s, event);
    return;
  }
  if (!event.first_token) return;
  if (const absl::Status status = CheckFirstReport(s, event); !status.ok()) {
    OnAttemptFailed(s, status);
    return;
  }
  s.attempt->first_token_known = true;
  ObserveFirstToken(s, s.num_tokens() - event.num_cached_tokens);
  verify_policy_.ObserveStep(event.step_ns);
  s.num_cached_tokens = event.num_cached_tokens;
  if (s.prompt_logprobs_wanted) s.prompt_logprobs = std::move(event.prompt_logprobs);
  AddVerified(s, std::move(*event.first_token));
  if (s.state == State::kFinished) return;
  if (event.cannot_verify) ForgoVerification(*s.attempt);
  ContinueHandoff(s);
}

absl::Status EngineImpl::CheckFirstReport(const Sequence& s,
                                          const RemotePrefillEvent& report) const {
  const TokenId token = report.first_token->id;
  if (token < 0 || token >= vocab_size_) {
    return absl::DataLossError(
        absl::StrCat("first token ", token, " is not in the vocabulary of ", vocab_size_));
  }
  if (report.num_cached_tokens < 0 || report.num_cached_tokens > s.num_tokens()) {
    return absl::DataLossError(absl::StrCat("num_cached_tokens: ", report.num_cached_tokens,
                                            " of a prompt of ", s.num_tokens()));
  }
  return absl::OkStatus();
}

// What was submitted before is still served (drain) or aborted; what comes later is refused.
void EngineImpl::Apply(const StopCommand& command) {
  if (stopping_ == Stopping::kNow) return;
  stopping_ = command.drain ? Stopping::kDrain : Stopping::kNow;
  if (stopping_ == Stopping::kNow) AbortAll();
}

void EngineImpl::Enqueue(Owned sequence) {
  fair_share_.Enqueue(sequence->client);
  waiting_.push_back(std::move(sequence));
}

}  // namespace lynx
