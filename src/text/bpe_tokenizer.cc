// SPDX-License-Identifier: Apache-2.0
#include "text/bpe_tokenizer.h"

#include <algorithm>

#include "text/detokenizer.h"

namespace lynx {
namespace {

// The part of `ranges` that lies in [begin, end), counted from `begin`.
std::vector<ByteRange> Within(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const ByteRange& r) { return r.end <= begin; });
  std::vector<ByteRange> result;
  for (auto range = first; range != ranges.end() && range->begin < end; ++range) {
    result.push_back({std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  }
  return result;
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts) : parts_(std::move(parts)) {
  for (AddedToken token : parts_.added_tokens) {
    if (token.special) special_matcher_.Add(token);
    if (token.normalized) {
      token.content = parts_.normalizer.Apply(token.content);
      normalized_matcher_.Add(token);
    } else {
      raw_matcher_.Add(token);
    }
  }
  parts_.vocabulary.Spell(parts_.decode);
}

std::vector<TokenId> BpeTokenizer::Encode(std::string_view text,
                                          const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  std::string valid;
  EncodeOptions valid_options = options;
  if (!IsValidUtf8(text)) {
    valid = ToValidUtf8(text);
    text = valid;
    // Offsets into the invalid text mean nothing here.
    if (!options.protected_ranges.empty()) valid_options.parse_special_tokens = false;
    valid_options.protected_ranges = {};
  }
  if (options.add_special_tokens) ids = parts_.prefix_ids;
  for (const TextSegment& segment : raw_matcher_.Split(text, valid_options)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    EncodeOptions stretch_options = valid_options;
    const auto ranges = Within(valid_options.protected_ranges, segment.begin, segment.end);
    stretch_options.protected_ranges = ranges;
    EncodeStretch(text.substr(segment.begin, segment.end - segment.begin), segment.begin == 0,
                  stretch_options, &ids);
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), parts_.suffix_ids.begin(), parts_.suffix_ids.end());
  }
  return ids;
}

void BpeTokenizer::EncodeStretch(std::string_view text, bool is_first, const EncodeOptions& options,
                                 std::vector<TokenId>* ids) const {
  std::string normalized;
  if (!parts_.normalizer.empty()) {
    normalized = parts_.normalizer.Apply(text);
    text = normalized;
  }
  if (normalized_matcher_.empty()) {
    EncodeNormalized(text, is_first, ids);
    return;
  }
  // Normalizing may move the protected characters, so a stretch that has one is protected whole.
  EncodeOptions whole = options;
  if (!options.protected_ranges.empty()) whole.parse_special_tokens = false;
  whole.protected_ranges = {};
  for (const TextSegment& segment : normalized_matcher_.Split(text, whole)) {
    if (segment.id >= 0) {
      ids->push_back(segment.id);
    } else {
      EncodeNormalized(text.substr(segment.begin, segment.end - segment.begin),
                       is_first && segment.begin == 0, ids);
    }
  }
}

void BpeTokenizer::EncodeNormalized(std::string_view text, bool is_first,
                                    std::vector<TokenId>* ids) const {
  std::string spelled;
  if (!parts_.spelling.empty()) {
    spelled = parts_.spelling.Apply(text);
    text = spelled;
  }
  std::string prefixed;
  const bool takes_prefix = is_first || !parts_.prefixes_begin_only;
  if (takes_prefix && !text.empty() && !text.starts_with(parts_.prefix)) {
    prefixed.append(parts_.prefix).append(text);
    text = prefixed;
  }
  for (std::string_view piece : parts_.pre_tokenizer.Split(text)) parts_.bpe.Encode(piece, ids);
}

std::string BpeTokenizer::Decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  VocabularyDetokenizer detokenizer(parts_.vocabulary, parts_.decode, skip_special_tokens,
                                    /*continues_text=*/false);
  std::string text;
  for (TokenId id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

std::string_view BpeTokenizer::TokenBytes(TokenId id) const {
  return parts_.vocabulary.Has(id) ? std::string_view(parts_.vocabulary[id].bytes) : "";
}

std::string_view BpeTokenizer::TokenText(TokenId id) const {
  return parts_.vocabulary.Has(id) ? std::string_view(parts_.vocabulary[id].text) : "";
}

bool BpeTokenizer::IsSpecial(TokenId id) const {
  return parts_.vocabulary.Has(id) && parts_.vocabulary[id].special;
}

std::vector<ByteRange> BpeTokenizer::SpecialTextCharacters(std::string_view text) const {
  return special_matcher_.SpecialTextCharacters(text);
}

std::unique_ptr<Detokenizer> BpeTokenizer::NewDetokenizer(bool skip_special_tokens,
                                                          bool continues_text) const {
  return std::make_unique<VocabularyDetokenizer>(parts_.vocabulary, parts_.decode,
                                                 skip_special_tokens, continues_text);
}

}  // namespace lynx
