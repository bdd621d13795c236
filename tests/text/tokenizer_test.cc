// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "tests/text/tokenizer_vectors.h"
#include "text/utf8.h"

namespace lynx {
namespace {

using testing::HasSubstr;

std::string DataDir() { return LYNX_SOURCE_DIR "/tests/data/text/"; }

TEST(Tokenizer, EqualsTheVectorsInThisTree) {
  for (const char* name : {"tiny-llama3-512", "tiny-spm"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = LoadOrDie(DataDir() + name);
    ASSERT_NE(tokenizer, nullptr);
    CheckVectors(*tokenizer, DataDir() + name);
  }
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const auto llama = LoadOrDie(DataDir() + "tiny-llama3-512");
  EXPECT_EQ(llama->bos_token(), "<|begin_of_text|>");
  EXPECT_EQ(llama->eos_token(), "<|eot_id|>");
  EXPECT_TRUE(llama->IsSpecial(llama->bos_id()));
  const auto spm = LoadOrDie(DataDir() + "tiny-spm/tokenizer.json");
  EXPECT_EQ(spm->bos_id(), 1);
  EXPECT_EQ(spm->eos_id(), 2);
}

TEST(Tokenizer, GivesTheBytesOfATokenInsideAText) {
  const auto spm = LoadOrDie(DataDir() + "tiny-spm");
  EXPECT_EQ(spm->TokenBytes(13), "\x0a");
  EXPECT_EQ(spm->TokenText(13), "<0x0A>");
  EXPECT_EQ(spm->TokenBytes(372), " ");
  EXPECT_EQ(spm->TokenBytes(1), "<s>");
  for (TokenId id : {-1, 900, 1 << 30}) {
    EXPECT_EQ(spm->TokenBytes(id), "");
    EXPECT_FALSE(spm->IsSpecial(id));
    EXPECT_EQ(spm->Decode(std::vector<TokenId>{id}, false), "");
  }
}

TEST(Tokenizer, ProtectedCharactersAreNoSpecialTokens) {
  const auto tokenizer = LoadOrDie(DataDir() + "tiny-llama3-512");
  const std::string text = "<|eot_id|><|eot_id|>";
  const ByteRange second[] = {{10, 11}};
  const auto ids =
      tokenizer->Encode(text, {.add_special_tokens = false, .protected_ranges = second});
  ASSERT_FALSE(ids.empty());
  EXPECT_EQ(ids[0], tokenizer->eos_id());
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->eos_id()), 1);
  EXPECT_EQ(tokenizer->Decode(ids, false), text);
}

// Every other one of many: a minute, if each were compared with all.
TEST(Tokenizer, ManyProtectedCharactersTakeLinearTime) {
  const auto tokenizer = LoadOrDie(DataDir() + "tiny-llama3-512");
  constexpr size_t kNumTokens = 400'000;
  std::string text;
  std::vector<ByteRange> ranges;
  for (size_t i = 0; i < kNumTokens; ++i) {
    if (i % 2 == 1) ranges.push_back({text.size(), text.size() + 1});
    text += "<|eot_id|>";
  }
  const auto ids =
      tokenizer->Encode(text, {.add_special_tokens = false, .protected_ranges = ranges});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->eos_id()), ptrdiff_t{kNumTokens / 2});
}

// Bytes that favour what is special: markers, UTF-8 beginnings, white space.
std::string RandomText(std::mt19937* random) {
  std::string text;
  const int num_parts = static_cast<int>((*random)() % 24);
  for (int i = 0; i < num_parts; ++i) {
    switch ((*random)() % 5) {
      case 0:
        text.push_back(static_cast<char>((*random)()));
        break;
      case 1:
        text += "<|eot_id|>";
        break;
      case 2:
        AppendUtf8((*random)() % 0x11000, &text);
        break;
      case 3:
        text.append((*random)() % 70, " a\n<0"[(*random)() % 5]);
        break;
      default:
        text += "Hello";
    }
  }
  return text;
}

