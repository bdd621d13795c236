// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lynx/types.h"
#include "text/string_map.h"

namespace lynx {

// Merges the neighbouring pair of lowest rank, the leftmost of equals, until none is left; the
// result does not depend on the piece's length, the time is O(n log n). Immutable; any thread.
class Bpe {
 public:
  struct Merge {
    TokenId left = -1;
    TokenId right = -1;
    TokenId result = -1;
    int rank = 0;
  };
  struct Options {
    // One symbol per byte (byte-level vocabularies) instead of one per character.
    bool byte_level = false;
    // A character without a token becomes unk_id (-1: it is dropped); neighbours may share one.
    TokenId unk_id = -1;
    bool fuse_unk = false;
  };

  explicit Bpe(const Options& options);

  // The token of a single symbol: a byte, or a character's code point.
  void SetSymbol(char32_t symbol, TokenId id);
  // Characters without a token become these, one per byte, where all of their bytes have one (not
  // -1).
  void SetByteFallback(const std::array<TokenId, 256>& ids);
  // A later merge of the same pair replaces the earlier one.
  void AddMerge(const Merge& merge);
  // A piece that is exactly `bytes` is this token, whatever the merges say.
  void AddWholePiece(std::string bytes, TokenId id);

  void Encode(std::string_view piece, std::vector<TokenId>* ids) const;

 private:
  struct Target {
    int rank = 0;
    TokenId result = -1;
  };

  void AppendSymbols(std::string_view piece, std::vector<TokenId>* symbols) const;
  bool HasFallback(std::string_view character) const;
  TokenId SymbolOf(char32_t symbol) const;
  const Target* FindMerge(TokenId left, TokenId right) const;
  void MergeShort(std::vector<TokenId>* ids, size_t first) const;
  void MergeLong(std::vector<TokenId>* ids, size_t first) const;

  Options options_;
  std::array<TokenId, 512> low_symbols_;
  absl::flat_hash_map<char32_t, TokenId> symbols_;
  std::array<TokenId, 256> byte_fallback_;
  bool has_byte_fallback_ = false;
  absl::flat_hash_map<uint64_t, Target> merges_;
  StringMap<TokenId> whole_pieces_;
};

}  // namespace lynx
