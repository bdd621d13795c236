// SPDX-License-Identifier: Apache-2.0
// The SentencePiece kind of GGUF metadata, made from tiny-spm's tokenizer.json the way converters
// make it: the earlier a token was merged, the higher its score.
#include <algorithm>
#include <map>

#include "gmock/gmock.h"
#include "tests/text/tokenizer_vectors.h"
#include "text/byte_level.h"
#include "text/tokenizer_readers.h"
#include "text/utf8.h"

namespace lynx {
namespace {

std::string DataDir() { return LYNX_SOURCE_DIR "/tests/data/text/tiny-spm"; }

// Metadata in memory.
class FakeGguf final : public GgufFile {
 public:
  void Set(const std::string& key, GgufValue value) { values_[key] = std::move(value); }
  void Erase(const std::string& key) { values_.erase(key); }

  const std::string& path() const override { return path_; }
  const GgufValue* Find(std::string_view key) const override {
    const auto found = values_.find(std::string(key));
    return found == values_.end() ? nullptr : &found->second;
  }
  absl::StatusOr<std::string> String(std::string_view key) const override {
    LYNX_ASSIGN_OR_RETURN(const auto* value, Get<std::string>(key));
    return *value;
  }
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t, int64_t) const override {
    LYNX_ASSIGN_OR_RETURN(const auto* value, Get<int64_t>(key));
    return *value;
  }
  absl::StatusOr<double> Float(std::string_view key) const override {
    LYNX_ASSIGN_OR_RETURN(const auto* value, Get<double>(key));
    return *value;
  }
  absl::StatusOr<const std::vector<std::string>*> Strings(std::string_view key) const override {
    return Get<std::vector<std::string>>(key);
  }
  absl::StatusOr<const std::vector<int64_t>*> Ints(std::string_view key) const override {
    return Get<std::vector<int64_t>>(key);
  }
  const std::vector<GgufTensor>& tensors() const override { return tensors_; }

 private:
  template <typename T>
  absl::StatusOr<const T*> Get(std::string_view key) const {
    const GgufValue* value = Find(key);
    if (value != nullptr) {
      if (const T* typed = std::get_if<T>(&value->value)) return typed;
    }
    return absl::InvalidArgumentError(path_ + ": " + std::string(key) + ": missing or wrong");
  }

  std::string path_ = "fake.gguf";
  std::map<std::string, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
};

class SentencePieceGguf : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(DataDir() + "/tokenizer.json");
    const json model = json::parse(in)["model"];
    std::vector<std::string> tokens(model["vocab"].size());
    for (const auto& [text, id] : model["vocab"].items()) tokens[id.get<size_t>()] = text;
    std::vector<double> scores(tokens.size(), -1e6);
    double score = 0;
    for (const json& merge : model["merges"]) {
      const auto text = merge[0].get<std::string>() + merge[1].get<std::string>();
      double& known = scores[model["vocab"][text].get<size_t>()];
      if (known == -1e6) known = score--;
    }
    std::vector<int64_t> types(tokens.size(), 1);
    types[0] = 2;
    types[1] = types[2] = 3;
    for (size_t i = 3; i < 259; ++i) types[i] = 6;
    file_.Set("tokenizer.ggml.model", {std::string("llama")});
    file_.Set("tokenizer.ggml.tokens", {tokens});
    file_.Set("tokenizer.ggml.scores", {scores});
    file_.Set("tokenizer.ggml.token_type", {types});
    file_.Set("tokenizer.ggml.bos_token_id", {int64_t{1}});
    file_.Set("tokenizer.ggml.eos_token_id", {int64_t{2}});
  }

  void ExpectRefused(const char* key) {
    const auto tokenizer = ReadGgufTokenizer(file_);
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()), testing::HasSubstr(key));
  }

  FakeGguf file_;
};

