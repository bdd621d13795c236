// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in a text that arrives in pieces, the same way however it is cut: the match
// that ends first wins, and of two that end together the longer one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lynx {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  struct Match {
    bool found = false;
    size_t end = 0;    // bytes of the piece up to and including the stop string
    size_t index = 0;  // which stop string
  };
  // Looks at the next piece. After a match the matcher must not be used any more.
  Match Push(std::string_view piece);
  // A piece in which no stop string counts (min_tokens).
  void Skip();

  // Length of the longest end of the text that is a proper beginning of some stop string: the only
  // part that must not be shown yet.
  size_t num_held_bytes() const;
  const std::string& stop(size_t index) const { return patterns_[index].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // Knuth-Morris-Pratt: of every beginning, its longest border
    size_t matched = 0;          // bytes of `text` that the end of the input equals
  };
  std::vector<Pattern> patterns_;
};

}  // namespace lynx
