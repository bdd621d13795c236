// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "kernels/common/exact_math.h"
#include "kernels/common/philox.h"

namespace lynx {
namespace {

constexpr int kVocab = 1003;

std::vector<float> RandomLogits(uint32_t seed, int vocab = kVocab, float spread = 3) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& l : logits) l = normal(rng);
  return logits;
}

SamplingParams AtTemperature(float temperature, uint64_t seed = 0) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

Choice Choose(Sampler& sampler, std::span<const float> logits, const SamplingParams& params,
              int64_t position, int num_output_tokens = 0) {
  const TokenCounts counts;
  return sampler.Choose({.logits = logits,
                         .params = params,
                         .counts = counts,
                         .num_output_tokens = num_output_tokens},
                        position);
}

// Known answers of the Random123 distribution.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(ExactMath, AgreesWithTheLibrary) {
  std::mt19937_64 rng(1);
  std::uniform_real_distribution<double> exponent(-680, 0), mantissa(0, 1);
  for (int i = 0; i < 100000; ++i) {
    const double x = exponent(rng);
    EXPECT_NEAR(ExactExp(x) / std::exp(x), 1, 2e-15) << x;
    const double y = std::ldexp(1 + mantissa(rng), static_cast<int>(exponent(rng)) + 300);
    EXPECT_NEAR(ExactLog(y), std::log(y), 1e-15 * std::max(1.0, std::abs(std::log(y)))) << y;
  }
  EXPECT_EQ(ExactExp(0), 1);
  EXPECT_EQ(ExactExp(-std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(ExactLog(1), 0);
}

// What a naive scan of the definition gives.
TEST(Sampler, IsTheArgmaxOfLogitsPlusNoise) {
  Sampler sampler(kVocab);
  for (uint32_t round = 0; round < 200; ++round) {
    const auto logits = RandomLogits(round);
    const SamplingParams params = AtTemperature(0.3f + 0.01f * round, 0x123456789abcull + round);
    TokenId want = 0;
    double best = -INFINITY, second = -INFINITY;
    for (TokenId t = 0; t < kVocab; ++t) {
      const double score =
          double{logits[t]} / double{params.temperature} + GumbelNoise(params.seed, round, t);
      if (score > best) {
        second = best;
        best = score;
        want = t;
      } else {
        second = std::max(second, score);
      }
    }
    const Choice got = Choose(sampler, logits, params, round);
    EXPECT_EQ(got.token, want);
    EXPECT_FLOAT_EQ(got.margin, (best - second) * params.temperature);
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) {
  Sampler sampler(kVocab);
  std::vector<float> logits(kVocab, 1.0f);
  logits[17] = logits[400] = 5.0f;
  logits[900] = 4.5f;
  SamplingParams params = AtTemperature(0);
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 17);
  EXPECT_EQ(Choose(sampler, logits, params, 0).margin, 0);
  logits[17] = 1;
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 400);
  EXPECT_EQ(Choose(sampler, logits, params, 0).margin, 0.5f);
  params.temperature = 0.9e-5f;
  params.top_k = 1;
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 400);
}

TEST(Sampler, NoiseDependsOnSeedAndPosition) {
  Sampler sampler(kVocab);
  const std::vector<float> flat(kVocab, 0.0f);
  SamplingParams params = AtTemperature(1, 1);
  const TokenId a = Choose(sampler, flat, params, 10).token;
  EXPECT_EQ(Choose(sampler, flat, params, 10).token, a);
  EXPECT_NE(Choose(sampler, flat, params, 11).token, a);
  params.seed = 2;
  EXPECT_NE(Choose(sampler, flat, params, 10).token, a);
}

// The coupling that speculation lives on: a small error of the logits rarely changes the token,
// and never does when it is smaller than half the margin.
TEST(Sampler, MarginBoundsWhatAnErrorCanChange) {
  Sampler sampler(kVocab);
  std::mt19937 rng(5);
  int changed = 0;
  for (int position = 0; position < 500; ++position) {
    auto logits = RandomLogits(position);
    const SamplingParams params = AtTemperature(0.8f, 3);
    const Choice exact = Choose(sampler, logits, params, position);
    constexpr float kError = 0.05f;
    std::uniform_real_distribution<float> error(-kError, kError);
    for (float& l : logits) l += error(rng);
    const Choice draft = Choose(sampler, logits, params, position);
    if (exact.margin > 2 * kError) {
      EXPECT_EQ(draft.token, exact.token);
    }
    changed += draft.token != exact.token;
  }
  EXPECT_LT(changed, 50);
}