TEST_F(SentencePieceGguf, EqualsTheVectors) {
  const auto tokenizer = ReadGgufTokenizer(file_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  CheckVectors(**tokenizer, DataDir());
  const std::string reference = LYNX_SHARED_DIR "/reference/tokenizer/tiny-spm";
  if (std::filesystem::exists(reference)) CheckVectors(**tokenizer, reference);
}

TEST_F(SentencePieceGguf, BosCanBeSwitchedOff) {
  file_.Set("tokenizer.ggml.add_bos_token", {false});
  file_.Set("tokenizer.ggml.add_eos_token", {true});
  const auto tokenizer = ReadGgufTokenizer(file_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("", {}), std::vector<TokenId>{2});
}

TEST_F(SentencePieceGguf, IncompleteMetadataIsRefused) {
  file_.Set("tokenizer.ggml.scores", {std::vector<double>(3)});
  ExpectRefused("tokenizer.ggml.scores");
  file_.Erase("tokenizer.ggml.scores");
  ExpectRefused("tokenizer.ggml.scores");
  file_.Set("tokenizer.ggml.token_type", {std::vector<int64_t>(3)});
  ExpectRefused("tokenizer.ggml.token_type");
  file_.Set("tokenizer.ggml.model", {std::string("bert")});
  ExpectRefused("bert");
}

TEST_F(SentencePieceGguf, UnknownPreTokenizerIsRefused) {
  file_.Set("tokenizer.ggml.model", {std::string("gpt2")});
  file_.Set("tokenizer.ggml.pre", {std::string("frob")});
  ExpectRefused("frob");
}

// A byte-level vocabulary: every byte is its own id, then the merges, then a token without one.
class ByteLevelGguf : public testing::Test {
 protected:
  static std::string Spelled(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &text);
    return text;
  }
  ByteLevelGguf() {
    const std::pair<std::string_view, std::string_view> merged[] = {
        {"a", "B"}, {"B", "a"}, {"1", "2"}, {"\n", "/"}, {"e", "\xcc"}, {" ", "B"}, {" ", "Ba"}};
    std::vector<std::string> tokens, merges;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(Spelled(std::string(1, static_cast<char>(byte))));
    }
    for (const auto& [left, right] : merged) {
      tokens.push_back(Spelled(left) + Spelled(right));
      merges.push_back(Spelled(left) + " " + Spelled(right));
    }
    tokens.push_back("zz");
    file_.Set("tokenizer.ggml.model", {std::string("gpt2")});
    file_.Set("tokenizer.ggml.tokens", {tokens});
    file_.Set("tokenizer.ggml.merges", {merges});
    file_.Set("tokenizer.ggml.bos_token_id", {int64_t{1}});
  }
  std::vector<TokenId> Encode(const char* pre, std::string_view text,
                              const EncodeOptions& options = {.add_special_tokens = false}) {
    file_.Set("tokenizer.ggml.pre", {std::string(pre)});
    const auto tokenizer = ReadGgufTokenizer(file_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text, options) : std::vector<TokenId>();
  }

  FakeGguf file_;
};

// The ids are those of Hugging Face's tokenizers with the split of Mistral's tekken.json.
TEST_F(ByteLevelGguf, TekkenSplitsAtCapitalsAndDigits) {
  const std::pair<const char*, std::vector<TokenId>> cases[] = {
      {"aBa", {97, 257}},
      {"xBa Ba", {120, 257, 262}},
      {"12", {49, 50}},
      {"!\n/", {33, 259}},
      {"e\u0301", {260, 129}},
      {"  B", {32, 261}},
      {"zz zzz", {263, 32, 122, 122, 122}}};
  for (const auto& [text, want] : cases) EXPECT_EQ(Encode("tekken", text), want) << text;
  EXPECT_EQ(Encode("tekken", "12", {}), (std::vector<TokenId>{1, 49, 50})) << "BOS before it";
  EXPECT_EQ(Encode("llama-bpe", "aBa12"), (std::vector<TokenId>{256, 97, 258}));
}

}  // namespace
}  // namespace lynx
