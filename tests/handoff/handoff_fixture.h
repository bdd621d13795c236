// SPDX-License-Identifier: Apache-2.0
// Senders and a receiver over faulty loopback transports, in a small language:
//
//   Handoff h({.codec = "planes"});            // one sender, one receiver
//   const AttemptId id = h.Begin({.num_tokens = 300});
//   h.ComputeAll(id);
//   ASSERT_TRUE(h.WaitFor(id, Kind::kRefined));
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "handoff/kv_receiver.h"
#include "handoff/kv_sender.h"
#include "handoff/wire.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/codec.h"
#include "tests/kv/for_each_tile.h"
#include "tests/transport/recording_handler.h"
#include "transport/faulty_transport.h"

namespace lynx {

// A pool that owns its memory, in one piece or in a shard for each rank. Values look like a cache:
// channels with an offset and noise.
class TestPool {
 public:
  TestPool(const KvLayout& layout, int num_blocks, int num_shards = 1)
      : layout_(layout), num_blocks_(num_blocks), memory_(num_shards) {
    for (auto& memory : memory_) {
      memory.resize(num_blocks * layout.block_bytes() / num_shards + 64);
      const auto address = reinterpret_cast<uintptr_t>(memory.data());
      shards_.push_back(reinterpret_cast<std::byte*>((address + 63) / 64 * 64));
    }
  }

  KvPoolView view() {
    if (shards_.size() == 1) return {shards_[0], layout_, num_blocks_};
    return {nullptr, layout_, num_blocks_, shards_};
  }
  void FillBlock(BlockId block, uint32_t seed) {
    std::minstd_rand random(seed);
    const size_t num_elements = layout_.tile_elements();
    VisitTiles(block, [&](std::byte* tile) {
      for (size_t i = 0; i < num_elements; ++i) {
        const float channel = static_cast<float>(i / kBlockSize % 7);
        const float value = channel + static_cast<float>(random() % 10000) * 1e-4f;
        if (layout_.dtype == KvDtype::kF32) {
          std::memcpy(tile + i * 4, &value, 4);
        } else {
          const Bf16 rounded = ToBf16(value);
          std::memcpy(tile + i * 2, &rounded, 2);
        }
      }
    });
  }
  std::vector<std::byte> BlockBytes(BlockId block) {
    std::vector<std::byte> bytes;
    VisitTiles(block, [&](const std::byte* tile) {
      bytes.insert(bytes.end(), tile, tile + layout_.tile_bytes());
    });
    return bytes;
  }
  // The bytes of one token's slot: all layers, kinds and heads.
  std::vector<std::byte> TokenBytes(BlockId block, int slot) {
    const KvPoolView pool = view();
    const size_t element = layout_.element_bytes();
    std::vector<std::byte> bytes;
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        const std::byte* key = pool.tile(block, layer, KvKind::kKey, head);
        const std::byte* value = pool.tile(block, layer, KvKind::kValue, head);
        for (int c = 0; c < layout_.head_dim; ++c) {
          const std::byte* k = key + (c * kBlockSize + slot) * element;
          const std::byte* v = value + (slot * layout_.head_dim + c) * element;
          bytes.insert(bytes.end(), k, k + element);
          bytes.insert(bytes.end(), v, v + element);
        }
      }
    }
    return bytes;
  }

 private:
  template <typename F>
  void VisitTiles(BlockId block, F&& f) {
    ForEachTile(layout_, [&](int layer, KvKind kind, int head) {
      f(view().tile(block, layer, kind, head));
    });
  }

  KvLayout layout_;
  int num_blocks_;
  std::vector<std::vector<std::byte>> memory_;  // [rank]
  std::vector<std::byte*> shards_;              // [rank]
};

// What FaultyTransport may match.
inline FaultyTransport::Match Stage(int first, int last = 100) {
  return [first, last](std::span<const std::byte> bytes) {
    auto header = ParseChunkHeader(bytes);
    return header.ok() && header->stage >= first && header->stage <= last;
  };
}

struct HandoffOptions {
  std::string codec = "planes";
  KvDtype dtype = KvDtype::kBf16;
  int num_senders = 1;
  int num_layers = 3;
  int num_kv_heads = 2;
  int head_dim = 32;
  int num_blocks = 64;
  int send_ranks = 1;
  int receive_ranks = 1;
  KvSender::Options sender;
  KvReceiver::Options receiver;
};

struct HandoffJob {
  int num_tokens = 300;
  int first_token = 0;
  int sender = 0;
  AnchorPlanes anchor = {};  // empty: the plan's own
};

class Handoff {
 public:
  using Kind = ReceiveEvent::Kind;
  using TransportFactory = std::function<std::unique_ptr<Transport>()>;

