// SPDX-License-Identifier: Apache-2.0
// Hand-offs in which something goes wrong: each ends cleanly on both sides, and nothing is written
// into the blocks after the end.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/handoff/handoff_fixture.h"

namespace lynx {
namespace {

using Kind = ReceiveEvent::Kind;
using std::chrono::milliseconds;

// Short timers for what must run out.
HandoffOptions Impatient() {
  return {.sender = {.lease_ms = 400, .announce_ms = 20},
          .receiver = {.transfer_timeout_ms = 200, .unknown_attempt_ms = 60}};
}

TEST(FaultsTest, LateResidualLeavesTheAnchorInPlace) {
  Handoff h({});
  h.receiver_transport().HoldOffers(Stage(1));
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kAnchorLanded));
  EXPECT_FALSE(h.WaitFor(id, Kind::kTargetLanded, milliseconds(50)));
  EXPECT_EQ(h.Find(id, Kind::kResidualLanded), nullptr);
  h.receiver_transport().ReleaseOffers();
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(FaultsTest, DelayedChunksArriveInAnyOrder) {
  Handoff h({});
  h.receiver_transport().DelayOffers(Nth(0, Stage(0)), milliseconds(40));
  h.receiver_transport().DelayOffers(Nth(2, Stage(1)), milliseconds(20));
  const AttemptId id = h.Begin({.num_tokens = 700});
  h.ComputeAll(id);
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(FaultsTest, ResidualThatNeverArrivesFailsBothSides) {
  Handoff h(Impatient());
  h.receiver_transport().DropOffers(Nth(1, Stage(1)));
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kFailed);
  EXPECT_EQ(h.ReceiverEnd(id)->error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(h.SenderEnd(id)->kind, SendEvent::Kind::kFailed);
  EXPECT_NE(h.Find(id, Kind::kAnchorLanded), nullptr);
}

TEST(FaultsTest, SlowPrefillIsNoTimeout) {
  Handoff h(Impatient());
  const AttemptId id = h.Begin({.num_tokens = 600});
  h.Compute(id, 256);
  EXPECT_FALSE(h.WaitFor(id, Kind::kFailed, milliseconds(600)));
  h.ComputeAll(id);
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(FaultsTest, CorruptedBytesFailTheTransfer) {
  for (int stage : {0, 1, 2}) {
    Handoff h({});
    h.receiver_transport().CorruptPulls(Nth(1, Stage(stage, stage)));
    const AttemptId id = h.Begin({.num_tokens = 300});
    h.ComputeAll(id);
    ASSERT_TRUE(h.WaitForEnd(id));
    EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kFailed);
    EXPECT_EQ(h.ReceiverEnd(id)->error.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(h.SenderEnd(id)->error.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(h.receiver().stats().checksum_errors, 1);
    EXPECT_EQ(h.receiver().stats().transfers_in_flight, 0);
  }
}

TEST(FaultsTest, FailedPostFailsBothSides) {
  Handoff h({});
  h.sender_transport().FailPosts(Nth(2, Any()), absl::UnavailableError("no"));
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kFailed);
  EXPECT_EQ(h.SenderEnd(id)->error.code(), absl::StatusCode::kUnavailable);
}

TEST(FaultsTest, LostAcknowledgementIsSentAgain) {
  Handoff h({.sender = {.announce_ms = 20}});
  h.receiver_transport().DropControl(Nth(0, Control<Delivered>()));
  const AttemptId id = h.Begin({.num_tokens = 100});
  h.ComputeAll(id);
  h.Finish(id);
}

TEST(FaultsTest, LostAbortIsSentAgain) {
  Handoff h({.sender = {.announce_ms = 20}});
  h.receiver_transport().DropControl(Nth(0, Control<Abort>()));
  const AttemptId id = h.Begin({.num_tokens = 100});
  h.receiver().Cancel(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.SenderEnd(id)->error.code(), absl::StatusCode::kCancelled);
}

TEST(FaultsTest, LeaseRunsOutWhenTheReceiverIsSilent) {
  Handoff h(Impatient());
  h.receiver_transport().DropControl(Any());
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.Compute(id, 256);
  ASSERT_TRUE(h.WaitForSenderEnd(id));
  EXPECT_EQ(h.SenderEnd(id)->error.code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kFailed);
  EXPECT_EQ(h.sender().num_attempts(), 0);
}

TEST(FaultsTest, LeaseIsRenewedWhileTheEngineTakesItsTime) {
  Handoff h(Impatient());
  const AttemptId id = h.BeginAndRead({.num_tokens = 300});
  ASSERT_TRUE(h.WaitFor(id, Kind::kTargetLanded));
  EXPECT_FALSE(h.WaitFor(id, Kind::kFailed, milliseconds(900)));
  h.receiver().Refine(id);
  h.Finish(id);
}

TEST(FaultsTest, WaitingForASenderIsNoTimeout) {
  Handoff h(Impatient());
  const AttemptId id = h.NewAttempt({.num_tokens = 300});
  ASSERT_TRUE(h.BeginReceive(id).ok());
  EXPECT_FALSE(h.WaitFor(id, Kind::kFailed, milliseconds(600)));
  ASSERT_TRUE(h.BeginSend(id).ok());
  h.ComputeAll(id);
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(FaultsTest, SilentSenderTimesOut) {
  Handoff h(Impatient());
  h.sender_transport().DropControl(Any());
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.Compute(id, 256);
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->error.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(FaultsTest, ChunksOfAnAttemptThatNeverBeganAreRefused) {
  Handoff h(Impatient());
  const AttemptId id = h.NewAttempt({.num_tokens = 300});
  ASSERT_TRUE(h.BeginSend(id).ok());
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitForSenderEnd(id));
  EXPECT_EQ(h.SenderEnd(id)->error.code(), absl::StatusCode::kNotFound);
  EXPECT_GT(h.receiver().stats().nacks, 0);
  EXPECT_EQ(h.BeginReceive(id).code(), absl::StatusCode::kUnavailable);
}

TEST(FaultsTest, SenderDiesMidTransfer) {
  Handoff h({});
  h.receiver_transport().HoldOffers(Stage(1));
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kAnchorLanded));
  h.StopSender();
  ASSERT_TRUE(h.WaitFor(id, Kind::kFailed));
  EXPECT_EQ(h.ReceiverEnd(id)->error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.receiver().stats().bytes_in_flight, 0);
}

TEST(FaultsTest, SenderMayDieOnceAllHasLanded) {
  Handoff h({});
  const AttemptId id = h.BeginAndRead({.num_tokens = 300});
  ASSERT_TRUE(h.WaitFor(id, Kind::kTargetLanded));
  h.StopSender();
  h.receiver().Refine(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kRefined));
}

TEST(FaultsTest, SenderMayGiveUpOnceAllHasLanded) {
  Handoff h({});
  const AttemptId id = h.BeginAndRead({.num_tokens = 300});
  ASSERT_TRUE(h.WaitFor(id, Kind::kTargetLanded));
  h.sender().Cancel(id);
  ASSERT_TRUE(h.WaitForSenderEnd(id));
  EXPECT_FALSE(h.WaitFor(id, Kind::kFailed, std::chrono::milliseconds(100)));
  h.receiver().Refine(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kRefined));
  h.ExpectEqual(id);
}

