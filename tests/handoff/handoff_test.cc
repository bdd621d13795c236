// SPDX-License-Identifier: Apache-2.0
// Whole hand-offs with real codecs over loopback transports.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/handoff/handoff_fixture.h"

namespace lynx {
namespace {

using Kind = ReceiveEvent::Kind;

class EveryCodec : public testing::TestWithParam<std::tuple<std::string, KvDtype>> {
 protected:
  HandoffOptions Options() const {
    return {.codec = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam())};
  }
};

TEST_P(EveryCodec, WholePrompt) {
  Handoff h(Options());
  const AttemptId id = h.Begin({.num_tokens = 300});
  h.ComputeAll(id);
  h.Finish(id);
  if (h.codec().lossless()) h.ExpectEqual(id);
  std::vector<Kind> expected = {Kind::kRefined};
  if (h.plan().num_stages() > 1) {
    expected = {Kind::kAnchorLanded, Kind::kResidualLanded, Kind::kTargetLanded, Kind::kRefined};
  }
  EXPECT_EQ(h.Kinds(id), expected);
  EXPECT_EQ(h.sender().num_attempts(), 0);
  const ReceiverStats stats = h.receiver().stats();
  EXPECT_EQ(stats.transfers_in_flight, 0);
  EXPECT_EQ(stats.bytes_in_flight, 0);
  EXPECT_EQ(stats.nacks, 0);
  EXPECT_EQ(stats.chunks, 3 * 2 * h.plan().num_stages());
  const std::vector<int64_t>& bytes = h.ReceiverEnd(id)->stage_bytes;
  ASSERT_EQ(static_cast<int>(bytes.size()), h.plan().num_stages());
  for (size_t s = 0; s < bytes.size(); ++s) EXPECT_EQ(bytes[s], stats.bytes[s]);
}

TEST_P(EveryCodec, ChunkedPrefillWithPrefix) {
  Handoff h(Options());
  const AttemptId id = h.Begin({.num_tokens = 64 * 10 + 7, .first_token = 128});
  for (int computed = 128; computed < 64 * 10; computed += 100) h.Compute(id, computed);
  h.ComputeAll(id);
  h.Finish(id);
  if (h.codec().lossless()) h.ExpectEqual(id);
  // What the receiver had before, and slots past the prompt, are left alone.
  const std::vector<BlockId>& blocks = h.receive_blocks(id);
  const std::vector<std::byte> zeros(h.receiver_pool().TokenBytes(blocks[0], 0).size());
  EXPECT_EQ(h.receiver_pool().TokenBytes(blocks[0], 0), zeros);
  EXPECT_EQ(h.receiver_pool().TokenBytes(blocks[1], 63), zeros);
  EXPECT_EQ(h.receiver_pool().TokenBytes(blocks[10], 7), zeros);
}

std::string CodecName(const testing::TestParamInfo<EveryCodec::ParamType>& info) {
  std::string name = std::get<0>(info.param);
  std::erase(name, '-');
  return name + (std::get<1>(info.param) == KvDtype::kBf16 ? "Bf16" : "F32");
}
INSTANTIATE_TEST_SUITE_P(All, EveryCodec,
                         testing::Combine(testing::ValuesIn(std::vector<std::string>(
                                              CodecNames().begin(), CodecNames().end())),
                                          testing::Values(KvDtype::kBf16, KvDtype::kF32)),
                         CodecName);

// {ranks of the sender, ranks of the receiver}; the model has six KV heads.
class EveryDegree : public testing::TestWithParam<std::tuple<int, int, KvDtype>> {};

TEST_P(EveryDegree, EveryBitArrives) {
  const auto [send_ranks, receive_ranks, dtype] = GetParam();
  for (const std::string codec : {"planes", "bf16"}) {
    Handoff h({.codec = codec,
               .dtype = dtype,
               .num_kv_heads = 6,
               .head_dim = 16,
               .num_blocks = 16,
               .send_ranks = send_ranks,
               .receive_ranks = receive_ranks,
               .sender = {.max_posted_chunks = 3}});
    const AttemptId id = h.Begin({.num_tokens = 64 * 7 + 9, .first_token = 64});
    h.Compute(id, 400);
    h.ComputeAll(id);
    h.Finish(id);
    h.ExpectEqual(id);
    EXPECT_EQ(h.receiver().stats().chunks, 3 * 2 * h.plan().num_stages() * send_ranks);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryDegree,
                         testing::Combine(testing::Values(1, 2, 3, 6), testing::Values(1, 2, 3),
                                          testing::Values(KvDtype::kBf16, KvDtype::kF32)));

TEST(HandoffTest, DroppedStagesOfShardsAreEncodedAgain) {
  Handoff h({.num_kv_heads = 4,
             .send_ranks = 2,
             .receive_ranks = 4,
             .sender = {.max_posted_chunks = 2, .max_held_bytes = 5000}});
  const AttemptId id = h.Begin({.num_tokens = 600});
  h.ComputeAll(id);
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(HandoffTest, EveryPromptLength) {
  Handoff h({});
  for (int num_tokens : {1, 15, 16, 17, 63, 64, 65, 128, 255, 256, 257, 320, 511, 513}) {
    const AttemptId id = h.Begin({.num_tokens = num_tokens});
    h.ComputeAll(id);
    h.Finish(id);
    h.ExpectEqual(id);
  }
}

TEST(HandoffTest, NothingToSendEndsAtOnce) {
  Handoff h({});
  const AttemptId id = h.Begin({.num_tokens = 128, .first_token = 128});
  ASSERT_TRUE(h.WaitForEnd(id));
  EXPECT_EQ(h.ReceiverEnd(id)->kind, Kind::kRefined);
  EXPECT_EQ(h.SenderEnd(id)->kind, SendEvent::Kind::kDelivered);
  EXPECT_EQ(h.receiver().stats().transfers_in_flight, 0);
}

TEST(HandoffTest, ChunksThatComeBeforeBeginWait) {
  Handoff h({});
  const AttemptId id = h.NewAttempt({.num_tokens = 300});
  ASSERT_TRUE(h.BeginSend(id).ok());
  h.ComputeAll(id);
  EXPECT_FALSE(h.WaitFor(id, Kind::kAnchorLanded, std::chrono::milliseconds(50)));
  ASSERT_TRUE(h.BeginReceive(id).ok());
  h.Finish(id);
  h.ExpectEqual(id);
}

// Later stages are encoded a second time when there is no room to keep them.
TEST(HandoffTest, NoRoomToHoldLaterStages) {
  Handoff h({.sender = {.max_posted_chunks = 2, .max_held_bytes = 5000}});
  const AttemptId id = h.Begin({.num_tokens = 600});
  h.ComputeAll(id);
  h.Finish(id);
  h.ExpectEqual(id);
}

TEST(HandoffTest, TwoSendersAndManyAttempts) {
  Handoff h({.num_senders = 2, .receiver = {.window_bytes = 20000, .adapt_window = false}});
  std::vector<AttemptId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(h.Begin({.num_tokens = 130 + i, .sender = i % 2}));
  for (AttemptId id : ids) h.ComputeAll(id);
  for (AttemptId id : ids) h.Finish(id);
  for (AttemptId id : ids) h.ExpectEqual(id);
}

// A short request is computed while a long one is being encoded.
TEST(HandoffTest, ShortRequestsAreEncodedFirst) {
  constexpr int kNumLayers = 8;
  Handoff h({.num_layers = kNumLayers, .num_kv_heads = 4, .head_dim = 64, .num_blocks = 66});
  const AttemptId longer = h.Begin({.num_tokens = 64 * kBlockSize});
  const AttemptId shorter = h.Begin({.num_tokens = 100});
  std::mutex mutex;
  std::vector<AttemptId> anchors;  // in the order in which they are posted
  h.sender_transport().FailPosts(
      [&](std::span<const std::byte> bytes) {
        std::lock_guard lock(mutex);
        const auto header = ParseChunkHeader(bytes);
        if (header.ok() && header->stage == 0) anchors.push_back(header->attempt);
        return false;
      },
      absl::OkStatus());
  h.ComputeAll(longer);
  h.ComputeAll(shorter);
  size_t num_before = 0;
  {
    std::lock_guard lock(mutex);
    num_before = anchors.size();
  }
  h.Finish(longer);
  h.Finish(shorter);
  h.ExpectEqual(shorter);
  constexpr size_t kNumPages = 16 * kNumLayers;
  ASSERT_EQ(anchors.size(), kNumPages + kNumLayers);
  if (num_before > kNumPages / 2) GTEST_SKIP() << "the long one was all but encoded";
  const auto last = std::find(anchors.rbegin(), anchors.rend(), shorter);
  EXPECT_LE(anchors.rend() - last, num_before + kNumLayers + 1) << "one was in the encoder";
}

// A second request's anchor completes before the first one's residual, over a slow link.
TEST(HandoffTest, AnchorsOvertakeResiduals) {
  Handoff h({.num_senders = 2, .receiver = {.window_bytes = 16384, .adapt_window = false}});
  h.receiver_transport().LimitPullRate(4e6);
  const AttemptId first = h.Begin({.num_tokens = 1024, .sender = 0});
  h.ComputeAll(first);
  ASSERT_TRUE(h.WaitFor(first, Kind::kAnchorLanded));
  const AttemptId second = h.Begin({.num_tokens = 256, .sender = 1});
  h.ComputeAll(second);
  ASSERT_TRUE(h.WaitFor(second, Kind::kAnchorLanded));
  EXPECT_EQ(h.Find(first, Kind::kResidualLanded), nullptr);
  h.Finish(first);
  h.Finish(second);
  EXPECT_LT(h.Find(second, Kind::kAnchorLanded)->at_ns,
            h.Find(first, Kind::kResidualLanded)->at_ns);
}

TEST(HandoffTest, PromotedResidualsMoveWithAnchors) {
  Handoff h({.receiver = {.window_bytes = 16384, .adapt_window = false}});
  h.receiver_transport().LimitPullRate(4e6);
  const AttemptId stalled = h.Begin({.num_tokens = 256});
  h.ComputeAll(stalled);
  ASSERT_TRUE(h.WaitFor(stalled, Kind::kAnchorLanded));
  h.receiver().Promote(stalled);
  const AttemptId other = h.Begin({.num_tokens = 1024});
  h.ComputeAll(other);
  ASSERT_TRUE(h.WaitFor(stalled, Kind::kTargetLanded));
  EXPECT_EQ(h.Find(other, Kind::kAnchorLanded), nullptr);
  h.Finish(stalled);
  h.Finish(other);
}

TEST(HandoffTest, BadJobsAreRefused) {
  Handoff h({});
  const AttemptId id{1, 1};
  EXPECT_FALSE(h.receiver().Begin({id, 1, 10, {0}}).ok());
  EXPECT_FALSE(h.receiver().Begin({id, 64, 10, {0}}).ok());
  EXPECT_FALSE(h.receiver().Begin({id, 0, 65, {0}}).ok());
  EXPECT_FALSE(h.receiver().Begin({id, 0, 64, {-1}}).ok());
  EXPECT_FALSE(h.receiver().Begin({id, 0, 64, {64}}).ok());
  EXPECT_TRUE(h.receiver().Begin({id, 0, 64, {0}}).ok());
  EXPECT_FALSE(h.receiver().Begin({id, 0, 64, {0}}).ok());
  EXPECT_FALSE(h.sender().Begin({id, "nowhere", 0, 64, {0}}).ok());
  EXPECT_FALSE(h.sender().Begin({id, h.receiver_transport().address(), 0, 65, {0}}).ok());
  EXPECT_EQ(h.sender().num_attempts(), 0);
}

}  // namespace
}  // namespace lynx