  explicit Handoff(const HandoffOptions& options, TransportFactory make_transport = nullptr)
      : options_(options),
        layout_{options.num_layers, options.num_kv_heads, options.head_dim, options.dtype},
        backend_(cpu::CpuBackend::Create({})) {
    auto codec = MakeCodec(options.codec, *backend_);
    EXPECT_TRUE(codec.ok()) << codec.status();
    codec_ = std::move(*codec);
    plan_ = DefaultSendPlan(*codec_, options.num_layers, /*exact_target=*/true);
    if (!make_transport) make_transport = [this] { return MakeLoopbackTransport(hub_); };
    receiver_transport_ = std::make_unique<FaultyTransport>(make_transport());
    receiver_pool_ = std::make_unique<TestPool>(layout_, options.num_blocks, options.receive_ranks);
    const auto wake = [this] { signal_.Notify(); };
    receiver_ = KvReceiver::Create(options.receiver, *codec_, plan_, receiver_pool_->view(),
                                   *receiver_transport_, wake);
    for (int i = 0; i < options.num_senders; ++i) {
      SendSide& side = senders_.emplace_back();
      side.transport = std::make_unique<FaultyTransport>(make_transport());
      side.pool = std::make_unique<TestPool>(layout_, options.num_blocks, options.send_ranks);
      for (int b = 0; b < options.num_blocks; ++b) side.pool->FillBlock(b, 1000 * i + b + 1);
      side.sender = KvSender::Create(options.sender, *codec_, plan_, side.pool->view(),
                                     *side.transport, wake);
    }
  }

