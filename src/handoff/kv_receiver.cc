// SPDX-License-Identifier: Apache-2.0
// One mutex guards everything; the codec thread gives it up while it checks, decodes or refines one
// page, the transport's threads take it in handlers and completions. The codec thread takes anchors
// before anything else and refines page by page, so that no attempt waits long behind another.
#include "handoff/kv_receiver.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "handoff/ended_attempts.h"
#include "handoff/pull_window.h"
#include "handoff/receive_attempt.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

class KvReceiverImpl final : public KvReceiver, public TransportHandler {
 public:
  KvReceiverImpl(const Options& options, const Codec& codec, const SendPlan& plan, KvPoolView pool,
                 std::unique_ptr<KvPageCodec> page_codec, Transport& transport,
                 std::function<void()> wake)
      : options_(options),
        pool_(pool),
        format_(HandoffFormat(codec, plan, pool.layout)),
        codec_(std::move(page_codec)),
        transport_(transport),
        wake_(std::move(wake)),
        window_(options.window_bytes),
        scheduler_(options.window_bytes) {
    transport_.Start(this);
    thread_ = std::thread([this] { Loop(); });
  }
  ~KvReceiverImpl() override;

  absl::Status Begin(const ReceiveJob& job) override;
  void Refine(AttemptId attempt) override;
  void Promote(AttemptId attempt) override;
  void Cancel(AttemptId attempt) override;
  std::vector<ReceiveEvent> Poll() override;
  ReceiverStats stats() const override;

  void OnControl(uint64_t from, std::span<const std::byte> message) override;
  void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
               size_t payload_bytes) override;
  void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) override;

 private:
  using Attempt = std::shared_ptr<ReceiveAttempt>;  // also held by the codec thread's current task
  using Kind = ReceiveEvent::Kind;
  struct Offer {
    OfferId id = 0;
    uint64_t from = 0;
    ChunkHeader header;
    size_t payload_bytes = 0;
  };
  // Chunks and announcements that came before Begin.
  struct UnknownAttempt {
    uint64_t from = 0;
    int64_t since_ns = 0;
    std::vector<Offer> offers;
  };
  struct ChunkTask {  // check a landed chunk, decode it if it is an anchor
    Attempt attempt;
    int stage = 0, layer = 0, page = 0;
  };
  // Holds the mutex; wakes the engine after giving it up when an event was added.
  class Section {
   public:
    explicit Section(KvReceiverImpl& receiver) : receiver_(receiver), lock_(receiver.mu_) {}
    ~Section() {
      const bool wake = std::exchange(receiver_.wake_due_, false);
      lock_.unlock();
      if (wake) receiver_.wake_();
    }

   private:
    KvReceiverImpl& receiver_;
    std::unique_lock<std::mutex> lock_;
  };
  enum class Tell { kSender, kNobody };

  void Loop();
  bool RunOneTask();
  void RunChunk(const ChunkTask& task);
  void RunRefine(const Attempt& attempt);
  void RunTimers(int64_t now_ns);

  // All below: with the mutex held.
  bool HasWork() const {
    return !anchor_queue_.empty() || !later_queue_.empty() || !refine_queue_.empty();
  }
  void Accept(const Attempt& attempt, const Offer& offer);
  void Hold(const Offer& offer);
  void Refuse(const Offer& offer, const Abort& abort);
  void Pump();
  void Pull(const QueuedPull& pull, const Offer& offer);
  void OnPulled(const Offer& offer, std::unique_ptr<std::byte[]> bytes, int64_t issued_ns,
                bool idle_before, const absl::Status& status);
  void OnAnnounce(uint64_t from, const Announce& announce);
  void OnLanded(const Attempt& attempt);
  void OnRefined(const Attempt& attempt);
  void Send(uint64_t to, const ControlMessage& message);
  void Fail(const Attempt& attempt, absl::Status status, Tell tell, Kind kind = Kind::kFailed);
  void End(const Attempt& attempt, Kind kind, absl::Status error, ControlMessage verdict);
  void LeaveCodec(const Attempt& attempt);
  void Report(const ReceiveAttempt& attempt, Kind kind, absl::Status error = {});
  void Push(ReceiveEvent event);
  Attempt Find(const AttemptId& id) const {
    auto it = attempts_.find(id);
    return it == attempts_.end() ? nullptr : it->second;
  }

  const Options options_;
  const KvPoolView pool_;
  const uint64_t format_;
  const std::unique_ptr<KvPageCodec> codec_;
  Transport& transport_;
  const std::function<void()> wake_;

  mutable std::mutex mu_;
  std::condition_variable work_;
  bool stopping_ = false;
  bool wake_due_ = false;
  std::map<AttemptId, Attempt> attempts_;
  std::map<AttemptId, UnknownAttempt> unknown_;
  int num_unknown_chunks_ = 0;
  EndedAttempts ended_;
  PullWindow window_;
  PullScheduler scheduler_;
  std::map<OfferId, Offer> queued_;   // those the scheduler holds
  std::map<OfferId, Offer> pulling_;  // those that count against the window
  int64_t any_progress_ns_ = 0;       // last time anything arrived
  std::deque<ChunkTask> anchor_queue_;
  std::deque<ChunkTask> later_queue_;
  std::deque<Attempt> refine_queue_;  // its next page
  std::vector<ReceiveEvent> events_;
  ReceiverStats stats_;
  std::thread thread_;
};

