// SPDX-License-Identifier: Apache-2.0
// The codec thread: checks and decodes what has landed, and looks at the clock.
#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

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
      const int64_t until_ns = std::min(next_timer_ns, ask_again_ns_);
      work_.wait_for(lock, std::chrono::nanoseconds(until_ns - MonotonicNs()),
                     [&] { return stopping_ || HasWork() || ask_again_ns_ < until_ns; });
    }
    if (stopping_) return;
  }
}

bool KvReceiverImpl::RunOneTask() {
  std::optional<Task> task;
  {
    Section section(outbox_);
    if (stopping_) return false;
    if (const int64_t now = MonotonicNs(); now >= ask_again_ns_) TellToAskAgain(now);
    task = NextTask();
    if (!task) return false;
  }
  std::visit([this](const auto& t) { Run(t); }, *task);
  return true;
}

// ---- what is next, with the mutex held ----------------------------------------------------------

// Anchors before everything else; refining last, since nobody drafts meanwhile.
std::optional<KvReceiverImpl::Task> KvReceiverImpl::NextTask() {
  std::optional<Task> task = NextCheck(anchor_queue_);
  if (!task) task = NextAnchor();
  if (!task) task = NextCheck(later_queue_);
  if (!task) task = NextRefine();
  return task;
}

std::optional<KvReceiverImpl::Task> KvReceiverImpl::NextCheck(std::deque<ChunkTask>& queue) {
  while (!queue.empty()) {
    ChunkTask task = std::move(queue.front());
    queue.pop_front();
    if (task.attempt->ended) continue;
    task.attempt->in_codec = ReceiveAttempt::InCodec::kCheck;
    return task;
  }
  return std::nullopt;
}

std::optional<KvReceiverImpl::Task> KvReceiverImpl::NextAnchor() {
  while (!decode_queue_.empty()) {
    const Attempt attempt = std::move(decode_queue_.front());
    decode_queue_.pop_front();
    attempt->in_anchor_queue = false;
    if (attempt->ended || !attempt->pages().anchor_due()) continue;
    attempt->in_codec = ReceiveAttempt::InCodec::kDecode;
    return PageTask{attempt, attempt->pages().NextAnchor()};
  }
  return std::nullopt;
}

std::optional<KvReceiverImpl::Task> KvReceiverImpl::NextRefine() {
  while (!refine_queue_.empty()) {
    const Attempt attempt = std::move(refine_queue_.front());
    refine_queue_.pop_front();
    attempt->in_refine_queue = false;
    if (attempt->ended || attempt->being_read || !attempt->pages().refine_due()) continue;
    attempt->in_codec = ReceiveAttempt::InCodec::kDecode;
    return PageTask{attempt, attempt->pages().NextRefine()};
  }
  return std::nullopt;
}

// An attempt that the codec thread has work for stands in line for it.
void KvReceiverImpl::QueueDecodes(const Attempt& attempt) {
  const PageLevels& pages = attempt->pages();
  if (pages.anchor_due() && !std::exchange(attempt->in_anchor_queue, true)) {
    decode_queue_.push_back(attempt);
  }
  if (pages.refine_due() && !attempt->being_read &&
      !std::exchange(attempt->in_refine_queue, true)) {
    // Somebody is waiting for one that has landed.
    if (attempt->all_landed()) {
      refine_queue_.push_front(attempt);
    } else {
      refine_queue_.push_back(attempt);
    }
  }
  work_.notify_all();
}

// ---- the work, without the mutex ----------------------------------------------------------------

uint64_t KvReceiverImpl::Checksum(const MemoryView& chunk) const {
  if (!chunk.on_device()) return PayloadChecksum(chunk.bytes);
  uint64_t checksum = 0;
  device_->Checksums({&chunk.bytes, 1}, &checksum);
  return checksum;
}

void KvReceiverImpl::Run(const ChunkTask& task) {
  const Attempt& attempt = task.attempt;
  const int64_t begin = MonotonicNs();
  const ReceivedChunk& chunk = attempt->chunk(task.key);
  const uint64_t checksum = Checksum(chunk.view());
  Section section(outbox_);
  stats_.decode_ns += MonotonicNs() - begin;
  LeaveCodec(attempt);
  if (checksum != chunk.checksum) ++stats_.checksum_errors;
  if (attempt->ended) return;
  if (checksum != chunk.checksum) {
    return Fail(attempt,
                absl::DataLossError(absl::StrCat(
                    "chunk of layer ", task.key.layer, ", stage ", task.key.stage, ", page ",
                    task.key.page, ": checksum ", checksum, ", want ", chunk.checksum)),
                Tell::kSender);
  }
  attempt->Landed(task.key);
  QueueDecodes(attempt);
  OnProgress(attempt);
}

void KvReceiverImpl::Run(const PageTask& task) {
  const Attempt& attempt = task.attempt;
  const int64_t begin = MonotonicNs();
  std::vector<MemoryView> stages;
  for (int s = 0; s < task.decode.num_stages; ++s) {
    stages.push_back(attempt->chunk(attempt->key(s, task.decode.page)).view());
  }
  const KvPage page = attempt->page(attempt->key(0, task.decode.page));
  absl::Status status = attempt->codec().DecodePage(page, stages, pool_);
  Section section(outbox_);
  const bool refined = task.decode.num_stages > 1;
  (refined ? stats_.refine_ns : stats_.decode_ns) += MonotonicNs() - begin;
  LeaveCodec(attempt);
  if (attempt->ended) return;
  if (!status.ok()) return Fail(attempt, std::move(status), Tell::kSender);
  attempt->Decoded(task.decode);
  QueueDecodes(attempt);
  OnProgress(attempt);
}

void KvReceiverImpl::LeaveCodec(const Attempt& attempt) {
  attempt->in_codec = ReceiveAttempt::InCodec::kNothing;
  if (attempt->ended) return Push(attempt->terminal_event);
  if (std::exchange(attempt->asked_to_read, false)) Report(*attempt, Kind::kReadable);
}

void KvReceiverImpl::RunTimers(int64_t now_ns) {
  Section section(outbox_);
  FailStuckAttempts(now_ns);
  RefuseLateChunks(now_ns);
  Pump();
}

// The target that Read has waited for is not here.
void KvReceiverImpl::TellToAskAgain(int64_t now_ns) {
  ask_again_ns_ = kNever;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->ask_again_ns == 0) continue;
    if (now_ns >= attempt->ask_again_ns) {
      attempt->ask_again_ns = 0;
      Report(*attempt, Kind::kReadable);
    } else {
      ask_again_ns_ = std::min(ask_again_ns_, attempt->ask_again_ns);
    }
  }
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
