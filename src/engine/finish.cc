// SPDX-License-Identifier: Apache-2.0
// What leaves the engine: outputs, and finished sequences with what they held.
#include <utility>

#include "engine/engine_impl.h"

namespace lynx {

// This step's output of a sequence, to be published before or after its batch.
EngineOutput& EngineImpl::Output(Sequence& s) {
  if (!s.output_pending) {
    s.output_pending = true;
    published_.push_back(&s);
  }
  return s.output;
}

// False: there was nothing.
bool EngineImpl::Publish() {
  const bool any = !published_.empty();
  for (Sequence* s : published_) {
    s->output_pending = false;
    if (s->prefill_only()) {
      s->report.goes_on = s->said_to_go_on = GoesOn(*s);
      s->prefill_sink(std::exchange(s->report, RemotePrefillEvent()));
      continue;
    }
    if (s->state == State::kFinished) s->output.timeline = std::move(s->timeline);
    s->sink(std::exchange(s->output, EngineOutput()));
  }
  published_.clear();
  return any;
}

void EngineImpl::FinishRequest(Sequence& s, FinishReason reason) {
  if (s.state == State::kFinished) return;
  switch (reason) {
    case FinishReason::kStop:
      ++counters_.finished_stop;
      break;
    case FinishReason::kLength:
      ++counters_.finished_length;
      break;
    case FinishReason::kAbort:
      ++counters_.finished_abort;
      break;
    default:
      ++counters_.finished_error;
  }
  s.timeline.Mark(Event::kFinished, Now());
  Output(s).finish_reason = reason;
  Release(s);
}

void EngineImpl::FailRequest(Sequence& s, const absl::Status& status) {
  if (s.state == State::kFinished) return;
  Output(s).error = status;
  FinishRequest(s, FinishReason::kError);
}

// Gives everything back. Legal in every state, once.
void EngineImpl::Release(Sequence& s) {
  if (s.prefill_only()) {
    by_attempt_.erase(s.job.attempt);
  } else {
    by_id_.erase(s.id);
    AbandonAttempt(s);
  }
  ReleaseBlocks(s);
  s.state = State::kFinished;
}

}  // namespace lynx