KvReceiverImpl::~KvReceiverImpl() {
  transport_.Stop();
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

// ---- the engine's calls -------------------------------------------------------------------------

absl::Status KvReceiverImpl::Begin(const ReceiveJob& job) {
  const PageGrid grid{job.first_token, job.num_tokens};
  LYNX_RETURN_IF_ERROR(CheckTokenRange(grid, job.block_table, pool_.num_blocks));
  const int64_t now = MonotonicNs();
  Section section(*this);
  if (attempts_.contains(job.attempt)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attempt ", ToString(job.attempt), " has begun already"));
  }
  if (ended_.Find(job.attempt) != nullptr) {
    return absl::UnavailableError(
        absl::StrCat("attempt ", ToString(job.attempt), " has ended before it began"));
  }
  auto attempt =
      std::make_shared<ReceiveAttempt>(job, pool_.layout.num_layers, codec_->num_stages(), now);
  attempts_[job.attempt] = attempt;
  scheduler_.Begin(job.attempt, attempt->num_chunks_by_class());
  work_.notify_all();
  if (grid.num_pages() == 0) {
    End(attempt, Kind::kRefined, absl::OkStatus(), attempt->Receipt());
    return absl::OkStatus();
  }
  if (auto it = unknown_.find(job.attempt); it != unknown_.end()) {
    const UnknownAttempt early = std::move(it->second);
    unknown_.erase(it);
    num_unknown_chunks_ -= static_cast<int>(early.offers.size());
    attempt->from = early.from;
    for (const Offer& offer : early.offers) {
      if (attempt->ended)
        transport_.Drop(offer.id);
      else
        Accept(attempt, offer);
    }
    Pump();
  }
  return absl::OkStatus();
}

void KvReceiverImpl::Refine(AttemptId id) {
  Section section(*this);
  Attempt attempt = Find(id);
  if (attempt == nullptr || attempt->num_refined_pages >= 0) return;
  LYNX_CHECK(attempt->all_landed());
  attempt->num_refined_pages = 0;
  refine_queue_.push_back(std::move(attempt));
  work_.notify_all();
}

void KvReceiverImpl::Promote(AttemptId id) {
  Section section(*this);
  scheduler_.Promote(id);
  Pump();
}

void KvReceiverImpl::Cancel(AttemptId id) {
  Section section(*this);
  if (Attempt attempt = Find(id)) {
    Fail(attempt, absl::CancelledError("the decode side cancelled the hand-off"), Tell::kSender,
         Kind::kCancelled);
  }
}

std::vector<ReceiveEvent> KvReceiverImpl::Poll() {
  std::lock_guard lock(mu_);
  return std::exchange(events_, {});
}

ReceiverStats KvReceiverImpl::stats() const {
  std::lock_guard lock(mu_);
  ReceiverStats stats = stats_;
  stats.transfers_in_flight = static_cast<int64_t>(attempts_.size());
  stats.bytes_in_flight = static_cast<int64_t>(scheduler_.outstanding_bytes());
  return stats;
}

// ---- the transport's threads --------------------------------------------------------------------

void KvReceiverImpl::OnOffer(OfferId id, uint64_t from, std::span<const std::byte> header_bytes,
                             size_t payload_bytes) {
  absl::StatusOr<ChunkHeader> header = ParseChunkHeader(header_bytes);
  Section section(*this);
  if (!header.ok()) {
    ++stats_.nacks;
    transport_.Drop(id);
    return;
  }
  const Offer offer{id, from, *header, payload_bytes};
  if (Attempt attempt = Find(header->attempt)) {
    Accept(attempt, offer);
    Pump();
  } else if (ended_.Find(header->attempt) != nullptr) {
    Refuse(offer, Abort{header->attempt, absl::StatusCode::kNotFound, "the attempt has ended"});
  } else {
    Hold(offer);
  }
}

void KvReceiverImpl::OnControl(uint64_t from, std::span<const std::byte> bytes) {
  const absl::StatusOr<ControlMessage> message = ParseControlMessage(bytes);
  if (!message.ok()) return;
  Section section(*this);
  if (const auto* announce = std::get_if<Announce>(&*message)) {
    OnAnnounce(from, *announce);
  } else if (const auto* abort = std::get_if<Abort>(&*message)) {
    Attempt attempt = Find(abort->attempt);
    if (attempt != nullptr && (attempt->from == from || attempt->from == 0)) {
      Fail(attempt, absl::Status(abort->code, absl::StrCat("the sender: ", abort->message)),
           Tell::kNobody);
    }
    if (auto it = unknown_.find(abort->attempt); it != unknown_.end() && it->second.from == from) {
      for (const Offer& offer : it->second.offers) transport_.Drop(offer.id);
      num_unknown_chunks_ -= static_cast<int>(it->second.offers.size());
      ended_.Add(it->first, *abort);
      unknown_.erase(it);
    }
  }
}

void KvReceiverImpl::OnPeerLost(PeerId, uint64_t epoch, const absl::Status& why) {
  Section section(*this);
  std::vector<Attempt> lost;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->from == epoch && !attempt->all_landed()) lost.push_back(attempt);
  }
  for (const Attempt& attempt : lost) Fail(attempt, why, Tell::kNobody);
  // Its pulls may end much later; they must not take the others' room meanwhile.
  std::erase_if(pulling_, [&](const auto& entry) {
    if (entry.second.from != epoch) return false;
    scheduler_.Completed(entry.second.payload_bytes);
    return true;
  });
  std::erase_if(unknown_, [&](const auto& entry) {
    if (entry.second.from != epoch) return false;
    num_unknown_chunks_ -= static_cast<int>(entry.second.offers.size());
    return true;
  });
  Pump();
}

