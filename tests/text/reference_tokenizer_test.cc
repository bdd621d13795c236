// SPDX-License-Identifier: Apache-2.0
// Tokenizers against the reference vectors (transformers and tokenizers, exact).
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/tokenizer_vectors.h"
#include "text/tokenizer.h"

namespace lynx {
namespace {

std::string ReferenceDir() { return LYNX_SHARED_DIR "/reference/tokenizer/"; }

class ReferenceTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = ReferenceDir() + GetParam();
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "no reference vectors at " << folder_;
  }
  std::string folder_;
};

TEST_P(ReferenceTokenizer, EqualsEveryVector) {
  const auto tokenizer = LoadOrDie(folder_);
  ASSERT_NE(tokenizer, nullptr);
  CheckVectors(*tokenizer, folder_);
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceTokenizer,
                         testing::Values("smollm2", "tiny-gpt2", "tiny-llama3", "tiny-qwen2",
                                         "tiny-smollm", "tiny-llama3-512", "tiny-qwen2-512",
                                         "tiny-spm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ReferenceGgufTokenizer, SmolLm2EqualsEveryVector) {
  const char* model = std::getenv("LYNX_TEST_MODEL");
  const std::string path =
      model != nullptr ? model : LYNX_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  const std::string folder = ReferenceDir() + "smollm2";
  if (!std::filesystem::exists(path) || !std::filesystem::exists(folder)) {
    GTEST_SKIP() << "needs " << path << " and " << folder;
  }
  const auto tokenizer = LoadOrDie(path);
  ASSERT_NE(tokenizer, nullptr);
  CheckVectors(*tokenizer, folder);
  EXPECT_EQ(tokenizer->bos_token(), "<|im_start|>");
  EXPECT_EQ(tokenizer->eos_token(), "<|im_end|>");
}

struct GgufCase {
  const char* model;
  const char* tokenizer;
};

class ReferenceTinyGguf : public testing::TestWithParam<GgufCase> {};

TEST_P(ReferenceTinyGguf, EqualsEveryVector) {
  const std::string name = GetParam().model;
  const std::string path =
      LYNX_SHARED_DIR "/reference/tiny_models/" + name + "/gguf/" + name + ".Q4_0.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no model at " << path;
  const auto tokenizer = LoadOrDie(path);
  ASSERT_NE(tokenizer, nullptr);
  CheckVectors(*tokenizer, ReferenceDir() + GetParam().tokenizer);
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceTinyGguf,
                         testing::Values(GgufCase{"llama-gqa-tied", "tiny-llama3-512"},
                                         GgufCase{"qwen3-qknorm", "tiny-qwen2-512"}),
                         [](const auto& info) { return info.index == 0 ? "llama" : "qwen"; });

TEST(MalformedTokenizer, IsRefusedWithFileAndField) {
  const std::string root = LYNX_SHARED_DIR "/reference/malformed/";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "no malformed files at " << root;
  int num_cases = 0;
  for (const json& row : ReadLines(root + "cases.jsonl")) {
    const auto name = row["name"].get<std::string>();
    const bool gguf_tokenizer =
        name == "gguf_missing_tokenizer_ggml_tokens" || name == "gguf_merge_unknown_token" ||
        name == "gguf_token_type_short" || name == "gguf_array_bytes_overflow";
    if (row["kind"] != "tokenizer" && !gguf_tokenizer) continue;
    ++num_cases;
    SCOPED_TRACE(name);
    const auto tokenizer = Tokenizer::Load(root + row["path"].get<std::string>());
    ASSERT_FALSE(tokenizer.ok());
    const std::string message(tokenizer.status().message());
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(message, testing::HasSubstr(row["file"].get<std::string>()));
    EXPECT_THAT(message, testing::Not(testing::HasSubstr("\n")));
    std::string lower = message;
    std::transform(lower.begin(), lower.end(), lower.begin(), ::tolower);
    for (const json& any : row["mentions"]) {
      EXPECT_TRUE(std::any_of(any.begin(), any.end(),
                              [&](const json& word) {
                                std::string wanted = word.get<std::string>();
                                std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                                               ::tolower);
                                return lower.find(wanted) != lower.npos;
                              }))
          << message << " mentions none of " << any.dump();
    }
  }
  EXPECT_EQ(num_cases, 11);
}

}  // namespace
}  // namespace lynx