// A sender that came back begins a new attempt before the receiver hears that it was lost.
TEST(FaultsTest, ALateLossSparesWhatBeganSince) {
  Handoff h({});
  h.receiver_transport().HoldOffers(Stage(1));
  h.receiver_transport().HoldLosses();
  const AttemptId lost = h.Begin({.num_tokens = 300});
  h.ComputeAll(lost);
  ASSERT_TRUE(h.WaitFor(lost, Kind::kAnchorLanded));
  h.receiver_transport().LosePeer(h.sender_transport().epoch());
  ASSERT_TRUE(h.WaitForSenderEnd(lost));
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  ASSERT_TRUE(h.WaitFor(id, Kind::kAnchorLanded));
  h.receiver_transport().ReleaseLosses();
  ASSERT_TRUE(h.WaitFor(lost, Kind::kFailed));
  h.receiver_transport().ReleaseOffers();
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(FaultsTest, LostPeerFailsBothSidesAndANewAttemptWorks) {
  Handoff h({});
  h.receiver_transport().HoldOffers(Stage(1));
  const AttemptId lost = h.Begin({.num_tokens = 300});
  h.ComputeAll(lost);
  ASSERT_TRUE(h.WaitFor(lost, Kind::kAnchorLanded));
  h.receiver_transport().LosePeer(h.sender_transport().epoch());
  ASSERT_TRUE(h.WaitForEnd(lost));
  EXPECT_EQ(h.ReceiverEnd(lost)->error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.SenderEnd(lost)->error.code(), absl::StatusCode::kUnavailable);
  h.receiver_transport().ClearRules();
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  h.Finish(id);
  h.ExpectEqual(id);
}

// Cancels by either side at many points. Afterwards the receiver's blocks are given to nobody and
// must keep what they held when the attempt ended.
TEST(FaultsTest, CancelAtAnyPoint) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    Handoff h({});
    h.receiver_transport().LimitPullRate(20e6);
    const AttemptId id = h.Begin({.num_tokens = 500});
    h.Compute(id, 300);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12000));
    h.ComputeAll(id);
    if (round % 2 == 0) {
      h.receiver().Cancel(id);
      ASSERT_TRUE(h.WaitForEnd(id)) << round;
      EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kCancelled);
    } else {
      h.sender().Cancel(id);
      ASSERT_TRUE(h.WaitForEnd(id)) << round;
      EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kFailed);
    }
    EXPECT_EQ(h.SenderEnd(id)->error.code(), absl::StatusCode::kCancelled);
    std::vector<std::vector<std::byte>> at_the_end;
    for (BlockId block : h.receive_blocks(id)) {
      at_the_end.push_back(h.receiver_pool().BlockBytes(block));
    }
    // Another attempt runs to its end meanwhile; its own blocks are others.
    const AttemptId other = h.Begin({.num_tokens = 200});
    h.ComputeAll(other);
    h.Finish(other);
    h.ExpectEqual(other);
    for (size_t b = 0; b < at_the_end.size(); ++b) {
      ASSERT_EQ(h.receiver_pool().BlockBytes(h.receive_blocks(id)[b]), at_the_end[b]) << round;
    }
    EXPECT_EQ(h.sender().num_attempts(), 0);
    EXPECT_EQ(h.receiver().stats().transfers_in_flight, 0);
  }
}