  AttemptId NewAttempt(const HandoffJob& job) {
    const AttemptId id{0x1234, ++num_attempts_};
    Attempt& attempt = attempts_[id];
    attempt.job = job;
    const int num_blocks = (job.num_tokens + kBlockSize - 1) / kBlockSize;
    for (int b = 0; b < num_blocks; ++b) {
      attempt.send_blocks.push_back(next_send_block_++ % options_.num_blocks);
      attempt.receive_blocks.push_back(options_.num_blocks - 1 -
                                       next_receive_block_++ % options_.num_blocks);
    }
    return id;
  }
  // Of what BeginReceive and BeginSend are told from now on.
  void SetAnchor(AttemptId id, AnchorPlanes anchor) {
    attempts_[id].job.anchor = std::move(anchor);
  }
  absl::Status BeginReceive(AttemptId id) {
    const Attempt& a = attempts_[id];
    return receiver_->Begin(
        {id, a.job.first_token, a.job.num_tokens, a.receive_blocks, a.job.anchor});
  }
  absl::Status BeginSend(AttemptId id) {
    const Attempt& a = attempts_[id];
    return senders_[a.job.sender].sender->Begin({id, receiver_transport_->address(),
                                                 a.job.first_token, a.job.num_tokens, a.send_blocks,
                                                 a.job.anchor});
  }
  AttemptId Begin(const HandoffJob& job) {
    const AttemptId id = NewAttempt(job);
    EXPECT_TRUE(BeginReceive(id).ok());
    EXPECT_TRUE(BeginSend(id).ok());
    return id;
  }
  // A whole attempt whose blocks the engine reads since the anchor has landed; then the rest comes.
  AttemptId BeginAndRead(const HandoffJob& job) {
    receiver_transport_->HoldOffers(Stage(1));
    const AttemptId id = Begin(job);
    ComputeAll(id);
    EXPECT_TRUE(WaitFor(id, Kind::kAnchorLanded));
    EXPECT_TRUE(receiver_->Read(id, 0)) << "every anchor is decoded, nothing else has landed";
    receiver_transport_->ReleaseOffers();
    return id;
  }
  void Compute(AttemptId id, int num_computed) {
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      sender(attempts_[id].job.sender).Computed(id, layer, num_computed);
    }
  }
  void ComputeAll(AttemptId id) { Compute(id, attempts_[id].job.num_tokens); }

  KvReceiver& receiver() { return *receiver_; }
  KvSender& sender(int i = 0) { return *senders_[i].sender; }
  FaultyTransport& receiver_transport() { return *receiver_transport_; }
  FaultyTransport& sender_transport(int i = 0) { return *senders_[i].transport; }
  TestPool& receiver_pool() { return *receiver_pool_; }
  void StopSender(int i = 0) { senders_[i].sender.reset(); }
  const SendPlan& plan() const { return plan_; }
  const Codec& codec() const { return *codec_; }
  uint64_t format() const { return HandoffFormat(*codec_, plan_, layout_); }
  StageContents Contents(int layer, int stage) const {
    return (*KvPageCodec::Create(*codec_, plan_, layout_))->Contents(layer, stage);
  }
  const std::vector<BlockId>& receive_blocks(AttemptId id) { return attempts_[id].receive_blocks; }

  // Moves what the two sides report into received() and sent(). True when the attempt has that
  // event within the limit, or (WaitForEnd) any terminal one.
  bool WaitFor(AttemptId id, Kind kind,
               std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    return signal_.WaitFor(
        [&] {
          Collect();
          return Find(id, kind) != nullptr;
        },
        limit);
  }
  bool WaitForEnd(AttemptId id) {
    return signal_.WaitFor([&] {
      Collect();
      return ReceiverEnd(id) != nullptr && SenderEnd(id) != nullptr;
    });
  }
  bool WaitForSenderEnd(AttemptId id) {
    return signal_.WaitFor([&] {
      Collect();
      return SenderEnd(id) != nullptr;
    });
  }
  void Collect() {
    for (ReceiveEvent& event : receiver_->Poll()) received_.push_back(std::move(event));
    for (SendSide& side : senders_) {
      if (side.sender == nullptr) continue;
      for (SendEvent& event : side.sender->Poll()) sent_.push_back(std::move(event));
    }
  }
  const ReceiveEvent* Find(AttemptId id, Kind kind) const {
    for (const ReceiveEvent& event : received_) {
      if (event.attempt == id && event.kind == kind) return &event;
    }
    return nullptr;
  }
  const ReceiveEvent* ReceiverEnd(AttemptId id) const {
    for (Kind kind : {Kind::kRefined, Kind::kFailed, Kind::kCancelled}) {
      if (const ReceiveEvent* event = Find(id, kind)) return event;
    }
    return nullptr;
  }
  const SendEvent* SenderEnd(AttemptId id) const {
    for (const SendEvent& event : sent_) {
      if (event.attempt == id) return &event;
    }
    return nullptr;
  }
  std::vector<Kind> Kinds(AttemptId id) const {
    std::vector<Kind> kinds;
    for (const ReceiveEvent& event : received_) {
      if (event.attempt == id) kinds.push_back(event.kind);
    }
    return kinds;
  }
  // Waits for the good end of the attempt.
  void Finish(AttemptId id) {
    ASSERT_TRUE(WaitForEnd(id));
    ASSERT_EQ(ReceiverEnd(id)->kind, Kind::kRefined) << ReceiverEnd(id)->error;
    ASSERT_EQ(SenderEnd(id)->kind, SendEvent::Kind::kDelivered) << SenderEnd(id)->error;
  }

  // The bytes of the attempt's tokens [first, end), as they are in the two sides' blocks.
  std::vector<std::byte> ReceivedTokens(AttemptId id, int first, int end) {
    return TokensOf(*receiver_pool_, attempts_[id].receive_blocks, first, end);
  }
  std::vector<std::byte> SentTokens(AttemptId id, int first, int end) {
    const Attempt& a = attempts_[id];
    return TokensOf(*senders_[a.job.sender].pool, a.send_blocks, first, end);
  }

  // Every handed-over token is in the receiver's blocks, bit for bit.
  void ExpectEqual(AttemptId id) {
    const Attempt& a = attempts_[id];
    for (int t = a.job.first_token; t < a.job.num_tokens; ++t) {
      const int b = t / kBlockSize;
      ASSERT_EQ(receiver_pool_->TokenBytes(a.receive_blocks[b], t % kBlockSize),
                senders_[a.job.sender].pool->TokenBytes(a.send_blocks[b], t % kBlockSize))
          << "token " << t;
    }
  }

 private:
  struct SendSide {
    std::unique_ptr<FaultyTransport> transport;
    std::unique_ptr<TestPool> pool;
    std::unique_ptr<KvSender> sender;
  };
  struct Attempt {
    HandoffJob job;
    std::vector<BlockId> send_blocks, receive_blocks;
  };

  static std::vector<std::byte> TokensOf(TestPool& pool, const std::vector<BlockId>& blocks,
                                         int first, int end) {
    std::vector<std::byte> bytes;
    for (int t = first; t < end; ++t) {
      const std::vector<std::byte> token = pool.TokenBytes(blocks[t / kBlockSize], t % kBlockSize);
      bytes.insert(bytes.end(), token.begin(), token.end());
    }
    return bytes;
  }

  const HandoffOptions options_;
  const KvLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Codec> codec_;
  SendPlan plan_;
  std::shared_ptr<LoopbackHub> hub_ = MakeLoopbackHub();
  Signal signal_;
  std::unique_ptr<FaultyTransport> receiver_transport_;
  std::unique_ptr<TestPool> receiver_pool_;
  std::unique_ptr<KvReceiver> receiver_;
  std::vector<SendSide> senders_;
  std::map<AttemptId, Attempt> attempts_;
  uint64_t num_attempts_ = 0;
  int next_send_block_ = 0, next_receive_block_ = 0;
  std::vector<ReceiveEvent> received_;
  std::vector<SendEvent> sent_;
};

inline FaultyTransport::Match Any() {
  return [](std::span<const std::byte>) { return true; };
}
// The nth message that `match` matches, counting from 0.
inline FaultyTransport::Match Nth(int n, FaultyTransport::Match match) {
  return [n, match = std::move(match), seen = std::make_shared<int>(0)](
             std::span<const std::byte> bytes) { return match(bytes) && (*seen)++ == n; };
}
template <typename Message>
FaultyTransport::Match Control() {
  return [](std::span<const std::byte> bytes) {
    auto message = ParseControlMessage(bytes);
    return message.ok() && std::holds_alternative<Message>(*message);
  };
}

}  // namespace lynx
