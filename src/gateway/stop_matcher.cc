// SPDX-License-Identifier: Apache-2.0
#include "gateway/stop_matcher.h"

#include <algorithm>

namespace lynx {
namespace {

// The longest beginning of `text` that input ending in `c` equals, when `matched` bytes did before.
size_t Advance(const std::string& text, const std::vector<size_t>& border, size_t matched, char c) {
  while (matched > 0 && text[matched] != c) matched = border[matched - 1];
  return text[matched] == c ? matched + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    std::vector<size_t> border(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      border[i] = Advance(text, border, border[i - 1], text[i]);
    }
    patterns_.push_back({.text = std::move(text), .border = std::move(border)});
  }
}

StopMatcher::Match StopMatcher::Push(std::string_view piece) {
  Match match;
  for (size_t i = 0; i < piece.size() && !match.found; ++i) {
    for (size_t p = 0; p < patterns_.size(); ++p) {
      Pattern& pattern = patterns_[p];
      pattern.matched = Advance(pattern.text, pattern.border, pattern.matched, piece[i]);
      if (pattern.matched < pattern.text.size()) continue;
      if (match.found && patterns_[match.index].text.size() >= pattern.text.size()) continue;
      match = {.found = true, .end = i + 1, .index = p};
    }
  }
  return match;
}

void StopMatcher::Skip() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
}

size_t StopMatcher::num_held_bytes() const {
  size_t held = 0;
  for (const Pattern& pattern : patterns_) held = std::max(held, pattern.matched);
  return held;
}

}  // namespace lynx
