// SPDX-License-Identifier: Apache-2.0
// The device's choice of a token against the host's, bit for bit.
#include "kernels/cuda/sample.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sampling/sampler.h"
#include "tests/conformance/device.h"

namespace lynx::cuda {
namespace {

constexpr Choice kUntouched{.token = -7, .margin = -7};

Choice OnHost(std::span<const float> logits, const RowChoice& row) {
  SamplingParams params;
  params.temperature = row.temperature;
  params.seed = row.seed;
  const TokenCounts counts;
  return Sampler(static_cast<int>(logits.size()))
      .Choose({.logits = logits, .params = params, .counts = counts}, row.position);
}

class SampleTest : public DeviceTest {
 protected:
  // logits [rows, ld], of which vocab_size count.
  void Check(const std::vector<float>& logits, int64_t ld, int vocab_size,
             const std::vector<RowChoice>& params) {
    const int rows = static_cast<int>(params.size());
    DeviceArray<float> device_logits(logits);
    DeviceArray<RowChoice> device_params(params);
    DeviceArray<std::byte> scratch(SampleScratchBytes(rows, vocab_size));
    DeviceArray<Choice> choices(std::vector<Choice>(rows, kUntouched));
    Sample(stream(), {.logits = device_logits.data(),
                      .ld = ld,
                      .rows = rows,
                      .vocab_size = vocab_size,
                      .params = device_params.data(),
                      .scratch = scratch.data(),
                      .choices = choices.data()});
    const std::vector<Choice> got = choices.Download();
    for (int r = 0; r < rows; ++r) {
      const std::span<const float> row(&logits[r * ld], vocab_size);
      const Choice want = params[r].wanted ? OnHost(row, params[r]) : kUntouched;
      ASSERT_EQ(got[r].token, want.token) << "row " << r << " of " << vocab_size << " tokens";
      if (std::isnan(want.margin)) {
        ASSERT_TRUE(std::isnan(got[r].margin));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got[r].margin), std::bit_cast<uint32_t>(want.margin))
            << "row " << r << " of " << vocab_size << " tokens";
      }
    }
  }

  static std::vector<RowChoice> EveryTemperature(uint64_t seed) {
    std::vector<RowChoice> params;
    for (float temperature : {0.0f, 1e-6f, 0.3f, 1.0f, 2.5f}) {
      params.push_back({.wanted = true,
                        .temperature = temperature,
                        .seed = seed * 0x9e3779b97f4a7c15u,
                        .position = static_cast<int64_t>(seed) * 1000 + 3});
    }
    params[3].wanted = seed % 3 != 0;
    return params;
  }
};

TEST_F(SampleTest, ChoosesWhatTheHostChooses) {
  uint64_t seed = 0;
  for (int vocab_size : {1, 2, 3, 4, 5, 127, 1000, 8192, 8193, 20001}) {
    const auto params = EveryTemperature(++seed);
    const int64_t ld = vocab_size + 3;
    std::mt19937 rng(static_cast<uint32_t>(seed));
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> logits(params.size() * ld);
    for (float& logit : logits) logit = normal(rng);
    Check(logits, ld, vocab_size, params);
  }
}

TEST_F(SampleTest, TiesGoToTheLowestId) {
  constexpr int kVocabSize = 10000;
  const auto params = EveryTemperature(1);
  std::mt19937 rng(5);
  std::vector<float> logits(params.size() * kVocabSize);
  for (float& logit : logits) logit = static_cast<float>(rng() % 3);
  Check(logits, kVocabSize, kVocabSize, params);
}

TEST_F(SampleTest, WhatIsNoNumberIsNeverChosen) {
  constexpr int kVocabSize = 500;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto params = EveryTemperature(2);
  std::vector<float> logits(params.size() * kVocabSize, -kInfinity);
  Check(logits, kVocabSize, kVocabSize, params);  // nothing can be chosen
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i % 3 == 0) logits[i] = std::nanf("");
    if (i % kVocabSize == 311) logits[i] = -40.0f;
  }
  Check(logits, kVocabSize, kVocabSize, params);  // one token
  for (size_t i = 1; i < logits.size(); i += 3) logits[i] = static_cast<float>(i % 17);
  Check(logits, kVocabSize, kVocabSize, params);
}

// Thousands of noises on a flat distribution, where two tokens are often close.
TEST_F(SampleTest, ManySeedsAndPositions) {
  constexpr int kVocabSize = 40, kRows = 300;
  std::vector<RowChoice> params(kRows);
  std::mt19937_64 rng(11);
  for (RowChoice& row : params) {
    row = {.wanted = true,
           .temperature = 0.7f,
           .seed = rng(),
           .position = static_cast<int64_t>(rng() >> 20)};
  }
  Check(std::vector<float>(kRows * kVocabSize, 1.5f), kVocabSize, kVocabSize, params);
}

}  // namespace
}  // namespace lynx::cuda
