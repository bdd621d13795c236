// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "gtest/gtest.h"
#include "speculation/acceptance.h"
#include "speculation/draft_policy.h"

namespace lynx {
namespace {

Acceptance Accept(std::vector<TokenId> drafts, std::vector<TargetChoice> target) {
  return AcceptDrafts(drafts, static_cast<int>(target.size()),
                      [&](int row) { return target[row]; });
}

TEST(AcceptDrafts, LongestEqualPrefixAndOneMore) {
  const auto all = Accept({1, 2, 3}, {{1}, {2}, {3}, {4}});
  EXPECT_EQ(all.num_accepted, 3);
  EXPECT_EQ(all.num_chosen, 4);
  const auto some = Accept({1, 2, 3}, {{1}, {9}, {3}, {4}});
  EXPECT_EQ(some.num_accepted, 1);
  EXPECT_EQ(some.num_chosen, 2);
  const auto none = Accept({1, 2, 3}, {{7}, {2}, {3}, {4}});
  EXPECT_EQ(none.num_accepted, 0);
  EXPECT_EQ(none.num_chosen, 1);
}

TEST(AcceptDrafts, NoDraftsIsPlainDecoding) {
  const auto a = Accept({}, {{5}});
  EXPECT_EQ(a.num_accepted, 0);
  EXPECT_EQ(a.num_chosen, 1);
}

TEST(AcceptDrafts, InPieces) {
  const auto a = Accept({1, 2, 3}, {{1}, {2}});
  EXPECT_EQ(a.num_accepted, 2);
  EXPECT_EQ(a.num_chosen, 2);
}

TEST(AcceptDrafts, NothingAfterTheEnd) {
  const auto a = Accept({1, 2, 3}, {{1}, {2, true}, {3}, {4}});
  EXPECT_EQ(a.num_accepted, 2);
  EXPECT_EQ(a.num_chosen, 2);
}

TEST(DraftPolicy, StopsAtTheLimitAndWhenSurvivalIsUnlikely) {
  const DraftPolicy policy(4, 0.05);
  EXPECT_TRUE(policy.Continue(std::vector<float>{}));
  EXPECT_TRUE(policy.Continue(std::vector<float>(3, 10.f)));
  EXPECT_FALSE(policy.Continue(std::vector<float>(4, 10.f)));
  const DraftPolicy longer(64, 0.05);
  int sure = 0, doubtful = 0;
  while (longer.Continue(std::vector<float>(sure, 4.f))) ++sure;
  while (longer.Continue(std::vector<float>(doubtful, 0.01f))) ++doubtful;
  EXPECT_EQ(sure, 64);
  EXPECT_LT(doubtful, 8);
  EXPECT_GT(doubtful, 2);
}

TEST(DraftPolicy, ADraftIsWorthJudgingWhileItProbablySavesMoreThanItsRow) {
  const DraftPolicy policy(64, 0.05);
  const std::vector<float> margins(10, 0.8f);
  const double p = policy.Survival(0.8f);
  EXPECT_EQ(policy.NumWorthJudging(margins, 0), 10) << "rows are free";
  EXPECT_EQ(policy.NumWorthJudging(margins, p * p * 0.999), 2);
  EXPECT_EQ(policy.NumWorthJudging(margins, p * 1.001), 0);
  EXPECT_EQ(policy.NumWorthJudging({}, 0), 0);
  const std::vector<float> mixed = {5, 5, 0.01f, 5};
  EXPECT_EQ(policy.NumWorthJudging(mixed, 0.6), 2) << "what follows a doubtful one is no better";
}

TEST(DraftPolicy, LearnsEachBucketFromWhatWasJudged) {
  DraftPolicy policy(64, 0.05);
  const double unjudged = policy.Survival(0.6f);
  // Margin 4 is right, 0.3 is wrong, 0.6 comes after the error.
  for (int i = 0; i < 300; ++i) policy.Observe(std::vector<float>{4.f, 0.3f, 0.6f}, 1);
  EXPECT_GT(policy.Survival(4.f), 0.998);
  EXPECT_LT(policy.Survival(0.3f), 0.01);
  EXPECT_EQ(policy.Survival(0.6f), unjudged);
  for (int i = 0; i < 300; ++i) policy.Observe(std::vector<float>{0.3f}, 1);
  EXPECT_GT(policy.Survival(0.3f), 0.95);
}

}  // namespace
}  // namespace lynx
