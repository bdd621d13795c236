// SPDX-License-Identifier: Apache-2.0
#include "speculation/anchor_policy.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace lynx {
namespace {

// Bytes per token of SmolLM2-135M (11,520 elements), errors of docs/codecs.md.
constexpr double kElements = 11520;
AnchorCandidate Anchor(const char* name, double bits, double error) {
  return {.name = name, .bytes_per_token = kElements * bits / 8, .prior_error = error};
}
AnchorCandidate Whole() {
  return {.name = "target", .bytes_per_token = kElements * 11.05 / 8, .whole = true};
}
std::vector<AnchorCandidate> Candidates() {
  return {Anchor("k2v2", 2.375, .104), Anchor("k3v2", 2.875, .069), Anchor("k4v2", 3.375, .055),
          Anchor("k4v3", 3.875, .043), Anchor("k4v4", 4.375, .042), Whole()};
}
AnchorPolicy Policy() { return AnchorPolicy({Candidates(), Whole(), 2}); }

constexpr double kMbit = 1e6 / 8;

AnchorSituation At(double mbit, int num_tokens = 4096) {
  return {.num_tokens = num_tokens,
          .bytes_per_second = mbit * kMbit,
          .step_s = 0.01,
          .refine_s = 0.02,
          .max_draft_tokens = 64};
}
AnchorSituation WithRounds(AnchorSituation now, double round_s = 0.03) {
  now.round_s = round_s;
  return now;
}

TEST(AnchorPolicy, WhatIsNotKnownLeavesTheFallback) {
  const AnchorPolicy policy = Policy();
  for (AnchorSituation now : {AnchorSituation{}, At(0), At(-1)}) {
    EXPECT_EQ(policy.Choose(now).index, 2u);
    EXPECT_EQ(policy.Choose(now).seconds, 0);
  }
  AnchorSituation now = At(100);
  now.step_s = 0;
  EXPECT_EQ(policy.Choose(now).index, 2u);
  now = At(100);
  now.num_wanted = 1;
  EXPECT_EQ(policy.Choose(now).index, 2u);
  EXPECT_EQ(AnchorPolicy({{Candidates()[0]}, Whole(), 0}).Choose(At(100)).index, 0u);
}

TEST(AnchorPolicy, AnInfinitelyFastLinkNeedsNoDrafts) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double round_s : {0.0, 0.03}) {
    for (const double refine_s : {0.0, 0.02}) {
      AnchorSituation now = WithRounds(At(infinity), round_s);
      now.refine_s = refine_s;
      now.first_token_s = 0.5;
      const AnchorChoice choice = Policy().Choose(now);
      EXPECT_TRUE(Candidates()[choice.index].whole);
      EXPECT_NEAR(choice.seconds, 0.5 + 31 * 0.01, 1e-12);
    }
  }
}

TEST(AnchorPolicy, WithoutDraftsTheWholeTargetIsBest) {
  AnchorSituation now = At(100);
  now.max_draft_tokens = 0;
  EXPECT_TRUE(Candidates()[Policy().Choose(now).index].whole);
}

// By hand: 1 MB anchor of 4 MB at 1 MB/s, 10 ms steps, k = 32: 64 drafts fit, 30 are wanted.
TEST(AnchorPolicy, TheFormulaByHand) {
  const AnchorCandidate anchor{.name = "a", .fixed_bytes = 0.5e6, .bytes_per_token = 500};
  AnchorSituation now{.num_tokens = 1000,
                      .bytes_per_second = 1e6,
                      .step_s = 0.01,
                      .refine_s = 0.1,
                      .max_draft_tokens = 64};
  EXPECT_NEAR(SecondsToWanted(anchor, 0, 4e6, now), 4 + 0.1 + 0.01, 1e-9);
  EXPECT_NEAR(SecondsToWanted(anchor, 0.5, 4e6, now), 4 + 0.1 + 0.30, 1e-9);  // one right, mean
  now.anchor_bytes_ahead = now.bytes_ahead = 2e6;
  EXPECT_NEAR(SecondsToWanted(anchor, 0, 4e6, now), 6 + 0.1 + 0.01, 1e-9);
  now.first_token_s = 5.95;  // five drafts fit
  EXPECT_NEAR(SecondsToWanted(anchor, 0, 4e6, now), 6 + 0.1 + 0.26, 1e-9);
  // Rounds of 10 ms: a draft and one more token each, from 5.95 on; ten are final by 6.
  now.round_s = 0.01;
  EXPECT_NEAR(SecondsToWanted(anchor, 0, 4e6, now), 6 + 0.1 + 0.21 - 0.05, 1e-9);
  now.first_token_s = 4;
  EXPECT_NEAR(SecondsToWanted(anchor, 0, 4e6, now), 4 + 15.5 * 0.01, 1e-9);
}

