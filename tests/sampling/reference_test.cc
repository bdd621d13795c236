// SPDX-License-Identifier: Apache-2.0
// The reference cases of vLLM's sampler: support exact, probabilities within 1e-5.
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/common/exact_math.h"
#include "nlohmann/json.hpp"
#include "sampling/sampler.h"
#include "tests/npy.h"

namespace lynx {
namespace {

const std::string kFolder = std::string(LYNX_SHARED_DIR) + "/reference/sampling/";

SamplingParams ParseParams(const nlohmann::json& j) {
  SamplingParams p;
  p.temperature = j.value("temperature", 1.0f);
  p.top_k = j.value("top_k", 0);
  p.top_p = j.value("top_p", 1.0f);
  p.min_p = j.value("min_p", 0.0f);
  p.repetition_penalty = j.value("repetition_penalty", 1.0f);
  p.presence_penalty = j.value("presence_penalty", 0.0f);
  p.frequency_penalty = j.value("frequency_penalty", 0.0f);
  p.min_tokens = j.value("min_tokens", 0);
  p.allowed_token_ids = j.value("allowed_token_ids", std::vector<TokenId>());
  p.stop_token_ids = j.value("stop_token_ids", std::vector<TokenId>());
  if (j.contains("logit_bias")) {
    for (const auto& [id, bias] : j["logit_bias"].items()) {
      p.logit_bias.emplace_back(std::stoi(id), bias.get<float>());
    }
  }
  return p;
}

class SamplingReference : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(kFolder + "cases.jsonl");
    if (!file) GTEST_SKIP() << "no reference vectors at " << kFolder;
    for (std::string line; std::getline(file, line);) cases_.push_back(nlohmann::json::parse(line));
    logits_ = ReadNpy(kFolder + "logits.f32.npy").values;
    probs_ = ReadNpy<double>(kFolder + "probs.f64.npy").values;
    ASSERT_EQ(logits_.size(), cases_.size() * 1024);
    ASSERT_EQ(probs_.size(), logits_.size());
  }
  std::vector<nlohmann::json> cases_;
  std::vector<float> logits_;
  std::vector<double> probs_;
};

TEST_F(SamplingReference, ProbabilitiesAndSupport) {
  for (size_t row = 0; row < cases_.size(); ++row) {
    const nlohmann::json& c = cases_[row];
    SCOPED_TRACE(c["name"].get<std::string>());
    const int vocab = c["vocab"];
    const SamplingParams params = ParseParams(c["params"]);
    const auto prompt = c["prompt_ids"].get<std::vector<TokenId>>();
    const auto output = c["output_ids"].get<std::vector<TokenId>>();
    TokenCounts counts(params);
    counts.AddPrompt(prompt);
    for (TokenId t : output) counts.AddOutput(t);
    const FilterInput input{.logits = std::span(logits_).subspan(row * 1024, vocab),
                            .params = params,
                            .counts = counts,
                            .num_output_tokens = static_cast<int>(output.size())};
    const double* want = &probs_[row * 1024];

    Sampler sampler(vocab);
    if (IsGreedy(params)) {
      EXPECT_EQ(sampler.Choose(input, 7).token, c["argmax"].get<int>());
      continue;
    }
    Filters filters(vocab);
    const Filters::Result result = filters.Apply(input);
    double max = -INFINITY, total = 0;
    for (double s : result.scores) max = std::max(max, s);
    for (double s : result.scores) total += ExactExp(s - max);
    int argmax = 0;
    for (int i = 0; i < vocab; ++i) {
      if (result.scores[i] > result.scores[argmax]) argmax = i;
      const double got = ExactExp(result.scores[i] - max) / total;
      // Below 1e-200 only "ruled out or not" is compared: float64 underflows, and the rounding of
      // the temperature to float32 exceeds the tolerance.
      if (result.scores[i] - max > -460) {
        EXPECT_GT(want[i], 0) << "token " << i;
      } else {
        EXPECT_LT(want[i], 1e-199) << "token " << i;
        continue;
      }
      EXPECT_NEAR(got, want[i], 1e-5 * want[i]) << "token " << i;
    }
    EXPECT_EQ(argmax, c["argmax"].get<int>());
    if (!result.survivors.empty()) {
      EXPECT_EQ(static_cast<int>(result.survivors.size()), c["n_nonzero"].get<int>());
    }
  }
}

// Each case is sampled at many positions; frequencies match the probabilities (chi-square over the
// tokens that are expected at least 20 times, the rest pooled; a 6-sigma bound).
TEST_F(SamplingReference, FrequenciesMatchProbabilities) {
  constexpr int kDraws = 4000;
  for (size_t row = 0; row < cases_.size(); row += 5) {
    const nlohmann::json& c = cases_[row];
    SCOPED_TRACE(c["name"].get<std::string>());
    const int vocab = c["vocab"];
    SamplingParams params = ParseParams(c["params"]);
    if (IsGreedy(params)) continue;
    params.seed = 1000 + row;
    const auto prompt = c["prompt_ids"].get<std::vector<TokenId>>();
    const auto output = c["output_ids"].get<std::vector<TokenId>>();
    TokenCounts counts(params);
    counts.AddPrompt(prompt);
    for (TokenId t : output) counts.AddOutput(t);
    Sampler sampler(vocab);
    std::vector<int> seen(vocab);
    for (int draw = 0; draw < kDraws; ++draw) {
      const FilterInput input{.logits = std::span(logits_).subspan(row * 1024, vocab),
                              .params = params,
                              .counts = counts,
                              .num_output_tokens = static_cast<int>(output.size())};
      ++seen[sampler.Choose(input, draw).token];
    }
    double chi2 = 0, rest_want = 0;
    int bins = 0, rest_seen = 0;
    for (int i = 0; i < vocab; ++i) {
      const double want = probs_[row * 1024 + i] * kDraws;
      if (want < 20) {
        rest_want += want;
        rest_seen += seen[i];
        continue;
      }
      chi2 += (seen[i] - want) * (seen[i] - want) / want;
      ++bins;
    }
    if (rest_want >= 20) {
      chi2 += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
      ++bins;
    }
    const double freedom = std::max(bins - 1, 1);
    EXPECT_LT(chi2, freedom + 6 * std::sqrt(2 * freedom) + 6) << bins << " bins";
  }
}

}  // namespace
}  // namespace lynx
