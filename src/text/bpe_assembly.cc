// SPDX-License-Identifier: Apache-2.0
#include "text/bpe_assembly.h"

#include <optional>

#include "formats/file_error.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace lynx {
namespace {

// The symbol that a token consists of, if it is a single one.
std::optional<char32_t> SingleSymbol(std::string_view text, bool byte_level) {
  if (text.empty()) return std::nullopt;
  if (byte_level) {
    const auto bytes = FromByteLevel(text);
    if (!bytes || bytes->size() != 1) return std::nullopt;
    return static_cast<uint8_t>((*bytes)[0]);
  }
  int length = 0;
  const char32_t c = DecodeUtf8(text, &length);
  if (static_cast<size_t>(length) != text.size()) return std::nullopt;
  return c;
}

void AddByteFallback(const Vocabulary& vocabulary, Bpe* bpe) {
  std::array<TokenId, 256> ids;
  ids.fill(-1);
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (const auto byte = ByteTokenValue(vocabulary[id].text)) ids[*byte] = id;
  }
  bpe->SetByteFallback(ids);
}

}  // namespace

void AddSymbols(const Vocabulary& vocabulary, const BpeSymbolOptions& options, Bpe* bpe) {
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.Has(id) || vocabulary[id].special) continue;
    const std::string& text = vocabulary[id].text;
    if (const auto symbol = SingleSymbol(text, options.byte_level)) bpe->SetSymbol(*symbol, id);
    if (!options.whole_pieces) continue;
    if (!options.byte_level) {
      bpe->AddWholePiece(text, id);
    } else if (auto bytes = FromByteLevel(text)) {
      bpe->AddWholePiece(*std::move(bytes), id);
    }
  }
  if (options.byte_fallback) AddByteFallback(vocabulary, bpe);
}

absl::Status AddMerge(const Vocabulary& vocabulary, std::string_view left, std::string_view right,
                      int rank, Bpe* bpe) {
  const std::string joined = std::string(left) + std::string(right);
  const auto left_id = vocabulary.Find(left);
  const auto right_id = vocabulary.Find(right);
  const auto result_id = vocabulary.Find(joined);
  if (!left_id || !right_id || !result_id) {
    const std::string_view unknown = !left_id ? left : !right_id ? right : joined;
    return absl::InvalidArgumentError(absl::StrCat("the merge of \"", Printable(left), "\" and \"",
                                                   Printable(right), "\": \"", Printable(unknown),
                                                   "\" is not in the vocabulary"));
  }
  if (!vocabulary[*result_id].special) bpe->AddMerge({*left_id, *right_id, *result_id, rank});
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string_view, std::string_view>> SplitMerge(std::string_view merge) {
  const size_t space = merge.find(' ');
  if (space == merge.npos || space == 0 || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != merge.npos) {
    return absl::InvalidArgumentError("want a merge of two tokens with one space between");
  }
  return std::pair(merge.substr(0, space), merge.substr(space + 1));
}

}  // namespace lynx
