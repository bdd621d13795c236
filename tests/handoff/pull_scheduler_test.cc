// SPDX-License-Identifier: Apache-2.0
#include "handoff/pull_scheduler.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "handoff/pull_window.h"

namespace lynx {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

class PullSchedulerTest : public testing::Test {
 protected:
  // Offers `n` chunks of a stage; ids count up over the whole test.
  void Offer(uint64_t attempt, int stage, int n, size_t bytes, int64_t now = 0) {
    for (int i = 0; i < n; ++i) {
      scheduler.Add({++last_offer, Id(attempt), stage, bytes}, now);
    }
  }
  void Begin(uint64_t attempt, int64_t anchors, int64_t residuals = 0, int64_t exact = 0) {
    scheduler.Begin(Id(attempt), {anchors, residuals, exact});
  }
  // Pulls one at a time until nothing is left: the attempts (times 10 plus stage) in order.
  std::vector<int> Order(int64_t now = 0) {
    std::vector<int> order;
    while (auto pull = scheduler.Next(now)) {
      order.push_back(static_cast<int>(pull->attempt.lo) * 10 + pull->stage);
      scheduler.Completed(pull->bytes);
    }
    return order;
  }
  static AttemptId Id(uint64_t attempt) { return {0, attempt}; }

  PullScheduler scheduler{1000};
  OfferId last_offer = 0;
};

TEST_F(PullSchedulerTest, ClassesComeInOrder) {
  Begin(1, 1, 1, 1);
  Begin(2, 1, 1, 1);
  Offer(1, 2, 1, 10);
  Offer(1, 1, 1, 10);
  Offer(2, 1, 1, 20);
  Offer(1, 0, 1, 10);
  Offer(2, 0, 1, 20);
  EXPECT_EQ(Order(), (std::vector<int>{10, 20, 11, 21, 12}));
}

TEST_F(PullSchedulerTest, ShortestRemainingFirst) {
  Begin(1, 4);
  Begin(2, 2);
  Offer(1, 0, 4, 100);
  Offer(2, 0, 2, 100);
  EXPECT_EQ(Order(), (std::vector<int>{20, 20, 10, 10, 10, 10}));
}

// Eight heads a layer: one sender's chunks hold them all, the other's two each.
TEST_F(PullSchedulerTest, ChunksOfSomeHeadsCountAsThatManyParts) {
  Begin(1, 16);
  Begin(2, 24);
  scheduler.Add({++last_offer, Id(1), 0, 800, 8}, 0);
  scheduler.Add({++last_offer, Id(2), 0, 100, 2}, 0);
  EXPECT_EQ(Order(), (std::vector<int>{20, 10})) << "1600 bytes left against 1200";
}

TEST_F(PullSchedulerTest, ChunksNotOfferedYetCountAsRemaining) {
  Begin(1, 100);
  Begin(2, 2);
  Offer(1, 0, 1, 100);
  Offer(2, 0, 2, 100);
  EXPECT_EQ(Order(), (std::vector<int>{20, 20, 10}));
}

TEST_F(PullSchedulerTest, WaitingMakesALargeTransferUrgent) {
  scheduler.set_ageing_bytes_per_second(1000);
  Begin(1, 100);
  Begin(2, 1);
  Offer(1, 0, 1, 100, 0);  // 10000 bytes left
  Offer(2, 0, 1, 100, 20 * kSecond);
  EXPECT_EQ(scheduler.Next(20 * kSecond)->attempt, Id(1));
}

TEST_F(PullSchedulerTest, AnEmptyQueueKeepsItsAge) {
  scheduler.set_ageing_bytes_per_second(1000);
  Begin(1, 100);
  Begin(2, 1);
  Offer(1, 0, 1, 100, 0);
  ASSERT_TRUE(scheduler.Next(0).has_value());
  Offer(1, 0, 1, 100, 20 * kSecond);  // its sender posts one at a time
  Offer(2, 0, 1, 100, 20 * kSecond);
  EXPECT_EQ(scheduler.Next(20 * kSecond)->attempt, Id(1));
}

TEST_F(PullSchedulerTest, AgeingNeverCrossesClasses) {
  scheduler.set_ageing_bytes_per_second(1e9);
  Begin(1, 0, 1);
  Begin(2, 100);
  Offer(1, 1, 1, 100, 0);
  Offer(2, 0, 1, 100, 100 * kSecond);
  EXPECT_EQ(scheduler.Next(100 * kSecond)->attempt, Id(2));
}

TEST_F(PullSchedulerTest, PromotedResidualsCompeteWithAnchors) {
  Begin(1, 0, 1, 1);
  Begin(2, 5);
  Offer(1, 2, 1, 100);
  Offer(1, 1, 1, 100);
  Offer(2, 0, 5, 100);
  scheduler.Promote(Id(1));
  EXPECT_EQ(Order(), (std::vector<int>{11, 12, 20, 20, 20, 20, 20}));
}

TEST_F(PullSchedulerTest, WindowBoundsWhatIsOutstanding) {
  Begin(1, 20);
  Offer(1, 0, 20, 300);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scheduler.Next(0).has_value());
  EXPECT_FALSE(scheduler.Next(0).has_value());
  EXPECT_EQ(scheduler.outstanding_bytes(), 900);
  scheduler.Completed(300);
  EXPECT_TRUE(scheduler.Next(0).has_value());
  EXPECT_FALSE(scheduler.Next(0).has_value());
  scheduler.set_window_bytes(1200);
  EXPECT_TRUE(scheduler.Next(0).has_value());
}

TEST_F(PullSchedulerTest, AChunkLargerThanTheWindowGoesAlone) {
  Begin(1, 2);
  Offer(1, 0, 2, 5000);
  EXPECT_TRUE(scheduler.Next(0).has_value());
  EXPECT_FALSE(scheduler.Next(0).has_value());
  scheduler.Completed(5000);
  EXPECT_TRUE(scheduler.Next(0).has_value());
}

