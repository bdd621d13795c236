// SPDX-License-Identifier: Apache-2.0
// `lynx calibrate` and `lynx bench accuracy` as commands, on a tiny model.
#include "bench/accuracy/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "app/anchor_table.h"
#include "app/build_engine.h"
#include "bench/accuracy/accuracy.h"
#include "codec/anchor_widths.h"
#include "tests/model/tiny_model_paths.h"
#include "tests/temp_directory.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

constexpr int kNumLayers = 2;

class CalibrateTest : public ::testing::Test {
 protected:
  CalibrateTest() {
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) text << "Line " << i * 7919 % 1000 << " of the text.\n";
  }
  CalibrateOptions Options() {
    CalibrateOptions options{.threads = 1, .prompt_tokens = 380, .prompts = 1};
    options.config.model = kTinyLlama;
    options.corpus = folder_.path();
    options.output = folder_ / "widths.yaml";
    return options;
  }
  const TempDirectory folder_;
};

TEST_F(CalibrateTest, WritesATableOfTheAverageThatTheBenchReads) {
  const CalibrateOptions options = Options();
  ASSERT_TRUE(RunCalibrate(options).ok());
  std::ostringstream yaml;
  yaml << std::ifstream(options.output).rdbuf();
  const auto widths = ParseAnchorWidths(yaml.str(), options.output, kNumLayers);
  ASSERT_TRUE(widths.ok()) << widths.status();
  int sum = 0;
  for (const int bits : widths->bits) sum += bits;
  EXPECT_EQ(sum, 2.75 * 2 * kNumLayers);
  EXPECT_THAT(yaml.str(), HasSubstr("# lynx calibrate --model llama-gqa-tied.Q4_1.gguf --bits 2.75 "
                                    "--prompt-tokens 380 --prompts 1\n"));

  BenchAccuracyOptions bench{.threads = 1, .codecs = {"planes"}, .prompts = 1};
  bench.config.model = kTinyLlama;
  bench.planes = {options.output, "exact"};
  bench.prompt_tokens = {380};
  bench.corpus = folder_.path();
  testing::internal::CaptureStdout();
  ASSERT_TRUE(RunBenchAccuracy(bench).ok());
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_THAT(lines, HasSubstr("\"planes\":\"exact\",\"prompt_tokens\":380,\"n\":1"));
  EXPECT_THAT(lines, HasSubstr("\"agreement\":1.0"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST_F(CalibrateTest, WithoutAnOutputTheDaemonsFindTheTable) {
  CalibrateOptions options = Options();
  options.output.clear();
  options.config.cache_dir = folder_ / "cache";
  ASSERT_TRUE(RunCalibrate(options).ok());
  const auto backend = MakeBackend(options.config, 1);
  const auto model = Model::Load(kTinyLlama, **backend, /*max_rows=*/64);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto table = FindAnchorTable(options.config, (*model)->hash(), kNumLayers);
  ASSERT_TRUE(table.ok() && *table) << table.status();
  EXPECT_EQ((*table)->bits.size(), 2u * kNumLayers);
}

TEST_F(CalibrateTest, WrongArgumentsAreNamed) {
  CalibrateOptions options = Options();
  options.output = folder_ / "no" / "such" / "folder";
  EXPECT_THAT(std::string(RunCalibrate(options).message()), HasSubstr("--output: cannot write"));
  options.corpus = folder_ / "nothing";
  EXPECT_EQ(RunCalibrate(options).code(), absl::StatusCode::kNotFound);
  BenchAccuracyOptions bench{.threads = 1, .codecs = {"planes"}};
  bench.config.model = kTinyLlama;
  bench.corpus = folder_.path();
  for (const char* widths : {"k5v2", "k4", "none.yaml"}) {
    bench.planes = {widths};
    EXPECT_EQ(RunBenchAccuracy(bench).code(), absl::StatusCode::kInvalidArgument) << widths;
  }
}

}  // namespace
}  // namespace lynx
