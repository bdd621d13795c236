// SPDX-License-Identifier: Apache-2.0
// A hand-off without threads, codec or network, whose stages land when the test says so.
//
// The anchor it delivers is the KV with its low mantissa bits cut off; the target is exact. It
// reads the sender's blocks and writes the receiver's as late as the contract allows, and writes
// garbage into the blocks of a cancelled or failed attempt just before it reports the end: whoever
// gives blocks back too early ends with wrong text.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "handoff/kv_receiver.h"
#include "handoff/kv_sender.h"
#include "tests/kv/for_each_tile.h"

namespace lynx {

class ScriptedLink {
 public:
  enum class Stage { kAnchor, kResidual, kTarget };

  // Whether a stage may land now; the default lets everything land.
  std::function<bool(Stage)> allow = [](Stage) { return true; };
  bool one_stage = false;  // a plan without an anchor
  int anchor_bits = 3;     // mantissa bits that the anchor keeps, of 7
  bool slow_ends = false;  // ends of cancelled attempts are reported only by FinishCancels
  // Whether Read is granted now.
  std::function<bool()> may_read = [] { return true; };
  std::optional<int64_t> left_ns;  // what the sender says that transfers still take
  double bytes_per_second = 0;     // what the receiver says of the link
  bool refine_early = false;       // a block per Pump that nobody reads in
  int64_t now_ns = 1;

  int num_refined = 0;
  int num_reads = 0;
  int num_early_blocks = 0;
  int num_promoted = 0;
  int num_zero_transfers = 0;
  int64_t tokens_moved = 0;

  std::unique_ptr<KvSender> MakeSender(KvPoolView pool) {
    source_ = pool;
    return std::make_unique<Sender>(*this);
  }
  std::unique_ptr<KvReceiver> MakeReceiver(KvPoolView pool) {
    destination_ = pool;
    return std::make_unique<Receiver>(*this);
  }

  // Lets every transfer go as far as it may.
  void Pump() {
    for (auto& [id, t] : transfers_) Advance(id, t);
    std::erase_if(transfers_,
                  [](const auto& e) { return e.second.send_over && e.second.receive_over; });
  }
  // The connection is lost: every transfer fails on both sides.
  void FailAll() {
    for (auto& [id, t] : transfers_) {
      EndReceive(id, t, ReceiveEvent::Kind::kFailed, absl::UnavailableError("link lost"));
      EndSend(id, t, SendEvent::Kind::kFailed, absl::UnavailableError("link lost"));
    }
    Pump();
  }
  size_t num_transfers() const { return transfers_.size(); }

 private:
  struct Transfer {
    std::optional<SendJob> send;
    std::optional<ReceiveJob> receive;
    std::vector<int> computed = std::vector<int>(64);  // per layer
    bool anchor = false, residual = false, target = false, cancelled = false;
    bool being_read = false;
    int num_refined_blocks = 0;
    bool send_cancelled = false;
    bool send_over = false, receive_over = false;
  };

  class Sender final : public KvSender {
   public:
    explicit Sender(ScriptedLink& link) : link_(link) {}
    absl::Status Begin(const SendJob& job) override {
      link_.transfers_[job.attempt].send = job;
      return absl::OkStatus();
    }
    void Computed(AttemptId attempt, int layer, int num_computed) override {
      const auto it = link_.transfers_.find(attempt);
      if (it != link_.transfers_.end()) it->second.computed[layer] = num_computed;
    }
    void Cancel(AttemptId attempt) override {
      const auto it = link_.transfers_.find(attempt);
      if (it != link_.transfers_.end()) it->second.send_cancelled = true;
    }
    std::vector<SendEvent> Poll() override { return std::exchange(link_.send_events_, {}); }
    int num_attempts() const override { return static_cast<int>(link_.transfers_.size()); }
    std::optional<int64_t> LeftNs(AttemptId) const override { return link_.left_ns; }
    SenderStats stats() const override { return {}; }

   private:
    ScriptedLink& link_;
  };

  class Receiver final : public KvReceiver {
   public:
    explicit Receiver(ScriptedLink& link) : link_(link) {}
    absl::Status Begin(const ReceiveJob& job) override {
      link_.transfers_[job.attempt].receive = job;
      return absl::OkStatus();
    }
    bool Read(AttemptId attempt, int64_t) override {
      const auto it = link_.transfers_.find(attempt);
      if (it == link_.transfers_.end() || it->second.receive_over || it->second.target)
        return false;
      if (!link_.may_read()) {
        link_.Report(attempt, ReceiveEvent::Kind::kReadable);
        return false;
      }
      ++link_.num_reads;
      return it->second.being_read = true;
    }
    void Refine(AttemptId attempt) override {
      const auto it = link_.transfers_.find(attempt);
      if (it != link_.transfers_.end()) it->second.being_read = false;
    }
    void Promote(AttemptId) override { ++link_.num_promoted; }
    void Cancel(AttemptId attempt) override {
      const auto it = link_.transfers_.find(attempt);
      if (it != link_.transfers_.end()) it->second.cancelled = true;
    }
    std::vector<ReceiveEvent> Poll() override { return std::exchange(link_.receive_events_, {}); }
    ReceiverStats stats() const override {
      ReceiverStats stats;
      stats.bytes_per_second = link_.bytes_per_second;
      return stats;
    }

   private:
    ScriptedLink& link_;
  };

