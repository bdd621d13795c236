// SPDX-License-Identifier: Apache-2.0
#include "speculation/verify_policy.h"

#include "gtest/gtest.h"

namespace lynx {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(VerifyPolicy, WithoutATransferTheSourceIsAsked) {
  const VerifyPolicy policy;
  EXPECT_EQ(policy.ResidualNs(1000, 0, 0), VerifyPolicy::kNotKnown);
  EXPECT_TRUE(VerifyPolicy::AskSource(policy.ResidualNs(1000, 0, 0), policy.SourceNs()));
}

// 1 MB in 100 ms for 1000 tokens, of which 0.8 MB came after the anchor in 80 ms.
TEST(VerifyPolicy, TheTargetTakesItsBytesAtTheMeasuredRate) {
  VerifyPolicy policy;
  policy.ObserveTransfer(1000, 1'000'000, 800'000, 80 * kMs);
  EXPECT_EQ(policy.ResidualNs(1000, 0, 0), 100 * kMs);
  EXPECT_EQ(policy.ResidualNs(2000, 0, 0), 200 * kMs);
  EXPECT_EQ(policy.ResidualNs(1000, 200'000, 30 * kMs), 50 * kMs);
  EXPECT_EQ(policy.ResidualNs(1000, 200'000, 300 * kMs), 1) << "overdue, not unknown";
}

TEST(VerifyPolicy, TheSourceTakesTheNetworkAndAStepAndAHalf) {
  VerifyPolicy policy;
  policy.ObserveRound(20 * kMs, 10 * kMs);
  EXPECT_EQ(policy.SourceNs(), 20 * kMs);
  policy.ObserveStep(100 * kMs);  // it has become busy
  EXPECT_EQ(policy.SourceNs(), 155 * kMs);
  policy.ObserveRound(254 * kMs, 100 * kMs);  // 104 ms more than steps explain: once
  EXPECT_NEAR(static_cast<double>(policy.SourceNs()), (5 + 0.05 * 99 + 150) * kMs, kMs);
  policy.ObserveRound(155 * kMs, 100 * kMs);
  policy.ObserveStep(0);  // not known: the last word stands
  EXPECT_EQ(policy.SourceNs(), 155 * kMs);
}

TEST(VerifyPolicy, WhicheverIsSooner) {
  VerifyPolicy policy;
  policy.ObserveTransfer(1000, 1'000'000, 800'000, 80 * kMs);
  policy.ObserveRound(20 * kMs, 10 * kMs);
  EXPECT_TRUE(VerifyPolicy::AskSource(policy.ResidualNs(1000, 0, 0), policy.SourceNs()));
  policy.ObserveStep(100 * kMs);
  EXPECT_FALSE(VerifyPolicy::AskSource(policy.ResidualNs(1000, 0, 0), policy.SourceNs()));
  EXPECT_TRUE(VerifyPolicy::AskSource(policy.ResidualNs(2000, 0, 0), policy.SourceNs()));
}

TEST(VerifyPolicy, TransfersThatTellNothingAreLeftOut) {
  VerifyPolicy policy;
  policy.ObserveTransfer(0, 0, 0, 0);
  policy.ObserveTransfer(100, 1000, 0, 5);
  EXPECT_EQ(policy.ResidualNs(1000, 0, 0), VerifyPolicy::kNotKnown);
}

}  // namespace
}  // namespace lynx
