// SPDX-License-Identifier: Apache-2.0
// The tokenizer itself: what the readers of tokenizer.json and of GGUF metadata assemble.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace lynx {

struct BpeTokenizerParts {
  Vocabulary vocabulary{0};
  DecodeRules decode;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Normalizer spelling;               // of a text between added tokens, before it is split
  std::string prefix;                // put before a text that does not begin with it …
  bool prefixes_begin_only = false;  // … or only where nothing comes before the text
  Bpe bpe{Bpe::Options{}};
  std::vector<TokenId> prefix_ids;  // what add_special_tokens puts before and after a text
  std::vector<TokenId> suffix_ids;
  TokenId bos_id = -1;
  TokenId eos_id = -1;
};

// The steps: added tokens in the raw text → normalizer → added tokens in the normalized text →
// pre-tokenizer → BPE.
class BpeTokenizer final : public Tokenizer {
 public:
  // The special tokens are marked in the vocabulary already; this spells it.
  explicit BpeTokenizer(BpeTokenizerParts parts);

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::string_view TokenBytes(TokenId id) const override;
  std::string_view TokenText(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;
  int vocab_size() const override { return parts_.vocabulary.size(); }
  TokenId bos_id() const override { return parts_.bos_id; }
  TokenId eos_id() const override { return parts_.eos_id; }
  std::string bos_token() const override { return std::string(TokenText(parts_.bos_id)); }
  std::string eos_token() const override { return std::string(TokenText(parts_.eos_id)); }
  std::vector<ByteRange> SpecialTextCharacters(std::string_view text) const override;
  std::unique_ptr<Detokenizer> NewDetokenizer(bool skip_special_tokens,
                                              bool continues_text) const override;

 private:
  void EncodeStretch(std::string_view text, bool is_first, const EncodeOptions& options,
                     std::vector<TokenId>* ids) const;
  // A text between added tokens; is_first: nothing comes before it.
  void EncodeNormalized(std::string_view text, bool is_first, std::vector<TokenId>* ids) const;

  BpeTokenizerParts parts_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  AddedTokenMatcher special_matcher_;  // the special tokens as they are written
};

}  // namespace lynx
