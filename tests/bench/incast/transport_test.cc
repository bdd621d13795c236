// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/transport.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "handoff/wire.h"
#include "tests/transport/recording_handler.h"

namespace lynx {
namespace {

// Pulls wait until the test completes them.
class ManualTransport final : public Transport {
 public:
  struct Pulled {
    OfferId offer;
    std::function<void(absl::Status)> done;
  };
  explicit ManualTransport(std::deque<Pulled>* pulls) : pulls_(pulls) {}

  uint64_t epoch() const override { return 1; }
  std::string address() const override { return "here"; }
  void Start(TransportHandler*) override {}
  void Stop() override {}
  absl::StatusOr<PeerId> Connect(std::string_view) override { return 1; }
  std::optional<PeerId> FindPeer(uint64_t) const override { return 1; }
  void Disconnect(PeerId) override {}
  absl::Status SendControl(PeerId, std::vector<std::byte>) override { return absl::OkStatus(); }
  void Post(PeerId, Urgency, std::vector<std::byte>, MemoryView,
            std::function<void(absl::Status)>) override {}
  void Pull(OfferId offer, MutableMemoryView, std::function<void(absl::Status)> done) override {
    pulls_->push_back({offer, std::move(done)});
  }
  void Drop(OfferId) override {}

 private:
  std::deque<Pulled>* const pulls_;
};

struct Chunk {
  uint64_t sender;
  uint64_t attempt;
  int stage;
};

// The order in which chunks of 100 bytes move that are all offered and wanted at once, with 200
// bytes under way in a stream: as indices of `chunks`.
std::vector<OfferId> Order(IncastPolicy policy, const std::vector<Chunk>& chunks) {
  std::deque<ManualTransport::Pulled> pulls;
  IncastTransport transport(std::make_unique<ManualTransport>(&pulls), policy, 200);
  RecordingHandler handler;
  transport.Start(&handler);
  std::vector<std::byte> memory(100);
  size_t num_done = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkHeader header{.attempt = {0, chunks[i].attempt},
                             .stage = static_cast<uint16_t>(chunks[i].stage),
                             .bytes = memory.size()};
    transport.OnOffer(i, chunks[i].sender, Serialize(header), memory.size());
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    transport.Pull(i, memory, [&](const absl::Status& status) { num_done += status.ok(); });
  }
  std::vector<OfferId> order;
  while (!pulls.empty()) {
    const ManualTransport::Pulled pulled = std::move(pulls.front());
    pulls.pop_front();
    order.push_back(pulled.offer);
    pulled.done(absl::OkStatus());
  }
  EXPECT_EQ(num_done, chunks.size());
  return order;
}

// The first two chunks fill the window before anything else is wanted.
const std::vector<Chunk> kOneSender = {{1, 1, 1}, {1, 1, 1}, {1, 1, 2}, {1, 2, 1},
                                       {1, 2, 0}, {1, 1, 1}, {1, 2, 0}};

TEST(IncastTransportTest, LynxPassesThrough) {
  EXPECT_EQ(Order(IncastPolicy::kLynx, kOneSender), (std::vector<OfferId>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(IncastTransportTest, FifoFinishesOneRequestAfterTheOther) {
  EXPECT_EQ(Order(IncastPolicy::kFifo, kOneSender), (std::vector<OfferId>{0, 1, 5, 2, 4, 6, 3}));
}

TEST(IncastTransportTest, SenderStrictPutsAnchorsFirst) {
  EXPECT_EQ(Order(IncastPolicy::kSenderStrict, kOneSender),
            (std::vector<OfferId>{0, 1, 4, 6, 5, 2, 3}));
}

TEST(IncastTransportTest, TwoStreamsHaveAWindowEach) {
  EXPECT_EQ(Order(IncastPolicy::kTwoStreams, kOneSender),
            (std::vector<OfferId>{0, 1, 4, 6, 5, 2, 3}));
  EXPECT_EQ(Order(IncastPolicy::kTwoStreams, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 2, 0}}),
            (std::vector<OfferId>{0, 1, 3, 2}))
      << "an anchor moves beside the rest, not before it";
}

TEST(IncastTransportTest, SendersDoNotWaitForEachOther) {
  EXPECT_EQ(Order(IncastPolicy::kSenderStrict, {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {2, 2, 1}}),
            (std::vector<OfferId>{0, 1, 3, 2}));
}

}  // namespace
}  // namespace lynx