TEST(Tokenizer, EncodesAnyBytesAndGivesThemBack) {
  std::mt19937 random(5);
  for (const char* name : {"tiny-llama3-512", "tiny-spm"}) {
    const auto tokenizer = LoadOrDie(DataDir() + name);
    for (int i = 0; i < 1500; ++i) {
      const std::string text = RandomText(&random);
      const auto ids = tokenizer->Encode(
          text, {.add_special_tokens = false, .parse_special_tokens = i % 2 == 0});
      EXPECT_EQ(tokenizer->Decode(ids, false), ToValidUtf8(text));
    }
  }
}

TEST(Detokenizer, PiecesEqualDecodeForAnyIds) {
  std::mt19937 random(6);
  for (const char* name : {"tiny-llama3-512", "tiny-spm"}) {
    const auto tokenizer = LoadOrDie(DataDir() + name);
    for (int i = 0; i < 1500; ++i) {
      std::vector<TokenId> ids(random() % 40);
      // Half of the time single bytes only.
      const int limit = i % 2 == 0 ? 259 : tokenizer->vocab_size() + 2;
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % limit) - 1;
      const bool skip_special = i % 3 == 0;
      const auto detokenizer = Detokenizer::Create(*tokenizer, skip_special);
      std::string joined;
      for (TokenId id : ids) {
        const std::string piece = detokenizer->Push(id);
        EXPECT_TRUE(IsValidUtf8(piece));
        joined += piece;
      }
      joined += detokenizer->Flush();
      EXPECT_EQ(joined, tokenizer->Decode(ids, skip_special));
    }
  }
}

TEST(Tokenizer, LongPiecesDoNotTakeQuadraticTime) {
  for (const char* name : {"tiny-llama3-512", "tiny-spm"}) {
    const auto tokenizer = LoadOrDie(DataDir() + name);
    for (const std::string& text :
         {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '<')}) {
      const auto start = std::chrono::steady_clock::now();
      const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
      EXPECT_EQ(tokenizer->Decode(ids, false).size(), text.size());
    }
  }
}

// A copy of tiny-spm's tokenizer.json with one thing changed.
class ChangedTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(DataDir() + "tiny-spm/tokenizer.json");
    document_ = json::parse(in);
    path_ = testing::TempDir() + "/changed_tokenizer.json";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() {
    std::ofstream(path_) << document_.dump();
    return Tokenizer::Load(path_);
  }
  void ExpectRefused(const char* place, const char* reason) {
    const auto tokenizer = Load();
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(tokenizer.status().message());
    EXPECT_THAT(message, HasSubstr(path_));
    EXPECT_THAT(message, HasSubstr(place));
    EXPECT_THAT(message, HasSubstr(reason));
  }

  json document_;
  std::string path_;
};

TEST_F(ChangedTokenizer, UnknownTypesAreRefused) {
  const json valid = document_;
  for (const char* field : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    document_ = valid;
    document_[field] = {{"type", "Frob"}};
    ExpectRefused(field, "Frob");
  }
  document_ = valid;
  document_["model"]["type"] = "WordPiece";
  ExpectRefused("model", "WordPiece");
}

TEST_F(ChangedTokenizer, UnknownMembersAreRefused) {
  document_["model"]["frob"] = 1;
  ExpectRefused("model", "frob");
}

TEST_F(ChangedTokenizer, WhatChangesTheResultIsRefused) {
  const json valid = document_;
  document_["model"]["dropout"] = 0.1;
  ExpectRefused("model.dropout", "not supported");
  document_ = valid;
  document_["model"]["end_of_word_suffix"] = "</w>";
  ExpectRefused("model.end_of_word_suffix", "not supported");
  document_ = valid;
  document_["decoder"]["decoders"][3]["stop"] = 1;
  ExpectRefused("decoder.decoders[3].stop", "0..0");
}

