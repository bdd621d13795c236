// SPDX-License-Identifier: Apache-2.0
// Cuts a text into the pieces that BPE never merges across.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace lynx {

// The split that GPT-2 made and that ByteLevel means by `use_regex`.
inline constexpr char kGpt2Split[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr char kLlama3Split[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr char kQwen2Split[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline constexpr char kTekkenSplit[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What becomes of the parts that match; Hugging Face's SplitDelimiterBehavior.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Immutable; any thread. Texts are valid UTF-8.
class PreTokenizer {
 public:
  struct AnyDigit {};  // one character of category N
  struct Step {
    std::variant<Regex, std::string, AnyDigit> pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;  // the parts between the matches count as the matches
  };

  void Add(Step step);
  // Views into `text`, in order, none empty.
  std::vector<std::string_view> Split(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lynx
