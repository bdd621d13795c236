// SPDX-License-Identifier: Apache-2.0
// Loading: progress, the hash that daemons compare, the KV layout, refusal of broken weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/tiny_model_paths.h"
#include "tests/temp_directory.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;

class LoadTest : public testing::Test {
 protected:
  LoadTest() : backend_(cpu::CpuBackend::Create({})) {}

  std::unique_ptr<Model> Load(const std::string& path) {
    auto model = Model::Load(path, *backend_, 16);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }
  // A copy of a model directory whose weights have one 16-bit number overwritten.
  std::string CopyWith(const std::string& directory, int64_t bytes_from_end, uint16_t number) {
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
      fs::copy_file(directory + "/" + name, copy_ / name, fs::copy_options::overwrite_existing);
    }
    std::fstream file(copy_ / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-bytes_from_end, std::ios::end);
    file.write(reinterpret_cast<const char*>(&number), sizeof(number));
    return copy_.path();
  }

  std::unique_ptr<cpu::CpuBackend> backend_;
  TempDirectory copy_;
};

TEST_F(LoadTest, ProgressGrowsToTheTotal) {
  for (const std::string& path : {kTinyQwen3, kTinyLlama}) {
    std::vector<LoadProgress> reports;
    auto model = Model::Load(path, *backend_, 16,
                             [&](const LoadProgress& progress) { reports.push_back(progress); });
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_GT(reports.size(), 10u);
    int64_t previous = 0;
    for (const LoadProgress& report : reports) {
      EXPECT_GE(report.bytes_done, previous);
      EXPECT_EQ(report.bytes_total, reports.front().bytes_total);
      previous = report.bytes_done;
    }
    EXPECT_EQ(previous, reports.front().bytes_total);
  }
}

TEST_F(LoadTest, TheHashFollowsTheWeightsAndNotThePath) {
  const uint64_t original = Load(kTinyQwen3)->hash();
  EXPECT_EQ(Load(kTinyQwen3)->hash(), original);
  EXPECT_NE(Load(kTinyLlama)->hash(), original);
  uint16_t last = 0;
  std::ifstream file(kTinyQwen3 + "/model.safetensors", std::ios::binary);
  file.seekg(-2, std::ios::end);
  file.read(reinterpret_cast<char*>(&last), sizeof(last));
  EXPECT_EQ(Load(CopyWith(kTinyQwen3, 2, last))->hash(), original);
  EXPECT_NE(Load(CopyWith(kTinyQwen3, 2, last ^ 1))->hash(), original);
}

TEST_F(LoadTest, ANanIsRefusedByName) {
  const auto model = Model::Load(CopyWith(kTinyQwen3, 2, 0x7fc0), *backend_, 16);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(model.status().message()),
              testing::AllOf(testing::HasSubstr("model.safetensors: tensor model."),
                             testing::HasSubstr("NaN")));
}

TEST_F(LoadTest, KvFollowsTheCompute) {
  const auto fast = Load(kTinyQwen3);
  EXPECT_EQ(fast->kv_layout(), (KvLayout{2, 2, 32, KvDtype::kBf16}));
  // Every matrix once, the tied head included, in two bytes an element.
  EXPECT_EQ(fast->weight_bytes(), 2u * (512 * 64 + 2 * (64 * (128 + 64 + 64 + 128 + 3 * 160))));
  const auto f32 = cpu::CpuBackend::Create({.compute = Compute::kF32});
  auto model = Model::Load(kTinyQwen3, *f32, 16);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->kv_layout().dtype, KvDtype::kF32);
}

TEST_F(LoadTest, AfterLayerSeesEveryLayerInOrder) {
  const auto model = Load(kTinyQwen3);
  SequenceRunner runner(*model, 1);
  TestSequence sequence = runner.NewSequence(3);
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<int32_t> positions = {0, 1, 2};
  const RowGroup group = {.num_rows = 3, .block_table = sequence.block_table.data()};
  std::vector<int> layers;
  model->Forward({.tokens = tokens, .positions = positions, .groups = {&group, 1}}, runner.pool(),
                 nullptr, [&](int layer) {
                   layers.push_back(layer);
                   // K of the last row is there: its tile holds something in slot 2.
                   const auto* tile = reinterpret_cast<const Bf16*>(
                       runner.pool().tile(sequence.block_table[0], layer, KvKind::kKey, 0));
                   EXPECT_NE(ToFloat(tile[2]), 0.0f);
                 });
  EXPECT_THAT(layers, testing::ElementsAre(0, 1));
}

// The smallest shapes: head_dim 8, one layer.
TEST_F(LoadTest, ATinyHeadRuns) {
  const std::string path = LYNX_SHARED_DIR "/reference/malformed/valid/";
  if (!fs::exists(path)) GTEST_SKIP() << "no reference vectors at " << path;
  for (Compute compute : {Compute::kFast, Compute::kF32}) {
    const auto backend = cpu::CpuBackend::Create({.compute = compute});
    for (const char* name : {"hf", "model.gguf"}) {
      auto model = Model::Load(path + name, *backend, 128);
      ASSERT_TRUE(model.ok()) << model.status();
      SequenceRunner runner(**model, 2);
      TestSequence sequence = runner.NewSequence(100);
      const std::vector<TokenId> tokens(100, 5);
      for (float logit : runner.Feed(sequence, tokens, 128, SequenceRunner::Rows::kLast)) {
        ASSERT_TRUE(std::isfinite(logit));
      }
    }
  }
}

}  // namespace
}  // namespace lynx
