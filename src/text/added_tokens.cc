// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <unictype.h>

#include <algorithm>

#include "text/utf8.h"

namespace lynx {
namespace {

bool IsWhiteSpace(char32_t c) { return uc_is_property_white_space(c); }

// \w as regular expressions over Unicode mean it (UTS 18, annex C).
bool IsWordCharacter(char32_t c) {
  return uc_is_property_alphabetic(c) || uc_is_property_join_control(c) ||
         uc_is_general_category_withtable(
             c, UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd | UC_CATEGORY_MASK_Pc);
}

// Where the character that ends at `end` begins.
size_t CharacterBefore(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool EndsWithWord(std::string_view text) {
  int length = 0;
  return !text.empty() &&
         IsWordCharacter(DecodeUtf8(text.substr(CharacterBefore(text, text.size())), &length));
}

bool StartsWithWord(std::string_view text) {
  int length = 0;
  return !text.empty() && IsWordCharacter(DecodeUtf8(text, &length));
}

size_t StripTrailingSpace(std::string_view text, size_t end) {
  int length = 0;
  while (end > 0) {
    const size_t before = CharacterBefore(text, end);
    if (!IsWhiteSpace(DecodeUtf8(text.substr(before), &length))) break;
    end = before;
  }
  return end;
}

size_t SkipLeadingSpace(std::string_view text, size_t begin) {
  int length = 0;
  while (begin < text.size() && IsWhiteSpace(DecodeUtf8(text.substr(begin), &length))) {
    begin += length;
  }
  return begin;
}

bool Touches(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const ByteRange& r) { return r.end <= begin; });
  return first != ranges.end() && first->begin < end;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token) {
  if (token.content.empty()) return;
  int node = 0;
  for (unsigned char byte : token.content) {
    nodes_[node].leads_to_special |= token.special;
    const auto [next, fresh] = nodes_[node].next.try_emplace(byte, static_cast<int>(nodes_.size()));
    node = next->second;
    if (fresh) nodes_.emplace_back();
  }
  nodes_[node].token = static_cast<int>(tokens_.size());
  for (size_t begin = 1; token.special && begin < token.content.size(); ++begin) {
    special_endings_[static_cast<uint8_t>(token.content[begin])].push_back(
        {.token = nodes_[node].token, .begin = begin});
  }
  tokens_.push_back(token);
  first_bytes_.set(static_cast<uint8_t>(token.content[0]));
}

template <typename Accept>
size_t AddedTokenMatcher::LongestAt(std::string_view text, size_t at, Accept accept,
                                    int* token) const {
  size_t longest = 0;
  int node = 0;
  for (size_t end = at; end < text.size();) {
    const auto next = nodes_[node].next.find(static_cast<uint8_t>(text[end]));
    if (next == nodes_[node].next.end()) break;
    node = next->second;
    ++end;
    if (nodes_[node].token >= 0 && accept(tokens_[nodes_[node].token], end)) {
      longest = end - at;
      *token = nodes_[node].token;
    }
  }
  return longest;
}

std::vector<TextSegment> AddedTokenMatcher::Split(std::string_view text,
                                                  const EncodeOptions& options) const {
  std::vector<TextSegment> segments;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!first_bytes_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const auto accept = [&](const AddedToken& token, size_t end) {
      return !token.special ||
             (options.parse_special_tokens && !Touches(options.protected_ranges, at, end));
    };
    int index = -1;
    const size_t length = LongestAt(text, at, accept, &index);
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at;
    size_t end = at + length;
    at = end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = std::max(done, StripTrailingSpace(text, begin));
    if (token.rstrip) end = SkipLeadingSpace(text, end);
    if (begin > done) segments.push_back({-1, done, begin});
    segments.push_back({token.id, begin, end});
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) segments.push_back({-1, done, text.size()});
  return segments;
}

bool AddedTokenMatcher::StartsSpecial(std::string_view text, size_t at, bool at_end) const {
  int node = 0;
  for (; at < text.size(); ++at) {
    const auto next = nodes_[node].next.find(static_cast<uint8_t>(text[at]));
    if (next == nodes_[node].next.end()) return false;
    node = next->second;
    if (nodes_[node].token >= 0 && tokens_[nodes_[node].token].special) return true;
  }
  return at_end && nodes_[node].leads_to_special;
}

bool AddedTokenMatcher::StartsWithSpecialEnding(std::string_view text) const {
  if (text.empty()) return false;
  const std::vector<Ending>& endings = special_endings_[static_cast<uint8_t>(text[0])];
  return std::any_of(endings.begin(), endings.end(), [&](const Ending& ending) {
    return text.starts_with(std::string_view(tokens_[ending.token].content).substr(ending.begin));
  });
}

std::vector<ByteRange> AddedTokenMatcher::SpecialTextCharacters(std::string_view text) const {
  std::vector<ByteRange> ranges;
  const size_t first = SkipLeadingSpace(text, 0);
  const size_t last = StripTrailingSpace(text, text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = NextUtf8(text.substr(at)).length;
    const bool starts = first_bytes_[static_cast<uint8_t>(text[at])] &&
                        (StartsSpecial(text, at, /*at_end=*/true) ||
                         (at < last && StartsSpecial(text.substr(0, last), at, /*at_end=*/true)));
    if (starts || (at == first && StartsWithSpecialEnding(text.substr(at)))) {
      ranges.push_back({at, at + length});
    }
    at += length;
  }
  return ranges;
}

}  // namespace lynx
