// SPDX-License-Identifier: Apache-2.0
#include "speculation/self_draft_policy.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "speculation/draft_context.h"
#include "speculation/step_cost.h"

namespace lynx {
namespace {

// A machine: base 2 ms, a row 0.1 ms, and attention to 1000 tokens so many ms for the KV and for
// each row.
struct Machine {
  double read_ms = 0.8, pair_ms = 0.2;
  int64_t Ns(const StepWork& w) const {
    return static_cast<int64_t>(
        1e6 * (2 + 0.1 * w.rows + w.reads / 1000 * read_ms + w.pairs / 1000 * pair_ms));
  }
};

StepWork Work(int num_rows, int num_attended) {
  StepWork work;
  work.Add(num_rows, num_attended);
  return work;
}

TEST(StepCost, LearnsTheTermsFromStepsOfManyShapes) {
  const Machine machine;
  StepCost cost;
  EXPECT_EQ(cost.Ns(Work(1, 1)), 0);
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    StepWork work;
    for (unsigned s = 0; s <= random() % 4; ++s) work.Add(1 + random() % 6, random() % 8000);
    // Now and then something else holds the step up.
    cost.Observe(work, machine.Ns(work) * (random() % 20 == 0 ? 10 : 1));
  }
  for (const StepWork& work : {Work(1, 100), Work(1, 7600), Work(5, 7600), Work(3, 2000)}) {
    EXPECT_NEAR(cost.Ns(work) / static_cast<double>(machine.Ns(work)), 1, 0.1);
  }
  EXPECT_NEAR(cost.Ns(Work(1, 1000)) - cost.Ns(Work(1, 1000), 0.5), 1e6, 0.2e6);
}

TEST(StepCost, FollowsAMachineThatBecomesSlower) {
  Machine machine;
  StepCost cost;
  const auto run = [&](int n) {
    for (int i = 0; i < n; ++i) {
      const StepWork work = Work(1 + i % 3, 4000);
      cost.Observe(work, machine.Ns(work));
    }
  };
  run(3000);
  machine.read_ms *= 3;
  run(300);
  EXPECT_NEAR(cost.Ns(Work(2, 4000)) / static_cast<double>(machine.Ns(Work(2, 4000))), 1, 0.1);
}

TEST(SelfDraftPolicy, KnowsWhatAnotherRowCosts) {
  const Machine machine;
  SelfDraftPolicy policy(0);
  const SelfDraftSituation now = {.num_attended = 7600, .num_draft_attended = 0};
  EXPECT_EQ(policy.RowCost(now), 0) << "nothing was timed";
  for (int i = 0; i < 400; ++i) {
    const StepWork work = Work(1 + i % 5, 500 * (1 + i % 16));
    policy.ObserveStep(work, machine.Ns(work));
  }
  // 0.1 + 7.6 * 0.2 of 2.1 + 7.6 * 1.0.
  EXPECT_NEAR(policy.RowCost(now), 1.62 / 9.7, 0.02);
  SelfDraftSituation shared = now;
  shared.num_sequences = 4;  // which divide the weights among them
  EXPECT_GT(policy.RowCost(shared), policy.RowCost(now));
}

// An engine that decodes one sequence as the policy says; every draft is right with probability
// `acceptance`.
struct Decoder {
  Machine machine;
  double acceptance = 0.9;
  SelfDraftPolicy policy{std::nullopt};
  SelfDraftRecord record;
  std::mt19937 random{5};
  double total_ns = 0;
  int num_tokens = 0, num_drafted = 0;

