// SPDX-License-Identifier: Apache-2.0
// Broken model files must be refused with one line that names the file and the reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "formats/decode_vector.h"
#include "formats/model_files.h"

namespace lynx {
namespace {

// Faults inside the vocabulary: the tokenizer reads those fields, and its own test has these cases.
const std::set<std::string>& TokenizerCases() {
  static const std::set<std::string> kNames = {
      "gguf_merge_unknown_token", "gguf_token_type_short",    "tokenizer_empty",
      "tokenizer_not_utf8",       "tokenizer_no_model",       "tokenizer_merge_malformed",
      "tokenizer_negative_id",    "tokenizer_vocab_is_array", "tokenizer_pre_tokenizer_unknown",
  };
  return kNames;
}

std::string Root() { return std::string(LYNX_SHARED_DIR) + "/reference/malformed"; }

// What a load does before it packs a weight.
absl::Status Load(const std::string& path) {
  auto files = ModelFiles::Open(path);
  if (!files.ok()) return files.status();
  for (const TensorInfo& tensor : (*files)->tensors()) {
    if (absl::Status finite = CheckFinite(tensor); !finite.ok()) return finite;
  }
  return absl::OkStatus();
}

std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

void ExpectMentions(const nlohmann::json& expected, const std::string& message) {
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  const std::string lower = Lower(message);
  EXPECT_NE(lower.find(Lower(expected["file"])), std::string::npos) << message;
  for (const auto& alternatives : expected["mentions"]) {
    const bool found = std::ranges::any_of(alternatives, [&](const auto& word) {
      return lower.find(Lower(word.template get<std::string>())) != std::string::npos;
    });
    EXPECT_TRUE(found) << alternatives << " in: " << message;
  }
}

TEST(MalformedTest, EveryReferenceCaseIsRefused) {
  std::ifstream cases(Root() + "/cases.jsonl");
  if (!cases) GTEST_SKIP() << "no reference vectors at " << Root();
  int num_refused = 0;
  for (std::string line; std::getline(cases, line);) {
    const auto expected = nlohmann::json::parse(line);
    const std::string name = expected["name"];
    SCOPED_TRACE(name);
    const absl::Status status = Load(Root() + "/" + expected["path"].get<std::string>());
    if (TokenizerCases().count(name) != 0) continue;
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    ExpectMentions(expected, std::string(status.message()));
    ++num_refused;
  }
  EXPECT_EQ(num_refused, 63);
}

TEST(MalformedTest, TheValidModelsLoad) {
  if (!std::filesystem::exists(Root())) GTEST_SKIP() << "no reference vectors at " << Root();
  EXPECT_EQ(Load(Root() + "/valid/hf"), absl::OkStatus());
  EXPECT_EQ(Load(Root() + "/valid/model.gguf"), absl::OkStatus());
}

}  // namespace
}  // namespace lynx
