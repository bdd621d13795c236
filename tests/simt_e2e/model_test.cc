// SPDX-License-Identifier: Apache-2.0
// The forward pass on the emulated device: as near to float32 as the CPU's fast path is, and the
// same bits whatever the chunking and the company.
#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "sampling/sampler.h"
#include "tests/model/sequence_runner.h"
#include "tests/simt_e2e/simt_models.h"

namespace lynx {
namespace {

constexpr int kNumTokens = 90;  // a full block and a partial one
constexpr int kMaxRows = 160;

struct Loaded {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<SequenceRunner> runner;

  Loaded(const std::string& path, std::unique_ptr<Backend> b) : backend(std::move(b)) {
    auto loaded = Model::Load(path, *backend, kMaxRows);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model = *std::move(loaded);
    runner = std::make_unique<SequenceRunner>(*model, 16);
  }
};

float RootMeanSquareError(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return static_cast<float>(std::sqrt(sum / a.size()));
}

size_t NumDifferent(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  size_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return n;
}

class SimtModel : public testing::TestWithParam<TinyModel> {};
INSTANTIATE_TEST_SUITE_P(TinyModels, SimtModel, testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param.name; });

// Both fast paths round the same values at the same places and differ in the order of their sums:
// neither may be much further from float32 than the other.
TEST_P(SimtModel, IsAsNearToFloat32AsTheCpu) {
  const auto logits = [&](std::unique_ptr<Backend> backend) {
    return LogitsAlone(*Loaded(GetParam().path, std::move(backend)).runner, kNumTokens, kMaxRows);
  };
  const auto want = logits(cpu::CpuBackend::Create({.compute = Compute::kF32}));
  const auto fast = logits(cpu::CpuBackend::Create({.compute = Compute::kFast}));
  const auto simt = logits(MakeSimtBackend());
  ASSERT_EQ(simt.size(), want.size());
  const float cpu_error = RootMeanSquareError(fast, want);
  const float simt_error = RootMeanSquareError(simt, want);
  RecordProperty("cpu_error", std::to_string(cpu_error));
  RecordProperty("simt_error", std::to_string(simt_error));
  EXPECT_LT(simt_error, 1.5f * cpu_error);
}

TEST_P(SimtModel, SameBitsInAnyChunksAndCompany) {
  Loaded m(GetParam().path, MakeSimtBackend());
  const std::vector<float> want = LogitsAlone(*m.runner, kNumTokens, kMaxRows);
  EXPECT_EQ(NumDifferent(want, LogitsAlone(*m.runner, kNumTokens, 64)), 0u);
  EXPECT_EQ(NumDifferent(want, LogitsAlone(*m.runner, kNumTokens, 7)), 0u);
  EXPECT_EQ(NumDifferent(want, LogitsInCompany(*m.runner, kNumTokens, 40)), 0u);
}

// More rows than logits are kept of at once; every third one's logits go to the host instead.
TEST_P(SimtModel, ChoosesAsTheSampler) {
  Loaded m(GetParam().path, MakeSimtBackend());
  const int vocab_size = m.runner->vocab_size();
  const std::vector<float> logits = LogitsAlone(*m.runner, kNumTokens, kMaxRows);

  m.runner->FreeAll();
  const TestSequence sequence = m.runner->NewSequence(kNumTokens);
  const auto tokens = RandomTokens(kNumTokens, vocab_size, 1);
  std::vector<int32_t> rows(kNumTokens);
  std::iota(rows.begin(), rows.end(), 0);
  const RowGroup group{.num_rows = kNumTokens, .block_table = sequence.block_table.data()};
  std::vector<SamplingParams> params(kNumTokens);
  std::vector<RowChoice> choices(kNumTokens);
  for (int i = 0; i < kNumTokens; ++i) {
    params[i].temperature = i % 2 == 0 ? 0.0f : 0.9f;
    params[i].seed = 40 + i;
    if (i % 3 != 2) choices[i] = *ChoiceOnDevice(params[i], TokenCounts(), i + 1);
  }
  std::vector<float> host(logits.size());
  m.model->Forward({.tokens = tokens,
                    .positions = rows,
                    .groups = {&group, 1},
                    .logit_rows = rows,
                    .choices = choices},
                   m.runner->pool(), host.data());

  Sampler sampler(vocab_size);
  for (int i = 0; i < kNumTokens; ++i) {
    const auto want = std::span(logits).subspan(size_t(i) * vocab_size, vocab_size);
    if (!choices[i].wanted) {
      const auto got = std::span(host).subspan(size_t(i) * vocab_size, vocab_size);
      EXPECT_TRUE(std::ranges::equal(want, got)) << i;
      continue;
    }
    const TokenCounts none;
    const Choice choice =
        sampler.Choose({.logits = want, .params = params[i], .counts = none}, i + 1);
    EXPECT_EQ(choices[i].choice.token, choice.token) << i;
    EXPECT_EQ(choices[i].choice.margin, choice.margin) << i;
  }
}

}  // namespace
}  // namespace lynx
