// SPDX-License-Identifier: Apache-2.0
// Every architecture and RoPE scaling, from Hugging Face directories and from GGUF, in float32
// arithmetic against transformers' logits, KV and greedy paths.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/model/reference_case.h"
#include "tests/model/sequence_runner.h"
#include "tests/npy.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;

constexpr float kLogitError = 1e-3f;
constexpr int kMaxRows = 64;

// The reference vectors, and the two models of them that this repository carries.
std::vector<std::string> ModelDirectories() {
  std::vector<std::string> directories;
  for (const char* root :
       {LYNX_SOURCE_DIR "/tests/data/tiny_models", LYNX_SHARED_DIR "/reference/tiny_models"}) {
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::directory_iterator(root)) {
      if (entry.is_directory()) directories.push_back(entry.path());
    }
  }
  std::ranges::sort(directories);
  return directories;
}

struct TinyFile {
  std::string path;       // what is loaded
  std::string cases;      // prompts and greedy paths
  std::string logits;     // of every prompt position, or of the last one
  std::string kv_prefix;  // empty: not compared
};

std::vector<TinyFile> TinyFiles() {
  std::vector<TinyFile> files;
  for (const std::string& directory : ModelDirectories()) {
    const std::string expected = directory + "/expected/";
    const TinyFile hf = {directory, expected + "cases.jsonl", expected + "logits.f32.npy",
                         expected + "kv_prompt2_"};
    if (fs::exists(directory + "/config.json")) files.push_back(hf);
    const std::string name = fs::path(directory).filename();
    for (const char* type : {"F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_1"}) {
      const std::string stem = directory + "/gguf/";
      const std::string path = absl::StrCat(stem, name, ".", type, ".gguf");
      if (!fs::exists(path)) continue;
      const std::string cases = absl::StrCat(stem, type, ".cases.jsonl");
      TinyFile gguf = hf;  // F32 and BF16 give the same numbers as the directory
      gguf.path = path;
      if (fs::exists(cases)) {
        gguf = {path, cases, absl::StrCat(stem, type, ".last_logits.f32.npy"), ""};
      }
      files.push_back(gguf);
    }
  }
  return files;
}

class TinyModelsTest : public testing::TestWithParam<TinyFile> {
 protected:
  void SetUp() override {
    backend_ = cpu::CpuBackend::Create({.compute = Compute::kF32, .num_threads = 1});
    auto model = Model::Load(GetParam().path, *backend_, kMaxRows);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    runner_ = std::make_unique<SequenceRunner>(*model_, 64);
  }

  std::unique_ptr<cpu::CpuBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<SequenceRunner> runner_;
};

TEST_P(TinyModelsTest, LogitsAndGreedyPaths) {
  const auto cases = ReadCases(GetParam().cases);
  const Npy expected = ReadNpy(GetParam().logits);
  ASSERT_FALSE(cases.empty());
  const int vocab_size = model_->config().vocab_size;
  size_t row_begin = 0;
  for (const ReferenceCase& c : cases) {
    SCOPED_TRACE(c.name);
    const size_t num_prompt = c.prompt_ids.size();
    const bool all_rows = c.json.contains("logits_row_begin");
    TestSequence sequence = runner_->NewSequence(num_prompt + c.greedy_ids.size());
    const auto logits =
        runner_->Feed(sequence, c.prompt_ids, kMaxRows,
                      all_rows ? SequenceRunner::Rows::kAll : SequenceRunner::Rows::kLast);
    const float* want = expected.values.data() + row_begin * vocab_size;
    float worst = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      worst = std::max(worst, std::abs(logits[i] - want[i]));
    }
    EXPECT_LT(worst, kLogitError);
    row_begin += logits.size() / vocab_size;
    const std::vector<float> last(logits.end() - vocab_size, logits.end());
    ExpectGreedyPath(c, runner_->Greedy({&sequence, 1}, last, c.greedy_ids.size())[0], kLogitError);
  }
  EXPECT_EQ(row_begin * vocab_size, expected.values.size());
}

class TinyModelsKvTest : public TinyModelsTest {};

// K after RoPE and V of the third prompt, in the pool's layout. A sliding-window reference holds
// only the last positions.
TEST_P(TinyModelsKvTest, KvInThePool) {
  const ReferenceCase c = ReadCases(GetParam().cases).at(2);
  TestSequence sequence = runner_->NewSequence(c.prompt_ids.size());
  runner_->Feed(sequence, c.prompt_ids, 5, SequenceRunner::Rows::kLast);
  const KvLayout layout = model_->kv_layout();
  for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    const Npy want =
        ReadNpy(GetParam().kv_prefix + (kind == KvKind::kKey ? "k" : "v") + ".f32.npy");
    const int num_kept = static_cast<int>(want.shape[2]);
    const int first = static_cast<int>(c.prompt_ids.size()) - num_kept;
    ASSERT_EQ(want.shape, (std::vector<int64_t>{layout.num_layers, layout.num_kv_heads, num_kept,
                                                layout.head_dim}));
    size_t i = 0;
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        for (int p = first; p < first + num_kept; ++p) {
          const auto* tile = reinterpret_cast<const float*>(
              runner_->pool().tile(sequence.block_table[p / kBlockSize], layer, kind, head));
          const int slot = p % kBlockSize;
          for (int d = 0; d < layout.head_dim; ++d, ++i) {
            const float got = kind == KvKind::kKey ? tile[d * kBlockSize + slot]
                                                   : tile[slot * layout.head_dim + d];
            ASSERT_NEAR(got, want.values[i], 1e-4f * std::max(1.0f, std::abs(want.values[i])))
                << "layer " << layer << " head " << head << " position " << p << " channel " << d;
          }
        }
      }
    }
  }
}

std::string TestName(const testing::TestParamInfo<TinyFile>& info) {
  const bool own = info.param.path.find(LYNX_SOURCE_DIR "/tests") == 0;
  std::string name = (own ? "own_" : "") + fs::path(info.param.path).filename().string();
  for (char& ch : name) {
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name;
}

std::vector<TinyFile> FilesWithKv() {
  std::vector<TinyFile> files = TinyFiles();
  std::erase_if(files, [](const TinyFile& file) { return file.kv_prefix.empty(); });
  return files;
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelsTest, testing::ValuesIn(TinyFiles()), TestName);
INSTANTIATE_TEST_SUITE_P(All, TinyModelsKvTest, testing::ValuesIn(FilesWithKv()), TestName);

}  // namespace
}  // namespace lynx
