// SPDX-License-Identifier: Apache-2.0
// The detokenizer of a vocabulary.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace lynx {

// Byte-level vocabularies: all bytes run through one UTF-8 gate. Others: a run of byte tokens is
// held to its end, because the reference shows it as its characters when all of it is valid UTF-8
// and as one U+FFFD per byte when not.
class VocabularyDetokenizer final : public Detokenizer {
 public:
  // vocabulary and rules outlive this.
  VocabularyDetokenizer(const Vocabulary& vocabulary, const DecodeRules& rules,
                        bool skip_special_tokens, bool continues_text);
  std::string Push(TokenId id) override;
  std::string Flush() override;

 private:
  void EndByteRun(std::string* out);
  void StripFront(std::string* out);

  const Vocabulary& vocabulary_;
  const DecodeRules& rules_;
  const bool skip_special_tokens_;
  Utf8Gate gate_;
  std::string byte_run_;
  int num_strip_;
};

}  // namespace lynx
