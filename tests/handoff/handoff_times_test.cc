// SPDX-License-Identifier: Apache-2.0
// How long hand-offs are in each phase.
#include <gtest/gtest.h>

#include "handoff/busy_clock.h"
#include "tests/handoff/handoff_fixture.h"

namespace lynx {
namespace {

TEST(BusyClockTest, CountsWhatLiesBetween) {
  BusyClock clock;
  EXPECT_EQ(clock.total_ns(100), 0);
  clock.Set(false, 100);
  clock.Set(true, 200);
  clock.Set(true, 250);
  EXPECT_EQ(clock.total_ns(300), 100);
  clock.Set(false, 350);
  EXPECT_EQ(clock.total_ns(1000), 150);
  clock.Set(true, 2000);
  EXPECT_EQ(clock.total_ns(2001), 151);
}

TEST(HandoffTimesTest, EveryPhaseTakesTimeAndNoneGoesOn) {
  Handoff h({.codec = "planes"});
  const AttemptId id = h.Begin({.num_tokens = 700});
  h.Compute(id, 700);
  ASSERT_TRUE(h.WaitFor(id, Handoff::Kind::kRefined));
  const ReceiverStats received = h.receiver().stats();
  EXPECT_GT(received.pull_ns, 0);
  EXPECT_GE(received.pull_wait_ns, 0);
  EXPECT_GT(received.decode_ns, 0);
  EXPECT_GT(received.refine_ns, 0);
  const SenderStats sent = h.sender().stats();
  EXPECT_GT(sent.encode_ns, 0);
  EXPECT_GT(sent.encode_exposed_ns, 0);
  EXPECT_EQ(h.receiver().stats().pull_ns, received.pull_ns);
  EXPECT_EQ(h.receiver().stats().pull_wait_ns, received.pull_wait_ns);
}

}  // namespace
}  // namespace lynx