TEST(FaultsTest, CancelWhileRefining) {
  for (int round = 0; round < 10; ++round) {
    Handoff h({});
    const AttemptId id = h.BeginAndRead({.num_tokens = 1000});
    ASSERT_TRUE(h.WaitFor(id, Kind::kTargetLanded));
    h.receiver().Refine(id);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    h.receiver().Cancel(id);
    h.receiver().Cancel(id);
    ASSERT_TRUE(h.WaitForEnd(id));
    // Whichever was first; never both.
    EXPECT_EQ(h.Find(id, Kind::kCancelled) == nullptr, h.Find(id, Kind::kRefined) != nullptr);
  }
}

TEST(FaultsTest, LateChunkAfterCancelIsRefused) {
  std::atomic<bool> any_held = false;
  Signal held;
  Handoff h({});
  h.receiver_transport().HoldOffers([&](std::span<const std::byte>) {
    any_held = true;
    held.Notify();
    return true;
  });
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  ASSERT_TRUE(held.WaitFor([&] { return any_held.load(); }));
  h.receiver().Cancel(id);
  ASSERT_TRUE(h.WaitForEnd(id));
  const std::vector<std::byte> before = h.receiver_pool().BlockBytes(h.receive_blocks(id)[0]);
  h.receiver_transport().ReleaseOffers();
  const AttemptId next = h.Begin({.num_tokens = 300});
  h.ComputeAll(next);
  h.Finish(next);
  EXPECT_GT(h.receiver().stats().nacks, 0);
  EXPECT_EQ(h.receiver_pool().BlockBytes(h.receive_blocks(id)[0]), before);
}

