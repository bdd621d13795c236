// SPDX-License-Identifier: Apache-2.0
#include "rpc/attempt_router.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace lynx {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Two daemons, or as many as there are in `now`, and a clock.
struct Cluster {
  explicit Cluster(size_t num_daemons = 2)
      : router(num_daemons), now(num_daemons, {.usable = true, .epoch = 7}) {}

  // Where the next attempt goes; -1: nowhere. It is the newest, `last`.
  int Open(const std::vector<int>& failed_at = {}) {
    last = {.hi = 1, .lo = last.lo + 1};
    const auto index = router.Open(last, now, failed_at, now_ns);
    return index ? static_cast<int>(*index) : -1;
  }
  // Until one goes to this daemon; the others land.
  void OpenAt(int index) {
    for (int i = 0; Open() != index; ++i) {
      ASSERT_LT(i, 10);
      Land();
    }
  }
  void Land() { router.Landed(last); }
  // How long its daemon is passed over now, in seconds.
  int64_t Fail() {
    const auto ejection = router.Failed(last, now_ns);
    return ejection ? ejection->backoff_ns / kSecond : 0;
  }
  void Pass(int64_t seconds) { now_ns += seconds * kSecond; }

  AttemptRouter router;
  std::vector<PrefillDaemon> now;
  int64_t now_ns = 5 * kSecond;
  AttemptId last;
};

TEST(AttemptRouter, TheFewestOpenAttemptsAndTurnsAmongEquals) {
  Cluster c(3);
  EXPECT_EQ(c.Open(), 0);
  EXPECT_EQ(c.Open(), 1);
  EXPECT_EQ(c.Open(), 2);
  c.router.Close(1);
  EXPECT_EQ(c.Open(), 1);
  c.now[0].usable = false;
  EXPECT_EQ(c.Open(), 2);
  EXPECT_EQ(c.Open(), 1);
  c.now[1].usable = c.now[2].usable = false;
  EXPECT_EQ(c.Open(), -1);
}

TEST(AttemptRouter, NotWhereTheRequestHasFailed) {
  Cluster c;
  EXPECT_EQ(c.Open({0}), 1);
  EXPECT_EQ(c.Open({0}), 1);
  EXPECT_EQ(c.Open({0, 1}), 0) << "it failed everywhere";
  c.now[1].usable = false;
  EXPECT_EQ(c.Open({0}), 0) << "there is no other";
}

TEST(AttemptRouter, ADaemonWhoseHandOffFailedIsPassedOverTwiceAsLongEachTime) {
  Cluster c;
  std::vector<int64_t> backoffs;
  for (int i = 0; i < 8; ++i) {
    c.OpenAt(0);
    backoffs.push_back(c.Fail());
    EXPECT_EQ(c.router.num_ejected(), 1);
    c.Pass(backoffs.back() - 1);
    for (int k = 0; k < 5; ++k) EXPECT_EQ(c.Open(), 1);
    for (int k = 0; k < 5; ++k) c.router.Close(1);
    c.router.Close(0);
    c.Pass(1);
  }
  EXPECT_EQ(backoffs, (std::vector<int64_t>{2, 4, 8, 16, 32, 60, 60, 60}));
  EXPECT_EQ(c.router.num_ejections(), 8);
}

TEST(AttemptRouter, OneAttemptProbesAndSuccessRestores) {
  Cluster c;
  c.OpenAt(0);
  EXPECT_EQ(c.Fail(), 2);
  c.Pass(2);
  EXPECT_EQ(c.Open({1}), 1) << "a request that has failed is not risked";
  c.OpenAt(0);
  const AttemptId probe = c.last;
  c.Pass(50);
  for (int k = 0; k < 5; ++k) EXPECT_EQ(c.Open(), 1);
  c.router.Dropped(probe);  // its client has left
  c.OpenAt(0);
  EXPECT_EQ(c.router.Landed(c.last), 0u);
  EXPECT_EQ(c.router.num_ejected(), 0);
  EXPECT_FALSE(c.router.Landed(c.last)) << "it is over";
  c.OpenAt(0);
  EXPECT_EQ(c.Fail(), 2) << "a new row of failures";
}

TEST(AttemptRouter, AttemptsThatWereUnderWayWhenALinkBrokeCountOnce) {
  Cluster c(1);
  std::deque<AttemptId> open;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(c.Open(), 0);
    open.push_back(c.last);
  }
  c.Pass(3);
  EXPECT_TRUE(c.router.Failed(open[0], c.now_ns));
  EXPECT_FALSE(c.router.Failed(open[1], c.now_ns));
  c.Pass(1);
  EXPECT_FALSE(c.router.Failed(open[2], c.now_ns));
  EXPECT_EQ(c.router.num_ejections(), 1);
  EXPECT_EQ(c.router.Landed(open[3]), 0u) << "the link was not broken after all";
}

TEST(AttemptRouter, WhereAllAreEjectedTheyAreUsedAsIfNoneWere) {
  Cluster c;
  for (int daemon : {0, 1}) {
    c.OpenAt(daemon);
    c.Fail();
    c.router.Close(daemon);
  }
  EXPECT_EQ(c.router.num_ejected(), 2);
  const int first = c.Open();
  EXPECT_EQ(c.Open(), 1 - first);
  EXPECT_EQ(c.Open({0}), 1) << "but not where the request has failed";
  EXPECT_EQ(c.Open({0}), 1);
  // One alone is used whatever it does.
  c.now[1].usable = false;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(c.Open(), 0);
    c.Fail();
  }
}

TEST(AttemptRouter, AFailureIsForgottenWhereNothingProvesTheContrary) {
  Cluster c;
  c.OpenAt(0);
  c.Fail();
  c.Pass(61);
  c.OpenAt(0);
  EXPECT_EQ(c.Open(), 1) << "the other one probes";
  EXPECT_EQ(c.Open(), 1);
  c.Pass(1);
  EXPECT_EQ(c.Open(), 0);
  EXPECT_EQ(c.router.num_ejected(), 0);
}

TEST(AttemptRouter, ARestartMakesADaemonSound) {
  Cluster c;
  c.OpenAt(0);
  const AttemptId before = c.last;
  c.OpenAt(0);
  c.Fail();
  c.now[0].epoch = 8;
  EXPECT_EQ(c.Open({1}), 0);
  EXPECT_EQ(c.router.num_ejected(), 0);
  EXPECT_FALSE(c.router.Failed(before, c.now_ns)) << "of the daemon that is gone";
  EXPECT_EQ(c.router.num_ejected(), 0);
}

}  // namespace
}  // namespace lynx
