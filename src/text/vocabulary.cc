// SPDX-License-Identifier: Apache-2.0
#include "text/vocabulary.h"

#include <charconv>

#include "text/byte_level.h"

namespace lynx {

namespace {

std::string WithSpaces(std::string_view text, const DecodeRules& rules) {
  std::string out;
  for (size_t at; (at = text.find(rules.space_spelling)) != text.npos;) {
    out.append(text.substr(0, at)).append(rules.space);
    text.remove_prefix(at + rules.space_spelling.size());
  }
  return out.append(text);
}

}  // namespace

std::optional<uint8_t> ByteTokenValue(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  uint8_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  if (error != std::errc() || end != text.data() + 5) return std::nullopt;
  return value;
}

std::optional<TokenId> Vocabulary::Find(std::string_view text) const {
  const auto found = ids_.find(text);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

bool Vocabulary::Add(TokenId id, std::string text) {
  if (id < 0 || id >= size() || entries_[id].present) return false;
  if (!ids_.emplace(text, id).second) return false;
  entries_[id].text = std::move(text);
  entries_[id].present = true;
  return true;
}

void Vocabulary::Spell(const DecodeRules& rules) {
  for (VocabularyEntry& entry : entries_) {
    entry.bytes = entry.text;
    if (rules.byte_level) {
      if (auto bytes = FromByteLevel(entry.text)) entry.bytes = *std::move(bytes);
      continue;
    }
    if (rules.byte_fallback) {
      if (const auto byte = ByteTokenValue(entry.text)) {
        entry.bytes.assign(1, static_cast<char>(*byte));
        entry.is_byte = true;
        continue;
      }
    }
    if (!rules.space_spelling.empty()) {
      entry.bytes = WithSpaces(entry.text, rules);
    }
  }
}

}  // namespace lynx