TEST(Sampler, StopTokensAreOutUntilMinTokens) {
  Sampler sampler(kVocab);
  std::vector<float> logits(kVocab, 0.0f);
  logits[3] = 9;
  logits[4] = 8;
  SamplingParams params = AtTemperature(0);
  params.stop_token_ids = {3};
  params.min_tokens = 2;
  EXPECT_EQ(Choose(sampler, logits, params, 0, 1).token, 4);
  EXPECT_EQ(Choose(sampler, logits, params, 0, 2).token, 3);
}

TEST(Sampler, BiasIsClampedAndUnknownIdsAreIgnored) {
  Sampler sampler(kVocab);
  std::vector<float> logits(kVocab, 0.0f);
  logits[5] = 150;
  SamplingParams params = AtTemperature(0);
  params.logit_bias = {{6, 1e9f}, {-1, 1.f}, {kVocab, 1.f}};
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 5);
  logits[5] = 99;
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 6);
}

TEST(Sampler, SomethingIsChosenWhenEverythingIsRuledOut) {
  Sampler sampler(kVocab);
  auto logits = RandomLogits(1);
  logits[42] = 50;
  SamplingParams params = AtTemperature(0);
  params.allowed_token_ids = params.stop_token_ids = {7};
  params.min_tokens = 4;
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 42);
  params.temperature = 1;
  EXPECT_EQ(Choose(sampler, logits, params, 0).token, 42);
}

// Whatever needs more than one row's logits, temperature and noise stays with the host.
TEST(Sampler, ADeviceChoosesWithoutFiltersOnly) {
  const auto on_device = [](auto change) {
    SamplingParams params;
    params.temperature = 0.7f;
    params.seed = 5;
    change(params);
    return ChoiceOnDevice(params, TokenCounts(params), 9);
  };
  const auto plain = on_device([](SamplingParams&) {});
  ASSERT_TRUE(plain.has_value());
  EXPECT_TRUE(plain->wanted);
  EXPECT_EQ(plain->temperature, 0.7f);
  EXPECT_EQ(plain->seed, 5u);
  EXPECT_EQ(plain->position, 9);
  EXPECT_FALSE(on_device([](auto& p) { p.top_k = 3; }));
  EXPECT_FALSE(on_device([](auto& p) { p.top_p = 0.9f; }));
  EXPECT_FALSE(on_device([](auto& p) { p.min_p = 0.1f; }));
  EXPECT_FALSE(on_device([](auto& p) { p.min_tokens = 1; }));
  EXPECT_FALSE(on_device([](auto& p) { p.num_logprobs = 0; }));
  EXPECT_FALSE(on_device([](auto& p) { p.presence_penalty = 0.5f; }));
  EXPECT_FALSE(on_device([](auto& p) { p.logit_bias = {{1, 2.0f}}; }));
  EXPECT_FALSE(on_device([](auto& p) { p.allowed_token_ids = {1}; }));
  const auto greedy = [](auto& p) {
    p.temperature = 0;
    p.top_k = 3;  // without a meaning
  };
  EXPECT_TRUE(on_device(greedy));
}

TEST(Logprobs, AreOfTheRawSoftmax) {
  const auto logits = RandomLogits(9);
  double total = 0;
  for (float l : logits) total += std::exp(double{l});
  const TokenOutput out = Logprobs(logits, 77, 5);
  EXPECT_NEAR(out.logprob, logits[77] - std::log(total), 1e-5);
  int rank = 1;
  for (float l : logits) rank += l > logits[77];
  EXPECT_EQ(out.rank, rank);
  ASSERT_EQ(out.top.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(out.top[i].rank, i + 1);
    EXPECT_EQ(Logprobs(logits, out.top[i].id, 0).rank, i + 1);
    if (i > 0) {
      EXPECT_GE(out.top[i - 1].logprob, out.top[i].logprob);
    }
  }
  EXPECT_TRUE(Logprobs(logits, 77, 0).top.empty());
  EXPECT_EQ(Logprobs(logits, 77, 5000).top.size(), size_t{kVocab});
}

TEST(TokenCounts, DraftsCanBeTakenBack) {
  SamplingParams params;
  params.frequency_penalty = 1;
  TokenCounts counts(params);
  counts.AddOutput(5);
  counts.AddOutput(5);
  counts.RemoveOutput(5);
  EXPECT_EQ(counts.counts().at(5).output, 1);
  TokenCounts off{SamplingParams{}};
  off.AddOutput(5);
  EXPECT_TRUE(off.counts().empty());
}

}  // namespace
}  // namespace lynx
