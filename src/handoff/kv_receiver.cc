// SPDX-License-Identifier: Apache-2.0
#include "handoff/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "handoff/kv_receiver_impl.h"

namespace lynx {

KvReceiverImpl::KvReceiverImpl(const Options& options, const Codec& codec, SendPlan plan,
                               KvPoolView pool, Transport& transport, std::function<void()> wake)
    : options_(options),
      pool_(pool),
      device_(transport.takes_device_memory() ? codec.device_chunks() : nullptr),
      formats_(codec, std::move(plan), pool.layout),
      transport_(transport),
      outbox_(std::move(wake)),
      early_(options.max_unknown_chunks),
      window_(options.window_bytes),
      scheduler_(options.window_bytes) {
  transport_.Start(this);
  thread_ = std::thread([this] { Loop(); });
}

KvReceiverImpl::~KvReceiverImpl() {
  transport_.Stop();
  {
    std::lock_guard lock(outbox_.mutex());
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

// ---- the engine's calls -------------------------------------------------------------------------

absl::Status KvReceiverImpl::Begin(const ReceiveJob& job) {
  const PageGrid grid{job.first_token, job.num_tokens};
  LYNX_RETURN_IF_ERROR(CheckTokenRange(grid, job.block_table, pool_.num_blocks));
  LYNX_ASSIGN_OR_RETURN(AttemptFormat format, formats_.With(job.anchor));
  const int64_t now = MonotonicNs();
  Section section(outbox_);
  if (attempts_.contains(job.attempt)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attempt ", ToString(job.attempt), " has begun already"));
  }
  if (ended_.Find(job.attempt) != nullptr) {
    return absl::UnavailableError(
        absl::StrCat("attempt ", ToString(job.attempt), " has ended before it began"));
  }
  auto attempt = std::make_shared<ReceiveAttempt>(job, pool_.layout, std::move(format), now);
  attempts_[job.attempt] = attempt;
  scheduler_.Begin(job.attempt, attempt->num_parts_by_class());
  work_.notify_all();
  if (grid.num_pages() == 0) {
    End(attempt, Kind::kRefined, absl::OkStatus(), attempt->Receipt());
    return absl::OkStatus();
  }
  const EarlyChunks::Waiting early = early_.Take(job.attempt);
  if (early.from != 0) TakeFrom(*attempt, early.from);
  for (const ChunkOffer& offer : early.offers) {
    if (attempt->ended)
      transport_.Drop(offer.id);
    else
      Accept(attempt, offer);
  }
  Pump();
  return absl::OkStatus();
}

bool KvReceiverImpl::Read(AttemptId id, int64_t soon_ns) {
  Section section(outbox_);
  const Attempt attempt = Find(id);
  if (attempt == nullptr || attempt->all_landed()) return false;
  attempt->ask_again_ns = 0;
  if (TargetIsNear(*attempt, soon_ns)) {
    attempt->ask_again_ns = attempt->progress_ns + soon_ns;
    ask_again_ns_ = std::min(ask_again_ns_, attempt->ask_again_ns);
    work_.notify_all();
    return false;
  }
  attempt->asked_to_read = attempt->in_codec == ReceiveAttempt::InCodec::kDecode;
  attempt->being_read = !attempt->asked_to_read;
  return attempt->being_read;
}

void KvReceiverImpl::Refine(AttemptId id) {
  Section section(outbox_);
  const Attempt attempt = Find(id);
  if (attempt == nullptr) return;
  attempt->being_read = attempt->asked_to_read = false;
  attempt->ask_again_ns = 0;
  QueueDecodes(attempt);
}

void KvReceiverImpl::Promote(AttemptId id) {
  Section section(outbox_);
  scheduler_.Promote(id);
  Pump();
}

void KvReceiverImpl::Cancel(AttemptId id) {
  Section section(outbox_);
  if (Attempt attempt = Find(id)) {
    Fail(attempt, absl::CancelledError("the decode side cancelled the hand-off"), Tell::kSender,
         Kind::kCancelled);
  }
}

ReceiverStats KvReceiverImpl::stats() const {
  std::lock_guard lock(outbox_.mutex());
  ReceiverStats stats = stats_;
  stats.transfers_in_flight = static_cast<int64_t>(attempts_.size());
  stats.bytes_in_flight = static_cast<int64_t>(scheduler_.outstanding_bytes());
  const int64_t now = MonotonicNs();
  stats.pull_wait_ns = wait_clock_.total_ns(now);
  stats.pull_ns = pull_clock_.total_ns(now);
  stats.bytes_per_second = window_.bytes_per_second();
  return stats;
}

// ---- how an attempt goes on and ends ------------------------------------------------------------

bool KvReceiverImpl::TargetIsNear(const ReceiveAttempt& attempt, int64_t soon_ns) const {
  const double left_ns = attempt.BytesLeft() / window_.bytes_per_second() * 1e9;
  return left_ns < static_cast<double>(soon_ns) && MonotonicNs() - attempt.progress_ns < soon_ns;
}

// Reports the stages that are complete now, in order, and the end.
void KvReceiverImpl::OnProgress(const Attempt& attempt) {
  const int num_stages = attempt->num_stages();
  int& reported = attempt->num_stages_reported;
  const bool has_stages = num_stages > 1 && attempt->pages().all_readable();
  while (has_stages && reported < num_stages && attempt->stage_landed(reported)) {
    const int stage = reported++;
    if (stage == 0) Report(*attempt, Kind::kAnchorLanded);
    if (stage == 1) Report(*attempt, Kind::kResidualLanded);
    if (stage == num_stages - 1) Report(*attempt, Kind::kTargetLanded);
  }
  if (attempt->pages().all_refined()) OnRefined(attempt);
}

void KvReceiverImpl::OnRefined(const Attempt& attempt) {
  const Delivered receipt = attempt->Receipt();
  Send(attempt->from, receipt);
  End(attempt, Kind::kRefined, absl::OkStatus(), receipt);
}

void KvReceiverImpl::Fail(const Attempt& attempt, absl::Status status, Tell tell, Kind kind) {
  const Abort abort{attempt->id(), status.code(), std::string(status.message())};
  if (tell == Tell::kSender && attempt->from != 0) Send(attempt->from, abort);
  End(attempt, kind, std::move(status), abort);
}

// `verdict` answers the sender when it asks again.
void KvReceiverImpl::End(const Attempt& attempt, Kind kind, absl::Status error,
                         ControlMessage verdict) {
  for (OfferId offer : scheduler_.End(attempt->id())) {
    queued_.erase(offer);
    transport_.Drop(offer);
  }
  ended_.Add(attempt->id(), std::move(verdict));
  attempts_.erase(attempt->id());
  attempt->ended = true;
  attempt->terminal_event = {.attempt = attempt->id(),
                             .kind = kind,
                             .error = std::move(error),
                             .at_ns = 0,
                             .stage_bytes = attempt->stage_bytes()};
  if (attempt->in_codec == ReceiveAttempt::InCodec::kNothing) Push(attempt->terminal_event);
}

void KvReceiverImpl::Report(const ReceiveAttempt& attempt, Kind kind) {
  Push({.attempt = attempt.id(),
        .kind = kind,
        .error = {},
        .at_ns = 0,
        .stage_bytes = attempt.stage_bytes()});
}

void KvReceiverImpl::Push(ReceiveEvent event) {
  event.at_ns = MonotonicNs();
  outbox_.Add(std::move(event));
}

std::unique_ptr<KvReceiver> KvReceiver::Create(const Options& options, const Codec& codec,
                                               SendPlan plan, KvPoolView pool, Transport& transport,
                                               std::function<void()> wake) {
  return std::make_unique<KvReceiverImpl>(options, codec, std::move(plan), pool, transport,
                                          std::move(wake));
}

}  // namespace lynx
