// SPDX-License-Identifier: Apache-2.0
// The prefill side of a hand-off: jobs that end with token 1 while their KV is still being sent.
#include <utility>

#include "engine/engine_impl.h"

namespace lynx {

// Pins the blocks for the transfer and hands over what the prefix cache already has. False: the
// job has failed.
bool EngineImpl::StartSending(Sequence& s) {
  SendJob job;
  job.attempt = s.job.attempt;
  job.receiver_address = s.job.receiver_address;
  job.first_token = s.job.num_cached_tokens;
  job.num_tokens = s.num_tokens();
  job.block_table = s.block_table;
  job.anchor = s.job.anchor;
  if (const absl::Status status = sender_->Begin(job); !status.ok()) {
    FailPrefillJob(s, status);
    return false;
  }
  pins_.Pin(job.attempt, s.block_table);
  if (s.num_computed_tokens == 0) return true;
  for (int layer = 0; layer < kv_cache_->view().layout.num_layers; ++layer) {
    sender_->Computed(job.attempt, layer, s.num_computed_tokens);
  }
  return true;
}

void EngineImpl::AfterLayer(int layer) {
  for (const BatchEntry& entry : batch_.entries()) {
    if (entry.sequence->state != State::kPrefilling) continue;
    sender_->Computed(entry.sequence->job.attempt, layer, entry.position + entry.num_rows);
  }
}

void EngineImpl::FinishPrefillJob(Sequence& s, TokenOutput first_token) {
  RemotePrefillEvent event;
  event.attempt = s.job.attempt;
  event.first_token = std::move(first_token);
  event.prompt_logprobs = std::move(s.prompt_logprobs);
  s.prompt_logprobs_wanted = false;
  event.num_cached_tokens = s.num_cached_tokens;
  ++counters_.finished_stop;
  const PrefillSink sink = s.prefill_sink;
  const bool kept = KeepForVerification(s, event.first_token->id);
  event.cannot_verify = !kept && s.job.verify != VerifyMode::kResidual;
  if (!kept) LeaveToTransfer(s);
  event.step_ns = StepNs();
  sink(std::move(event));
}

// The engine is done with the job; the transfer may have failed (and been polled) before this.
void EngineImpl::LeaveToTransfer(Sequence& s) {
  if (pins_.Holds(s.job.attempt)) sending_[s.job.attempt] = s.prefill_sink;
  Release(s);
}

void EngineImpl::FailPrefillJob(Sequence& s, const absl::Status& status) {
  RemotePrefillEvent event;
  event.attempt = s.job.attempt;
  event.error = status;
  // A cancel comes by both planes; the transfer may be the first to say so.
  int64_t& ended = absl::IsCancelled(status) ? counters_.finished_abort : counters_.finished_error;
  ended += s.answering() ? 0 : 1;
  if (pins_.Holds(s.job.attempt)) sender_->Cancel(s.job.attempt);
  const PrefillSink sink = s.prefill_sink;
  Release(s);
  // The error is the last event: a report of this step would come after it.
  if (std::exchange(s.output_pending, false)) std::erase(published_, &s);
  sink(std::move(event));
}

bool EngineImpl::PollSender() {
  if (sender_ == nullptr) return false;
  const std::vector<SendEvent> events = sender_->Poll();
  for (const SendEvent& event : events) {
    pins_.Release(event.attempt);
    const bool failed = event.kind == SendEvent::Kind::kFailed;
    counters_.transfers_failed += failed && !absl::IsCancelled(event.error) ? 1 : 0;
    counters_.leases_expired += failed && absl::IsDeadlineExceeded(event.error) ? 1 : 0;
    if (const auto job = by_attempt_.find(event.attempt); job != by_attempt_.end()) {
      Sequence& s = *job->second;
      if (failed) {
        FailPrefillJob(s, event.error);
      } else if (s.answering()) {
        Release(s);
      }
    }
    const auto sending = sending_.find(event.attempt);
    if (sending == sending_.end()) continue;
    const PrefillSink sink = std::move(sending->second);
    sending_.erase(sending);
    if (!failed) continue;
    RemotePrefillEvent report;
    report.attempt = event.attempt;
    report.error = event.error;
    sink(std::move(report));
  }
  return !events.empty();
}

}  // namespace lynx