// ---- with the mutex held ------------------------------------------------------------------------

// Queues the chunk, or refuses it.
void KvReceiverImpl::Accept(const Attempt& attempt, const Offer& offer) {
  const ChunkHeader& h = offer.header;
  if (attempt->from == 0) {
    attempt->from = offer.from;
    attempt->progress_ns = MonotonicNs();
  }
  if (attempt->from != offer.from) {
    return Refuse(offer, Abort{h.attempt, absl::StatusCode::kFailedPrecondition,
                               "the attempt belongs to another sender"});
  }
  if (absl::Status status = attempt->CheckHeader(h, offer.payload_bytes, format_, *codec_);
      !status.ok()) {
    ++stats_.nacks;
    transport_.Drop(offer.id);
    return Fail(attempt, std::move(status), Tell::kSender);
  }
  ReceivedChunk& chunk = attempt->chunk(h.stage, h.layer, static_cast<int>(h.page));
  if (chunk.state != ReceivedChunk::State::kMissing) {
    ++stats_.nacks;
    transport_.Drop(offer.id);
    return;
  }
  chunk.state = ReceivedChunk::State::kOffered;
  chunk.size = offer.payload_bytes;
  chunk.checksum = h.checksum;
  queued_[offer.id] = offer;
  scheduler_.Add(
      {.offer = offer.id, .attempt = h.attempt, .stage = h.stage, .bytes = offer.payload_bytes},
      MonotonicNs());
}

