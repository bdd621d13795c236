// SPDX-License-Identifier: Apache-2.0
// The codec thread: checks and decodes what has landed, refines, and looks at the clock.
#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "handoff/kv_receiver_impl.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

}  // namespace

void KvReceiverImpl::Loop() {
  const int64_t tick_ns =
      std::max(1, std::min(options_.transfer_timeout_ms, options_.unknown_attempt_ms) / 8) *
      kNsPerMs;
  int64_t next_timer_ns = 0;
  while (true) {
    if (const int64_t now = MonotonicNs(); now >= next_timer_ns) {
      RunTimers(now);
      next_timer_ns = now + tick_ns;
    }
    if (RunOneTask()) continue;
    std::unique_lock lock(outbox_.mutex());
    if (attempts_.empty() && early_.empty()) {
      work_.wait(
          lock, [this] { return stopping_ || HasWork() || !attempts_.empty() || !early_.empty(); });
    } else {
      work_.wait_for(lock, std::chrono::nanoseconds(next_timer_ns - MonotonicNs()),
                     [this] { return stopping_ || HasWork(); });
    }
    if (stopping_) return;
  }
}

bool KvReceiverImpl::RunOneTask() {
  ChunkTask chunk;
  Attempt refine;
  {
    Section section(outbox_);
    if (stopping_ || !HasWork()) return false;
    if (!anchor_queue_.empty() || !later_queue_.empty()) {
      auto& queue = !anchor_queue_.empty() ? anchor_queue_ : later_queue_;
      chunk = std::move(queue.front());
      queue.pop_front();
    } else {
      refine = std::move(refine_queue_.front());
      refine_queue_.pop_front();
    }
    const Attempt& attempt = refine != nullptr ? refine : chunk.attempt;
    if (attempt->ended) return true;
    attempt->in_codec = true;
  }
  const int64_t begin = MonotonicNs();
  if (refine != nullptr)
    RunRefine(refine);
  else
    RunChunk(chunk);
  Section section(outbox_);
  (refine != nullptr ? stats_.refine_ns : stats_.decode_ns) += MonotonicNs() - begin;
  return true;
}

uint64_t KvReceiverImpl::Checksum(const MemoryView& chunk) const {
  if (!chunk.on_device()) return PayloadChecksum(chunk.bytes);
  uint64_t checksum = 0;
  device_->Checksums({&chunk.bytes, 1}, &checksum);
  return checksum;
}

void KvReceiverImpl::RunChunk(const ChunkTask& task) {
  const Attempt& attempt = task.attempt;
  ReceivedChunk& chunk = attempt->chunk(task.key);
  absl::Status status;
  const uint64_t checksum = Checksum(chunk.view());
  const bool intact = checksum == chunk.checksum;
  if (!intact) {
    status = absl::DataLossError(absl::StrCat("chunk of layer ", task.key.layer, ", stage ",
                                              task.key.stage, ", page ", task.key.page,
                                              ": checksum ", checksum, ", want ", chunk.checksum));
  } else if (task.key.stage == 0) {
    const MemoryView anchor = chunk.view();
    status = attempt->codec().DecodePage(attempt->page(task.key), {&anchor, 1}, pool_);
    if (attempt->num_stages() == 1) chunk.bytes = {};
  }
  Section section(outbox_);
  if (!intact) ++stats_.checksum_errors;
  LeaveCodec(attempt);
  if (attempt->ended) return;
  if (!status.ok()) return Fail(attempt, std::move(status), Tell::kSender);
  attempt->Landed(task.key.stage, chunk);
  OnLanded(attempt);
}

void KvReceiverImpl::RunRefine(const Attempt& attempt) {
  std::vector<MemoryView> stages;
  for (int s = 0; s < attempt->num_stages(); ++s) {
    stages.push_back(attempt->chunk(attempt->key(s, attempt->num_refined_chunks)).view());
  }
  const KvPage page = attempt->page(attempt->key(0, attempt->num_refined_chunks));
  absl::Status status = attempt->codec().DecodePage(page, stages, pool_);
  Section section(outbox_);
  LeaveCodec(attempt);
  if (attempt->ended) return;
  if (!status.ok()) return Fail(attempt, std::move(status), Tell::kSender);
  if (++attempt->num_refined_chunks == attempt->num_chunks_per_stage()) {
    OnRefined(attempt);
  } else {
    refine_queue_.push_back(attempt);
  }
}

void KvReceiverImpl::LeaveCodec(const Attempt& attempt) {
  attempt->in_codec = false;
  if (attempt->ended) Push(attempt->terminal_event);
}

void KvReceiverImpl::RunTimers(int64_t now_ns) {
  Section section(outbox_);
  FailStuckAttempts(now_ns);
  RefuseLateChunks(now_ns);
  Pump();
}

void KvReceiverImpl::FailStuckAttempts(int64_t now_ns) {
  std::vector<Attempt> stuck;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->from == 0 || attempt->all_landed()) continue;
    // Its chunks wait for their turn behind others'.
    if (scheduler_.HasQueued(id)) {
      attempt->progress_ns = std::max(attempt->progress_ns, any_progress_ns_);
    }
    if (now_ns - attempt->progress_ns > options_.transfer_timeout_ms * kNsPerMs) {
      stuck.push_back(attempt);
    }
  }
  for (const Attempt& attempt : stuck) {
    Fail(attempt,
         absl::DeadlineExceededError(absl::StrCat(
             "hand-off: nothing arrived for ", options_.transfer_timeout_ms, " ms; ",
             attempt->num_landed_total(), " of ",
             attempt->num_chunks_per_stage() * attempt->num_stages(), " chunks are here")),
         Tell::kSender);
  }
}

void KvReceiverImpl::RefuseLateChunks(int64_t now_ns) {
  for (const AttemptId& id : early_.Before(now_ns - options_.unknown_attempt_ms * kNsPerMs)) {
    const EarlyChunks::Waiting late = early_.Take(id);
    const Abort abort{id, absl::StatusCode::kNotFound, "the attempt never began here"};
    for (const ChunkOffer& offer : late.offers) transport_.Drop(offer.id);
    stats_.nacks += static_cast<int64_t>(late.offers.size());
    Send(late.from, abort);
    ended_.Add(id, abort);
  }
}

}  // namespace lynx
