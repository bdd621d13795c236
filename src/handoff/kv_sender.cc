// SPDX-License-Identifier: Apache-2.0
// One mutex guards everything; the encode thread holds it except while it encodes, and the
// transport's threads take it in handlers and completions. Pages are encoded in the order in which
// the receiver wants their anchors: of the attempt with the least left first, with ageing, and
// inside an attempt in the order of Computed. Dropped later stages are encoded again when no page
// waits for its first time.
#include "handoff/kv_sender.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "handoff/outbox.h"
#include "handoff/send_attempt.h"
#include "handoff/wire.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

class KvSenderImpl final : public KvSender, public TransportHandler {
 public:
  KvSenderImpl(const Options& options, const Codec& codec, SendPlan plan, KvPoolView pool,
               Transport& transport, std::function<void()> wake)
      : options_(options),
        pool_(pool),
        device_(transport.takes_device_memory() ? codec.device_chunks() : nullptr),
        formats_(codec, std::move(plan), pool.layout),
        transport_(transport),
        outbox_(std::move(wake)) {
    transport_.Start(this);
    thread_ = std::thread([this] { Loop(); });
  }
  ~KvSenderImpl() override;

  absl::Status Begin(const SendJob& job) override;
  void Computed(AttemptId attempt, int layer, int num_computed) override;
  void Cancel(AttemptId attempt) override;
  std::vector<SendEvent> Poll() override { return outbox_.Poll(); }
  int num_attempts() const override;
  std::optional<int64_t> LeftNs(AttemptId attempt) const override;
  SenderStats stats() const override;

  void OnControl(uint64_t from, std::span<const std::byte> message) override;
  void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
               size_t payload_bytes) override;
  void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) override;

 private:
  using Attempt = std::shared_ptr<SendAttempt>;  // also held by the encode thread's current task
  struct EncodeTask {
    Attempt attempt;
    ChunkKey key;
    bool again = false;
  };
  using Section = Outbox<SendEvent>::Section;
  enum class Tell { kReceiver, kNobody };

  void Loop();
  bool RunOneTask();
  std::vector<Payload> Encode(const SendAttempt& attempt, const ChunkKey& key) const;
  std::vector<Payload> EncodeOnDevice(const KvPageCodec& codec, const KvPage& page) const;
  int64_t RunTimers(int64_t now_ns);

  // All below: with the mutex held.
  bool HasWork() const;
  Attempt NextToEncode(int64_t now_ns) const;
  std::optional<EncodeTask> NextTask();
  void OnEncoded(const EncodeTask& task, std::vector<Payload> payloads);
  void OnEncodedAgain(const EncodeTask& task, std::vector<Payload> payloads);
  void KeepLater(const Attempt& attempt, ChunkKey key, const std::vector<Payload>& payloads);
  void PostLater(const Attempt& attempt);
  void PostChunk(const Attempt& attempt, const ChunkKey& key, Payload payload);
  void OnPosted(const AttemptId& id, int stage, const absl::Status& status);
  void OnDelivered(const Attempt& attempt, const Delivered& receipt);
  void SendAnnounce(SendAttempt& attempt);
  void Renewed(SendAttempt& attempt);
  void Fail(const Attempt& attempt, absl::Status status, Tell tell);
  void End(const Attempt& attempt, SendEvent event);
  void LeaveEncoder(const Attempt& attempt);
  void Report(const SendAttempt& attempt);
  Attempt Find(const AttemptId& id) const {
    auto it = attempts_.find(id);
    return it == attempts_.end() ? nullptr : it->second;
  }

  const Options options_;
  const KvPoolView pool_;
  DeviceChunks* const device_;  // null: chunks are encoded into host memory
  const AttemptFormats formats_;
  Transport& transport_;
  Outbox<SendEvent> outbox_;  // its mutex guards what follows
  std::condition_variable work_;
  bool stopping_ = false;
  std::map<AttemptId, Attempt> attempts_;
  std::deque<Attempt> encode_again_queue_;  // its first later chunk
  size_t held_bytes_ = 0;                   // in later_chunks of all attempts
  SenderStats stats_;
  int64_t num_encoded_pages_ = 0;
  std::thread thread_;
};

