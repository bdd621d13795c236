// SPDX-License-Identifier: Apache-2.0
// The receiver's state. Its methods are in files by subject: kv_receiver.cc (the engine's calls,
// and how attempts end), receive_chunks.cc (the transport's threads: what is offered and what is
// pulled), receive_codec.cc (the codec thread).
//
// One mutex guards everything; the codec thread gives it up while it checks one chunk or decodes
// one page, the transport's threads take it in handlers and completions. The codec thread takes
// anchors before anything else and goes from attempt to attempt, so that none waits long behind
// another.
#pragma once

#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "handoff/busy_clock.h"
#include "handoff/early_chunks.h"
#include "handoff/ended_attempts.h"
#include "handoff/kv_receiver.h"
#include "handoff/outbox.h"
#include "handoff/pull_scheduler.h"
#include "handoff/pull_window.h"
#include "handoff/receive_attempt.h"

namespace lynx {

class KvReceiverImpl final : public KvReceiver, public TransportHandler {
 public:
  KvReceiverImpl(const Options& options, const Codec& codec, SendPlan plan, KvPoolView pool,
                 Transport& transport, std::function<void()> wake);
  ~KvReceiverImpl() override;

  absl::Status Begin(const ReceiveJob& job) override;
  bool Read(AttemptId attempt, int64_t soon_ns) override;
  void Refine(AttemptId attempt) override;
  void Promote(AttemptId attempt) override;
  void Cancel(AttemptId attempt) override;
  std::vector<ReceiveEvent> Poll() override { return outbox_.Poll(); }
  ReceiverStats stats() const override;

  void OnControl(uint64_t from, std::span<const std::byte> message) override;
  void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
               size_t payload_bytes) override;
  void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) override;

 private:
  using Attempt = std::shared_ptr<ReceiveAttempt>;  // also held by the codec thread's current task
  using Kind = ReceiveEvent::Kind;
  using Section = Outbox<ReceiveEvent>::Section;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  struct ChunkTask {  // check a landed chunk
    Attempt attempt;
    ChunkKey key;
  };
  struct PageTask {
    Attempt attempt;
    PageDecode decode;
  };
  using Task = std::variant<ChunkTask, PageTask>;
  enum class Tell { kSender, kNobody };

  // receive_codec.cc, without the mutex.
  void Loop();
  bool RunOneTask();
  uint64_t Checksum(const MemoryView& chunk) const;
  void Run(const ChunkTask& task);
  void Run(const PageTask& task);
  void RunTimers(int64_t now_ns);

  // All below: with the mutex held.

  // receive_codec.cc
  bool HasWork() const {
    return !anchor_queue_.empty() || !later_queue_.empty() || !decode_queue_.empty() ||
           !refine_queue_.empty();
  }
  std::optional<Task> NextTask();
  std::optional<Task> NextCheck(std::deque<ChunkTask>& queue);
  std::optional<Task> NextAnchor();
  std::optional<Task> NextRefine();
  void QueueDecodes(const Attempt& attempt);
  void LeaveCodec(const Attempt& attempt);
  void TellToAskAgain(int64_t now_ns);
  void FailStuckAttempts(int64_t now_ns);
  void RefuseLateChunks(int64_t now_ns);

  // receive_chunks.cc
  void TakeFrom(ReceiveAttempt& attempt, uint64_t from);
  void Accept(const Attempt& attempt, const ChunkOffer& offer);
  void Hold(const ChunkOffer& offer);
  void Refuse(const ChunkOffer& offer, const Abort& abort);
  void Pump();
  void Pull(const QueuedPull& pull, const ChunkOffer& offer);
  ChunkBytes MemoryFor(size_t bytes) const;
  void OnPulled(const ChunkOffer& offer, const ChunkBytes& bytes, int64_t issued_ns,
                bool idle_before, const absl::Status& status);
  void CountPulled(const ChunkOffer& offer, int64_t issued_ns, int64_t now_ns, bool idle_before);
  void OnAnnounce(uint64_t from, const Announce& announce);
  void OnAbort(uint64_t from, const Abort& abort);
  void Send(uint64_t to, const ControlMessage& message);

  // kv_receiver.cc
  bool TargetIsNear(const ReceiveAttempt& attempt, int64_t soon_ns) const;
  void OnProgress(const Attempt& attempt);
  void OnRefined(const Attempt& attempt);
  void Fail(const Attempt& attempt, absl::Status status, Tell tell, Kind kind = Kind::kFailed);
  void End(const Attempt& attempt, Kind kind, absl::Status error, ControlMessage verdict);
  void Report(const ReceiveAttempt& attempt, Kind kind);
  void Push(ReceiveEvent event);
  Attempt Find(const AttemptId& id) const {
    auto it = attempts_.find(id);
    return it == attempts_.end() ? nullptr : it->second;
  }

  const Options options_;
  const KvPoolView pool_;
  DeviceChunks* const device_;  // null: chunks land in host memory
  const AttemptFormats formats_;
  Transport& transport_;

  Outbox<ReceiveEvent> outbox_;  // its mutex guards what follows
  std::condition_variable work_;
  bool stopping_ = false;
  std::map<AttemptId, Attempt> attempts_;
  EarlyChunks early_;
  EndedAttempts ended_;
  PullWindow window_;
  PullScheduler scheduler_;
  std::map<OfferId, ChunkOffer> queued_;   // those the scheduler holds
  std::map<OfferId, ChunkOffer> pulling_;  // those that count against the window
  int64_t any_progress_ns_ = 0;            // last time anything arrived
  BusyClock wait_clock_, pull_clock_;      // of the two above
  std::deque<ChunkTask> anchor_queue_;
  std::deque<ChunkTask> later_queue_;
  std::deque<Attempt> decode_queue_;  // with an anchor that is due
  std::deque<Attempt> refine_queue_;  // with a page that is
  int64_t ask_again_ns_ = kNever;     // the earliest of the attempts'
  ReceiverStats stats_;
  std::thread thread_;
};

}  // namespace lynx