void KvReceiverImpl::Hold(const Offer& offer) {
  if (num_unknown_chunks_ >= options_.max_unknown_chunks) {
    return Refuse(offer, Abort{offer.header.attempt, absl::StatusCode::kResourceExhausted,
                               "too many chunks of unknown attempts"});
  }
  auto [it, added] = unknown_.try_emplace(offer.header.attempt);
  UnknownAttempt& unknown = it->second;
  if (added) {
    unknown.from = offer.from;
    unknown.since_ns = MonotonicNs();
    work_.notify_all();
  }
  unknown.offers.push_back(offer);
  ++num_unknown_chunks_;
}

void KvReceiverImpl::Refuse(const Offer& offer, const Abort& abort) {
  ++stats_.nacks;
  transport_.Drop(offer.id);
  Send(offer.from, abort);
}

void KvReceiverImpl::Pump() {
  while (std::optional<QueuedPull> pull = scheduler_.Next(MonotonicNs())) {
    auto offer = queued_.extract(pull->offer);
    Pull(*pull, offer.mapped());
  }
}

void KvReceiverImpl::Pull(const QueuedPull& pull, const Offer& offer) {
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(pull.bytes);
  const std::span<std::byte> destination(bytes.get(), pull.bytes);
  const bool idle_before = scheduler_.outstanding_bytes() == pull.bytes;
  pulling_[offer.id] = offer;
  // std::function wants copyable captures; `held` is emptied by the one call.
  auto held = std::make_shared<std::unique_ptr<std::byte[]>>(std::move(bytes));
  transport_.Pull(
      pull.offer, destination,
      [this, offer, held, issued_ns = MonotonicNs(), idle_before](const absl::Status& status) {
        Section section(*this);
        OnPulled(offer, std::move(*held), issued_ns, idle_before, status);
      });
}

void KvReceiverImpl::OnPulled(const Offer& offer, std::unique_ptr<std::byte[]> bytes,
                              int64_t issued_ns, bool idle_before, const absl::Status& status) {
  const ChunkHeader& h = offer.header;
  const int64_t now = MonotonicNs();
  if (pulling_.erase(offer.id) > 0) scheduler_.Completed(offer.payload_bytes);
  if (status.ok()) {
    any_progress_ns_ = now;
    ++stats_.chunks;
    stats_.bytes[PullClass(h.stage)] += static_cast<int64_t>(offer.payload_bytes);
    window_.Arrived(offer.payload_bytes, issued_ns, now, idle_before);
    if (options_.adapt_window) scheduler_.set_window_bytes(window_.bytes());
    if (window_.bytes_per_second() > 0) {
      scheduler_.set_ageing_bytes_per_second(window_.bytes_per_second() / 4);
    }
  }
  if (Attempt attempt = Find(h.attempt)) {
    if (status.ok()) {
      ReceivedChunk& chunk = attempt->chunk(h.stage, h.layer, static_cast<int>(h.page));
      chunk.state = ReceivedChunk::State::kLanded;
      chunk.bytes = std::move(bytes);
      attempt->progress_ns = now;
      (h.stage == 0 ? anchor_queue_ : later_queue_)
          .push_back({std::move(attempt), h.stage, h.layer, static_cast<int>(h.page)});
      work_.notify_all();
    } else {
      Fail(attempt, status, Tell::kSender);
    }
  }
  Pump();
}

