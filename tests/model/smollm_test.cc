// SPDX-License-Identifier: Apache-2.0
// SmolLM2-135M-Instruct in both sets of weights against transformers: float32 arithmetic to within
// its rounding, the fast arithmetic teacher-forced over the same greedy paths.
#include "tests/model/smollm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/model/reference_case.h"
#include "tests/model/sequence_runner.h"
#include "tests/npy.h"

namespace lynx {
namespace {

constexpr float kLogitError = 2e-3f;
constexpr int kChunk = 256;
constexpr size_t kMaxPrompt = 600;  // longer ones: tests/model_slow

struct WeightSet {
  std::string name;          // of the vectors
  double min_agreement = 0;  // of the fast arithmetic's argmax
};

class SmolLmTest : public testing::TestWithParam<WeightSet> {
 protected:
  static void SetUpTestSuite() {
    if (Available()) checkpoint_ = std::make_unique<Bf16Checkpoint>(SmolLmPath());
  }
  static void TearDownTestSuite() { checkpoint_.reset(); }
  static bool Available() {
    return std::filesystem::exists(SmolLmPath()) && std::filesystem::exists(SmolLmVectors());
  }

  void SetUp() override {
    if (!Available()) {
      GTEST_SKIP() << "needs " << SmolLmPath() << " and " << SmolLmVectors();
    }
    for (ReferenceCase& c : ReadCases(SmolLmVectors() + "/" + GetParam().name + ".jsonl")) {
      if (c.prompt_ids.size() <= kMaxPrompt) cases_.push_back(std::move(c));
    }
    ASSERT_EQ(cases_.size(), 12u);
  }

  void LoadModel(Compute compute) {
    backend_ = cpu::CpuBackend::Create({.compute = compute, .num_threads = 2});
    const std::string path = GetParam().name == "bf16" ? checkpoint_->path() : SmolLmPath();
    auto model = Model::Load(path, *backend_, kChunk);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    runner_ = std::make_unique<SequenceRunner>(*model_, 64);
  }

  TestSequence NewSequence(const ReferenceCase& c) {
    return runner_->NewSequence(c.prompt_ids.size() + c.greedy_ids.size());
  }

  static std::unique_ptr<Bf16Checkpoint> checkpoint_;
  std::vector<ReferenceCase> cases_;
  std::unique_ptr<cpu::CpuBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<SequenceRunner> runner_;
};
std::unique_ptr<Bf16Checkpoint> SmolLmTest::checkpoint_;

TEST_P(SmolLmTest, Float32LogitsAndGreedyPaths) {
  ASSERT_NO_FATAL_FAILURE(LoadModel(Compute::kF32));
  std::vector<TestSequence> sequences;
  std::vector<float> last_rows;
  for (const ReferenceCase& c : cases_) {
    SCOPED_TRACE(c.name);
    sequences.push_back(NewSequence(c));
    const auto logits =
        runner_->Feed(sequences.back(), c.prompt_ids, kChunk, SequenceRunner::Rows::kLast);
    ExpectLastRow(c, logits, kLogitError);
    last_rows.insert(last_rows.end(), logits.begin(), logits.end());
  }
  const auto ids = runner_->Greedy(sequences, last_rows, 64);
  for (size_t i = 0; i < cases_.size(); ++i) ExpectGreedyPath(cases_[i], ids[i], kLogitError);
}

TEST_P(SmolLmTest, Float32LogitsOfTheLastFourRows) {
  ASSERT_NO_FATAL_FAILURE(LoadModel(Compute::kF32));
  for (const ReferenceCase& c : cases_) {
    const std::string path =
        SmolLmVectors() + "/" + GetParam().name + "/" + c.name + ".last4_logits.f32.npy";
    if (!std::filesystem::exists(path)) continue;
    SCOPED_TRACE(c.name);
    const Npy want = ReadNpy(path);
    TestSequence sequence = NewSequence(c);
    const auto logits = runner_->Feed(sequence, c.prompt_ids, kChunk, SequenceRunner::Rows::kAll);
    const float* got = logits.data() + logits.size() - want.values.size();
    float worst = 0;
    for (size_t i = 0; i < want.values.size(); ++i) {
      worst = std::max(worst, std::abs(got[i] - want.values[i]));
    }
    EXPECT_LT(worst, kLogitError);
  }
}

TEST_P(SmolLmTest, FastArithmeticTeacherForced) {
  ASSERT_NO_FATAL_FAILURE(LoadModel(Compute::kFast));
  int num_steps = 0, num_equal = 0;
  for (const ReferenceCase& c : cases_) {
    SCOPED_TRACE(c.name);
    TestSequence sequence = NewSequence(c);
    auto logits = runner_->Feed(sequence, c.prompt_ids, kChunk, SequenceRunner::Rows::kLast);
    const auto rest = runner_->Feed(sequence, std::span(c.greedy_ids).first(63), kChunk,
                                    SequenceRunner::Rows::kAll);
    logits.insert(logits.end(), rest.begin(), rest.end());
    for (size_t step = 0; step < c.greedy_ids.size(); ++step, ++num_steps) {
      if (runner_->ArgMax(logits, step) == c.greedy_ids[step]) {
        ++num_equal;
      } else {
        EXPECT_LT(c.greedy_margin[step], 1.0f) << "step " << step;
      }
    }
  }
  EXPECT_GE(num_equal, GetParam().min_agreement * num_steps) << num_equal << " of " << num_steps;
  RecordProperty("equal", num_equal);
  RecordProperty("steps", num_steps);
}

// The checkpoint is what the vectors were computed from, byte for byte.
TEST_P(SmolLmTest, Bf16CheckpointIsTheReferences) {
  std::ifstream file(SmolLmVectors() + "/bf16_tensor_sha256.json");
  const auto expected = nlohmann::json::parse(file);
  ASSERT_EQ(expected.size(), checkpoint_->sha256().size());
  for (const auto& [name, tensor] : expected.items()) {
    EXPECT_EQ(checkpoint_->sha256().at(name), tensor["sha256"].get<std::string>()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, SmolLmTest,
                         testing::Values(WeightSet{"q4_1", 0.95}, WeightSet{"bf16", 0.98}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lynx