  void Advance(AttemptId id, Transfer& t) {
    if (t.cancelled && !t.receive_over && !slow_ends) {
      EndReceive(id, t, ReceiveEvent::Kind::kCancelled, absl::OkStatus());
    }
    if (t.receive_over && !t.send_over && (!t.send || t.cancelled)) {
      EndSend(id, t, SendEvent::Kind::kFailed, absl::CancelledError("receiver gave up"));
    }
    if (t.send_cancelled && !t.send_over && !slow_ends) {
      EndSend(id, t, SendEvent::Kind::kFailed, absl::CancelledError("cancelled"));
      // The receiver learns of it from its own side.
      EndReceive(id, t, ReceiveEvent::Kind::kFailed, absl::UnavailableError("sender gave up"));
    }
    if (!t.send || !t.receive || t.send_over || t.receive_over || t.cancelled) return;
    if (t.receive->first_token == t.receive->num_tokens) {
      ++num_zero_transfers;
      Deliver(id, t);
      return;
    }
    for (int layer = 0; layer < source_.layout.num_layers; ++layer) {
      if (t.computed[layer] < t.send->num_tokens) return;
    }
    if (one_stage) {
      if (allow(Stage::kTarget)) Deliver(id, t);
      return;
    }
    if (!t.anchor && allow(Stage::kAnchor)) {
      t.anchor = true;
      Copy(t, static_cast<uint16_t>(0xffff << (7 - anchor_bits)));
      Report(id, ReceiveEvent::Kind::kAnchorLanded);
    }
    if (t.anchor && !t.residual && allow(Stage::kResidual)) {
      t.residual = true;
      Report(id, ReceiveEvent::Kind::kResidualLanded);
    }
    if (t.residual && !t.target && allow(Stage::kTarget)) {
      t.target = true;
      Report(id, ReceiveEvent::Kind::kTargetLanded);
    }
    if (t.anchor && !t.being_read) RefineOneBlock(t);
    if (t.target && !t.being_read) Deliver(id, t);
  }

  // As if the pages of one more block were here whole.
  void RefineOneBlock(Transfer& t) {
    const int num_blocks =
        (t.receive->num_tokens - t.receive->first_token + kBlockSize - 1) / kBlockSize;
    if (!refine_early || t.num_refined_blocks == num_blocks) return;
    const int block = t.receive->first_token / kBlockSize + t.num_refined_blocks++;
    Copy(t, 0xffff, block, block + 1);
    ++num_early_blocks;
  }

  void Deliver(AttemptId id, Transfer& t) {
    Copy(t, 0xffff);
    tokens_moved += t.receive->num_tokens - t.receive->first_token;
    ++num_refined;
    t.receive_over = t.send_over = true;
    Report(id, ReceiveEvent::Kind::kRefined);
    send_events_.push_back({.attempt = id, .kind = SendEvent::Kind::kDelivered, .error = {}});
  }

  // The bits of every element of the range that the mask keeps.
  void Copy(const Transfer& t, uint16_t mask, int first_block = 0, int end_block = 1 << 20) {
    VisitTiles(t, [&](Bf16* to, const Bf16* from, KvKind kind, int block, int num_tokens) {
      if (block < first_block || block >= end_block) return;
      const int dim = source_.layout.head_dim;
      for (int i = 0; i < dim; ++i) {
        for (int s = 0; s < num_tokens; ++s) {
          const int at = kind == KvKind::kKey ? i * kBlockSize + s : s * dim + i;
          to[at].bits = from[at].bits & mask;
        }
      }
    });
  }
  void WriteGarbage(const Transfer& t) {
    VisitTiles(t, [&](Bf16* to, const Bf16*, KvKind, int, int) {
      for (size_t i = 0; i < destination_.layout.tile_elements(); ++i) to[i] = ToBf16(9.0f);
    });
  }
  template <typename F>
  void VisitTiles(const Transfer& t, F&& f) {
    const ReceiveJob& r = *t.receive;
    for (int first = r.first_token; first < r.num_tokens; first += kBlockSize) {
      const int block = first / kBlockSize;
      const int num_tokens = std::min(kBlockSize, r.num_tokens - first);
      ForEachTile(destination_.layout, [&](int layer, KvKind kind, int head) {
        const auto* from =
            t.send ? source_.tile(t.send->block_table[block], layer, kind, head) : source_.base;
        f(reinterpret_cast<Bf16*>(destination_.tile(r.block_table[block], layer, kind, head)),
          reinterpret_cast<const Bf16*>(from), kind, block, num_tokens);
      });
    }
  }

  void Report(AttemptId id, ReceiveEvent::Kind kind, absl::Status error = {}) {
    receive_events_.push_back({.attempt = id,
                               .kind = kind,
                               .error = std::move(error),
                               .at_ns = ++now_ns,
                               .stage_bytes = {1, 2, 3}});
  }
  void EndReceive(AttemptId id, Transfer& t, ReceiveEvent::Kind kind, absl::Status error) {
    if (t.receive_over) return;
    t.receive_over = true;
    if (!t.receive) return;
    WriteGarbage(t);
    Report(id, kind, std::move(error));
  }
  void EndSend(AttemptId id, Transfer& t, SendEvent::Kind kind, absl::Status error) {
    if (t.send_over) return;
    t.send_over = true;
    if (t.send) send_events_.push_back({.attempt = id, .kind = kind, .error = std::move(error)});
  }

  KvPoolView source_, destination_;
  std::map<AttemptId, Transfer> transfers_;
  std::vector<SendEvent> send_events_;
  std::vector<ReceiveEvent> receive_events_;
};

}  // namespace lynx