void KvReceiverImpl::OnAnnounce(uint64_t from, const Announce& announce) {
  if (const ControlMessage* verdict = ended_.Find(announce.attempt)) return Send(from, *verdict);
  Attempt attempt = Find(announce.attempt);
  if (attempt == nullptr) {
    if (static_cast<int>(unknown_.size()) >= options_.max_unknown_chunks) return;
    auto [it, added] = unknown_.try_emplace(announce.attempt);
    if (added) it->second = {from, MonotonicNs(), {}};
    work_.notify_all();
    return;
  }
  if (attempt->from == 0) {
    attempt->from = from;
    attempt->progress_ns = MonotonicNs();
  }
  if (attempt->from != from) {
    return Send(from, Abort{announce.attempt, absl::StatusCode::kFailedPrecondition,
                            "the attempt belongs to another sender"});
  }
  const PageGrid& grid = attempt->grid();
  if (announce.format != format_ ||
      announce.first_token != static_cast<uint32_t>(grid.first_token) ||
      announce.num_tokens != static_cast<uint32_t>(grid.num_tokens)) {
    return Fail(attempt,
                absl::FailedPreconditionError(
                    absl::StrCat("the sender hands over tokens ", announce.first_token, " .. ",
                                 announce.num_tokens, " in format ", announce.format, ", want ",
                                 grid.first_token, " .. ", grid.num_tokens, " in ", format_)),
                Tell::kSender);
  }
  // Nothing is owed: the prefill still computes.
  if (announce.num_posted_chunks == static_cast<uint64_t>(attempt->num_landed_total())) {
    attempt->progress_ns = MonotonicNs();
  }
  Send(from, Renew{announce.attempt});
}

// Reports the stages that are complete now, in order.
void KvReceiverImpl::OnLanded(const Attempt& attempt) {
  const int num_stages = attempt->num_stages();
  int& reported = attempt->num_stages_reported;
  while (reported < num_stages && attempt->stage_landed(reported)) {
    const int stage = reported++;
    if (num_stages == 1) return OnRefined(attempt);
    if (stage == 0) Report(*attempt, Kind::kAnchorLanded);
    if (stage == 1) Report(*attempt, Kind::kResidualLanded);
    if (stage == num_stages - 1) Report(*attempt, Kind::kTargetLanded);
  }
}

void KvReceiverImpl::OnRefined(const Attempt& attempt) {
  const Delivered receipt = attempt->Receipt();
  Send(attempt->from, receipt);
  End(attempt, Kind::kRefined, absl::OkStatus(), receipt);
}

void KvReceiverImpl::Send(uint64_t to, const ControlMessage& message) {
  // What is lost here is sent again in answer to the sender's next announcement.
  if (std::optional<PeerId> peer = transport_.FindPeer(to)) {
    (void)transport_.SendControl(*peer, Serialize(message));
  }
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
  if (!attempt->in_codec) Push(attempt->terminal_event);
}

void KvReceiverImpl::LeaveCodec(const Attempt& attempt) {
  attempt->in_codec = false;
  if (attempt->ended) Push(attempt->terminal_event);
}

void KvReceiverImpl::Report(const ReceiveAttempt& attempt, Kind kind, absl::Status error) {
  Push({.attempt = attempt.id(),
        .kind = kind,
        .error = std::move(error),
        .at_ns = 0,
        .stage_bytes = attempt.stage_bytes()});
}

void KvReceiverImpl::Push(ReceiveEvent event) {
  event.at_ns = MonotonicNs();
  events_.push_back(std::move(event));
  wake_due_ = true;
}

// ---- the codec thread ---------------------------------------------------------------------------

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
    std::unique_lock lock(mu_);
    if (attempts_.empty() && unknown_.empty()) {
      work_.wait(lock, [this] {
        return stopping_ || HasWork() || !attempts_.empty() || !unknown_.empty();
      });
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
    Section section(*this);
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
  if (refine != nullptr)
    RunRefine(refine);
  else
    RunChunk(chunk);
  return true;
}

