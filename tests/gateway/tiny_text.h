// SPDX-License-Identifier: Apache-2.0
// A small real tokenizer for gateway tests: byte-level BPE with 512 ids and a BOS.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "text/tokenizer.h"

namespace lynx {

inline const Tokenizer& TinyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::Load(LYNX_SOURCE_DIR "/tests/data/gateway/tokenizer.json");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }();
  return *tokenizer;
}

inline std::vector<TokenId> Ids(std::string_view text) {
  return TinyTokenizer().Encode(text, {.add_special_tokens = false});
}

// The id of one byte.
inline TokenId ByteId(char byte) {
  for (TokenId id = 0; id < TinyTokenizer().vocab_size(); ++id) {
    if (TinyTokenizer().TokenBytes(id) == std::string_view(&byte, 1)) return id;
  }
  ADD_FAILURE() << "no token for byte " << static_cast<int>(byte);
  return 0;
}

inline std::vector<TokenId> ByteIds(std::string_view bytes) {
  std::vector<TokenId> ids;
  for (char byte : bytes) ids.push_back(ByteId(byte));
  return ids;
}

}  // namespace lynx