// Where rounds are faster than steps here, a target that lands early ends them: left out.
TEST(AnchorPolicy, EstimatesAreFiniteAndNeverGrowWithTheLink) {
  const AnchorPolicy policy = Policy();
  for (const double round_s : {0.0, 1.0}) {
    for (const int num_tokens : {1, 1000, 7500}) {
      double before = std::numeric_limits<double>::infinity();
      for (double mbit = 1e-3; mbit < 1e6; mbit *= 1.3) {
        const AnchorChoice choice = policy.Choose(WithRounds(At(mbit, num_tokens), round_s));
        ASSERT_TRUE(std::isfinite(choice.seconds)) << mbit;
        EXPECT_GT(choice.seconds, 0);
        EXPECT_LE(choice.seconds, before + 1e-9) << mbit << " " << round_s << " " << num_tokens;
        before = choice.seconds;
        for (const AnchorCandidate& c : policy.candidates()) {
          const double s = SecondsToWanted(c, c.prior_error, Whole().bytes_per_token * num_tokens,
                                           WithRounds(At(mbit, num_tokens), round_s));
          EXPECT_GE(s, choice.seconds - 1e-9) << c.name;
        }
      }
    }
  }
}

// While the prefill side makes tokens final before the target is here.
TEST(AnchorPolicy, AFasterLinkThenNeverMeansASmallerAnchor) {
  const AnchorPolicy policy = Policy();
  size_t before = 0;
  for (double mbit = 0.1; mbit < 15; mbit *= 1.1) {
    const size_t index = policy.Choose(WithRounds(At(mbit, 256), 0.3)).index;
    EXPECT_GE(index, before) << mbit;
    before = index;
  }
  EXPECT_EQ(policy.Choose(WithRounds(At(0.1, 256), 0.3)).index, 0u);
  EXPECT_GT(before, 0u);
}

// The target alone judges: a link so slow that there is time for every draft on any anchor wants
// the most exact one, a faster one that leaves time for few wants an early one.
TEST(AnchorPolicy, WithoutRoundsTheTimeForDraftsDecides) {
  const AnchorPolicy policy = Policy();
  EXPECT_EQ(policy.candidates()[policy.Choose(At(10)).index].name, "k4v4");
  EXPECT_LT(policy.Choose(At(2000)).index, policy.Choose(At(10)).index);
}

TEST(AnchorPolicy, LongerPromptsAreLikeSlowerLinks) {
  const AnchorPolicy policy = Policy();
  AnchorSituation now = WithRounds(At(50, 4000)), slower = WithRounds(At(25, 2000));
  EXPECT_EQ(policy.Choose(now).index, policy.Choose(WithRounds(At(25, 2000))).index);
  EXPECT_NEAR(policy.Choose(now).seconds, policy.Choose(slower).seconds, 1e-9);
  now.anchor_bytes_ahead = now.bytes_ahead = 5e6;
  EXPECT_GT(policy.Choose(now).seconds, policy.Choose(slower).seconds);
}

TEST(AnchorPolicy, BeforeTokenOneIsKnownAllAnchorsAreEquallyEarly) {
  AnchorSituation now = WithRounds(At(1000));
  now.first_token_s = 1;  // longer than any anchor takes
  now.bytes_ahead = 1e9;
  EXPECT_EQ(Policy().candidates()[Policy().Choose(now).index].name, "k4v4");
}

TEST(AnchorPolicy, WhatIsJudgedReplacesThePriorAndIsForgotten) {
  AnchorPolicy policy = Policy();
  EXPECT_NEAR(policy.Error(2), 0.055, 1e-12);
  for (int i = 0; i < 200; ++i) policy.Observe(2, 20, 20);
  EXPECT_LT(policy.Error(2), 0.01);
  EXPECT_LT(policy.Error(0), 0.02) << "this model is easier than the prior thought";
  EXPECT_GT(policy.Error(0), policy.Error(2));
  for (int i = 0; i < 2000; ++i) policy.Observe(2, 2, 1);
  EXPECT_GT(policy.Error(2), 0.2);
  EXPECT_LE(policy.Error(0), 0.9);
  policy.Observe(5, 10, 0);  // nothing is drafted on the whole target
  policy.Observe(2, 0, 0);
}

TEST(AnchorPolicy, RoundsBringAtMostADraftAStepAndOneMore) {
  EXPECT_NEAR(RoundRate(0.1, 0.01, 64, 0), 11 / 0.1, 1e-9);
  EXPECT_NEAR(RoundRate(0.1, 0.01, 4, 0), 5 / 0.1, 1e-9) << "no more drafts than may be made";
  EXPECT_NEAR(RoundRate(0.001, 0.01, 64, 0), 2 / 0.01, 1e-9) << "a round takes a draft's step";
  EXPECT_LT(RoundRate(0.5, 0.01, 64, 0.1), 10 / 0.5 + 1e-9) << "soon one is wrong";
}

TEST(AnchorPolicy, ACandidateThatProvesBetterIsChosen) {
  AnchorPolicy policy = Policy();
  const AnchorSituation now = At(400);
  for (int i = 0; i < 300; ++i) {
    for (size_t c = 0; c < 5; ++c) policy.Observe(c, 20, c == 1 ? 20 : 19);
  }
  EXPECT_EQ(policy.Choose(now).index, 1u);
  AnchorPolicy same = policy;
  EXPECT_EQ(same.Choose(now).seconds, policy.Choose(now).seconds);
}

}  // namespace
}  // namespace lynx