void KvReceiverImpl::RunChunk(const ChunkTask& task) {
  const Attempt& attempt = task.attempt;
  ReceivedChunk& chunk = attempt->chunk(task.stage, task.layer, task.page);
  absl::Status status;
  const uint64_t checksum = PayloadChecksum(chunk.span());
  const bool intact = checksum == chunk.checksum;
  if (!intact) {
    status = absl::DataLossError(absl::StrCat("chunk of layer ", task.layer, ", stage ", task.stage,
                                              ", page ", task.page, ": checksum ", checksum,
                                              ", want ", chunk.checksum));
  } else if (task.stage == 0) {
    const std::span<const std::byte> anchor = chunk.span();
    status = codec_->DecodePage(attempt->page(task.layer, task.page), {&anchor, 1}, pool_);
    if (codec_->num_stages() == 1) chunk.bytes.reset();
  }
  Section section(*this);
  if (!intact) ++stats_.checksum_errors;
  LeaveCodec(attempt);
  if (attempt->ended) return;
  if (!status.ok()) return Fail(attempt, std::move(status), Tell::kSender);
  attempt->Landed(task.stage, chunk);
  OnLanded(attempt);
}

void KvReceiverImpl::RunRefine(const Attempt& attempt) {
  const int num_pages = attempt->grid().num_pages();
  const int layer = attempt->num_refined_pages / num_pages;
  const int page = attempt->num_refined_pages % num_pages;
  std::vector<std::span<const std::byte>> stages;
  for (int s = 0; s < codec_->num_stages(); ++s) {
    stages.push_back(attempt->chunk(s, layer, page).span());
  }
  absl::Status status = codec_->DecodePage(attempt->page(layer, page), stages, pool_);
  Section section(*this);
  LeaveCodec(attempt);
  if (attempt->ended) return;
  if (!status.ok()) return Fail(attempt, std::move(status), Tell::kSender);
  if (++attempt->num_refined_pages == attempt->num_chunks_per_stage()) {
    OnRefined(attempt);
  } else {
    refine_queue_.push_back(attempt);
  }
}

void KvReceiverImpl::RunTimers(int64_t now_ns) {
  Section section(*this);
  const int64_t timeout_ns = options_.transfer_timeout_ms * kNsPerMs;
  std::vector<Attempt> stuck;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->from == 0 || attempt->all_landed()) continue;
    // Its chunks wait for their turn behind others'.
    if (scheduler_.HasQueued(id)) {
      attempt->progress_ns = std::max(attempt->progress_ns, any_progress_ns_);
    }
    if (now_ns - attempt->progress_ns > timeout_ns) stuck.push_back(attempt);
  }
  for (const Attempt& attempt : stuck) {
    Fail(attempt,
         absl::DeadlineExceededError(absl::StrCat(
             "hand-off: nothing arrived for ", options_.transfer_timeout_ms, " ms; ",
             attempt->num_landed_total(), " of ",
             attempt->num_chunks_per_stage() * attempt->num_stages(), " chunks are here")),
         Tell::kSender);
  }
  const int64_t unknown_ns = options_.unknown_attempt_ms * kNsPerMs;
  std::erase_if(unknown_, [&](const auto& entry) {
    const auto& [id, unknown] = entry;
    if (now_ns - unknown.since_ns <= unknown_ns) return false;
    const Abort abort{id, absl::StatusCode::kNotFound, "the attempt never began here"};
    for (const Offer& offer : unknown.offers) transport_.Drop(offer.id);
    stats_.nacks += static_cast<int64_t>(unknown.offers.size());
    num_unknown_chunks_ -= static_cast<int>(unknown.offers.size());
    Send(unknown.from, abort);
    ended_.Add(id, abort);
    return true;
  });
  Pump();
}

}  // namespace

std::unique_ptr<KvReceiver> KvReceiver::Create(const Options& options, const Codec& codec,
                                               SendPlan plan, KvPoolView pool, Transport& transport,
                                               std::function<void()> wake) {
  auto page_codec = KvPageCodec::Create(codec, plan, pool.layout);
  LYNX_CHECK(page_codec.ok());
  return std::make_unique<KvReceiverImpl>(options, codec, plan, pool, std::move(*page_codec),
                                          transport, std::move(wake));
}

}  // namespace lynx