KvSenderImpl::~KvSenderImpl() {
  transport_.Stop();
  {
    std::lock_guard lock(outbox_.mutex());
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

absl::Status KvSenderImpl::Begin(const SendJob& job) {
  const PageGrid grid{job.first_token, job.num_tokens};
  LYNX_RETURN_IF_ERROR(CheckTokenRange(grid, job.block_table, pool_.num_blocks));
  LYNX_ASSIGN_OR_RETURN(AttemptFormat format, formats_.With(job.anchor));
  LYNX_ASSIGN_OR_RETURN(const PeerId peer, transport_.Connect(job.receiver_address));
  Section section(outbox_);
  if (attempts_.contains(job.attempt)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attempt ", ToString(job.attempt), " has begun already"));
  }
  auto attempt = std::make_shared<SendAttempt>(job, pool_, std::move(format));
  attempt->peer = peer;
  attempts_[job.attempt] = attempt;
  Renewed(*attempt);
  if (grid.num_pages() == 0) {
    End(attempt, {.attempt = job.attempt, .kind = SendEvent::Kind::kDelivered, .error = {}});
    return absl::OkStatus();
  }
  SendAnnounce(*attempt);
  work_.notify_all();
  return absl::OkStatus();
}

void KvSenderImpl::Computed(AttemptId id, int layer, int num_computed) {
  LYNX_CHECK(layer >= 0 && layer < pool_.layout.num_layers);
  Section section(outbox_);
  Attempt attempt = Find(id);
  if (attempt == nullptr) return;  // ended; the engine has not polled that yet
  attempt->computed_ns = MonotonicNs();
  if (attempt->waiting_since_ns == 0) attempt->waiting_since_ns = attempt->computed_ns;
  int& queued = attempt->num_queued_pages[layer];
  for (const int ready = attempt->grid.num_complete_pages(num_computed); queued < ready; ++queued) {
    for (int range = 0; range < pool_.num_shards(); ++range) {
      attempt->to_encode.push_back({0, layer, queued, range});
    }
  }
  work_.notify_all();
}

void KvSenderImpl::Cancel(AttemptId id) {
  Section section(outbox_);
  if (Attempt attempt = Find(id)) {
    Fail(attempt, absl::CancelledError("the prefill side cancelled the hand-off"), Tell::kReceiver);
  }
}

int KvSenderImpl::num_attempts() const {
  std::lock_guard lock(outbox_.mutex());
  return static_cast<int>(attempts_.size());
}

std::optional<int64_t> KvSenderImpl::LeftNs(AttemptId id) const {
  std::lock_guard lock(outbox_.mutex());
  const Attempt attempt = Find(id);
  if (attempt == nullptr) return 0;
  const SendAttempt& a = *attempt;
  if (a.num_pulled_chunks == 0) return std::nullopt;
  const double ns_per_chunk = static_cast<double>(a.pull_clock.total_ns(MonotonicNs())) /
                              static_cast<double>(a.num_pulled_chunks);
  return static_cast<int64_t>(ns_per_chunk *
                              static_cast<double>(a.num_chunks - a.num_pulled_chunks));
}

SenderStats KvSenderImpl::stats() const {
  std::lock_guard lock(outbox_.mutex());
  return stats_;
}

// ---- the encode thread --------------------------------------------------------------------------

void KvSenderImpl::Loop() {
  int64_t next_timer_ns = 0;
  while (true) {
    if (const int64_t now = MonotonicNs(); now >= next_timer_ns) next_timer_ns = RunTimers(now);
    if (RunOneTask()) continue;
    std::unique_lock lock(outbox_.mutex());
    const auto has_work = [this] { return stopping_ || HasWork(); };
    if (attempts_.empty()) {
      work_.wait(lock, [&] { return has_work() || !attempts_.empty(); });
    } else {
      work_.wait_for(lock, std::chrono::nanoseconds(next_timer_ns - MonotonicNs()), has_work);
    }
    if (stopping_) return;
  }
}

bool KvSenderImpl::RunOneTask() {
  std::optional<EncodeTask> task;
  {
    Section section(outbox_);
    if (stopping_ || !HasWork()) return false;
    task = NextTask();
  }
  if (!task) return true;
  const int64_t begin = MonotonicNs();
  std::vector<Payload> payloads = Encode(*task->attempt, task->key);
  Section section(outbox_);
  stats_.encode_ns += MonotonicNs() - begin;
  ++num_encoded_pages_;
  LeaveEncoder(task->attempt);
  if (task->again) {
    OnEncodedAgain(*task, std::move(payloads));
  } else {
    OnEncoded(*task, std::move(payloads));
  }
  return true;
}

std::vector<Payload> KvSenderImpl::Encode(const SendAttempt& attempt, const ChunkKey& key) const {
  const KvPageCodec& codec = *attempt.format.pages;
  const KvPage page = attempt.page(key);
  std::vector<Payload> payloads;
  if (device_ != nullptr) payloads = EncodeOnDevice(codec, page);
  if (!payloads.empty()) return payloads;
  std::vector<std::vector<std::byte>> stages(codec.num_stages());
  codec.EncodePage(pool_, page, stages);
  for (auto& stage : stages) {
    const uint64_t checksum = PayloadChecksum(stage);
    payloads.push_back(
        std::make_shared<const EncodedStage>(ChunkBytes(std::move(stage)), checksum));
  }
  return payloads;
}

// Nothing when there is no room.
std::vector<Payload> KvSenderImpl::EncodeOnDevice(const KvPageCodec& codec,
                                                  const KvPage& page) const {
  std::vector<ChunkBytes> stages(codec.num_stages());
  if (!codec.EncodePageOnDevice(pool_, page, stages)) return {};
  std::vector<std::span<const std::byte>> spans;
  for (const ChunkBytes& stage : stages) spans.push_back(stage.view().bytes);
  std::vector<uint64_t> checksums(stages.size());
  device_->Checksums(spans, checksums.data());
  std::vector<Payload> payloads;
  for (size_t s = 0; s < stages.size(); ++s) {
    payloads.push_back(std::make_shared<const EncodedStage>(std::move(stages[s]), checksums[s]));
  }
  return payloads;
}

// Runs what is due and answers when to look again.
int64_t KvSenderImpl::RunTimers(int64_t now_ns) {
  Section section(outbox_);
  // An attempt that begins after this is not due earlier.
  int64_t next_ns = now_ns + std::min(options_.announce_ms, options_.lease_ms) * kNsPerMs;
  std::vector<Attempt> expired;
  for (auto& [id, attempt] : attempts_) {
    if (now_ns >= attempt->lease_end_ns) {
      expired.push_back(attempt);
      continue;
    }
    if (now_ns >= attempt->next_announce_ns) SendAnnounce(*attempt);
    next_ns = std::min({next_ns, attempt->lease_end_ns, attempt->next_announce_ns});
  }
  for (const Attempt& attempt : expired) {
    Fail(attempt,
         absl::DeadlineExceededError(
             absl::StrCat("hand-off: the receiver renewed nothing for ", options_.lease_ms, " ms")),
         Tell::kReceiver);
  }
  return next_ns;
}

// ---- with the mutex held ------------------------------------------------------------------------

bool KvSenderImpl::HasWork() const {
  return !encode_again_queue_.empty() || NextToEncode(0) != nullptr;
}

// The attempt with the least left to encode, less a quarter of the time that it has waited, as the
// receiver's scheduler has it (pull_scheduler.h); null when no page waits.
KvSenderImpl::Attempt KvSenderImpl::NextToEncode(int64_t now_ns) const {
  const double ns_per_page = static_cast<double>(stats_.encode_ns) /
                             static_cast<double>(std::max<int64_t>(1, num_encoded_pages_));
  Attempt best;
  double best_rank = 0;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->to_encode.empty()) continue;
    const double rank = ns_per_page * attempt->num_pages_to_encode -
                        static_cast<double>(now_ns - attempt->waiting_since_ns) / 4;
    if (best != nullptr && rank >= best_rank) continue;
    best = attempt;
    best_rank = rank;
  }
  return best;
}