// A sender by hand, for what KvSender never does.
class ForgedChunksTest : public testing::Test {
 protected:
  void SetUp() override {
    forger_ = MakeLoopbackTransport(hub_);
    forger_->Start(&at_forger_);
  }
  // h's loopback hub is its own, so the forger lives in one that h is made in.
  std::unique_ptr<Handoff> MakeHandoff() {
    return std::make_unique<Handoff>(HandoffOptions{.receiver = {.unknown_attempt_ms = 60}},
                                     [this] { return MakeLoopbackTransport(hub_); });
  }
  ChunkHeader GoodHeader(Handoff& h, AttemptId id) {
    return {.attempt = id,
            .format = h.format(),
            .layer = 0,
            .stage = 0,
            .contents = h.Contents(0, 0),
            .first_head = 0,
            .num_heads = 2,
            .page = 0,
            .first_block = 0,
            .num_blocks = 2,
            .num_tokens = 100,
            .bytes = payload_.size(),
            .checksum = PayloadChecksum(payload_)};
  }
  void Post(Handoff& h, const ChunkHeader& header) { Post(h, Serialize(header)); }
  void Post(Handoff& h, std::vector<std::byte> header) {
    auto peer = forger_->Connect(h.receiver_transport().address());
    ASSERT_TRUE(peer.ok());
    Outcome posted;
    forger_->Post(*peer, Urgency::kUrgent, std::move(header), payload_, posted.Callback());
    ASSERT_TRUE(posted.Wait());
  }

  std::shared_ptr<LoopbackHub> hub_ = MakeLoopbackHub();
  RecordingHandler at_forger_;
  std::unique_ptr<Transport> forger_;
  std::vector<std::byte> payload_ = std::vector<std::byte>(500, std::byte{1});
};

TEST_F(ForgedChunksTest, WrongFieldsFailTheAttemptAndWriteNothing) {
  const std::vector<std::function<void(ChunkHeader&)>> lies = {
      [](ChunkHeader& c) { c.format ^= 1; },
      [](ChunkHeader& c) { c.layer = 3; },
      [](ChunkHeader& c) { c.stage = 3; },
      [](ChunkHeader& c) { c.page = 1; },
      [](ChunkHeader& c) { c.first_block = 1; },
      [](ChunkHeader& c) { c.num_blocks = 1; },
      [](ChunkHeader& c) { c.contents.kinds = 1; },
      [](ChunkHeader& c) { ++c.contents.planes[0].end; },
      [](ChunkHeader& c) { ++c.contents.planes[1].begin; },
      [](ChunkHeader& c) { c.first_head = 1; },
      [](ChunkHeader& c) { c.first_head = 2; },
      [](ChunkHeader& c) { c.first_head = 65535; },
      [](ChunkHeader& c) { c.num_heads = 0; },
      [](ChunkHeader& c) { c.num_heads = 3; },
      [](ChunkHeader& c) { c.num_heads = 4; },
      [](ChunkHeader& c) { c.num_heads = 65535; },
      [](ChunkHeader& c) { c.num_tokens = 101; },
      [](ChunkHeader& c) { c.bytes = 499; },
      [](ChunkHeader& c) { c.checksum ^= 1; },
      [](ChunkHeader&) {}};  // nothing but the payload, which is no anchor
  for (size_t i = 0; i < lies.size(); ++i) {
    auto h = MakeHandoff();
    const AttemptId id = h->NewAttempt({.num_tokens = 100});
    ASSERT_TRUE(h->BeginReceive(id).ok());
    ChunkHeader header = GoodHeader(*h, id);
    lies[i](header);
    Post(*h, header);
    for (header.layer = 1; i + 1 == lies.size() && header.layer < 3; ++header.layer) {
      header.contents = h->Contents(header.layer, 0);
      Post(*h, header);  // anchors are decoded when all are here
    }
    ASSERT_TRUE(h->WaitFor(id, Kind::kFailed)) << i;
    const absl::StatusCode expected =
        i == 0 ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kDataLoss;
    EXPECT_EQ(h->ReceiverEnd(id)->error.code(), expected) << i << h->ReceiverEnd(id)->error;
    if (i + 1 < lies.size()) {
      const std::vector<std::byte> slot =
          h->receiver_pool().TokenBytes(h->receive_blocks(id)[0], 0);
      EXPECT_EQ(slot, std::vector<std::byte>(slot.size())) << i;
    }
  }
}