TEST_F(PullSchedulerTest, EmptyChunksPassAnyWindow) {
  Begin(1, 2);
  Offer(1, 0, 2, 0);
  EXPECT_TRUE(scheduler.Next(0).has_value());
  EXPECT_TRUE(scheduler.Next(0).has_value());
}

// A full window is not given to a smaller chunk of lesser rank: that would starve large anchors.
TEST_F(PullSchedulerTest, NothingOvertakesByBeingSmall) {
  Begin(1, 2);
  Begin(2, 0, 1);
  Offer(1, 0, 2, 800);
  Offer(2, 1, 1, 10);
  EXPECT_TRUE(scheduler.Next(0).has_value());
  EXPECT_FALSE(scheduler.Next(0).has_value());
}

TEST_F(PullSchedulerTest, EndAnswersWhatWasNotHandedOut) {
  Begin(1, 3, 1);
  Offer(1, 0, 3, 600);
  Offer(1, 1, 1, 600);
  EXPECT_TRUE(scheduler.Next(0).has_value());
  EXPECT_TRUE(scheduler.HasQueued(Id(1)));
  EXPECT_EQ(scheduler.End(Id(1)), (std::vector<OfferId>{2, 3, 4}));
  EXPECT_FALSE(scheduler.HasQueued(Id(1)));
  EXPECT_EQ(scheduler.outstanding_bytes(), 600);  // still under way
  EXPECT_TRUE(scheduler.End(Id(1)).empty());
  scheduler.Completed(600);
}

// Chunks that arrive one after the other, each asked for a window before.
TEST(PullWindowTest, FollowsTheLink) {
  for (const double rate : {12.5e6, 125e6, 1.25e9}) {
    PullWindow window(4 << 20);
    constexpr size_t kChunk = 128 << 10;
    double now = 1;
    for (int i = 0; i < 3000; ++i) {
      now += kChunk / rate;
      const double queued = static_cast<double>(window.bytes()) / rate;
      const double issued = now - std::max(2e-4 + kChunk / rate, i == 0 ? 0.0 : queued);
      window.Arrived(kChunk, static_cast<int64_t>(issued * 1e9), static_cast<int64_t>(now * 1e9),
                     i == 0);
    }
    EXPECT_NEAR(window.bytes_per_second(), rate, 0.02 * rate);
    EXPECT_GE(window.bytes(), std::max<double>(PullWindow::kMinBytes, 0.004 * rate));
    EXPECT_LE(window.bytes(), std::max(2.0 * kChunk, 0.0043 * rate + 2.0 * kChunk));
  }
}

// Threads that wake late, three intervals of four.
TEST(PullWindowTest, StaysOpenWhenTheMachineIsLate) {
  PullWindow window(1 << 20);
  int64_t now = kSecond;
  bool first = true;
  for (int i = 0; i < 400; ++i) {
    const int num_chunks = i % 4 == 0 ? 50 : 10;  // of 100 KB in 50 ms: 100 MB/s, or 20
    for (int c = 0; c < num_chunks; ++c) {
      now += 50'000'000 / num_chunks;
      window.Arrived(100'000, now - 1'000'000, now, std::exchange(first, false));
    }
  }
  EXPECT_NEAR(window.bytes_per_second(), 100e6, 2e6);
}

// Bursts of 100 MB/s whose first chunk takes longer by what wake_ns says.
size_t WindowAfterBursts(const std::function<int64_t(int burst)>& wake_ns) {
  PullWindow window(1 << 20);
  int64_t now = kSecond;
  for (int burst = 0; burst < 200; ++burst) {
    for (int i = 0; i < 40; ++i) {
      now += 1'000'000;  // 1 ms for 100 KB
      window.Arrived(100'000, now - 1'000'000 - (i == 0 ? wake_ns(burst) : 0), now, i == 0);
    }
    now += kSecond;
  }
  return window.bytes();
}

TEST(PullWindowTest, GrowsWithTheTimeToWake) {
  EXPECT_NEAR(WindowAfterBursts([](int) { return 0; }), 400e3, 20e3);
  EXPECT_NEAR(WindowAfterBursts([](int) { return 3'000'000; }), 700e3, 90e3) << "a long path";
  EXPECT_NEAR(WindowAfterBursts([](int burst) { return burst % 2 * 4'000'000; }), 600e3, 60e3)
      << "late every other time";
  EXPECT_LE(WindowAfterBursts([](int burst) { return burst % 2 * 200'000'000; }), 800e3)
      << "packets that are sent again say nothing about threads";
}

TEST(PullWindowTest, HoldsTwoChunksOnASlowLink) {
  PullWindow window(4 << 20);
  int64_t now = kSecond;
  for (int i = 0; i < 100; ++i) {
    now += 100'000'000;  // 300 KB in 100 ms
    window.Arrived(300'000, now - 100'000'000, now, i == 0);
  }
  EXPECT_EQ(window.bytes(), 600'000);
}

TEST(PullWindowTest, IdleTimeIsNoSlowLink) {
  PullWindow window(1 << 20);
  int64_t now = kSecond;
  for (int burst = 0; burst < 20; ++burst) {
    for (int i = 0; i < 40; ++i) {
      now += 1'000'000;  // 1 ms for 100 KB: 100 MB/s
      window.Arrived(100'000, now - 2'000'000 + (i == 0) * 1'000'000, now, i == 0);
    }
    now += 5 * kSecond;
  }
  EXPECT_NEAR(window.bytes_per_second(), 100e6, 5e6);
}

}  // namespace
}  // namespace lynx
