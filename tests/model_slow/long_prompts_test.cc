// SPDX-License-Identifier: Apache-2.0
// Prompts of 4000 and 8000 tokens on SmolLM2 in float32 arithmetic against transformers.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/model/reference_case.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/smollm.h"

namespace lynx {
namespace {

constexpr float kLogitError = 2e-3f;
constexpr int kChunk = 512;
constexpr size_t kMinPrompt = 4000;  // shorter ones: tests/model

class LongPromptsTest : public testing::TestWithParam<const char*> {};

TEST_P(LongPromptsTest, LogitsAndGreedyPaths) {
  const std::string weights = GetParam();
  if (!std::filesystem::exists(SmolLmPath()) || !std::filesystem::exists(SmolLmVectors())) {
    GTEST_SKIP() << "needs " << SmolLmPath() << " and " << SmolLmVectors();
  }
  std::unique_ptr<Bf16Checkpoint> checkpoint;
  std::string path = SmolLmPath();
  if (weights == "bf16") {
    checkpoint = std::make_unique<Bf16Checkpoint>(path);
    path = checkpoint->path();
  }
  const auto backend = cpu::CpuBackend::Create({.compute = Compute::kF32, .num_threads = 2});
  auto model = Model::Load(path, *backend, kChunk);
  ASSERT_TRUE(model.ok()) << model.status();
  SequenceRunner runner(**model, 128);
  int num_cases = 0;
  for (const ReferenceCase& c : ReadCases(SmolLmVectors() + "/" + weights + ".jsonl")) {
    if (c.prompt_ids.size() < kMinPrompt) continue;
    SCOPED_TRACE(c.name);
    runner.FreeAll();
    TestSequence sequence = runner.NewSequence(c.prompt_ids.size() + c.greedy_ids.size());
    const auto logits = runner.Feed(sequence, c.prompt_ids, kChunk, SequenceRunner::Rows::kLast);
    ExpectLastRow(c, logits, kLogitError);
    ExpectGreedyPath(c, runner.Greedy({&sequence, 1}, logits, 64)[0], kLogitError);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 2);
}

INSTANTIATE_TEST_SUITE_P(Weights, LongPromptsTest, testing::Values("q4_1", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lynx