  SelfDraftSituation At(int depth) const {
    return {.num_attended = depth, .num_draft_attended = std::min(depth, 1000)};
  }
  void Run(const StepWork& work) {
    total_ns += machine.Ns(work);
    policy.ObserveStep(work, machine.Ns(work));
  }
  void Cycle(int depth) {
    const SelfDraftSituation now = At(depth);
    const int most = policy.Start(now, record);
    std::vector<float> margins;
    while (static_cast<int>(margins.size()) < most &&
           (margins.empty() || policy.Continue(now, record, margins))) {
      Run(Work(1, now.num_draft_attended));
      margins.push_back(1.2f);
    }
    const int n = static_cast<int>(margins.size());
    Run(Work(n + 1, depth));
    int accepted = 0;
    while (accepted < n && std::bernoulli_distribution(acceptance)(random)) ++accepted;
    num_tokens += accepted + 1;
    num_drafted += n;
    if (n == 0) return policy.ObservePlain(now, record);
    margins.resize(std::min(n, accepted + 1));
    policy.ObserveJudged(now, n, margins, accepted, record);
  }
  // Time of plain decoding ÷ time taken, over so many cycles.
  double Gain(int depth, int num_cycles) {
    total_ns = num_tokens = num_drafted = 0;
    for (int i = 0; i < num_cycles; ++i) Cycle(depth);
    return machine.Ns(Work(1, depth)) * static_cast<double>(num_tokens) / total_ns;
  }
};

TEST(SelfDraftPolicy, GainsWhereAttentionDominates) {
  Decoder decoder;
  decoder.Gain(8000, 100);
  EXPECT_GT(decoder.Gain(8000, 400), 1.2);
  EXPECT_GT(decoder.num_drafted, 400);
}

TEST(SelfDraftPolicy, DraftsNothingInAShortContext) {
  Decoder decoder;
  EXPECT_EQ(decoder.Gain(1500, 200), 1);
  EXPECT_EQ(decoder.num_drafted, 0);
}

TEST(SelfDraftPolicy, StopsAfterItsTrialsWhereEachRowCostsAsMuchAsAStep) {
  Decoder decoder;
  decoder.machine = {.read_ms = 0, .pair_ms = 0.75};
  decoder.acceptance = 0.8;
  decoder.Gain(8000, 100);
  EXPECT_GT(decoder.Gain(8000, 1000), 0.98);
}

TEST(SelfDraftPolicy, StopsWhereDraftsAreWrongAndTriesAgainLater) {
  Decoder decoder;
  decoder.acceptance = 0.3;
  decoder.Gain(8000, 300);
  EXPECT_GT(decoder.Gain(8000, 2000), 0.98);
  EXPECT_GT(decoder.num_drafted, 0);
  decoder.acceptance = 0.97;
  decoder.Gain(8000, 500);
  EXPECT_GT(decoder.Gain(8000, 400), 1.2);
}

TEST(SelfDraftPolicy, DraftsLongerWhereMoreIsRight) {
  Decoder sure, doubtful;
  sure.acceptance = 0.98;
  doubtful.acceptance = 0.7;
  for (Decoder* d : {&sure, &doubtful}) d->Gain(8000, 400);
  sure.Gain(8000, 200);
  doubtful.Gain(8000, 200);
  EXPECT_GT(sure.num_drafted, doubtful.num_drafted);
}

TEST(SelfDraftPolicy, NotBesidePrompts) {
  Decoder decoder;
  decoder.Gain(8000, 100);
  SelfDraftSituation now = decoder.At(8000);
  // After a cycle that has lost, a token is decoded without drafts.
  if (decoder.policy.Start(now, decoder.record) == 0) decoder.Cycle(8000);
  EXPECT_GT(decoder.policy.Start(now, decoder.record), 0);
  now.with_prompts = true;
  EXPECT_EQ(decoder.policy.Start(now, decoder.record), 0);
  EXPECT_FALSE(decoder.policy.Continue(now, decoder.record, std::vector<float>{9}));
}

TEST(SelfDraftPolicy, AFixedNumberIsKept) {
  const SelfDraftPolicy three(3), none(0);
  EXPECT_EQ(three.Start({.num_attended = 5, .with_prompts = true}, {}), 3);
  EXPECT_TRUE(three.Continue({}, {}, std::vector<float>{0}));
  EXPECT_EQ(none.Start({.num_attended = 9000}, {}), 0);
}

// ---- the context of drafts ----------------------------------------------------------------------

TEST(DraftContext, IsAllOfAShortText) {
  const DraftContext c = ChooseDraftContext(std::vector<TokenId>(500, 1), {});
  EXPECT_EQ(c.recent, 0);
  EXPECT_TRUE(c.blocks.empty());
  EXPECT_EQ(c.num_skipped(), 0);
  EXPECT_EQ(ChooseDraftContext(std::vector<TokenId>{1}, {}).num_skipped(), 0);
}

TEST(DraftContext, HoldsTheBeginningTheRecentAndWhereTheLastTokensOccurred) {
  std::vector<TokenId> tokens(40 * kBlockSize);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
  const auto repeat = [&](size_t at, size_t length) {
    std::copy(tokens.end() - length, tokens.end(), tokens.begin() + at);
  };
  const DraftContextOptions options = {.num_recent_blocks = 4, .max_found_blocks = 3};
  DraftContext c = ChooseDraftContext(tokens, options);
  EXPECT_EQ(c.recent, 35);
  EXPECT_EQ(c.blocks, std::vector<int>{0});
  EXPECT_EQ(c.num_skipped(), 34);

  repeat(5 * kBlockSize + 61, 3);  // what follows is in block 6
  repeat(20 * kBlockSize, 2);
  repeat(30 * kBlockSize, 1);  // too short
  repeat(36 * kBlockSize, 4);  // in the recent blocks
  c = ChooseDraftContext(tokens, options);
  EXPECT_EQ(c.blocks, (std::vector<int>{0, 5, 6, 20}));

  repeat(10 * kBlockSize, 4);  // longer matches come first
  c = ChooseDraftContext(tokens, options);
  EXPECT_EQ(c.blocks, (std::vector<int>{0, 5, 6, 10}));

  c = ChooseDraftContext(tokens,
                         {.num_first_blocks = 0, .num_recent_blocks = 4, .max_found_blocks = 0});
  EXPECT_TRUE(c.blocks.empty());
  EXPECT_EQ(c.num_skipped(), 35);
  EXPECT_EQ(options.max_tokens(), 9 * kBlockSize);
}

}  // namespace
}  // namespace lynx