// Nothing when the work was over before it began.
std::optional<KvSenderImpl::EncodeTask> KvSenderImpl::NextTask() {
  EncodeTask task{.attempt = NextToEncode(MonotonicNs())};
  if (task.attempt != nullptr) {
    task.key = task.attempt->to_encode.front();
    task.attempt->to_encode.pop_front();
  } else {
    task = {.attempt = std::move(encode_again_queue_.front()), .again = true};
    encode_again_queue_.pop_front();
    if (task.attempt->ended) return std::nullopt;
    const auto& [first_key, first_payload] = *task.attempt->later_chunks.begin();
    if (first_payload != nullptr) {  // computed since, and comes before the one that was dropped
      task.attempt->encoding_again = false;
      PostLater(task.attempt);
      return std::nullopt;
    }
    task.key = first_key;
  }
  task.attempt->in_encoder = true;
  return task;
}

void KvSenderImpl::OnEncoded(const EncodeTask& task, std::vector<Payload> payloads) {
  const Attempt& attempt = task.attempt;
  if (attempt->ended) return;
  if (--attempt->num_pages_to_encode == 0) {
    stats_.encode_exposed_ns += MonotonicNs() - attempt->computed_ns;
  }
  PostChunk(attempt, task.key, std::move(payloads[0]));
  KeepLater(attempt, task.key, payloads);
  PostLater(attempt);
}

