// SPDX-License-Identifier: Apache-2.0
// Whole hand-offs over UCX.
#include <gtest/gtest.h>

#include "tests/handoff/handoff_fixture.h"
#include "tests/transport/make_ucx.h"

namespace lynx {
namespace {

using Kind = ReceiveEvent::Kind;

std::unique_ptr<Transport> Ucx() { return MakeUcx(); }

TEST(UcxHandoffTest, TwoSendersOneReceiver) {
  Handoff h({.num_senders = 2, .num_layers = 6, .num_kv_heads = 4, .head_dim = 64}, Ucx);
  std::vector<AttemptId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(h.Begin({.num_tokens = 500 + 30 * i, .sender = i % 2}));
  for (AttemptId id : ids) h.ComputeAll(id);
  for (AttemptId id : ids) h.Finish(id);
  for (AttemptId id : ids) h.ExpectEqual(id);
  EXPECT_EQ(h.receiver().stats().nacks, 0);
}

TEST(UcxHandoffTest, CancelledAttemptsLeaveNothingBehind) {
  Handoff h({.num_layers = 4}, Ucx);
  h.receiver_transport().LimitPullRate(20e6);
  for (int i = 0; i < 10; ++i) {
    const AttemptId cancelled = h.Begin({.num_tokens = 600});
    const AttemptId kept = h.Begin({.num_tokens = 100});
    h.ComputeAll(cancelled);
    h.ComputeAll(kept);
    if (i % 2 == 0)
      h.receiver().Cancel(cancelled);
    else
      h.sender().Cancel(cancelled);
    ASSERT_TRUE(h.WaitForEnd(cancelled));
    h.Finish(kept);
    h.ExpectEqual(kept);
  }
  EXPECT_EQ(h.sender().num_attempts(), 0);
  EXPECT_EQ(h.receiver().stats().transfers_in_flight, 0);
}

TEST(UcxHandoffTest, SenderStopsMidTransfer) {
  Handoff h({.num_senders = 2, .num_layers = 4}, Ucx);
  h.receiver_transport().HoldOffers(Stage(1));
  const AttemptId lost = h.Begin({.num_tokens = 600, .sender = 0});
  const AttemptId kept = h.Begin({.num_tokens = 300, .sender = 1});
  h.ComputeAll(lost);
  h.ComputeAll(kept);
  ASSERT_TRUE(h.WaitFor(lost, Kind::kAnchorLanded));
  ASSERT_TRUE(h.WaitFor(kept, Kind::kAnchorLanded));
  h.StopSender(0);
  ASSERT_TRUE(h.WaitFor(lost, Kind::kFailed));
  h.receiver_transport().ReleaseOffers();
  h.Finish(kept);
  h.ExpectEqual(kept);
}

// Goodput of one large hand-off, for the record; asserts only that it is whole.
TEST(UcxHandoffTest, LargePrompt) {
  Handoff h({.codec = "bf16", .num_layers = 8, .num_kv_heads = 4, .head_dim = 64, .num_blocks = 64},
            Ucx);
  const AttemptId id = h.Begin({.num_tokens = 4096});
  const auto begin = std::chrono::steady_clock::now();
  h.ComputeAll(id);
  h.Finish(id);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const double bytes = static_cast<double>(h.ReceiverEnd(id)->stage_bytes[0]);
  RecordProperty("MB_per_s", std::to_string(bytes / 1e6 / seconds.count()));
  h.ExpectEqual(id);
}

}  // namespace
}  // namespace lynx
