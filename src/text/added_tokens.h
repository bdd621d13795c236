// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in a text before BPE sees it: special tokens and user-defined words.
#pragma once

#include <array>
#include <bitset>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lynx/types.h"
#include "text/tokenizer.h"

namespace lynx {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // … and after it
  bool normalized = false;   // looked for in the normalized text
};

// A stretch of text, or a token found there (id >= 0).
struct TextSegment {
  TokenId id = -1;
  size_t begin = 0;
  size_t end = 0;
};

// Finds added tokens, leftmost first and longest there. Immutable; any thread.
class AddedTokenMatcher {
 public:
  // An empty content is ignored.
  void Add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // The whole of `text`, cut at the tokens; no stretch is empty.
  std::vector<TextSegment> Split(std::string_view text, const EncodeOptions& options) const;

  // See Tokenizer::SpecialTextCharacters.
  std::vector<ByteRange> SpecialTextCharacters(std::string_view text) const;

 private:
  struct Node {
    absl::flat_hash_map<uint8_t, int> next;
    int token = -1;                 // index into tokens_ of the one that ends here
    bool leads_to_special = false;  // some special token's text goes on from here
  };

  // Length of the longest token at `at` that `accept` takes, its index in *token; 0 if none.
  template <typename Accept>
  size_t LongestAt(std::string_view text, size_t at, Accept accept, int* token) const;
  bool StartsSpecial(std::string_view text, size_t at, bool at_end) const;
  bool StartsWithSpecialEnding(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::bitset<256> first_bytes_;
  // The proper endings of special tokens' texts, by their first byte.
  struct Ending {
    int token = 0;
    size_t begin = 0;
  };
  std::array<std::vector<Ending>, 256> special_endings_;
};

}  // namespace lynx
