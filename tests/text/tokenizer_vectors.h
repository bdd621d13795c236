// SPDX-License-Identifier: Apache-2.0
// Checks a tokenizer against a folder of vectors in the reference's form: cases.jsonl,
// stream.jsonl and, for byte-level ones, token_bytes_hex.json.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "text/tokenizer.h"

namespace lynx {

using nlohmann::json;

inline std::vector<json> ReadLines(const std::string& path) {
  std::vector<json> rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) rows.push_back(json::parse(line));
  return rows;
}

inline std::vector<TokenId> Ids(const json& ids) { return ids.get<std::vector<TokenId>>(); }

inline std::unique_ptr<Tokenizer> LoadOrDie(const std::string& path) {
  auto tokenizer = Tokenizer::Load(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline void CheckCase(const Tokenizer& tokenizer, const json& row) {
  const auto text = row["text"].get<std::string>();
  SCOPED_TRACE(row["category"].get<std::string>() + ": " + row["text"].dump());
  const std::vector<TokenId> ids = Ids(row["ids"]);
  EXPECT_EQ(tokenizer.Encode(text, {.add_special_tokens = false}), ids);
  EXPECT_EQ(tokenizer.Encode(text, {}),
            row.contains("ids_with_bos") ? Ids(row["ids_with_bos"]) : ids);
  EXPECT_EQ(tokenizer.Decode(ids, false), row["decoded"].get<std::string>());
  if (row.contains("ids_no_parse_special")) {
    EXPECT_EQ(tokenizer.Encode(text, {.add_special_tokens = false, .parse_special_tokens = false}),
              Ids(row["ids_no_parse_special"]));
    EXPECT_EQ(tokenizer.Decode(ids, true), row["decoded_skip_special"].get<std::string>());
  }
}

inline void CheckStream(const Tokenizer& tokenizer, const json& row) {
  SCOPED_TRACE(row.dump());
  const bool skip_special = row["skip_special"].get<bool>();
  const std::vector<TokenId> ids = Ids(row["ids"]);
  const auto expected = row["full_decode"].get<std::string>();
  EXPECT_EQ(tokenizer.Decode(ids, skip_special), expected);
  const auto detokenizer = Detokenizer::Create(tokenizer, skip_special);
  std::string joined;
  for (TokenId id : ids) joined += detokenizer->Push(id);
  EXPECT_EQ(joined + detokenizer->Flush(), expected);
}

inline void CheckBytes(const Tokenizer& tokenizer, const std::string& path) {
  std::ifstream in(path);
  const json all = json::parse(in);
  ASSERT_EQ(tokenizer.vocab_size(), static_cast<int>(all.size()));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string hex;
    for (unsigned char byte : tokenizer.TokenBytes(id)) {
      constexpr char kDigits[] = "0123456789abcdef";
      hex += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
    ASSERT_EQ(hex, all[id].get<std::string>()) << "token " << id;
  }
}

inline void CheckVectors(const Tokenizer& tokenizer, const std::string& folder) {
  for (const json& row : ReadLines(folder + "/cases.jsonl")) CheckCase(tokenizer, row);
  for (const json& row : ReadLines(folder + "/stream.jsonl")) CheckStream(tokenizer, row);
  const std::string bytes = folder + "/token_bytes_hex.json";
  if (std::filesystem::exists(bytes)) CheckBytes(tokenizer, bytes);
}

}  // namespace lynx
