// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

namespace lynx {

VocabularyDetokenizer::VocabularyDetokenizer(const Vocabulary& vocabulary, const DecodeRules& rules,
                                             bool skip_special_tokens, bool continues_text)
    : vocabulary_(vocabulary),
      rules_(rules),
      skip_special_tokens_(skip_special_tokens),
      num_strip_(continues_text ? 0 : rules.num_strip) {}

std::string VocabularyDetokenizer::Push(TokenId id) {
  std::string out;
  if (!vocabulary_.Has(id)) return out;
  const VocabularyEntry& entry = vocabulary_[id];
  if (skip_special_tokens_ && entry.special) return out;
  if (rules_.byte_level) {
    gate_.Push(entry.bytes, &out);
  } else if (entry.is_byte) {
    byte_run_ += entry.bytes;
  } else {
    EndByteRun(&out);
    out += entry.bytes;
  }
  StripFront(&out);
  return out;
}

std::string VocabularyDetokenizer::Flush() {
  std::string out;
  gate_.Flush(&out);
  EndByteRun(&out);
  StripFront(&out);
  return out;
}

void VocabularyDetokenizer::EndByteRun(std::string* out) {
  if (IsValidUtf8(byte_run_)) {
    out->append(byte_run_);
  } else {
    for (size_t i = 0; i < byte_run_.size(); ++i) out->append(kReplacementCharacter);
  }
  byte_run_.clear();
}

void VocabularyDetokenizer::StripFront(std::string* out) {
  while (num_strip_ > 0 && !out->empty()) {
    if (!out->starts_with(rules_.strip)) {
      num_strip_ = 0;
      return;
    }
    out->erase(0, rules_.strip.size());
    --num_strip_;
  }
}

}  // namespace lynx