void KvSenderImpl::OnEncodedAgain(const EncodeTask& task, std::vector<Payload> payloads) {
  const Attempt& attempt = task.attempt;
  attempt->encoding_again = false;
  if (attempt->ended) return;
  attempt->later_chunks.erase(task.key);
  ++attempt->num_posted_later;
  PostChunk(attempt, task.key, std::move(payloads[task.key.stage]));
  KeepLater(attempt, task.key, payloads);
  PostLater(attempt);
}

// Keeps the stages after the key's.
void KvSenderImpl::KeepLater(const Attempt& attempt, ChunkKey key,
                             const std::vector<Payload>& payloads) {
  for (++key.stage; key.stage < static_cast<int>(payloads.size()); ++key.stage) {
    const Payload& payload = payloads[key.stage];
    Payload& kept = attempt->later_chunks[key];
    if (kept != nullptr) continue;
    if (held_bytes_ + payload->bytes.size() > options_.max_held_bytes) continue;
    held_bytes_ += payload->bytes.size();
    kept = payload;
  }
}

void KvSenderImpl::PostLater(const Attempt& attempt) {
  while (!attempt->later_chunks.empty() && !attempt->encoding_again &&
         attempt->num_posted_later < options_.max_posted_chunks) {
    auto first = attempt->later_chunks.begin();
    if (first->second == nullptr) {
      attempt->encoding_again = true;
      encode_again_queue_.push_back(attempt);
      work_.notify_all();
      return;
    }
    const ChunkKey key = first->first;
    Payload payload = std::move(first->second);
    attempt->later_chunks.erase(first);
    held_bytes_ -= payload->bytes.size();
    ++attempt->num_posted_later;
    PostChunk(attempt, key, std::move(payload));
  }
}

void KvSenderImpl::PostChunk(const Attempt& attempt, const ChunkKey& key, Payload payload) {
  const KvPage page = attempt->page(key);
  const ChunkHeader header{.attempt = attempt->job.attempt,
                           .format = attempt->format.hash,
                           .layer = static_cast<uint16_t>(key.layer),
                           .stage = static_cast<uint16_t>(key.stage),
                           .contents = attempt->format.pages->Contents(key.layer, key.stage),
                           .first_head = static_cast<uint16_t>(page.first_head),
                           .num_heads = static_cast<uint16_t>(page.num_heads),
                           .page = static_cast<uint32_t>(key.page),
                           .first_block = static_cast<uint32_t>(page.first_token / kBlockSize),
                           .num_blocks = static_cast<uint32_t>(page.num_blocks()),
                           .num_tokens = static_cast<uint32_t>(page.num_tokens),
                           .bytes = payload->bytes.size(),
                           .checksum = payload->checksum};
  ++attempt->num_posted_chunks;
  attempt->pull_clock.Set(true, MonotonicNs());
  attempt->posted_bytes += header.bytes;
  attempt->posted_checksum += header.checksum;
  const MemoryView bytes = payload->bytes.view();
  const Urgency urgency = key.stage == 0 ? Urgency::kUrgent : Urgency::kPatient;
  transport_.Post(attempt->peer, urgency, Serialize(header), bytes,
                  [this, id = attempt->job.attempt, stage = key.stage,
                   payload = std::move(payload)](const absl::Status& status) {
                    Section section(outbox_);
                    OnPosted(id, stage, status);
                  });
}

void KvSenderImpl::OnPosted(const AttemptId& id, int stage, const absl::Status& status) {
  Attempt attempt = Find(id);
  if (attempt == nullptr) return;
  if (!status.ok()) return Fail(attempt, status, Tell::kReceiver);
  ++attempt->num_pulled_chunks;
  attempt->pull_clock.Set(attempt->num_pulled_chunks < attempt->num_posted_chunks, MonotonicNs());
  if (stage > 0) {
    --attempt->num_posted_later;
    PostLater(attempt);
  }
}