// Chunks of one head and of two in one attempt.
TEST_F(ForgedChunksTest, ASenderThatCutsPagesInTwoWaysIsRefused) {
  auto h = MakeHandoff();
  const AttemptId id = h->NewAttempt({.num_tokens = 100});
  ASSERT_TRUE(h->BeginReceive(id).ok());
  h->receiver_transport().LimitPullRate(1000);  // the first one stays under way for long
  auto peer = forger_->Connect(h->receiver_transport().address());
  ASSERT_TRUE(peer.ok());
  ChunkHeader header = GoodHeader(*h, id);
  header.num_heads = 1;
  Outcome first;
  forger_->Post(*peer, Urgency::kUrgent, Serialize(header), payload_, first.Callback());
  header.layer = 1;
  header.num_heads = 2;
  Post(*h, header);
  ASSERT_TRUE(h->WaitFor(id, Kind::kFailed));
  EXPECT_EQ(h->ReceiverEnd(id)->error.code(), absl::StatusCode::kDataLoss);
  h.reset();
  ASSERT_TRUE(first.Wait());
}

TEST_F(ForgedChunksTest, OversizeIsRefusedBeforeItMoves) {
  auto h = MakeHandoff();
  const AttemptId id = h->NewAttempt({.num_tokens = 100});
  ASSERT_TRUE(h->BeginReceive(id).ok());
  payload_.resize(10 << 20);
  Post(*h, GoodHeader(*h, id));
  ASSERT_TRUE(h->WaitFor(id, Kind::kFailed));
  EXPECT_EQ(h->receiver().stats().chunks, 0);
  EXPECT_EQ(h->receiver().stats().nacks, 1);
}

TEST_F(ForgedChunksTest, AnotherPeerCannotJoinAnAttempt) {
  auto h = MakeHandoff();
  h->receiver_transport().HoldOffers(Stage(1));
  const AttemptId id = h->Begin({.num_tokens = 100});
  h->ComputeAll(id);
  ASSERT_TRUE(h->WaitFor(id, Kind::kAnchorLanded));
  h->receiver_transport().ReleaseOffers();
  Post(*h, GoodHeader(*h, id));
  h->Finish(id);
  h->ExpectEqual(id);
  EXPECT_EQ(h->receiver().stats().nacks, 1);
}

TEST_F(ForgedChunksTest, GarbageHeadersAndControlMessagesAreIgnored) {
  auto h = MakeHandoff();
  auto peer = forger_->Connect(h->receiver_transport().address());
  ASSERT_TRUE(peer.ok());
  std::mt19937 random(3);
  const std::vector<std::byte> header = Serialize(GoodHeader(*h, {7, 7}));
  const std::vector<std::byte> abort =
      Serialize(Abort{{7, 7}, absl::StatusCode::kInternal, "forged"});
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> bytes = i % 2 == 0 ? header : abort;
    bytes.resize(random() % (bytes.size() + 1));
    if (!bytes.empty()) bytes[random() % bytes.size()] ^= std::byte{0x40};
    if (i % 2 == 0)
      Post(*h, bytes);
    else
      ASSERT_TRUE(forger_->SendControl(*peer, bytes).ok());
  }
  const AttemptId id = h->Begin({.num_tokens = 100});
  h->ComputeAll(id);
  h->Finish(id);
  h->ExpectEqual(id);
}

TEST_F(ForgedChunksTest, DuplicatesAreDropped) {
  auto h = MakeHandoff();
  const AttemptId id = h->NewAttempt({.num_tokens = 100});
  ASSERT_TRUE(h->BeginReceive(id).ok());
  h->receiver_transport().LimitPullRate(1000);  // the first one stays under way for long
  auto peer = forger_->Connect(h->receiver_transport().address());
  ASSERT_TRUE(peer.ok());
  Outcome first, second;
  forger_->Post(*peer, Urgency::kUrgent, Serialize(GoodHeader(*h, id)), payload_, first.Callback());
  forger_->Post(*peer, Urgency::kUrgent, Serialize(GoodHeader(*h, id)), payload_,
                second.Callback());
  ASSERT_TRUE(second.Wait());
  EXPECT_EQ(h->receiver().stats().nacks, 1);
  h->receiver().Cancel(id);
  ASSERT_TRUE(h->WaitFor(id, Kind::kCancelled));
  h.reset();
  ASSERT_TRUE(first.Wait());
}

}  // namespace
}  // namespace lynx
