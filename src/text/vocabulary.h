// SPDX-License-Identifier: Apache-2.0
// The tokens by id: how they are spelled and which bytes they stand for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/types.h"
#include "text/string_map.h"

namespace lynx {

struct VocabularyEntry {
  std::string text;
  std::string bytes;
  bool present = false;  // ids may have holes
  bool special = false;
  bool is_byte = false;  // a byte token "<0x0A>" of a vocabulary with byte fallback
};

// How tokens turn back into text.
struct DecodeRules {
  bool byte_level = false;     // tokens are spelled in GPT-2's byte alphabet
  bool byte_fallback = false;  // "<0x0A>" stands for a byte
  std::string space_spelling;  // this in a token stands for `space`; empty: nothing does
  std::string space;
  std::string strip;  // one character …
  int num_strip = 0;  // … taken off the front of a text, at most so many times
};

class Vocabulary {
 public:
  explicit Vocabulary(int size) : entries_(size) {}

  int size() const { return static_cast<int>(entries_.size()); }
  bool Has(TokenId id) const { return id >= 0 && id < size() && entries_[id].present; }
  const VocabularyEntry& operator[](TokenId id) const { return entries_[id]; }
  std::optional<TokenId> Find(std::string_view text) const;

  // False when the id is out of range or taken, or the text is there already.
  bool Add(TokenId id, std::string text);
  void MarkSpecial(TokenId id) { entries_[id].special = true; }
  // Fills in `bytes`; call it once, after the last token.
  void Spell(const DecodeRules& rules);

 private:
  std::vector<VocabularyEntry> entries_;
  StringMap<TokenId> ids_;
};

// The byte of a token spelled "<0x0A>".
std::optional<uint8_t> ByteTokenValue(std::string_view text);

}  // namespace lynx
