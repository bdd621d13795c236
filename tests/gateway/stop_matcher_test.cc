// SPDX-License-Identifier: Apache-2.0
#include "gateway/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"

namespace lynx {
namespace {

struct Outcome {
  std::string shown;
  bool found = false;
  size_t index = 0;
  bool operator==(const Outcome&) const = default;
};

// The meaning, in the simplest words: the match that ends first, of those the longest.
Outcome Reference(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    Outcome best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (best.found && stops[best.index].size() >= stops[i].size()) continue;
      best = {.shown = text.substr(0, end - stops[i].size()), .found = true, .index = i};
    }
    if (best.found) return best;
  }
  return {.shown = text};
}

size_t LongestHeldEnd(const std::string& text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) held = std::max(held, n);
    }
  }
  return held;
}

// Feeds the pieces; checks at each that exactly what may be a beginning is held.
Outcome Stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopMatcher matcher(stops);
  std::string text;
  for (const std::string& piece : pieces) {
    const StopMatcher::Match match = matcher.Push(piece);
    if (match.found) {
      text += piece.substr(0, match.end);
      text.resize(text.size() - stops[match.index].size());
      return {.shown = text, .found = true, .index = match.index};
    }
    text += piece;
    EXPECT_EQ(matcher.num_held_bytes(), LongestHeldEnd(text, stops)) << text;
  }
  return {.shown = text};
}

TEST(StopMatcher, AnyChunkingGivesTheSameText) {
  std::mt19937 random(7);
  auto letters = [&](size_t min, size_t max) {
    std::string text(min + random() % (max - min + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + random() % 4);
    for (std::string& stop : stops) stop = letters(1, 6);
    const std::string text = letters(0, 30);
    const Outcome expected = Reference(text, stops);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 5;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(Stream(pieces, stops), expected) << text;
    EXPECT_EQ(Stream({text}, stops), expected) << text;
  }
}

TEST(StopMatcher, HoldsOnlyAProperBeginning) {
  StopMatcher matcher({"\n\nUser:", "END"});
  EXPECT_FALSE(matcher.Push("hello").found);
  EXPECT_EQ(matcher.num_held_bytes(), 0u);
  matcher.Push(" E");
  EXPECT_EQ(matcher.num_held_bytes(), 1u);
  matcher.Push("N");
  EXPECT_EQ(matcher.num_held_bytes(), 2u);
  matcher.Push("E");
  EXPECT_EQ(matcher.num_held_bytes(), 1u);
  const auto match = matcher.Push("NDless");
  EXPECT_TRUE(match.found);
  EXPECT_EQ(match.end, 2u);
  EXPECT_EQ(matcher.stop(match.index), "END");
}

TEST(StopMatcher, SkippedTextDoesNotCount) {
  StopMatcher matcher({"abc"});
  matcher.Push("ab");
  matcher.Skip();
  EXPECT_FALSE(matcher.Push("c").found);
  EXPECT_TRUE(matcher.Push("abc").found);
}

TEST(StopMatcher, WithoutStopsNothingIsHeld) {
  StopMatcher matcher({});
  EXPECT_FALSE(matcher.Push("anything").found);
  EXPECT_EQ(matcher.num_held_bytes(), 0u);
}

}  // namespace
}  // namespace lynx