TEST_F(ChangedTokenizer, IdsThatClashOrLeaveHugeHolesAreRefused) {
  const json valid = document_;
  document_["model"]["vocab"]["zzz"] = 5;
  ExpectRefused("model.vocab", "two tokens");
  document_ = valid;
  document_["model"]["vocab"]["zzz"] = 4000000000u;
  ExpectRefused("model.vocab.zzz", "4000000000");
  document_ = valid;
  document_["added_tokens"][1]["id"] = 7;
  ExpectRefused("added_tokens[1]", "elsewhere 1");
}

TEST_F(ChangedTokenizer, BadRegexIsRefused) {
  document_["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  ExpectRefused("pre_tokenizer.pattern.Regex", "regex");
}

TEST_F(ChangedTokenizer, FlagsOfAddedTokensAreHonoured) {
  document_["added_tokens"].push_back({{"id", 900},
                                       {"content", "<w>"},
                                       {"single_word", true},
                                       {"lstrip", true},
                                       {"rstrip", true},
                                       {"normalized", false},
                                       {"special", false}});
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  const EncodeOptions plain = {.add_special_tokens = false};
  const auto has_token = [&](const char* text) {
    const auto ids = tokenizer.Encode(text, plain);
    return std::count(ids.begin(), ids.end(), 900) == 1;
  };
  EXPECT_TRUE(has_token("a <w> b"));
  EXPECT_FALSE(has_token("a<w> b"));
  EXPECT_FALSE(has_token("a <w>\u00e9"));
  EXPECT_EQ(tokenizer.Encode(" \u00a0<w>\n ", plain), std::vector<TokenId>{900});
}

// As newer SentencePiece conversions spell spaces. The ids are those of Hugging Face's tokenizers.
TEST_F(ChangedTokenizer, MetaspacePrepends) {
  const std::pair<const char*, std::vector<std::vector<TokenId>>> schemes[] = {
      {"first", {{372, 301, 329, 525}, {1, 301, 329, 525, 2, 394, 567}, {383, 1, 422}}},
      {"always", {{372, 301, 329, 525}, {1, 372, 301, 329, 525, 2, 394, 567}, {383, 1, 422}}},
      {"never", {{301, 329, 525}, {1, 301, 329, 525, 2, 394, 567}, {325, 1, 422}}}};
  const char* const texts[] = {"Hello", "<s>Hello</s> the end", "a<s> b"};
  const EncodeOptions plain = {.add_special_tokens = false};
  document_["normalizer"] = nullptr;
  for (const auto& [scheme, want] : schemes) {
    for (const bool split : {false, true}) {
      document_["pre_tokenizer"] = {{"type", "Metaspace"},
                                    {"replacement", "\u2581"},
                                    {"prepend_scheme", scheme},
                                    {"split", split}};
      const auto tokenizer = Load();
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      SCOPED_TRACE(scheme);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ((*tokenizer)->Encode(texts[i], plain), want[i]) << texts[i];
      }
      using Ids = std::vector<TokenId>;
      EXPECT_EQ((*tokenizer)->Encode("  ", plain), split ? (Ids{372, 372}) : (Ids{378}));
      EXPECT_EQ((*tokenizer)->Encode(" Hello", plain), (Ids{372, 301, 329, 525}));
    }
  }
  document_["pre_tokenizer"]["prepend_scheme"] = "last";
  ExpectRefused("pre_tokenizer.prepend_scheme", "last");
}

// No mutation of a valid file may crash the reader.
TEST_F(ChangedTokenizer, MutationsNeverCrash) {
  std::mt19937 random(9);
  const std::string valid = document_.dump();
  for (int i = 0; i < 150; ++i) {
    std::string text = valid;
    for (int n = 0; n < 3; ++n) {
      // The head and the tail hold the structure; the vocabulary lies between.
      const size_t at = random() % 2 == 0 ? random() % 2500 : random() % text.size();
      if (random() % 4 == 0) {
        text.erase(at, random() % 40);
      } else {
        text[at] = "0\"[]{},:null-x"[random() % 14];
      }
    }
    std::ofstream(path_) << text;
    const auto tokenizer = Tokenizer::Load(path_);
    if (tokenizer.ok()) (*tokenizer)->Encode("Hello <s> world", {});
  }
}

}  // namespace
}  // namespace lynx