void KvSenderImpl::OnDelivered(const Attempt& attempt, const Delivered& receipt) {
  if (receipt.num_chunks != attempt->num_chunks || receipt.bytes != attempt->posted_bytes ||
      receipt.checksum != attempt->posted_checksum) {
    return Fail(
        attempt,
        absl::DataLossError(absl::StrCat(
            "hand-off: the receiver acknowledged ", receipt.num_chunks, " chunks, ", receipt.bytes,
            " bytes, checksum ", receipt.checksum, "; sent ", attempt->num_posted_chunks, " of ",
            attempt->num_chunks, ", ", attempt->posted_bytes, ", ", attempt->posted_checksum)),
        Tell::kReceiver);
  }
  End(attempt, {.attempt = receipt.attempt, .kind = SendEvent::Kind::kDelivered, .error = {}});
}

void KvSenderImpl::SendAnnounce(SendAttempt& a) {
  // A lost peer is reported by OnPeerLost.
  (void)transport_.SendControl(
      a.peer, Serialize(Announce{.attempt = a.job.attempt,
                                 .format = a.format.hash,
                                 .first_token = static_cast<uint32_t>(a.grid.first_token),
                                 .num_tokens = static_cast<uint32_t>(a.grid.num_tokens),
                                 .num_posted_chunks = a.num_posted_chunks}));
  a.next_announce_ns = MonotonicNs() + options_.announce_ms * kNsPerMs;
}

void KvSenderImpl::Renewed(SendAttempt& attempt) {
  attempt.lease_end_ns = MonotonicNs() + options_.lease_ms * kNsPerMs;
}

void KvSenderImpl::Fail(const Attempt& attempt, absl::Status status, Tell tell) {
  if (tell == Tell::kReceiver) {
    (void)transport_.SendControl(attempt->peer,
                                 Serialize(Abort{.attempt = attempt->job.attempt,
                                                 .code = status.code(),
                                                 .message = std::string(status.message())}));
  }
  End(attempt, {.attempt = attempt->job.attempt,
                .kind = SendEvent::Kind::kFailed,
                .error = std::move(status)});
}

void KvSenderImpl::End(const Attempt& attempt, SendEvent event) {
  attempt->ended = true;
  attempt->terminal_event = std::move(event);
  for (const auto& [key, payload] : attempt->later_chunks) {
    if (payload != nullptr) held_bytes_ -= payload->bytes.size();
  }
  attempt->later_chunks.clear();
  attempts_.erase(attempt->job.attempt);
  if (!attempt->in_encoder) Report(*attempt);
}

void KvSenderImpl::LeaveEncoder(const Attempt& attempt) {
  attempt->in_encoder = false;
  if (attempt->ended) Report(*attempt);
}

void KvSenderImpl::Report(const SendAttempt& attempt) { outbox_.Add(attempt.terminal_event); }

// ---- the transport's threads --------------------------------------------------------------------

void KvSenderImpl::OnControl(uint64_t from, std::span<const std::byte> bytes) {
  const absl::StatusOr<ControlMessage> message = ParseControlMessage(bytes);
  if (!message.ok()) return;
  const AttemptId id = std::visit([](const auto& m) { return m.attempt; }, *message);
  Section section(outbox_);
  Attempt attempt = Find(id);
  if (attempt == nullptr || transport_.FindPeer(from) != attempt->peer) return;
  if (std::holds_alternative<Renew>(*message)) {
    Renewed(*attempt);
  } else if (const auto* receipt = std::get_if<Delivered>(&*message)) {
    OnDelivered(attempt, *receipt);
  } else if (const auto* abort = std::get_if<Abort>(&*message)) {
    Fail(attempt, absl::Status(abort->code, absl::StrCat("the receiver: ", abort->message)),
         Tell::kNobody);
  }
}

void KvSenderImpl::OnOffer(OfferId offer, uint64_t, std::span<const std::byte>, size_t) {
  transport_.Drop(offer);  // nobody sends KV to a sender
}

void KvSenderImpl::OnPeerLost(PeerId peer, uint64_t, const absl::Status& why) {
  Section section(outbox_);
  std::vector<Attempt> lost;
  for (const auto& [id, attempt] : attempts_) {
    if (attempt->peer == peer) lost.push_back(attempt);
  }
  for (const Attempt& attempt : lost) Fail(attempt, why, Tell::kNobody);
}

}  // namespace

std::unique_ptr<KvSender> KvSender::Create(const Options& options, const Codec& codec,
                                           SendPlan plan, KvPoolView pool, Transport& transport,
                                           std::function<void()> wake) {
  return std::make_unique<KvSenderImpl>(options, codec, std::move(plan), pool, transport,
                                        std::move(wake));
}

}  // namespace lynx
